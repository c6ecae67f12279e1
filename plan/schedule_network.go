package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// Hosts divide the cohorts of a step, and each part has one owner. So messages pass between hosts: the sum of a cohort
// goes to the owner of the part, which adds up the sums of all cohorts in their order; and when the owner has updated
// the part, its weights go to all others.
//
// The obvious answer is a collective operation that adds. But what it adds in which order is its own affair, and
// changes with the number of hosts. Here the network moves bytes and does nothing else: sums are added by the owner's
// update lane, one cohort after the other, as one process adds them. So bits do not depend on how many hosts there are.
//
// Who waits for whom across hosts? Each host has lists of its own, and a lane that sends or receives is blocked until
// the other side is at the same message. The rule that keeps them from waiting in a circle: all hosts emit their
// messages in one order. It is that of updates, with hosts in order; then counts of experts (see balance.go), with
// cohorts in order; then that of parts whose gradients are complete, with cohorts in order. Take the first message in
// this order that has not passed. Whatever precedes it on both of its hosts, in any lane, is local or an earlier
// message, and so gets done. For this, nothing of the order may depend on what hosts differ in: memory, devices,
// places.
//
// A message has the length of its operand in the plan but where it has rows of a table (SendsRows): each host knows the
// tokens of all cohorts, and so how many rows each message has, which may be none.
//
// A sum waits in host memory, in a slot of a ring, from when its cohort is done until it is sent or added. Of a part
// the sums of this host's own cohorts wait at the same time, and of a stage of visits those of all its parts.

// sumRing gives out the slots for sums of cohorts: that which was given back longest ago first.
type sumRing struct {
	slots int
	free  []int
	own   [][]Operand // by part: those of this host's cohorts, in order
}

func (p *Plan) newSumRing() sumRing {
	r := sumRing{slots: p.sumSlots(), own: make([][]Operand, len(p.Model.Parts))}
	for slot := range r.slots {
		r.free = append(r.free, slot)
	}
	return r
}

// sumSlots is the number of slots of that ring: for what waits there at the same time, for one sum that is received,
// and for one more, so that a sum can arrive while the one before it is added.
func (p *Plan) sumSlots() int {
	if !p.Cluster.Several() || !p.Trains() {
		return 0
	}
	parts := 1 // of one stage
	for layer := 1; layer <= p.blocks()+1; layer++ {
		if block := layer - 1; block < p.blocks() && p.Model.Like[block] != block {
			continue // as an earlier one
		}
		known := p.Model.LayerParts(layer)
		for _, stage := range p.stages(layer, nn.Backward) {
			n := 0
			for _, i := range partsOf(stage) {
				if sums(stage, i) && !p.Tied(known[i]) {
					n++
				}
			}
			parts = max(parts, n)
		}
	}
	return parts*p.Numerics.CohortCount() + 2
}

// sumSlotBytes gives each slot room for the sum of any part.
func (p *Plan) sumSlotBytes(int, int) int64 {
	sum := p.largest(p.SumBytes)
	return (sum + tensor.Align - 1) / tensor.Align * tensor.Align // rows of a table may have any length
}

// takeSum is a slot for the sum of a cohort, by its number in the step.
func (b *builder) takeSum(part, cohort int) Operand {
	o := of(CohortSum, part, Host)
	o.Slot, o.Cohort, o.OfTokens = b.sums.free[0], cohort, b.SendsRows(part)
	b.sums.free = b.sums.free[1:]
	return o
}

// takeOwnSum is a slot for the sum of one of this host's cohorts, which waits there for addSums.
func (b *builder) takeOwnSum(part, cohort int) Operand {
	o := b.takeSum(part, b.firstCohort()+cohort)
	b.sums.own[part] = append(b.sums.own[part], o)
	return o
}

// addSums brings the sums of all cohorts of a part to its owner, which adds them in their order, rounds the total to
// where the gradient is stored, and squares it. This host's own are in their slots.
func (b *builder) addSums(part int) {
	own, owner, last := b.sums.own[part], b.Owner(part), b.Whole.CohortCount()-1
	for cohort := range b.Whole.CohortCount() {
		var sum Operand
		switch from := b.hostOf(cohort); {
		case from == b.Cluster.Host:
			sum = own[cohort-b.firstCohort()]
			if !b.Owns(part) {
				b.message(DoSend, part, owner, sum)
			}
		case b.Owns(part):
			sum = b.takeSum(part, cohort)
			b.message(DoReceive, part, from, sum)
		default:
			continue // between other hosts
		}
		if b.Owns(part) {
			add := op(LaneUpdate, 0, DoTotal)
			add.Part, add.First = part, cohort == 0
			writes := []Operand{of(Total, part, Host)}
			if cohort == last {
				writes = append(writes, b.storedGradient(part))
			}
			b.add(add, []Operand{sum}, writes)
		}
		b.sums.free = append(b.sums.free, sum.Slot)
	}
	b.sums.own[part] = nil
}

// message emits the passage of what a part has to another host, or from it.
func (b *builder) message(do Do, part, host int, what Operand) {
	o := op(LaneSend, 0, do)
	o.Part, o.Host = part, host
	if do == DoSend {
		b.add(o, []Operand{what}, nil)
		return
	}
	o.Lane = LaneReceive
	b.add(o, nil, []Operand{what})
}

// spread brings the weights of a part that has been updated from its owner to the other hosts.
func (b *builder) spread(part int) {
	if !b.Cluster.Several() {
		return
	}
	weights := of(Stored, part, Host)
	if !b.Owns(part) {
		b.message(DoReceive, part, b.Owner(part), weights)
		return
	}
	for host := range b.Cluster.Hosts {
		if host != b.Cluster.Host {
			b.message(DoSend, part, host, weights)
		}
	}
}

// scatterSums makes the sum of each of this host's cohorts of a table that was looked up, tile by tile: of a tied tile
// by adding to what the head has left. dx are the gradients of rows, by micro-batch.
func (b *builder) scatterSums(l *model.Lookup, dx []Operand) {
	micros := b.MicrosDown()
	for _, part := range l.Tiles {
		for cohort := range b.Numerics.CohortCount() {
			reads := slices.Clone(dx[cohort*micros : (cohort+1)*micros])
			if b.Tied(part) {
				head := of(Gradient, part, Host)
				head.Cohort = cohort
				reads = append(reads, head)
			}
			o := op(LaneUpdate, 0, DoScatter)
			o.Part, o.Table = part, l
			writes := []Operand{b.takeOwnSum(part, cohort)}
			if b.Numerics.NarrowSums() { // it is made in fp32
				writes = append(writes, of(Total, part, Host))
			}
			b.add(o, reads, writes)
		}
		b.addSums(part)
	}
}
