package plan_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
	"github.com/millrace/millrace/tensor"
)

// errorer has the methods that tests and rapid's tests have in common.
type errorer interface {
	Helper()
	Errorf(string, ...any)
	Fatal(...any)
}

// shape is a model of the Llama family.
type shape struct {
	Vocab, Hidden, Inner, Layers, Heads, KVHeads, HeadDim int
	Tied                                                  bool
	Patchwork                                             bool   // a modeltest.Patchwork instead
	Groups                                                int    // of the feed-forwards of a Patchwork
	Mixture                                               string // a family of mixtures of modeltest
	Crossing                                              bool   // a Gemma 4 with values that cross layers instead
	Towered                                               bool   // a modeltest.Towered instead
}

// tiny has two tiles of vocabulary.
var tiny = shape{Vocab: 200, Hidden: 16, Inner: 24, Layers: 3, Heads: 2, KVHeads: 1, HeadDim: 8}

func (s shape) model(t errorer) *model.Model {
	t.Helper()
	keys := map[string]any{"model_type": "llama", "vocab_size": s.Vocab, "hidden_size": s.Hidden,
		"intermediate_size": s.Inner, "num_hidden_layers": s.Layers, "num_attention_heads": s.Heads,
		"num_key_value_heads": s.KVHeads, "head_dim": s.HeadDim, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
		"rope_theta": 10000.0, "tie_word_embeddings": s.Tied, "hidden_act": "silu"}
	switch {
	case s.Mixture != "":
		keys["model_type"] = s.Mixture
	case s.Crossing:
		s.cross(keys)
	case s.Towered:
		keys["model_type"] = modeltest.Towered.ModelType
	}
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	if s.Patchwork {
		if s.Groups > 0 {
			keys["groups"] = s.Groups
		}
		text = modeltest.PatchworkConfig(keys)
	}
	c, err := hf.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, modeltest.Patchwork, modeltest.Piecework, modeltest.Mixtures(2), modeltest.WithDense(3),
		modeltest.Balanced(modeltest.Mixtures(3)), modeltest.Towered)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// cross makes the keys those of a Gemma 4: its last layers use keys and values of layers before, of two widths, and all
// layers add rows of a second embedding.
func (s shape) cross(keys map[string]any) {
	var types []string
	for l := range s.Layers {
		types = append(types, "full_attention")
		if s.Layers > 3 && (s.Layers-l)%2 == 0 {
			types[l] = "sliding_attention"
		}
	}
	maps.Copy(keys, map[string]any{"model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
		"layer_types": types, "sliding_window": 6, "num_kv_shared_layers": s.Layers / 2,
		"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": s.Vocab, "global_head_dim": 2 * s.HeadDim})
	delete(keys, "rope_theta")
}

// drawModel picks any model, some of whose parts may be frozen.
func drawModel(rt *rapid.T) *model.Model {
	kinds := []string{"llama", "patchwork", "mixtures", "with dense", "crossing", "balanced mixtures", "towered"}
	s := shape{Vocab: rapid.IntRange(3, 700).Draw(rt, "vocabulary"), Hidden: 16, Inner: 24,
		Layers: rapid.IntRange(1, 5).Draw(rt, "layers"), Heads: 2, KVHeads: 1, HeadDim: 8,
		Tied:   rapid.Bool().Draw(rt, "tied"),
		Groups: rapid.IntRange(0, 3).Draw(rt, "groups")}
	switch kind := rapid.SampledFrom(kinds).Draw(rt, "kind"); kind {
	case "crossing":
		s.Crossing = true
	case "patchwork":
		s.Patchwork = true
	case "towered":
		s.Towered, s.HeadDim = true, 4 // the tower is half as wide
	case "mixtures", "with dense", "balanced mixtures":
		s.Mixture = kind
	}
	m := s.model(rt)
	freeze := rapid.SliceOfN(rapid.Bool(), m.Layers(), m.Layers()).Draw(rt, "frozen layers")
	if rapid.Bool().Draw(rt, "nothing is frozen") {
		return m
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		if !freeze[p.Layer] {
			continue
		}
		freezePart(rt, p)
	}
	return m
}

// freezePart takes all tensors of a part out of training.
func freezePart(t errorer, p *model.Part) {
	t.Helper()
	var fields []tensor.Field
	for _, f := range p.Layout.Fields {
		f.Field.Trainable = false
		fields = append(fields, f.Field)
	}
	l, err := tensor.NewLayout(fields...)
	if err != nil {
		t.Fatal(err)
	}
	p.Layout = l
}

