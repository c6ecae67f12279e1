package delta

import (
	"math"

	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// Forward runs one of the tasks on a worker with scratch of ScratchBytes, aligned to 64 bytes.
func Forward(k *kernels.Table, mul attention.Multiplier, worker int, s *Spec, documents Documents, task int,
	scratch []byte) {
	w, keyHead, run := newWorker(k, mul, worker, s, scratch), task%s.KeyHeads, documents[task/s.KeyHeads]
	for t := run.First; t < run.End; {
		p := s.pieceFrom(t)
		w.keys(p, keyHead)
		for h := keyHead * s.group(); h < (keyHead+1)*s.group(); h++ {
			w.forward(p, h)
		}
		t = p.end
	}
}

// epsilon is added to the sum of squares of a query or a key.
const epsilon = 1e-6

// keys reads and normalizes the queries and keys of a piece, and multiplies them with the keys.
func (w *worker) keys(p piece, keyHead int) {
	w.n = p.rows()
	for i := range 2 * w.n {
		first, by := w.query(keyHead), 1/math.Sqrt(float64(w.KeyDim))
		if i >= w.n {
			first, by = w.key(keyHead), 1
		}
		w.normalize(i, p.first+i%w.n, first, by)
	}
	w.multiply(rowsOf(w.products, 0, 2*w.n, w.n), rowsOf(w.qk, 0, 2*w.n, w.KeyDim), w.keyRows(), false, true, false)
}

// normalize reads a query or a key, KeyDim columns from the first one on, as line i of qk, and normalizes it.
func (w *worker) normalize(i, row, first int, by float64) {
	x := kernels.F32(line(w.qk, i, w.KeyDim))
	w.Convert(x, part(w.QKV, row, first, w.KeyDim))
	w.scales[i] = float32(by / math.Sqrt(float64(w.Dot(x, x)+epsilon)))
	w.Scale(x, x, w.scales[i])
}

// keyRows are the normalized keys.
func (w *worker) keyRows() kernels.Mat { return rowsOf(w.qk, w.n, w.n, w.KeyDim) }

// forward computes a head in the rows of a piece: its outputs, and the state after it where a piece of its document
// follows.
func (w *worker) forward(p piece, head int) {
	n, cols := w.n, w.ValueDim
	before := w.before(p, head)
	w.clearUnused(w.States, p, head)
	w.gates(p, head)
	w.solve(p, head, before)
	if before != nil {
		for i := range n {
			o := kernels.F32(line(w.read, i, cols))
			w.Scale(o, o, w.c[i])
		}
	}
	out := rowsOf(w.read, 0, n, cols)
	w.multiply(out, rowsOf(w.near, 0, n, n), rowsOf(w.delta, 0, n, cols), false, false, before != nil)
	for i := range n {
		w.Convert(part(w.Out, p.first+i, head*cols, cols), kernels.F32(line(w.read, i, cols)))
	}
	if w.ends(p.end) {
		return
	}
	after := w.state(w.States, piece{first: p.end}.chunk(), head)
	if before != nil {
		w.Scale(kernels.F32(numbers(after)), kernels.F32(numbers(*before)), w.c[n-1])
	}
	w.scaleRows(w.delta, w.m, cols)
	w.multiply(after, w.keyRows(), rowsOf(w.delta, 0, n, cols), true, false, before != nil)
}

// before is the state before a piece; nil: it is zero.
func (w *worker) before(p piece, head int) *kernels.Mat {
	if w.begins(p) {
		return nil
	}
	m := w.state(w.States, p.chunk(), head)
	return &m
}

// scaleRows multiplies rows of a matrix by numbers of their own.
func (w *worker) scaleRows(x, by []float32, cols int) {
	for i := range w.n {
		row := kernels.F32(line(x, i, cols))
		w.Scale(row, row, by[i])
	}
}

// gates finds what depends on the decays and betas of a head, and on products of its queries and keys.
func (w *worker) gates(p piece, head int) {
	n, sum := w.n, 0.0
	for i := range n {
		sum += float64(w.Decay[(p.first+i)*w.Heads+head])
		w.g[i], w.beta[i] = sum, w.Beta[(p.first+i)*w.Heads+head]
	}
	for i := range n {
		w.c[i], w.m[i] = float32(w.g[i]), float32(w.g[n-1]-w.g[i])
		row := line(w.decays, i, n)
		for j := range i + 1 {
			row[j] = float32(w.g[i] - w.g[j])
		}
		w.Exp(row[:i+1])
		clear(row[i+1:])
		near, past := line(w.near, i, n), line(w.past, i, n)
		queries, keys := line(w.products, i, n), line(w.products, n+i, n)
		for j, decay := range row {
			near[j] = decay * queries[j]
			past[j] = -w.beta[i] * float32(decay*keys[j])
		}
		clear(past[i:])
	}
	w.Exp(w.c[:n])
	w.Exp(w.m[:n])
}

// solve finds read, v and delta, from the state before the piece.
func (w *worker) solve(p piece, head int, before *kernels.Mat) {
	n, cols := w.n, w.ValueDim
	if before != nil {
		w.multiply(rowsOf(w.read, 0, 2*n, cols), rowsOf(w.qk, 0, 2*n, w.KeyDim), *before, false, false, false)
	}
	for i := range n {
		v := line(w.v, i, cols)
		w.Convert(kernels.F32(v), part(w.QKV, p.first+i, w.value(head), cols))
		if before != nil {
			w.AddScaled(v, kernels.F32(line(w.read, n+i, cols)), -w.c[i])
		}
		w.Scale(kernels.F32(line(w.delta, i, cols)), kernels.F32(v), w.beta[i])
	}
	w.substitute(w.delta, false)
}

// solveRows is the number of equations of a triangular system that are solved row by row. The others come in as
// products.
const solveRows = 16

// substitute solves (I + L) x = x in place, or its transpose, for the -L in past.
func (w *worker) substitute(x []float32, transposed bool) {
	n, cols := w.n, w.ValueDim
	past := rowsOf(w.past, 0, n, n)
	blocks := (n + solveRows - 1) / solveRows
	for b := range blocks {
		if transposed {
			b = blocks - 1 - b
		}
		first, end := b*solveRows, min((b+1)*solveRows, n)
		to := rowsOf(x, first, end-first, cols)
		if !transposed && first > 0 {
			w.multiply(to, block(past, first, end, 0, first), rowsOf(x, 0, first, cols), false, false, true)
		}
		if transposed && end < n {
			w.multiply(to, block(past, end, n, first, end), rowsOf(x, end, n-end, cols), true, false, true)
		}
		for r := first; r < end; r++ {
			i := r
			if transposed {
				i = first + end - 1 - r
			}
			row := line(x, i, cols)
			if transposed {
				for j := i + 1; j < end; j++ {
					w.AddScaled(row, kernels.F32(line(x, j, cols)), w.past[j*n+i])
				}
				continue
			}
			for j := first; j < i; j++ {
				w.AddScaled(row, kernels.F32(line(x, j, cols)), w.past[i*n+j])
			}
		}
	}
}

// block is rows [r0, r1) and columns [c0, c1) of m.
func block(m kernels.Mat, r0, r1, c0, c1 int) kernels.Mat {
	m.Data = part(m, r0, c0, 0).Data
	m.Rows, m.Cols = r1-r0, c1-c0
	return m
}
