package plan

import (
	"math"
	"slices"
)

// slotRing gives the visits of a schedule their slots. The whole sequence is known, so what is replaced is what is used
// again last (Belady's rule, which fetches least); among parts that are not used again, the one that was visited
// longest ago, since its slot is free soonest.
type slotRing struct {
	visits    []int
	following []int // by visit: the next one of the same part
	at        int
	holds     []int // by slot: part, or none
	last      []int // by slot: its latest visit
}

func (r *slotRing) plan(slots int, visits []int, parts int) {
	*r = slotRing{visits: visits, following: make([]int, len(visits)), holds: make([]int, slots),
		last: make([]int, slots)}
	// By part, the nearest visit of those that were seen, from the last one on.
	later := slices.Repeat([]int{math.MaxInt}, parts)
	for i, part := range slices.Backward(visits) {
		r.following[i], later[part] = later[part], i
	}
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
			use = r.following[r.last[i]]
		}
		if use > bestUse || use == bestUse && r.last[i] < r.last[best] {
			best, bestUse = i, use
		}
	}
	r.holds[best], r.last[best] = part, now
	return best, true
}