func numerics(micros int, split bool) plan.Numerics {
	n := plan.Numerics{Compute: tensor.F32, Master: optim.F32, SequenceLen: 12, MicroBatch: 2, MicroBatches: micros, HeadChunk: 7}
	if split {
		n.Compute, n.Master = tensor.BF16, optim.Split
	}
	return n
}

// drawNumerics picks the micro-batches of a step, up to that many in each of one or two cohorts.
func drawNumerics(rt *rapid.T, most int) plan.Numerics {
	n := numerics(rapid.IntRange(1, most).Draw(rt, "micro-batches"), rapid.Bool().Draw(rt, "split"))
	n.Cohorts = rapid.IntRange(0, 2).Draw(rt, "cohorts")
	n.MicroBatches *= n.CohortCount()
	if n.CohortCount() > 1 {
		n.Exchange = drawExchange(rt)
	}
	return n
}

// drawExchange picks the type in which sums of cohorts are added.
func drawExchange(rt *rapid.T) tensor.DType {
	return rapid.SampledFrom([]tensor.DType{0, tensor.BF16}).Draw(rt, "exchange")
}

// machine computes and moves at rates of a usual GPU, scaled down with the models.
var machine = plan.Machine{Name: "test", F32FLOPsPerSec: 1e11, BF16FLOPsPerSec: 2e11, AttentionFLOPsPerSec: 1e11,
	DeviceBytesPerSec: 1e11, UploadBytesPerSec: 1e9, DownloadBytesPerSec: 1e9, AdamWBytesPerSec: 1e10, HostBytesPerSec: 1e10}

func newPlan(t errorer, m *model.Model, n plan.Numerics) *plan.Plan {
	t.Helper()
	p, err := plan.New(context.Background(), plan.Request{Model: m, Numerics: n, Device: device.Info{Name: "test", Unified: true}, Machine: machine})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// moving is the placement in which everything passes through rings.
func moving(m *model.Model, slots int) plan.Placement {
	return plantest.Streamed(len(m.Parts), len(m.Blocks), slots)
}

// drawPlacement picks any placement, also those that the planner would not choose.
func drawPlacement(rt *rapid.T, m *model.Model, mayBind bool) plan.Placement {
	return plantest.Draw(rt, m, mayBind && rapid.Bool().Draw(rt, "bound"))
}

var usualPasses = []plan.Pass{plan.Prologue, plan.Steady, plan.Flush, plan.Forwards}

var _ errorer = testing.TB(nil)

// mixtureConfig is a mixture with that many experts in each of two layers.
func mixtureConfig(experts int) map[string]any {
	return map[string]any{"model_type": "qwen3_moe", "vocab_size": 200, "hidden_size": 64, "intermediate_size": 128,
		"moe_intermediate_size": 16, "num_experts": experts, "num_experts_per_tok": 2, "norm_topk_prob": true,
		"decoder_sparse_step": 1, "mlp_only_layers": []int{}, "num_hidden_layers": 2, "num_attention_heads": 2,
		"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
		"rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu"}
}

// modelOf is the model of a config.json.
func modelOf(t errorer, keys map[string]any) *model.Model {
	t.Helper()
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A GPU's kernels have all experts of a row at once. The CPU takes any number.
func TestTooManyExperts(t *testing.T) {
	on, err := plan.FindMachine("h100-sxm")
	if err != nil {
		t.Fatal(err)
	}
	n := plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 64, MicroBatch: 1, MicroBatches: 1,
		HeadChunk: 64}
	for experts, want := range map[int]bool{512: true, 513: false} {
		r := on.Request(modelOf(t, mixtureConfig(experts)), n)
		err := r.Fits(context.Background())
		if want != (err == nil) || err != nil && !strings.Contains(err.Error(), "layer 0 has 513 experts") {
			t.Errorf("%d experts on a GPU: %v", experts, err)
		}
		r.Device = device.Info{Unified: true}
		if err := r.Fits(context.Background()); err != nil {
			t.Errorf("%d experts on a CPU: %v", experts, err)
		}
	}
}

// The size of a checkpoint is known before the sizes of a step are, also of a mixture.
func TestCheckpointOfAMixture(t *testing.T) {
	m := modelOf(t, mixtureConfig(8))
	n := plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 64}
	params, _ := m.Params()
	if got := plan.CheckpointBytes(m, n); got < 12*params { // weights, low halves and moments
		t.Errorf("%d bytes for %d parameters", got, params)
	}
}
