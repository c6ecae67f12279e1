package plan

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// softCapped is a small model of a family whose attention has a soft cap.
const softCapped = `{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
	"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512}`

// classUsers has for each class a shape that asks for it, and one that does not; empty where every model asks for it.
var classUsers = map[nn.Class]struct{ uses, other string }{
	nn.OfAttention:           {"qwen3-4b", ""},
	nn.OfAttentionGrad:       {"qwen3-4b", ""},
	nn.OfCappedAttention:     {"soft-capped", "qwen3-4b"},
	nn.OfCappedAttentionGrad: {"soft-capped", "qwen3-4b"},
	nn.OfCacheAttention:      {"qwen3-4b", ""},
	nn.OfDelta:               {"qwen3.5-4b", "qwen3-4b"},
	nn.OfDeltaGrad:           {"qwen3.5-4b", "qwen3-4b"},
	nn.OfDeltaSteps:          {"qwen3.5-4b", "qwen3-4b"},
	nn.OfExperts:             {"qwen3-30b-a3b", "qwen3-4b"},
	nn.OfExpertGrads:         {"qwen3-30b-a3b", "qwen3-4b"},
	nn.OfConv:                {"qwen3.5-4b", "qwen3-4b"},
	nn.OfConvGrad:            {"qwen3.5-4b", "qwen3-4b"},
	nn.OfMoves:               {"qwen3-4b", ""},
	nn.OfNormGrads:           {"qwen3-4b", ""},
	nn.OfUnitGrads:           {"qwen3-4b", ""},
	nn.OfLoss:                {"qwen3-4b", ""},
	nn.OfUpdates8:            {"qwen3-4b", ""},
}

// ratedPlan is a plan on an H100 with caches of texts, without a search.
func ratedPlan(t *testing.T, shape string, moments optim.Moments) *Plan {
	t.Helper()
	n := Numerics{SequenceLen: 256, MicroBatch: 1, MicroBatches: 2, HeadChunk: 256, Moments: moments}
	from := shape
	if shape == "soft-capped" {
		from = "qwen3-4b"
	}
	r := named(t, from, "h100-sxm", n)
	if shape == "soft-capped" {
		config, err := hf.ParseConfig(shape, []byte(softCapped))
		if err != nil {
			t.Fatal(err)
		}
		if r.Model, err = model.New(config); err != nil {
			t.Fatal(err)
		}
	}
	r.Outputs = Outputs{LogitRows: 2, Caches: nn.Caches{Sequences: 2, Positions: 64}}
	c := &chooser{Request: r, ctx: context.Background()}
	p, err := c.feasible()
	if err != nil {
		t.Fatal(err)
	}
	if moments == optim.Dynamic8 { // the device updates a block
		place := p.Placement.Clone()
		place.Where.SetState(r.Model.BlockParts[0], Device)
		p = c.measure(place)
	}
	return p
}

// Each class has a rate of its own: a machine that is half as fast there takes longer for a model that uses it, and
// as long as before for others.
func TestEachClassHasItsRate(t *testing.T) {
	on, err := FindMachine("h100-sxm")
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]*Plan{}
	seconds := func(shape string, moments optim.Moments, m Machine) float64 {
		key := shape + moments.String()
		if plans[key] == nil {
			plans[key] = ratedPlan(t, shape, moments)
		}
		p := plans[key]
		return p.Simulate(m, on.Device).LaneSeconds[LaneCompute] + p.PassSeconds(m, on.Device)
	}
	for class := range nn.Class(nn.Classes) {
		users, ok := classUsers[class]
		if !ok {
			if class != nn.OfProducts && class != nn.OfElements { // they have fields of their own
				t.Errorf("%v: name a shape that asks for it in classUsers", class)
			}
			continue
		}
		moments := optim.MomentsF32
		if class == nn.OfUpdates8 {
			moments = optim.Dynamic8
		}
		was, _ := Operation{Class: class, Compute: tensor.BF16, HeadDim: 128, Rows: 64, SequenceLen: 256}.On(&on.Machine)
		if class == nn.OfCacheAttention {
			was /= 1000 // below which its arithmetic takes longer than to read the caches
		}
		rate := func(perSec float64) Machine {
			r := OperationRate{Operation: class}
			if class.IsFLOPs() {
				r.FLOPsPerSec = perSec
			} else {
				r.BytesPerSec = perSec
			}
			if class.IsOfExperts() {
				r.Rows = 64
			}
			m := on.Machine
			m.Operations = []OperationRate{r}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			return m
		}
		whole, half := rate(was), rate(was/2)
		if one, other := seconds(users.uses, moments, whole), seconds(users.uses, moments, half); !(other > one) {
			t.Errorf("%v: %s takes %v s, and %v s at half of the rate", class, users.uses, one, other)
		}
		if users.other == "" {
			continue
		}
		if one, other := seconds(users.other, moments, whole), seconds(users.other, moments, half); one != other {
			t.Errorf("%v: %s, which does not ask for it, takes %v s, and %v s at half of the rate", class, users.other,
				one, other)
		}
	}
	if one, other := seconds("qwen3-4b", optim.MomentsF32, on.Machine), seconds("qwen3-4b", optim.MomentsF32,
		withRate(on.Machine, OperationRate{Operation: nn.OfUpdates8, BytesPerSec: 1e9})); one != other {
		t.Errorf("updates with moments in fp32 take the rate of 8 bits: %v s, and %v s", one, other)
	}
}

