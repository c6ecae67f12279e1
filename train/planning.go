package train

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

// Positions that one operation should see, where memory allows: enough for large products, few enough that activations
// stay near the cores; a GPU needs more of them to hide its launches.
const (
	cpuPositions = 2048
	gpuPositions = 16384
)

// headChunks are the sizes of the head's chunk that are tried, largest first.
var headChunks = []int{512, 256, 128, 64}

// makePlan plans a run. Sizes that are auto become the largest that fit.
func (e *Env) makePlan(c *Config, m *model.Model, dev device.Info) (*plan.Plan, error) {
	compute, master, err := c.types()
	if err != nil {
		return nil, err
	}
	rows := c.BatchTokens / c.SequenceLen
	micros, err := microBatches(c, rows, dev.Unified)
	if err != nil {
		return nil, err
	}
	chunks := headChunks
	if c.Numerics.HeadChunk > 0 {
		chunks = []int{int(c.Numerics.HeadChunk)}
	}
	for _, micro := range micros {
		for _, chunk := range chunks {
			n := plan.Numerics{Compute: compute, Master: master, SequenceLen: c.SequenceLen, MicroBatch: micro,
				MicroBatches: rows / micro, HeadChunk: min(chunk, micro*c.SequenceLen)}
			r, reqErr := e.request(m, n, dev, c.Memory)
			if reqErr != nil {
				return nil, reqErr
			}
			var p *plan.Plan
			if p, err = plan.New(r); err == nil {
				return p, nil
			}
		}
	}
	return nil, Request(err) // of the smallest sizes
}

// microBatches are the numbers of rows of a micro-batch that are tried, largest first.
func microBatches(c *Config, rows int, unified bool) ([]int, error) {
	if n := int(c.Numerics.MicroBatch); n > 0 {
		if rows%n != 0 {
			return nil, Request(fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a step (batch_tokens / sequence_len)", n, rows))
		}
		return []int{n}, nil
	}
	want := gpuPositions
	if unified {
		want = cpuPositions
	}
	var sizes []int
	for n := rows; n >= 1; n-- {
		if rows%n == 0 && (n == 1 || n*c.SequenceLen <= want) {
			sizes = append(sizes, n)
		}
	}
	return sizes, nil
}
