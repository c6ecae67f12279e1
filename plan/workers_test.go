package plan

import (
	"context"
	"slices"
	"testing"
)

// What visits of the head cost is remembered apart with logits that are kept and that are not.
func TestKeptLogitsCostLess(t *testing.T) {
	r := named(t, "llama-3-8b", "h100-x8-2tb", Numerics{SequenceLen: 4096, MicroBatch: 1, MicroBatches: 8,
		HeadChunk: 4096})
	r.Devices = 8
	p, err := Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	c := &chooser{Request: r, ctx: context.Background()}
	var memory walkMemory
	seconds := func(kept bool, memory *walkMemory) float64 {
		place := p.Placement.Clone()
		place.KeptLogits = kept
		q, _ := c.measure(place).walk(r.Machine, r.Device, walking{micros: simulatedMicros, memory: memory})
		return q.StepSeconds
	}
	with, without := seconds(true, &memory), seconds(false, &memory)
	if fresh := seconds(false, &walkMemory{}); without != fresh || with >= without {
		t.Errorf("a step takes %v s with logits that are kept, %v and by itself %v s without", with, without, fresh)
	}
}

// Also on several hosts a search tries the head on one device after the head on several.
func TestHostsTryTheHeadOnOneDevice(t *testing.T) {
	r := named(t, "llama-3-8b", "rtx4090-x8-1.5tb", Numerics{SequenceLen: 4096, MicroBatch: 1, MicroBatches: 64,
		HeadChunk: 4096, Cohorts: 2})
	r.Devices, r.Cluster = 2, Cluster{Hosts: 2}
	c := &chooser{Request: r, ctx: context.Background()}
	best, err := c.feasible()
	if err != nil {
		t.Fatal(err)
	}
	best.Predicted = c.simulate(best, 0)
	all := c.ringed(false)
	for i := range all {
		best = c.search([]Placement{all[i].first}, best, false)
	}
	whole := func(p Placement) bool { return p.HeadDeal == nil && p.Deal != nil }
	if best.Placement.HeadDeal == nil || !slices.ContainsFunc(c.others(all, best), whole) {
		t.Errorf("the head is dealt to %v, and then tried are %d placements", best.Placement.HeadDeal,
			len(c.others(all, best)))
	}
}

// Any number of workers chooses the same plan, with about the same work: two may be at the same placement, or at one
// that the step which another has yet to find would have ruled out.
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
			more := func(of, than int) bool { return of > than+than/4+workers }
			if p.Placement.key() != one.Placement.key() || p.Predicted.StepSeconds != one.Predicted.StepSeconds ||
				more(c.effort.placements, work.placements) || more(c.effort.simulations, work.simulations) {
				t.Errorf("%s: %d workers choose a step of %v s with %+v, one chooses %v s with %+v", name, workers,
					p.Predicted.StepSeconds, c.effort, one.Predicted.StepSeconds, work)
			}
		}
	}
}
