package plan

import "testing"

// A schedule is the same in fresh memory and in that of the schedules before it, whatever those were.
func TestSchedulesShareMemory(t *testing.T) {
	var mem scheduleMemory
	for _, micros := range []int{3, 1, 8, 2} {
		r := named(t, "qwen3-30b-a3b", "h100-pcie5", Numerics{SequenceLen: 1024, MicroBatch: 1, MicroBatches: micros,
			HeadChunk: 512})
		c := &chooser{Request: r, ctx: t.Context()}
		p, err := c.feasible()
		if err != nil {
			t.Fatal(err)
		}
		for _, phase := range []Phase{Steady, Prologue, Flush} {
			if got, want := p.scheduleIn(usual(phase), &mem), p.Schedule(phase); got.String() != want.String() {
				t.Errorf("%d micro-batches, %v: other operations", micros, phase)
			}
		}
	}
}
