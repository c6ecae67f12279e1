package plan

import (
	"testing"

	"github.com/millrace/millrace/device"
)

func TestBlockChunk(t *testing.T) {
	gpu, cpu := device.Info{}, device.Info{Unified: true}
	for _, c := range []struct {
		cuts               Cuts
		positions, on, cpu int
	}{
		{Cuts{}, 100, 100, 100},
		{Cuts{}, 2048, 2048, 2048},
		{Cuts{}, 2049, 2049, 1280},
		{Cuts{}, 16384, 16384, 2048},
		{Cuts{}, 16385, 8448, 2048},
		{Cuts{}, 524288, 16384, 2048},
		{Cuts{BlockChunk: 304}, 524288, 304, 304},
		{Cuts{BlockChunk: 304}, 200, 200, 200},
	} {
		if got := c.cuts.blockChunk(c.positions, gpu); got != c.on {
			t.Errorf("%d positions on a GPU: chunks of %d, want %d", c.positions, got, c.on)
		}
		if got := c.cuts.blockChunk(c.positions, cpu); got != c.cpu {
			t.Errorf("%d positions on the CPU: chunks of %d, want %d", c.positions, got, c.cpu)
		}
	}
}

// Smaller micro-batches take more memory for logits of each of them: then sizes between the largest and the smallest
// may fit alone.
func TestSizesBetweenFit(t *testing.T) {
	r := named(t, "qwen2.5-1.5b", "rtx4090-pc-128gb", Numerics{SequenceLen: 512})
	r.DiskBytes = 0
	f := Fitting{Request: r, Rows: 64, OutputsOf: func(n Numerics) Outputs {
		return Outputs{LogitRows: min(128, n.Positions())}
	}}
	f.Model = f.Model.Frozen()
	takes := func(micro int) *Plan {
		p, err := (&chooser{Request: f.sized(micro, 512), ctx: t.Context()}).feasible()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	f.DeviceBytes, f.HostBytes = 0, 0
	large, middle, small := takes(32), takes(8), takes(1)
	f.DeviceBytes, f.HostBytes = (large.DeviceTotalBytes()+middle.DeviceTotalBytes())/2,
		(middle.ProcessBytes()+small.ProcessBytes())/2
	p, err := f.Fit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Numerics.MicroBatch; n == 1 || n >= 32 {
		t.Errorf("micro-batches of %d sequences", n)
	}
}
