package plan

import (
	"cmp"
	"errors"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// A cohort is a row of consecutive micro-batches of a step. A gradient is summed over the micro-batches of each cohort
// alone, in their order, as in a step that has no others; then the sums of the cohorts are added, in their order:
//
//	g[c] = (m0 + m1) + m2 + ...                over the micro-batches of cohort c, in fp32
//	gradient of the step = (g[0] + g[1]) + g[2] + ...   in fp32, and then rounded once
//
// One sum over all micro-batches would be less work. But a host that computes one cohort of a step could not add to it:
// it would have to wait for the sum of all cohorts before its own. Sums of cohorts can be made anywhere, at the same
// time, and have the same bits wherever they are added.
//
// In one process the first cohort is summed where the gradient of the step is, and each of the others in a buffer of
// its own (CohortSum), which is then added (DoAdd). Parts take turns in the memory of that buffer, since the compute
// lane is at one stage of visits at a time. A tied tile gets a share of its gradient from the head, and another one
// from the embedding when the backward pass has ended: so host memory keeps a sum for each cohort until then. The
// embedding's rows are summed on the host, cohort by cohort. Losses are added up, and rows of experts counted, in the
// same way.
//
// With Numerics.Exchange, each g[c] is rounded to bf16 before it is added, and it passes between hosts in bf16. That of
// a cohort which is added where it was summed is rounded as well: else bits would depend on which host has it.

// CohortCount is the number of cohorts of a step, from 1 on.
func (n Numerics) CohortCount() int { return max(n.Cohorts, 1) }

// CohortMicros is the number of micro-batches of a cohort.
func (n Numerics) CohortMicros() int { return n.MicroBatches / n.CohortCount() }

// BeginsCohort reports whether a micro-batch is the first of its cohort, or stands for all of them (negative): whether
// its gradients overwrite what a buffer holds.
func (n Numerics) BeginsCohort(micro int) bool { return micro < 0 || micro%n.CohortMicros() == 0 }

// NarrowSums reports whether the sum of a cohort is rounded to bf16 before it is added to the others.
func (n Numerics) NarrowSums() bool { return n.Exchange == tensor.BF16 }

// SumType is the type in which sums of cohorts are added, and pass between hosts.
func (n Numerics) SumType() tensor.DType { return cmp.Or(n.Exchange, tensor.F32) }

// SumBytes is the length of a cohort's sum of a part's gradient as hosts exchange it; of rows of a table (SendsRows)
// the most that it can be.
func (p *Plan) SumBytes(part int) int64 {
	elems := p.Model.Parts[part].Layout.StateElems
	if p.SendsRows(part) {
		table := p.Model.Parts[part].Layout.Fields[0].Shape
		elems = int64(min(table[0], p.cohortPositions())) * int64(table[1])
	}
	return elems * p.Numerics.SumType().Bytes()
}

// cohortPositions is the number of positions of a cohort that come down.
func (p *Plan) cohortPositions() int { return p.MicrosDown() * p.Numerics.Positions() }

// checkCohorts refuses cohorts of passes without gradients that continue sequences, and what only a step with several
// cohorts can have.
func (r Request) checkCohorts() error {
	if r.Numerics.CohortCount() == 1 {
		if r.Numerics.NarrowSums() {
			return errors.New("numerics.exchange is bf16, the type in which sums of groups are added, and " +
				"numerics.groups is 1; set numerics.groups to 2 or more, or leave numerics.exchange out")
		}
		return nil
	}
	if r.Outputs.Continues() && !trains(r.Model) {
		return errors.New("numerics.groups is for training steps, and passes that continue sequences have no " +
			"gradients; leave it out")
	}
	return nil
}

// sumsApart reports whether the cohorts of a part after the first have a buffer on the device: the part is trained,
// visits the device, and is no tied tile. With several hosts each sum leaves the device by itself.
func (p *Plan) sumsApart(part int) bool {
	return p.Numerics.CohortCount() > 1 && !p.Cluster.Several() && p.Trained(part) && !p.hostOnly(part) && !p.Tied(part)
}

// cohortSumRoom is the room for those buffers on a rank: parts take turns, but those of one stage of visits, of a head
// that is visited at once, have theirs at the same time.
func (p *Plan) cohortSumRoom(rank, _ int) int64 {
	if p.Numerics.CohortCount() == 1 || p.Cluster.Several() {
		return 0
	}
	return p.largest(func(part int) int64 {
		if !p.sumsApart(part) || !p.isOn(rank, part) {
			return 0
		}
		return p.cohortSumAt(&Operand{Index: part, At: Device}) + p.gradBytes(part)
	})
}

// cohortSumAt returns the offset of a part's buffer on its device: after those of the head's parts before it, if all
// are visited at once.
func (p *Plan) cohortSumAt(o *Operand) (sum int64) {
	kind := p.Model.Parts[o.Index].Kind
	if o.At != Device || !p.Placement.HeadAtOnce || kind != model.Norm && kind != model.HeadTile {
		return 0
	}
	for _, part := range p.Model.LayerParts(p.blocks() + 1) {
		if part == o.Index {
			break
		}
		if p.sumsApart(part) && p.rankOf(part, nn.Backward) == p.rankOf(o.Index, nn.Backward) {
			sum += arenaBytes(p.gradBytes(part))
		}
	}
	return sum
}

// cohortSumBytes is the length of a sum: on a device as it is summed, and in host memory as hosts exchange it.
func (p *Plan) cohortSumBytes(o *Operand) int64 {
	if o.At == Device {
		return p.gradBytes(o.Index)
	}
	return p.SumBytes(o.Index)
}

// narrowsHere reports whether a device rounds the sums of a part's cohorts to bf16. Those of tables that are looked up
// are complete on the host only.
func (p *Plan) narrowsHere(part int) bool {
	return p.Numerics.NarrowSums() && p.Trained(part) && !p.hostOnly(part) && !p.Tied(part)
}

// TiedSumStride is the distance in bytes from the sum of a cohort to that of the next one, of a tied tile: in the
// extent store.GradSum, where each begins with a piece, and where weights are bound.
func (p *Plan) TiedSumStride(part int) int64 {
	bytes := p.gradBytes(part)
	if p.Bound() || p.Numerics.CohortCount() == 1 {
		return bytes
	}
	piece := p.tiedSumPiece(part)
	return (bytes + piece - 1) / piece * piece
}

// tiedSumAt returns the offset of a cohort's sum where it is bound.
func (p *Plan) tiedSumAt(o *Operand) int64 {
	if o.At != Host {
		return 0
	}
	return int64(o.Cohort) * p.TiedSumStride(o.Index)
}

// tiedSumPiece is the length of the pieces of that extent.
func (p *Plan) tiedSumPiece(part int) int64 { return min(4*p.PieceElems(part), p.gradBytes(part)) }

// The operations of a schedule.

// sum returns the buffer in which the visits of a cohort sum the gradient of a part.
func (b *builder) sum(part int) Operand {
	if b.cohort > 0 && b.sumsApart(part) {
		o := b.here(CohortSum, part, Device)
		o.Cohort = b.cohort
		return o
	}
	g := b.gradient(part)
	if b.Tied(part) {
		g.Cohort = b.cohort
	}
	return g
}

// endCohort has the cohort's gradient of a part where it is added to the others'. That of a tied tile goes to the host
// by itself, and so do all where other hosts have a share of them.
func (b *builder) endCohort(part int) {
	if !b.Trained(part) {
		return
	}
	sum := b.sum(part)
	if b.narrowsHere(part) {
		sum = b.narrow(part, sum)
	}
	switch {
	case sum.What == CohortSum:
		add := op(LaneCompute, sum.Rank, DoAdd)
		add.Part = part
		b.add(add, []Operand{sum}, []Operand{b.gradient(part)})
	case b.Cluster.Several() && !b.Tied(part):
		b.movePart(LaneDrain, part, []Operand{sum}, []Operand{b.takeOwnSum(part, b.cohort)})
	case b.Tied(part) && !b.Bound():
		to := of(Gradient, part, Host)
		to.Cohort = b.cohort
		b.movePart(LaneDrain, part, []Operand{sum}, []Operand{to})
	}
}

// narrow rounds the sum of a cohort to bf16, and returns what is added to the others, or sent: in one process the sum,
// widened again.
func (b *builder) narrow(part int, sum Operand) Operand {
	o, narrowed := op(LaneCompute, sum.Rank, DoNarrow), b.here(Narrowed, part, Device)
	o.Part = part
	if b.Cluster.Several() {
		b.add(o, []Operand{sum}, []Operand{narrowed})
		return narrowed
	}
	b.add(o, []Operand{sum}, []Operand{narrowed, sum})
	return sum
}
