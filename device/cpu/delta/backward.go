package delta

import (
	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// Backward runs one of the tasks on a worker with scratch of ScratchBytes, aligned to 64 bytes, from the last piece of
// each document to its first.
func Backward(k *kernels.Table, mul attention.Multiplier, worker int, s *Spec, documents Documents, task int,
	scratch []byte) {
	w, keyHead, run := newWorker(k, mul, worker, s, scratch), task%s.KeyHeads, documents[task/s.KeyHeads]
	for end := run.End; end > run.First; {
		p := s.pieceTo(end)
		w.keys(p, keyHead)
		clear(w.dproducts[:2*w.n*w.n])
		clear(w.dqk[:2*w.n*w.KeyDim])
		for h := keyHead * s.group(); h < (keyHead+1)*s.group(); h++ {
			w.backward(p, h)
		}
		w.keyGrads(p, keyHead)
		end = p.first
	}
}

// backward computes a head's gradients in the rows of a piece: of values, decays and betas, and of the state before it
// where one was; and adds to those of queries and keys, and of their products.
func (w *worker) backward(p piece, head int) {
	n, cols := w.n, w.ValueDim
	before := w.before(p, head)
	var after *kernels.Mat // the gradient of the state after the piece
	if !w.ends(p.end) {
		m := w.state(w.DStates, piece{first: p.end}.chunk(), head)
		after = &m
	}
	w.gates(p, head)
	w.solve(p, head, before)
	clear(w.dg[:n])
	clear(w.dbeta[:n])
	w.solveGrad(p, head, after)
	w.gatesGrad()
	dv := w.dout[n*cols:]
	for i := range n {
		y := kernels.F32(line(dv, i, cols))
		w.dbeta[i] += w.Dot(y, kernels.F32(line(w.v, i, cols)))
		w.Scale(y, y, w.beta[i])
		w.Convert(part(w.DQKV, p.first+i, w.value(head), cols), y)
	}
	if before != nil {
		w.readGrad(p, head, before, after)
	}
	w.clearUnused(w.DStates, p, head)
	if after != nil {
		w.scaleRows(w.delta, w.m, cols)
		w.multiply(rowsOf(w.dqk, n, n, w.KeyDim), rowsOf(w.delta, 0, n, cols), *after, false, true, true)
	}
	sum := float32(0)
	for i := n - 1; i >= 0; i-- {
		sum += w.dg[i]
		at := (p.first+i)*w.Heads + head
		w.DDecay[at], w.DBeta[at] = sum, w.dbeta[i]
	}
}

// solveGrad reads dO and finds Y, below it in dout, and the products of both with D.
func (w *worker) solveGrad(p piece, head int, after *kernels.Mat) {
	n, cols := w.n, w.ValueDim
	for i := range n {
		w.Convert(kernels.F32(line(w.dout, i, cols)), part(w.DOut, p.first+i, head*cols, cols))
	}
	y := w.dout[n*cols:]
	w.multiply(rowsOf(y, 0, n, cols), rowsOf(w.near, 0, n, n), rowsOf(w.dout, 0, n, cols), true, false, false)
	if after != nil {
		w.multiply(rowsOf(w.written, 0, n, cols), w.keyRows(), *after, false, false, false)
		for i := range n {
			written := kernels.F32(line(w.written, i, cols))
			w.AddScaled(line(y, i, cols), written, w.m[i])
			share := w.m[i] * w.Dot(kernels.F32(line(w.delta, i, cols)), written)
			w.dg[i] -= share
			w.dg[n-1] += share
		}
	}
	w.substitute(y, true)
	w.multiply(rowsOf(w.dnear, 0, 2*n, n), rowsOf(w.dout, 0, 2*n, cols), rowsOf(w.delta, 0, n, cols), false, true,
		false)
}

// gatesGrad goes back from P and -L to the decays and betas, and to the products of queries and keys.
func (w *worker) gatesGrad() {
	n := w.n
	for i := range n {
		dnear, dpast, decays := line(w.dnear, i, n), line(w.dnear, n+i, n), line(w.decays, i, n)
		near, past, keys := line(w.near, i, n), line(w.past, i, n), line(w.products, n+i, n)
		dqueries, dkeys := line(w.dproducts, i, n), line(w.dproducts, n+i, n)
		dg, dbeta := float32(0), float32(0)
		for j := range i {
			e := float32(dnear[j]*near[j]) + float32(dpast[j]*past[j])
			dg += e
			w.dg[j] -= e
			dqueries[j] += float32(dnear[j] * decays[j])
			by := dpast[j] * decays[j]
			dkeys[j] -= float32(w.beta[i] * by)
			dbeta -= float32(by * keys[j])
		}
		dqueries[i] += float32(dnear[i] * decays[i])
		w.dg[i] += dg
		w.dbeta[i] += dbeta
	}
}

// readGrad goes back from what was read from the state before the piece to queries, keys and the state; dout has dO
// and dV.
func (w *worker) readGrad(p piece, head int, before, after *kernels.Mat) {
	n, cols := w.n, w.ValueDim
	for i := range 2 * n {
		by := w.c[i%n]
		if i >= n {
			by = -by
		}
		dread := kernels.F32(line(w.dread, i, cols))
		w.Scale(dread, kernels.F32(line(w.dout, i, cols)), by)
		w.dg[i%n] += w.Dot(dread, kernels.F32(line(w.read, i, cols)))
	}
	dread := rowsOf(w.dread, 0, 2*n, cols)
	w.multiply(rowsOf(w.dqk, 0, 2*n, w.KeyDim), dread, *before, false, true, true)
	to := w.state(w.DStates, p.chunk(), head)
	if after != nil {
		last := w.c[n-1]
		for i := range w.KeyDim {
			found, left := part(*before, i, 0, cols), part(*after, i, 0, cols)
			w.Scale(part(to, i, 0, cols), left, last)
			w.dg[n-1] += float32(last * w.Dot(found, left))
		}
	}
	w.multiply(to, rowsOf(w.qk, 0, 2*n, w.KeyDim), dread, true, false, after != nil)
}

// keyGrads writes the gradients of a piece's queries and keys, when all heads have added to them.
func (w *worker) keyGrads(p piece, keyHead int) {
	n := w.n
	dproducts := rowsOf(w.dproducts, 0, 2*n, n)
	w.multiply(rowsOf(w.dqk, 0, 2*n, w.KeyDim), dproducts, w.keyRows(), false, false, true)
	w.multiply(rowsOf(w.dqk, n, n, w.KeyDim), dproducts, rowsOf(w.qk, 0, 2*n, w.KeyDim), true, false, true)
	for i := range 2 * n {
		first, squares := w.query(keyHead), float32(w.KeyDim) // 1/squares is the sum of squares of what is normalized
		if i >= n {
			first, squares = w.key(keyHead), 1
		}
		x, dx := kernels.F32(line(w.qk, i, w.KeyDim)), line(w.dqk, i, w.KeyDim)
		w.AddScaled(dx, x, -squares*w.Dot(kernels.F32(dx), x))
		w.Scale(kernels.F32(dx), kernels.F32(dx), w.scales[i])
		w.Convert(part(w.DQKV, p.first+i%n, first, w.KeyDim), kernels.F32(dx))
	}
}
