package stream_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// ruled is a family whose layers follow the residual rules in turn, with rotary positions of two kinds and heads of two
// widths.
var ruled = model.Family{ModelType: "ruled", Names: append(model.Names{
	{Role: "mixer_post_norm.*", HF: "model.layers.{layer}.mixer_post_norm.*"},
	{Role: "feed_post_norm.*", HF: "model.layers.{layer}.feed_post_norm.*"},
}, model.Llama...), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	other := s.Attention
	other.HeadDim, other.Rope.Theta = s.Attention.HeadDim+2, 300
	for l := range s.Layers {
		b := nn.Block{Rule: nn.Rule((l + 1) % 4), Mixer: s.Attention, FeedForward: s.GLU}
		if l%3 == 1 {
			b.Mixer = other
		}
		s.Blocks = append(s.Blocks, b)
	}
}}

// The law of placements holds for each rule.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for each of many placements")
	}
	placementsLaw(t, layersOf(t, 4, ruled))
}

// Blocks with equal frequencies share tables, and each table is that of its block.
func TestTablesByBlock(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	shape := tiny
	shape.Type, shape.Layers, shape.families = ruled.ModelType, 4, []model.Family{ruled}
	s := shape.subject(t, 0)
	r := start(t, s, setup{change: streamed(1), device: dev})
	defer r.close(t)
	for b := range s.model.Blocks {
		cos, sin, err := r.engine.RotaryTables(b)
		if err != nil {
			t.Fatal(err)
		}
		wantCos, wantSin := s.model.Blocks[b].Rotary().Tables(shape.SequenceLen, 0, shape.SequenceLen)
		if !slices.Equal(cos, wantCos) || !slices.Equal(sin, wantSin) {
			t.Errorf("block %d has tables of another", b)
		}
	}
	memory := r.plan.Cells().Memory()
	memory.PlaceDevice(device.Mem{Len: 1 << 40}, 0)
	if tables := memory.Arrays(0).Rope; tables[0] != tables[2] || tables[0] == tables[1] {
		t.Error("blocks 0 and 2 are to share tables, and 1 is to have its own")
	}
}
