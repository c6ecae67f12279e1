package model_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// measured holds the configuration that transformers reads from a golden variant's config.json with a key changed
// (modeltest/golden_defaults.py).
type measured struct {
	Refused []string
	Changed map[string]struct {
		As      map[string]any // the keys that its configuration then has otherwise
		Unknown bool           // no other value means what null means there
	}
}

// decoderOf is a decoder with all that a config.json says of it. A window and a limit of scores that nothing reaches are
// none.
func decoderOf(doc []byte) (map[string]any, error) {
	c, err := hf.ParseConfig("config.json", doc)
	if err != nil {
		return nil, err
	}
	m, err := model.New(c)
	if err != nil {
		return nil, err
	}
	const far = 1e6
	var blocks []nn.Block
	for _, b := range m.Blocks {
		b := *b
		if a, ok := b.Mixer.(nn.Attention); ok {
			if a.Window >= far {
				a.Window = 0
			}
			if a.SoftCap >= far {
				a.SoftCap = 0
			}
			b.Mixer = a
		}
		blocks = append(blocks, b)
	}
	head := m.Head
	if head.SoftCap >= far {
		head.SoftCap = 0
	}
	return map[string]any{"blocks": blocks, "head": head, "tied": m.Tied, "vocabulary": m.Vocab, "hidden": m.Hidden,
		"positions": m.MaxPositions, "embedding": [2]float32{m.EmbedScale(tensor.F32), m.EmbedScale(tensor.BF16)},
		"lookups": len(m.Lookups), "sides": m.Sides}, nil
}

// changed is a config.json whose key is changed as a measurement's name says: "rope_parameters.factor: null".
func changed(t *testing.T, doc []byte, name string, as map[string]any) []byte {
	t.Helper()
	var keys map[string]any
	check(t, json.Unmarshal(doc, &keys))
	decoder := keys
	if text, ok := keys["text_config"].(map[string]any); ok {
		decoder = text
	}
	rope, _ := decoder["rope_parameters"].(map[string]any)
	flat := maps.Clone(rope)
	delete(flat, "rope_theta")
	delete(flat, "partial_rotary_factor")
	switch path, how, _ := strings.Cut(name, ": "); name {
	case "": // the keys in full
		if as["rope_parameters"] != nil {
			delete(decoder, "rope_theta")
			delete(decoder, "rope_scaling")
		}
		maps.Copy(decoder, as)
	case "rope_parameters: {}":
		decoder["rope_parameters"] = map[string]any{}
	case "rope_parameters: absent, rope_theta: 12345":
		delete(decoder, "rope_parameters")
		decoder["rope_theta"] = 12345
	case "rope_parameters: absent, rope_scaling: null":
		delete(decoder, "rope_parameters")
		decoder["rope_scaling"] = nil
	case "rope_parameters as rope_scaling", "rope_parameters as rope_scaling, rope_theta: 12345":
		delete(decoder, "rope_parameters")
		decoder["rope_scaling"] = flat
		if strings.HasSuffix(name, "12345") {
			decoder["rope_theta"] = 12345
		}
	default:
		at, parts := decoder, strings.Split(path, ".")
		for _, part := range parts[:len(parts)-1] {
			at = at[part].(map[string]any)
		}
		last := parts[len(parts)-1]
		if _, there := at[last]; !there {
			t.Fatalf("%s: the file has no such key", name)
		}
		if how == "absent" {
			delete(at, last)
		} else {
			at[last] = nil
		}
	}
	doc, err := json.Marshal(keys)
	check(t, err)
	return doc
}

// names are the changes that are tried of a config.json: each key, and each of "rope_parameters", absent and null.
func names(t *testing.T, doc []byte) (all []string) {
	t.Helper()
	var keys map[string]any
	check(t, json.Unmarshal(doc, &keys))
	if text, ok := keys["text_config"].(map[string]any); ok {
		keys = text
	}
	var add func(prefix string, in map[string]any)
	add = func(prefix string, in map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(in)) {
			all = append(all, prefix+key+": absent", prefix+key+": null")
			if of, ok := in[key].(map[string]any); ok && strings.HasPrefix(prefix+key, "rope_parameters") {
				add(prefix+key+".", of)
			}
		}
	}
	add("", keys)
	if rope, ok := keys["rope_parameters"].(map[string]any); ok {
		all = append(all, "rope_parameters: {}", "rope_parameters: absent, rope_theta: 12345",
			"rope_parameters: absent, rope_scaling: null")
		if !slices.ContainsFunc(slices.Collect(maps.Values(rope)), func(v any) bool { _, ok := v.(map[string]any); return ok }) {
			all = append(all, "rope_parameters as rope_scaling", "rope_parameters as rope_scaling, rope_theta: 12345")
		}
	}
	return all
}

