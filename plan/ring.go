package plan

import "math"

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

// ActivationsSpill reports whether what a block (from 0) keeps leaves the device between its two visits. The last forward visits leave it in
// the slots of the ring, and it is found there if the backward pass begins with just these visits: else slots would be given to others
// first.
func (p *Plan) ActivationsSpill(block int) bool {
	if !p.ActivationsPass(block) {
		return false
	}
	blocks, above := 0, 0
	for i := range p.blocks() {
		if p.ActivationsPass(i) {
			blocks++
			if i > block {
				above++
			}
		}
	}
	micros := p.Numerics.MicroBatches
	visits := min(p.Placement.Rings.Activations, blocks*micros)
	return visits%micros != 0 || above >= visits/micros
}

// nextKept is the slot of the ring that a visit of a layer, forward or backward, has for what its block keeps: the one that was given
// longest ago, but for what is still in one.
func (b *builder) nextKept(layer, m int) (int, resource) {
	slot, held := b.keptIn[[2]int{layer, m}]
	if !held {
		slot = len(b.kept)
		if slot >= b.Placement.Rings.Activations {
			slot = b.kept[len(b.kept)-b.Placement.Rings.Activations]
		}
	}
	if !b.ActivationsSpill(layer - 1) {
		b.keptIn[[2]int{layer, m}] = slot
	}
	b.kept = append(b.kept, slot)
	return slot, resource{keptSlot, slot, 0}
}
