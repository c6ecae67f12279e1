package model

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
)

// The files of a model may have tensors besides its own. Each of them is carried, changes nothing, or is an error: one that
// is left out in silence may be a trained head or layer.

// harmless are patterns of the names of tensors that change nothing, in any family: what rotary positions are computed
// from, which old files have and which config.json says, too.
var harmless = []string{"*rotary_emb.inv_freq", "*rotary_emb.*_inv_freq", "*rotary_emb.original_inv_freq",
	"*rotary_emb.cos_cached", "*rotary_emb.sin_cached"}

// wrappers are parts of names that programs put in when they wrap a module, before it is saved.
var wrappers = []string{"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.",
	"base_model.model.", "base_layer.", "original_module.", "modules_to_save.default."}

// adapters are parts of the names of tensors that belong to an adapter.
var adapters = []string{".lora_", "lora_A.", "lora_B.", ".ia3_", ".hada_", ".lokr_", ".oft_", ".boft_", ".vera_",
	".adapter_", "prompt_embeddings"}

// checkNames fails where the names say that the model was not saved by itself.
func (m *Model) checkNames(w *hf.Weights, known map[string]bool) error {
	for _, name := range w.Names() {
		if known[name] || m.carriedAs(name) != "" {
			continue
		}
		info, _ := w.Info(name)
		if part := partOf(adapters, name); part != "" {
			return fmt.Errorf("%s: tensor %s is of an adapter: merge the adapter into the model (merge_and_unload of PEFT), "+
				"save that, and name its directory", info.File, terminal.Quote(name))
		}
		if own, parts := m.unwrapped(name, known); parts != nil {
			put := strings.Join(parts, " and ")
			return fmt.Errorf("%s: tensor %s is %s with %s in its name: the model was saved from a wrapper; save it "+
				"without that, or remove %s from the names of all tensors", info.File, terminal.Quote(name), own, put, put)
		}
	}
	return nil
}

func partOf(parts []string, name string) string {
	for _, part := range parts {
		if strings.Contains(name, part) {
			return part
		}
	}
	return ""
}

// unwrapped returns the tensor of the model that a name is without what wrappers put in, and that, quoted; nothing for any
// other name. Of wrappers that the list has not, what they put before all names is found.
func (m *Model) unwrapped(name string, known map[string]bool) (own string, parts []string) {
	isOwn := func(name string) bool { return known[name] || m.Tied && name == m.HeadName() }
	own = name
	for _, w := range wrappers {
		if rest := strings.ReplaceAll(own, w, ""); rest != own {
			own, parts = rest, append(parts, terminal.Quote(w))
		}
		if parts != nil && isOwn(own) {
			return own, parts
		}
	}
	for at, c := range name {
		if own := name[at+1:]; c == '.' && isOwn(own) {
			return own, []string{terminal.Quote(name[:at+1])}
		}
	}
	return "", nil
}

// checkRest fails for a tensor that the model has no place for, that it does not carry, and that may mean something.
func (m *Model) checkRest(w *hf.Weights, known map[string]bool) error {
	for _, name := range w.Names() {
		if known[name] || m.Tied && name == m.HeadName() || match(harmless, name) != "" {
			continue
		}
		info, _ := w.Info(name)
		pattern := m.carriedAs(name)
		switch {
		case pattern == "":
			return fmt.Errorf("%s: tensor %s has no place in the %s that config.json describes: the weights and config.json "+
				"are not of one model; if it changes nothing, remove it from the file", info.File, terminal.Quote(name), m.Type)
		case slices.Contains(m.nextTokens, pattern) && !m.isNextToken(w, pattern):
			return fmt.Errorf("%s: tensor %s is of a layer after the last one that config.json describes, and that layer "+
				"has no %s, as one that predicts tokens after the next one has: is num_hidden_layers right?", info.File,
				terminal.Quote(name), nextTokenMark)
		}
	}
	return nil
}

// nextTokenMark ends the name of a tensor that each layer has that predicts tokens after the next one, and that layers
// of the decoder have not: the product that joins a token's embedding with what the decoder made of the one before.
const nextTokenMark = "eh_proj.weight"

// isNextToken reports whether the layer whose tensors match a pattern predicts tokens after the next one.
func (m *Model) isNextToken(w *hf.Weights, pattern string) bool {
	marks := strings.TrimSuffix(pattern, "*") + nextTokenMark
	return slices.ContainsFunc(w.Names(), func(name string) bool {
		is, _ := path.Match(marks, name)
		return is
	})
}

// compareBytes bounds what is read at a time of a head and of an embedding that are to be equal.
const compareBytes = 1 << 20

// checkTied fails if the files have a head that is not the embedding, while config.json says that it is: transformers
// 5 uses such a head, and to leave it out would train another model. Numbers count, whichever type each of the two has.
func (m *Model) checkTied(ctx context.Context, w *hf.Weights) error {
	head, embedding := m.HeadName(), m.Parts[m.EmbedTiles[0]].Tensors[0]
	is, ok := w.Info(head)
	if !m.Tied || !ok {
		return nil
	}
	if is.Shape.Equal(embedding.Shape) {
		same := sameBytes
		if of, _ := w.Info(embedding.Name); is.Type != of.Type || len(w.Stored(head))+len(w.Stored(embedding.Name)) > 2 {
			same = sameNumbers
		}
		if equal, err := same(ctx, w, head, embedding.Name, is); equal || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: by config.json (tie_word_embeddings) the head is the embedding, and %s differs from %s: set "+
		"\"tie_word_embeddings\" to false in config.json to train both, or remove %s", is.File, terminal.Quote(head),
		embedding.Name, head)
}

// sameBytes reports whether two tensors of one type and shape have the same bytes.
func sameBytes(ctx context.Context, w *hf.Weights, a, b string, of hf.TensorInfo) (bool, error) {
	x, y := make([]byte, min(of.Bytes, compareBytes)), make([]byte, min(of.Bytes, compareBytes))
	for at := int64(0); at < of.Bytes; at += compareBytes {
		n := min(of.Bytes-at, compareBytes)
		if err := readBoth(ctx, func() error { return w.ReadAt(a, x[:n], at) },
			func() error { return w.ReadAt(b, y[:n], at) }); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// sameNumbers reports whether two tensors of one shape have the same numbers, each in a type of its own.
func sameNumbers(ctx context.Context, w *hf.Weights, a, b string, of hf.TensorInfo) (bool, error) {
	const most = compareBytes / 4
	elems := of.Shape.Elems()
	x, y := make([]float32, min(elems, most)), make([]float32, min(elems, most))
	for at := int64(0); at < elems; at += most {
		n := min(elems-at, most)
		if err := readBoth(ctx, func() error { return w.ReadF32(a, x[:n], at) },
			func() error { return w.ReadF32(b, y[:n], at) }); err != nil {
			return false, err
		}
		if !slices.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}

func readBoth(ctx context.Context, reads ...func() error) error {
	for _, read := range reads {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}