func withRate(m Machine, r OperationRate) Machine {
	m.Operations = append([]OperationRate{r}, m.Operations...)
	return m
}

// Without entries a machine has the rates that it had before there were any, where they are those of the operation.
func TestRatesOfOldMachines(t *testing.T) {
	m := Machine{F32FLOPsPerSec: 5e13, BF16FLOPsPerSec: 6e14, AttentionFLOPsPerSec: 3e14, DeviceBytesPerSec: 2e12,
		HostBytesPerSec:   7e10,
		AttentionByLength: []AttentionRate{{2048, 2e14}, {8192, 4e14}}}
	for _, c := range []struct {
		of    Operation
		want  float64
		taken string
	}{
		{Operation{Class: nn.OfProducts, Compute: tensor.F32}, 5e13, ""},
		{Operation{Class: nn.OfElements, Compute: tensor.BF16}, 2e12, ""},
		{Operation{Class: nn.OfLoss, Compute: tensor.BF16}, 2e12, ""},
		{Operation{Class: nn.OfMoves, Compute: tensor.BF16}, 2e12, ""},
		{Operation{Class: nn.OfMoves, Compute: tensor.BF16, Unified: true}, 7e10, ""},
		{Operation{Class: nn.OfAttention, HeadDim: 128, SequenceLen: 4096}, 3e14, ""},
		{Operation{Class: nn.OfAttentionGrad, HeadDim: 128, SequenceLen: 1024}, 2e14, ""},
		{Operation{Class: nn.OfAttention, HeadDim: 64, SequenceLen: 1024}, 2e14, "that of heads of 128"},
		{Operation{Class: nn.OfAttention, HeadDim: 64, SequenceLen: 1024, Unified: true}, 2e14, ""},
		{Operation{Class: nn.OfCappedAttention, HeadDim: 128, SequenceLen: 1024}, 2e14, "that of attention"},
		{Operation{Class: nn.OfDelta, Compute: tensor.BF16, HeadDim: 128}, 0.4 * 5e13,
			"0.4 of that of matrix products in f32, as an H100 was measured to have"},
		{Operation{Class: nn.OfExperts, Compute: tensor.BF16, Rows: 4096}, 0.88 * 6e14,
			"0.88 of that of matrix products, with 4096 rows an expert, as an H100 was measured to have"},
		{Operation{Class: nn.OfExperts, Compute: tensor.BF16, Rows: 4}, 0.94 * 4 * 2e12, // bound by memory
			"0.013 of that of matrix products, with 4 rows an expert, as an H100 was measured to have"},
	} {
		got, taken := c.of.On(&m)
		if math.Abs(got/c.want-1) > 1e-9 || taken != c.taken {
			t.Errorf("%+v: %v (%s), want %v (%s)", c.of, got, taken, c.want, c.taken)
		}
	}
}