// stricter are keys that Millrace asks for, though transformers has a default: the sizes of a model.
var stricter = []string{"vocab_size", "num_hidden_layers", "max_position_embeddings", "hidden_size", "intermediate_size",
	"num_attention_heads", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "num_local_experts",
	"n_routed_experts", "n_embd", "n_layer", "n_head", "n_positions"}

// otherwise are changes that Millrace reads in another way than transformers 5.24, and why.
var otherwise = map[string]string{
	"testdata-families/gpt_neox, rope_parameters: absent, rope_theta: 12345":                    ignored,
	"testdata-families/gpt_neox, rope_parameters as rope_scaling, rope_theta: 12345":            ignored,
	"testdata-families/gpt_neox-sequential, rope_parameters: absent, rope_theta: 12345":         ignored,
	"testdata-families/gpt_neox-sequential, rope_parameters as rope_scaling, rope_theta: 12345": ignored,
	"testdata-families/mistral3, rope_parameters: absent, rope_theta: 12345":                    ignored,
	// A base outside of "rope_parameters" is for all layers, as files from before transformers 5 mean it. That version takes
	// the key out of the file twice, and so gives the layers with a window the default, 5e5, whatever the file says. Published
	// models have 5e5.
	"testdata-families/olmo3, rope_parameters: absent, rope_theta: 12345": "the base is for all layers",
}

const ignored = "transformers takes no notice of rope_theta there: an error"

// Each key of each golden config.json, left out or null, means what it means to transformers: what becomes of it is the
// decoder of a file that has transformers' values in full.
func TestDefaultsAreTransformers(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("modeltest", "testdata-defaults.json"))
	check(t, err)
	var all map[string]measured
	check(t, json.Unmarshal(doc, &all))
	compared, refused := 0, 0
	unexported := cmp.Exporter(func(reflect.Type) bool { return true })
	for variant, of := range all {
		doc, err := os.ReadFile(filepath.Join("modeltest", variant, "config.json"))
		check(t, err)
		for _, name := range names(t, doc) {
			key, _, _ := strings.Cut(name, ":")
			to := of.Changed[name]
			if slices.Contains(of.Refused, name) || skipped(key) {
				continue
			}
			got, err := decoderOf(changed(t, doc, name, nil))
			if why := otherwise[variant+", "+name]; why != "" {
				if (err != nil) != (why == ignored) {
					t.Errorf("%s, %s: %v; %s", variant, name, err, why)
				}
				continue
			}
			switch full := changed(t, doc, "", to.As); {
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("%s, %s: more than a line: %v", variant, name, err)
			case err != nil && slices.Contains(stricter, key):
				refused++
			case to.Unknown:
				if before, e := decoderOf(doc); e != nil || err == nil && reflect.DeepEqual(before, got) {
					t.Errorf("%s, %s: null is passed over", variant, name)
				}
			default:
				want, wantErr := decoderOf(full)
				if (err == nil) != (wantErr == nil) {
					t.Errorf("%s, %s: %v; with transformers' values in full: %v", variant, name, err, wantErr)
				} else if err == nil && !reflect.DeepEqual(want, got) {
					t.Errorf("%s, %s (-%v in full +got):\n%s", variant, name, to.As, cmp.Diff(want, got, unexported))
				}
				compared++
			}
		}
	}
	t.Logf("%d changes compared, %d are stricter", compared, refused)
	if len(all) < 45 || compared < 1150 || refused > 300 {
		t.Errorf("%d variants, %d changes compared, %d stricter", len(all), compared, refused)
	}
}

// skipped are keys that say nothing of a decoder, or of which every null is refused.
func skipped(key string) bool {
	return strings.HasSuffix(key, "token_id") || strings.HasSuffix(key, "token_index") || slices.Contains([]string{
		"model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "per_layer_config",
		"initializer_range", "attention_dropout", "output_router_logits", "router_aux_loss_coef", "vision_config"}, key)
}
