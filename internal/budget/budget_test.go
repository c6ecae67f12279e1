package budget

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

// Uses of several goroutines together have no more than the budget, whatever each of them takes, and all of them end.
func TestUsesShare(t *testing.T) {
	b := New(MinBytes)
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			u := b.Begin()
			defer u.End()
			for u.Take(t.Context(), 1<<20) == nil {
				if u.taken > b.Bytes() {
					t.Error("a use has more than the budget")
				}
			}
		})
	}
	all.Wait()
	if b.Peak() > b.Bytes() || b.inUse.Load() != 0 || len(b.slots) != 0 || len(b.large) != 0 {
		t.Errorf("%d of %d bytes, and %d after the end", b.Peak(), b.Bytes(), b.inUse.Load())
	}
}

func TestTake(t *testing.T) {
	b := New(MinBytes)
	u, other := b.Begin(), b.Begin()
	defer other.End()
	if err := u.Take(t.Context(), SmallBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := other.Take(t.Context(), SmallBytes); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := other.Take(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("beyond its slot: %v", err)
	}
	if err := u.Take(t.Context(), b.largeBytes); !errors.Is(err, ErrTooMuch) {
		t.Errorf("beyond the budget: %v", err)
	}
	if err := u.Take(t.Context(), -1); !errors.Is(err, ErrTooMuch) {
		t.Errorf("a size that overflowed: %v", err)
	}
	u.End()
	u.End()
	if err := other.Take(t.Context(), b.largeBytes-SmallBytes); err != nil {
		t.Error(err)
	}
}

func TestCheckJSON(t *testing.T) {
	usual := `{"vocab":{` + strings.Repeat(`"ab":12,`, 1<<20) + `"c":1},"merges":[` + strings.Repeat(`["a","b"],`, 1<<20) + `[]]}`
	if err := CheckJSON([]byte(usual), ObjectBytes); err != nil {
		t.Error(err)
	}
	for _, unit := range []string{"{},", "[],", "[", "1,", `{"":{`} {
		if err := CheckJSON([]byte(strings.Repeat(unit, 1<<20)), ObjectBytes); err == nil {
			t.Errorf("%q is not refused", unit)
		}
	}
}

func TestSet(t *testing.T) {
	defer Set(0)
	for bytes, want := range map[int64]int64{0: DefaultBytes, 1: MinBytes, 1 << 30: 1 << 30, 1 << 50: DefaultBytes} {
		if Set(bytes); Shared().Bytes() != want {
			t.Errorf("Set(%d): %d bytes", bytes, Shared().Bytes())
		}
	}
}
