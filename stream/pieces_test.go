package stream

import (
	"testing"

	"pgregory.net/rapid"
)

// A lane holds as many leases as it may and never more: few while one of them is scarce.
func TestFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f enqueuedPieces
		var held []bool // by lease, the oldest first: is it scarce?
		for range rapid.IntRange(1, 60).Draw(t, "pieces") {
			if rapid.IntRange(0, 9).Draw(t, "all go back") == 0 {
				held = nil
			}
			scarce := rapid.IntRange(0, 5).Draw(t, "scarce") == 0
			few := scarce
			for _, is := range held {
				few = few || is
			}
			before, room := len(held), f.room(len(held), scarce)
			if want := map[bool]int{true: scarcePieces, false: piecesInFlight}[few] - 1; room != min(before, want) {
				t.Fatalf("%d leases of %v may be kept with a new one (scarce: %v), want %d", room, held, scarce, want)
			}
			held = append(held[before-room:], scarce)
			f.enqueue(scarce)
		}
	})
}
