package data

import (
	"context"
	"testing"
)

// TestAhead: what is on its way is bounded, whatever the size of a row, and a wait ends with the context.
func TestAhead(t *testing.T) {
	a := newAhead(2, limits{})
	huge, ok := a.take(t.Context(), maxTextBytes)
	if !ok || huge != cap(a) || huge < aheadUnits {
		t.Fatalf("a row of the largest size has %d of %d units", huge, cap(a))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if units, ok := a.take(ctx, 0); ok || units != 0 {
		t.Errorf("%d units beyond all", units)
	}
	took := make(chan int)
	go func() {
		units, _ := a.take(t.Context(), 3*aheadUnitBytes)
		took <- units
	}()
	a.give(huge)
	if units := <-took; units != 4 || len(a) != 4 {
		t.Errorf("%d units for 3 MiB, %d in use", units, len(a))
	}
	a.give(4)
	if len(a) != 0 {
		t.Errorf("%d units are not given back", len(a))
	}
}
