package stream_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
)

// handing is a mixer that no package knows: one with low rank that makes a side of its narrow rows, or that adds to
// its own those of a block before.
type handing struct {
	lowRank
	side nn.Side
}

func (h handing) Sides() []nn.Side { return []nn.Side{h.side} }

func (h handing) Forward(p *nn.Pass, x device.Mat) {
	h.lowRank.Forward(p, x)
	p.EachChunk(func(p *nn.Pass, _ func(device.Mat) device.Mat) {
		if side := p.Side(0); h.side.Makes {
			p.Scale(side.Value, p.Value(upped), 1)
		} else {
			p.Add(p.Value(upped), p.Value(upped), side.Value)
		}
	})
}

func (h handing) Recompute(p *nn.Pass, x device.Mat) {
	switch {
	case p.Keeps(nn.KeepAttention):
	case h.side.Makes: // the side is for later blocks, and they are done
		h.lowRank.Forward(p, x)
	default:
		h.Forward(p, x)
	}
}

func (h handing) Backward(p *nn.Pass, x, dy, dx device.Mat) {
	p.EachChunk(func(p *nn.Pass, rows func(device.Mat) device.Mat) {
		d := p.Value(dUpped)
		p.WeightGrad("mixer.down.weight", 1, rows(dy), p.Value(upped))
		p.ProjectGrad(d, rows(dy), "mixer.down.weight", 1)
		if h.side.Makes {
			p.Add(d, d, p.Side(0).Grad)
		} else {
			p.AddSideGradient(0, d)
		}
		p.Normalize(rows(x))
		p.WeightGrad("mixer.up.weight", 1, d, p.Norm())
		p.ProjectGrad(p.Norm(), d, "mixer.up.weight", 1)
		p.NormalizeGrad(rows(x), rows(dx))
	})
}

var _ nn.Sided = handing{}

// crossing is a family in which a mixer that no package knows has readers in later blocks, as have keys and values;
// each layer adds rows of a second embedding.
var crossing = model.Family{ModelType: "crossing", Names: append(model.Names{
	{Role: "mixer.up.*", HF: "model.layers.{layer}.mixer.up.*"},
	{Role: "mixer.down.*", HF: "model.layers.{layer}.mixer.down.*"},
	{Role: "mixer_post_norm.*", HF: "model.layers.{layer}.mixer_post_norm.*"},
	{Role: "feed_post_norm.*", HF: "model.layers.{layer}.feed_post_norm.*"},
	{Role: "q_norm.*", HF: "model.layers.{layer}.q_norm.*"},
	{Role: "k_norm.*", HF: "model.layers.{layer}.k_norm.*"},
	{Role: "layer_rows.gate.*", HF: "model.layers.{layer}.rows_gate.*"},
	{Role: "layer_rows.down.*", HF: "model.layers.{layer}.rows_down.*"},
	{Role: "layer_rows.norm.*", HF: "model.layers.{layer}.rows_norm.*"},
	{Role: "layer_rows.project.*", HF: "model.rows_project.*"},
	{Role: "layer_rows.project_norm.*", HF: "model.rows_project_norm.*"},
	{Role: "embed_tokens_per_layer.*", HF: "model.embed_rows.*"},
}, model.Llama...), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	s.Attention.QKNorm, s.Attention.VNorm = true, true
	given, taken := s.Attention, s.Attention
	given.KV, taken.KV = nn.SharedKV{Role: nn.KVGiven, Number: 2}, nn.SharedKV{Role: nn.KVTaken, Number: 2}
	makes := handing{lowRank{5}, nn.Side{Number: 1, Cols: 5, Makes: true}}
	reads := handing{lowRank{5}, nn.Side{Number: 1, Cols: 5}}
	for l, mixer := range []nn.Mixer{given, makes, taken, reads, reads, taken} {
		rows := nn.PerLayer{Inner: 3}
		if l == 0 {
			rows.Layers = s.Layers
		}
		s.Blocks = append(s.Blocks, nn.Block{Mixer: mixer, FeedForward: s.GLU, Rule: nn.Sandwich, PerLayer: rows})
	}
	s.LayerRows = model.LayerRows{Cols: 3, Scale: model.Multiplier{By: 1.7, Rounded: true}}
}}

// The law of placements holds for values that cross blocks, and for a small Gemma 4, which has tied embeddings.
func TestSides(t *testing.T) {
	g := modeltest.Load(t, "gemma4-shared")
	placementsLaw(t, append(layersOf(t, 6, crossing), named{"gemma4-shared", golden(t, g, f32)},
		named{"gemma4-shared in chunks, bf16", golden(t, g, chunked(bf16, 8))}))
}
