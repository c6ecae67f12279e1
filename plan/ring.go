package plan

import (
	"math"
)

// slotRing gives the visits of a schedule their slots. The whole sequence is known, so what is replaced is what is used
// again last (Belady's rule, which fetches least); among parts that are not used again, the one that was visited
// longest ago, since its slot is free soonest.
type slotRing struct {
	visits []int
	at     int
	holds  []int // by slot: part, or none
	last   []int // by slot: its latest visit
}

func (r *slotRing) plan(slots int, visits []int) {
	*r = slotRing{visits: visits, holds: make([]int, slots), last: make([]int, slots)}
	for i := range r.holds {
		r.holds[i], r.last[i] = none, none
	}
}

// next is the slot of the next visit, which must be the part's, and whether it has to be fetched.
func (r *slotRing) next(part int) (slot int, fetch bool) {
	if r.visits[r.at] != part {
		panic("plan: a visit out of order")
	}
	now := r.at
	r.at++
	best, bestUse := 0, -1
	for i, held := range r.holds {
		if held == part {
			r.last[i] = now
			return i, false
		}
		use := math.MaxInt
		if held != none {
			use = r.nextUse(held)
		}
		if use > bestUse || use == bestUse && r.last[i] < r.last[best] {
			best, bestUse = i, use
		}
	}
	r.holds[best], r.last[best] = part, now
	return best, true
}

func (r *slotRing) nextUse(part int) int {
	for i := r.at; i < len(r.visits); i++ {
		if r.visits[i] == part {
			return i
		}
	}
	return math.MaxInt
}
