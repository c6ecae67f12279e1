package devicetest

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// position returns the sequence of row r, and its position there.
func (s *referenceStream) position(of device.Continued, rows, r int) (sequence, at int) {
	start, end := s.vector(of.Docs.Start, tensor.I32, rows)[r], s.vector(of.Docs.End, tensor.I32, rows)[r]
	return int(start) / of.Each, int(end) - 1 - int(start)
}

// ContinueConv: y[r] = silu(sum of w[j]*x of the position K-1-j before), where tail has those of earlier operations.
func (s *referenceStream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.do(func() {
		v, weights, kept := s.numbers(x), s.numbers(w), w.Cols-1
		for r := range x.Rows {
			sequence, at := s.position(of, x.Rows, r)
			own, out := v[r*x.Cols:][:x.Cols], make([]float64, x.Cols)
			row := func(p int) device.Mat { return tail.RowRange(sequence*kept+p%kept, 1) }
			for p := max(0, at-kept); p <= at; p++ {
				from := own
				if p < at {
					from = s.numbers(row(p))
				}
				for c := range out {
					out[c] += weights[c*w.Cols+kept-at+p] * from[c]
				}
			}
			for c := range out {
				out[c], _ = silu(out[c])
			}
			s.put(y.RowRange(r, 1), out)
			s.put(row(at), own)
		}
	})
}

// ContinueDelta carries out the recurrence, row by row of each head.
func (s *referenceStream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.do(func() {
		size := spec.KeyDim * spec.ValueDim
		for h := range spec.Heads {
			d, _ := s.deltaHead(qkv, decay, beta, spec, h)
			for r := range qkv.Rows {
				sequence, at := s.position(device.Continued{Docs: spec.Docs, Each: each}, qkv.Rows, r)
				place := states.RowRange(sequence, 1).ColRange(h*size, size)
				found := make(state, size)
				if at > 0 {
					found = s.numbers(place)
				}
				left, o := d.step(found, r)
				s.put(place, left)
				s.put(out.RowRange(r, 1).ColRange(h*spec.ValueDim, spec.ValueDim), o)
			}
		}
	})
}