// Entries are found by type, by the nearest width of heads, and between rows of experts; attention's follow the
// lengths.
func TestMeasuredRates(t *testing.T) {
	m := Machine{BF16FLOPsPerSec: 6e14, AttentionFLOPsPerSec: 3e14,
		AttentionByLength: []AttentionRate{{2048, 2e14}, {8192, 4e14}},
		Operations: []OperationRate{
			{Operation: nn.OfAttention, Compute: "bf16", HeadDim: 64, SequenceLen: 2048, FLOPsPerSec: 1e14},
			{Operation: nn.OfAttention, Compute: "bf16", HeadDim: 256, SequenceLen: 2048, FLOPsPerSec: 3e14},
			{Operation: nn.OfAttention, Compute: "f32", HeadDim: 64, SequenceLen: 2048, FLOPsPerSec: 7e12},
			{Operation: nn.OfExperts, Rows: 1024, FLOPsPerSec: 4e14}, {Operation: nn.OfExperts, Rows: 64, FLOPsPerSec: 2e14}}}
	for _, c := range []struct {
		of    Operation
		want  float64
		taken string
	}{
		{Operation{Class: nn.OfAttention, Compute: tensor.BF16, HeadDim: 64, SequenceLen: 2048}, 1e14, ""},
		{Operation{Class: nn.OfAttention, Compute: tensor.BF16, HeadDim: 64, SequenceLen: 8192}, 2e14, ""},
		{Operation{Class: nn.OfAttention, Compute: tensor.BF16, HeadDim: 192, SequenceLen: 2048}, 3e14,
			"that of heads of 256"},
		{Operation{Class: nn.OfAttention, Compute: tensor.F32, HeadDim: 64, SequenceLen: 2048}, 7e12, ""},
		{Operation{Class: nn.OfExperts, Compute: tensor.BF16, Rows: 256}, 3e14, ""},
		{Operation{Class: nn.OfExperts, Compute: tensor.BF16, Rows: 1}, 2e14, ""},
		{Operation{Class: nn.OfExperts, Compute: tensor.BF16, Rows: 9999}, 4e14, ""},
	} {
		if got, taken := c.of.On(&m); math.Abs(got/c.want-1) > 1e-9 || taken != c.taken {
			t.Errorf("%+v: %v (%s), want %v (%s)", c.of, got, taken, c.want, c.taken)
		}
	}
}

// Rates that nothing can have are refused, and those of what is counted in another way.
func TestBadOperationRates(t *testing.T) {
	on, err := FindMachine("h100-sxm")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []OperationRate{{}, {Operation: nn.OfElements, BytesPerSec: 1}, {Operation: nn.OfDelta},
		{Operation: nn.OfDelta, BytesPerSec: 1}, {Operation: nn.OfDelta, FLOPsPerSec: math.NaN()},
		{Operation: nn.OfDelta, FLOPsPerSec: 1e21}, {Operation: nn.OfConv, FLOPsPerSec: 1, BytesPerSec: 1},
		{Operation: nn.OfDelta, FLOPsPerSec: 1, Compute: "f16"}, {Operation: nn.OfDelta, FLOPsPerSec: 1, HeadDim: -1},
		{Operation: nn.OfConv, BytesPerSec: 1, HeadDim: 64}, {Operation: nn.OfDelta, FLOPsPerSec: 1, Rows: 8},
		{Operation: nn.OfExperts, FLOPsPerSec: 1}} {
		m := withRate(on.Machine, bad)
		if m.Check() == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}

// A plan says which rates were not measured, and no others.
func TestAssumedRates(t *testing.T) {
	on, err := FindMachine("h100-sxm")
	if err != nil {
		t.Fatal(err)
	}
	names := func(shape string, moments optim.Moments, m Machine) (list []string) {
		for _, a := range ratedPlan(t, shape, moments).Assumed(m) {
			list = append(list, a.Operation)
		}
		return list
	}
	if got := names("qwen3-4b", optim.MomentsF32, on.Machine); len(got) != 0 {
		t.Errorf("a dense model with heads of 128 takes %q for guesses", got)
	}
	got := names("qwen3.5-4b", optim.Dynamic8, on.Machine)
	if len(got) != 7 || got[2] != "gated delta nets of heads of 128 in bf16" ||
		got[6] != "updates on the device with moments in 8 bits" {
		t.Errorf("a hybrid takes %q for guesses", got)
	}
	m := on.Machine
	m.AdamW8BytesPerSec = 0
	if more := names("qwen3.5-4b", optim.Dynamic8, m); len(more) != 8 ||
		more[7] != "updates on the host with moments in 8 bits" {
		t.Errorf("without a rate of updates in 8 bits: %q", more)
	}
	p := ratedPlan(t, "qwen3-4b", optim.MomentsF32)
	p.Numerics.Master = optim.Split24
	if got := p.Assumed(on.Machine); len(got) != 1 || got[0].Operation != "updates on the host with masters of 24 bits" {
		t.Errorf("with masters of 24 bits: %+v", got)
	}
	if more := names("qwen3.5-4b", optim.Power4Root4, on.Machine); len(more) == 0 ||
		more[len(more)-1] != "updates on the host with moments of 4bit" {
		t.Errorf("with moments in 4 bits: %q", more)
	}
	m = withRate(on.Machine, OperationRate{Operation: nn.OfDelta, Compute: "bf16", HeadDim: 128, FLOPsPerSec: 2e13})
	if less := names("qwen3.5-4b", optim.Dynamic8, m); len(less) != 6 {
		t.Errorf("with a rate of gated delta nets: %q", less)
	}
}
