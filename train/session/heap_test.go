package session

import (
	"runtime/debug"
	"testing"
)

// Sessions that are closed in any order leave the heap as it was before the first one.
func TestHeapLimits(t *testing.T) {
	limit := func() int64 { return debug.SetMemoryLimit(-1) }
	before := limit()
	for name, first := range map[string]int{"the first one": 0, "the second one": 1} {
		var h heapLimits
		all := []*Session{{}, {}}
		h.hold(all[0], 1<<40)
		h.hold(all[1], 1<<41)
		if got := limit(); got != 1<<41 {
			t.Errorf("two sessions have %d bytes", got)
		}
		h.release(all[first])
		h.release(all[first])
		if got, want := limit(), []int64{1 << 41, 1 << 40}[first]; got != want {
			t.Errorf("after %s is closed the other one has %d bytes, want %d", name, got, want)
		}
		h.release(all[1-first])
		if got := limit(); got != before {
			t.Errorf("after %s is closed first, and the other one, the limit is %d, and was %d", name, got, before)
		}
	}
}
