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

// positionsOf is how many positions one operation should see on a device.
func positionsOf(dev device.Info) int {
	if dev.Unified {
		return cpuPositions
	}
	return gpuPositions
}

// headChunks are the sizes of the head's chunk that are tried, largest first.
var headChunks = []int{512, 256, 128, 64}

// makePlan plans a run. Sizes that are auto become the largest that fit.
func (e *Env) makePlan(c *Config, m *model.Model, dev device.Info) (*plan.Plan, error) {
	n, err := c.types()
	if err != nil {
		return nil, err
	}
	n.SequenceLen = c.SequenceLen
	return e.fitPlan(m, n, c.BatchTokens/c.SequenceLen, c.Numerics, dev, c.Memory, nil)
}

// fitPlan plans steps of so many rows of n.SequenceLen positions. wants, if given, is asked for each choice of sizes.
func (e *Env) fitPlan(m *model.Model, n plan.Numerics, rows int, sizes Sizes, dev device.Info, mem Memory,
	wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	micros, err := microBatches(sizes, rows, n.SequenceLen, dev)
	if err != nil {
		return nil, err
	}
	chunks := headChunks
	if sizes.HeadChunk > 0 {
		chunks = []int{int(sizes.HeadChunk)}
	}
	for _, micro := range micros {
		for _, chunk := range chunks {
			n.MicroBatch, n.MicroBatches, n.HeadChunk = micro, rows/micro, min(chunk, micro*n.SequenceLen)
			r, reqErr := e.request(m, n, dev, mem)
			if reqErr != nil {
				return nil, reqErr
			}
			if wants != nil {
				r.Wants = wants(n)
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
func microBatches(sizes Sizes, rows, sequenceLen int, dev device.Info) ([]int, error) {
	if n := int(sizes.MicroBatch); n > 0 {
		if rows%n != 0 {
			return nil, Request(fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a step (batch_tokens / sequence_len)", n, rows))
		}
		return []int{n}, nil
	}
	var fit []int
	for n := rows; n >= 1; n-- {
		if rows%n == 0 && (n == 1 || n*sequenceLen <= positionsOf(dev)) {
			fit = append(fit, n)
		}
	}
	return fit, nil
}
