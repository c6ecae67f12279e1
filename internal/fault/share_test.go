package fault

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// All things are done once; after an error, and when the context ends, no more begin.
func TestShare(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var done [100]atomic.Int32
	if err := Share(ctx, len(done), 3, func(i int) error { done[i].Add(1); return nil }); err != nil {
		t.Fatal(err)
	}
	for i := range done {
		if n := done[i].Load(); n != 1 {
			t.Errorf("%d is done %d times", i, n)
		}
	}
	broken := errors.New("broken")
	var calls atomic.Int32
	err := Share(ctx, 1000, 2, func(int) error { calls.Add(1); return broken })
	if !errors.Is(err, broken) || calls.Load() > 2 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
	cancel()
	if err := Share(ctx, 5, 2, func(int) error { return broken }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := Share(context.Background(), 0, 2, nil); err != nil {
		t.Error(err)
	}
}
