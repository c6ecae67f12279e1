package plan

import (
	"context"
	"strings"
	"testing"
)

// A model whose gated delta nets have wider heads, or more of them, than a device has scratch for has no plan there.
func TestDeviceWithFewNarrowDeltaHeads(t *testing.T) {
	const dim, heads = 128, 32 // of the shape
	n := Numerics{SequenceLen: 128, MicroBatch: 1, MicroBatches: 1, HeadChunk: 128}
	r := named(t, "qwen3.5-4b", "h100-pcie5", n)
	for most, fits := range map[int]bool{0: true, dim: true, dim - 1: false} {
		r.Device.MaxDeltaDim = most
		err := r.Fits(context.Background())
		if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), "they can have 127; choose a model") {
			t.Errorf("%d columns at most: %v", most, err)
		}
	}
	r.Device.MaxDeltaDim = 0
	for most, fits := range map[int]bool{0: true, heads: true, heads - 1: false} {
		r.Device.MaxDeltaHeads = most
		err := r.check()
		if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), "they can have 31; set device to cpu") {
			t.Errorf("%d heads at most: %v", most, err)
		}
	}
	r.Device.MaxDeltaHeads = 1
	r.Model, r.Device.MaxDeltaDim = named(t, "qwen3-4b", "h100-pcie5", Numerics{}).Model, 1
	if err := r.Fits(context.Background()); err != nil {
		t.Errorf("a model without gated delta nets: %v", err)
	}
}
