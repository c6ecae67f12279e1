package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// fewest is the least number of fetches that any choice of slots can have, found by trying all.
func fewest(slots int, held []int, visits []int) int {
	if len(visits) == 0 {
		return 0
	}
	part, rest := visits[0], visits[1:]
	if slices.Contains(held, part) {
		return fewest(slots, held, rest)
	}
	if len(held) < slots {
		return 1 + fewest(slots, append(slices.Clone(held), part), rest)
	}
	best := len(visits) + 1
	for i := range held {
		next := slices.Clone(held)
		next[i] = part
		best = min(best, 1+fewest(slots, next, rest))
	}
	return best
}

// The ring fetches as little as can be, and what it says to be in a slot is there.
func TestRingIsOptimal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(1, 4).Draw(rt, "slots")
		visits := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 10).Draw(rt, "visits")
		var r slotRing
		r.plan(slots, visits, 6)
		holds := make([]int, slots)
		for i := range holds {
			holds[i] = none
		}
		fetches := 0
		for _, part := range visits {
			slot, fetch := r.next(part)
			if fetch {
				fetches++
				holds[slot] = part
			}
			if holds[slot] != part {
				rt.Fatalf("slot %d holds %d, not %d", slot, holds[slot], part)
			}
		}
		if want := fewest(slots, nil, visits); fetches != want {
			rt.Errorf("%d fetches, %d would do", fetches, want)
		}
	})
}

// On the way up and down again the ring does not fetch again what is at the top, and never takes the slot of the visit
// before for the next one, so that the two overlap.
func TestRingTurnsAround(t *testing.T) {
	for slots := 2; slots <= 5; slots++ {
		const parts = 9
		var visits []int
		for p := range parts {
			visits = append(visits, p)
		}
		for p := parts - 1; p >= 0; p-- {
			visits = append(visits, p)
		}
		var r slotRing
		r.plan(slots, visits, parts)
		fetches, last := 0, none
		for i, p := range visits {
			slot, fetch := r.next(p)
			if fetch {
				fetches++
				if slot == last {
					t.Errorf("%d slots: visit %d takes the slot of the visit before", slots, i)
				}
			}
			last = slot
		}
		if want := 2*parts - slots; fetches != want {
			t.Errorf("%d slots: %d fetches, want %d", slots, fetches, want)
		}
	}
}
