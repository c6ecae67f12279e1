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
