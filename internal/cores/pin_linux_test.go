package cores

import (
	"runtime"
	"slices"
	"testing"
)

// A pinned thread runs on its own core only, and no other thread is bound.
func TestPin(t *testing.T) {
	before, err := Allowed(0)
	if err != nil {
		t.Fatal(err)
	}
	last := Core{Processors: before[len(before)-1:]}
	done := make(chan []int)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		if err := Pin(last); err != nil {
			t.Error(err)
		}
		after, _ := Allowed(0)
		done <- after
	}()
	if after := <-done; !slices.Equal(after, last.Processors) {
		t.Errorf("a pinned thread may run on %v, want %v", after, last.Processors)
	}
	if now, _ := Allowed(0); !slices.Equal(now, before) {
		t.Errorf("another thread may run on %v, before on %v", now, before)
	}
	if d := Divide(1); len(d.All) == 0 || len(d.Workers) > len(d.All) {
		t.Errorf("%+v", d)
	}
}
