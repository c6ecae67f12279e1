package plan

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// A model whose heads of attention are wider than a device takes has no plan there, whether it trains or not.
func TestDeviceWithNarrowHeads(t *testing.T) {
	n := Numerics{SequenceLen: 128, MicroBatch: 1, MicroBatches: 1, HeadChunk: 128}
	for _, c := range []struct {
		shape string
		most  device.HeadDims
		f32   bool
		says  string // "" if it fits
	}{
		{"gemma-4-12b", device.HeadDims{}, true, ""},
		{"gemma-4-12b", device.GPUMaxHeadDim, false, ""},
		{"gemma-4-12b", device.GPUMaxHeadDim, true, "they can have 256 in f32; set precision: {compute: bf16}"},
		{"gemma-4-12b", device.HeadDims{BF16: 511, Other: 511}, false, "they can have 511 in bf16; set device to cpu"},
		{"deepseek-v3", device.HeadDims{BF16: 191, Other: 256}, false, "of 192 columns"},
		{"qwen3-4b", device.HeadDims{BF16: 128, Other: 1}, false, ""},
	} {
		r := named(t, c.shape, "h100-pcie5", n)
		r.Device.MaxHeadDim = c.most
		if c.f32 {
			r.Numerics.Compute, r.Numerics.Master = tensor.F32, optim.F32
		}
		err := r.check()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
