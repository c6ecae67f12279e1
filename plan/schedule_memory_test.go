package plan

import (
	"reflect"
	"testing"
)

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
		for _, pass := range []Pass{Steady, Prologue, Flush} {
			got, want := p.scheduleIn(usual(pass), &mem).Ops, p.Schedule(pass).Ops
			if len(got) != len(want) {
				t.Fatalf("%d micro-batches, %v: %d operations, want %d", micros, pass, len(got), len(want))
			}
			for i := range want {
				if !sameOp(got[i], want[i]) {
					t.Fatalf("%d micro-batches, %v: operation %d is %+v, want %+v", micros, pass, i, got[i], want[i])
				}
			}
		}
	}
}

// sameOp reports whether two operations are equal in all that they have. Functions of visits cannot be compared.
func sameOp(a, b Op) bool {
	if (a.Visit == nil) != (b.Visit == nil) || a.Visit != nil && a.Visit.Name != b.Visit.Name {
		return false
	}
	a.Visit, b.Visit = nil, nil
	for _, list := range []*[]Operand{&a.Reads, &a.Writes, &b.Reads, &b.Writes} {
		*list = append([]Operand{}, *list...) // no list is an empty one
	}
	a.After, b.After = append([]int{}, a.After...), append([]int{}, b.After...)
	return reflect.DeepEqual(a, b)
}
