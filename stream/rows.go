package stream

import (
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// Which rows of its micro-batches a pass computes: those before their last documents end, and no padding after them
// (nn/rows.go). On a device that does not say device.Info.CutsRows, a micro-batch with any document has all of them. A
// plan has one schedule for batches of all kinds, and predicts what full micro-batches take: visits alone have fewer
// rows, and moves are as the plan says.

// countRows counts the rows that a pass computes of each micro-batch of this host's share of a batch.
func (e *Engine) countRows(pass plan.Pass, b *Batch) {
	t, cuts := e.Plan.Numerics.Positions(), !e.AllRows && pass.To != plan.ToLogits // which may be wanted of any row
	for _, d := range e.Plan.Model.Blocks {
		cuts = cuts && d.CutsRows()
	}
	e.rows = e.rows[:0]
	for _, mb := range e.share(b.Micro) {
		n := t
		if cuts {
			n = used(mb)
		}
		e.rows = append(e.rows, n)
	}
	if e.Objective != nil {
		own := e.Plan.Cluster.Host * len(e.rows)
		for _, d := range b.Documents { // which may look like padding
			if m := d.Micro - own; m >= 0 && m < len(e.rows) {
				e.rows[m] = max(e.rows[m], d.First+d.Length)
			}
		}
	}
	if slices.ContainsFunc(e.Devices[:e.Plan.Ranks()], func(d device.Device) bool { return !d.Info().CutsRows }) {
		for m, n := range e.rows {
			if n > 0 {
				e.rows[m] = t
			}
		}
	}
}

// used counts the positions of a micro-batch up to the last one that is no padding.
func used(mb batch.Micro) int {
	n := len(mb.IDs)
	for ; n > 0; n-- {
		at := n - 1
		if mb.IDs[at] != 0 || mb.Targets[at] >= 0 || mb.DocEnd[at]-mb.DocStart[at] > 1 {
			break
		}
	}
	return n
}

// computed counts the rows that the pass computes of a micro-batch, the first ones.
func (r *execution) computed(micro int) int {
	if r.continues {
		return r.passRows
	}
	return r.rows[micro]
}
