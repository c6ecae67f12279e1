package plan

import (
	"context"
	"testing"
)

// Any number of workers chooses the same plan, with the same work.
func TestWorkersChooseAlike(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"several devices": func(r *Request) { r.Devices, r.Overlap = 3, true },
		"on disk":         func(r *Request) { r.HostBytes = 40 << 30 },
	} {
		r := named(t, "qwen3-4b", "rtx4090-pc-256gb", Numerics{SequenceLen: 512, MicroBatch: 1, MicroBatches: 2,
			HeadChunk: 512})
		change(&r)
		var one *Plan
		var work effort
		for _, workers := range []int{1, 4} {
			c := &chooser{Request: r, ctx: context.Background(), workers: workers}
			p, err := c.choose(true)
			if err != nil {
				t.Fatal(err)
			}
			if one == nil {
				one, work = p, c.effort
			}
			if p.Placement.key() != one.Placement.key() || p.Predicted.StepSeconds != one.Predicted.StepSeconds ||
				c.effort != work {
				t.Errorf("%s: %d workers choose a step of %v s with %+v, one chooses %v s with %+v", name, workers,
					p.Predicted.StepSeconds, c.effort, one.Predicted.StepSeconds, work)
			}
		}
	}
}
