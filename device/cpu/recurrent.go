package cpu

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/delta"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// starts are the first rows of the rows' documents, in which a recurrence believes.
func starts(docs device.Docs, rows int) ([]int32, error) {
	all := ints(docs.Start, rows)
	for t, start := range all {
		if start < 0 || int(start) > t || all[start] != start {
			return nil, fmt.Errorf("row %d has a document that begins at row %d, which begins none", t, start)
		}
	}
	return all, nil
}

// convolve queues the work of a convolution.
func (s *Stream) convolve(x, w device.Mat, docs device.Docs, work func(a *kernels.Conv)) {
	s.try(func() error {
		start, err := starts(docs, x.Rows)
		if err == nil {
			work(&kernels.Conv{X: mat(x), W: mat(w), Start: start})
		}
		return err
	})
}

// CausalConv implements device.ConvOps.
func (s *Stream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.convolve(x, w, docs, func(a *kernels.Conv) {
		a.Y = mat(y)
		const rows, cols = 256, kernels.ConvColumns // of a task
		blocks := (x.Rows + rows - 1) / rows
		s.crew.Run(blocks*((x.Cols+cols-1)/cols), func(_, task int) {
			row, col := task%blocks*rows, task/blocks*cols
			s.crew.ConvForward(a, row, min(row+rows, x.Rows), col, min(col+cols, x.Cols))
		})
	})
}

// CausalConvGrad implements device.ConvOps. Gradients of weights are sums over rows, so work is cut between columns.
func (s *Stream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.convolve(x, w, docs, func(a *kernels.Conv) {
		a.DX, a.DY = mat(dx), mat(dy)
		if !dw.IsZero() {
			a.DW = mat(dw)
		}
		tasks := s.crew.Workers() * 4
		each := min(max((x.Cols/tasks+columns-1)/columns*columns, columns), kernels.ConvColumns)
		s.crew.Run((x.Cols+each-1)/each, func(_, task int) {
			s.crew.ConvBackward(a, x.Rows, task*each, min((task+1)*each, x.Cols))
		})
	})
}

// Gate implements device.GateOps.
func (s *Stream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.enqueue(func() {
		a := &kernels.Gate{X: mat(x), Y: mat(y), Gate: mat(gate), Kind: kind}
		s.crew.split(x.Rows, 1, rowBytes(y, x, gate), func(lo, hi int) { s.crew.GateForward(a, lo, hi) })
	})
}

// GateGrad implements device.GateOps.
func (s *Stream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.enqueue(func() {
		a := &kernels.Gate{X: mat(x), Gate: mat(gate), Kind: kind,
			DX: mat(dx), DY: mat(dy), DGate: mat(dgate)}
		s.crew.split(x.Rows, 1, rowBytes(dx, dy, x, gate), func(lo, hi int) { s.crew.GateBackward(a, lo, hi) })
	})
}

func deltaGates(a, b, aLog, dtBias device.Mat) *kernels.DeltaGates {
	return &kernels.DeltaGates{A: mat(a), B: mat(b), ALog: vec(aLog), DtBias: vec(dtBias)}
}

// gateBytes stands for the time that a row and head of the gates of a delta net takes, as memory that it goes through.
const gateBytes = 256

// DeltaGates implements device.DeltaOps.
func (s *Stream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.enqueue(func() {
		g := deltaGates(a, b, aLog, dtBias)
		g.Decay, g.Beta = floats(decay), floats(beta)
		s.crew.split(a.Rows, 1, int64(gateBytes*a.Cols), func(lo, hi int) { s.crew.DeltaGatesForward(g, lo, hi) })
	})
}

// DeltaGatesGrad implements device.DeltaOps.
func (s *Stream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.enqueue(func() {
		g := deltaGates(a, b, aLog, dtBias)
		g.DA, g.DB, g.DDecay, g.DBeta = mat(da), mat(db), floats(ddecay), floats(dbeta)
		if !daLog.IsZero() {
			g.DALog, g.DDt = floats(daLog), floats(ddtBias)
		}
		s.crew.split(a.Cols, 16, int64(gateBytes*a.Rows), func(lo, hi int) {
			s.crew.DeltaGatesBackward(g, a.Rows, lo, hi)
		})
	})
}

// gatedDelta queues the tasks of a gated delta net.
func (s *Stream) gatedDelta(qkv, decay, beta, states device.Mat, spec device.DeltaSpec, others func(a *delta.Spec),
	run func(k *kernels.Table, m multiplier, worker int, a *delta.Spec, d delta.Documents, task int, scratch []byte)) {
	s.try(func() error {
		start, err := starts(spec.Docs, qkv.Rows)
		if err != nil {
			return err
		}
		a := deltaSpec(qkv, decay, beta, states, spec)
		a.Start = start
		others(a)
		return s.crew.equipDelta(spec, func(scratch func(worker int) []byte) {
			c, documents := s.crew, a.Documents()
			c.Run(documents.Tasks(a), func(worker, task int) {
				run(c.Table, multiplier{c.engine}, worker, a, documents, task, scratch(worker))
			})
		})
	})
}

// deltaSpec gathers the operands that all operations of a gated delta net read. Documents are not among them.
func deltaSpec(qkv, decay, beta, states device.Mat, spec device.DeltaSpec) *delta.Spec {
	return &delta.Spec{KeyHeads: spec.KeyHeads, Heads: spec.Heads, KeyDim: spec.KeyDim, ValueDim: spec.ValueDim,
		QKV: mat(qkv), Decay: floats(decay), Beta: floats(beta), States: floats(states)}
}

// equipDelta calls f with the workers' scratch for a gated delta net.
func (c *crew) equipDelta(spec device.DeltaSpec, f func(scratch func(worker int) []byte)) error {
	c.attention.Lock()
	defer c.attention.Unlock()
	bytes := deltaBlock(spec.KeyDim, spec.ValueDim)
	if err := c.equip(bytes, 0); err != nil {
		return err
	}
	f(func(worker int) []byte { return c.block(worker, bytes) })
	return nil
}

// GatedDelta implements device.DeltaOps.
func (s *Stream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.gatedDelta(qkv, decay, beta, states, spec, func(a *delta.Spec) { a.Out = mat(out) },
		func(k *kernels.Table, m multiplier, worker int, a *delta.Spec, d delta.Documents, task int, scratch []byte) {
			delta.Forward(k, m, worker, a, d, task, scratch)
		})
}

// GatedDeltaGrad implements device.DeltaOps.
func (s *Stream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.gatedDelta(qkv, decay, beta, states, spec, func(a *delta.Spec) {
		a.DQKV, a.DOut = mat(dqkv), mat(dout)
		a.DDecay, a.DBeta, a.DStates = floats(ddecay), floats(dbeta), floats(dstates)
	}, func(k *kernels.Table, m multiplier, worker int, a *delta.Spec, d delta.Documents, task int, scratch []byte) {
		delta.Backward(k, m, worker, a, d, task, scratch)
	})
}
