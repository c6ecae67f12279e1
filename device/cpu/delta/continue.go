package delta

import (
	"math"

	"github.com/millrace/millrace/device/cpu/kernels"
)

// Continue computes the heads of a key head in some rows, which are a sequence from a position on: row by row, as the
// recurrence says, so that no bit depends on how a sequence is cut. States [sequences, Heads, KeyDim, ValueDim] has
// what the row before them left, unless the first one begins its sequence, and receives what the last one leaves. Of s,
// Start is not read. scratch has ScratchBytes, aligned to 64 bytes.
func Continue(k *kernels.Table, s *Spec, sequence int, rows []int32, begins bool, keyHead int, scratch []byte) {
	w := newWorker(k, nil, 0, s, scratch)
	w.n = 1
	for h := keyHead * s.group(); begins && h < (keyHead+1)*s.group(); h++ {
		clear(numbers(w.state(w.States, sequence, h)))
	}
	for _, row := range rows {
		w.normalize(0, int(row), w.query(keyHead), 1/math.Sqrt(float64(w.KeyDim)))
		w.normalize(1, int(row), w.key(keyHead), 1)
		for h := keyHead * s.group(); h < (keyHead+1)*s.group(); h++ {
			w.step(sequence, int(row), h)
		}
	}
}

// step changes the state of a head by a row, whose query and key are normalized, and computes its output.
func (w *worker) step(sequence, row, head int) {
	state, cols := w.state(w.States, sequence, head), w.ValueDim
	q, k := line(w.qk, 0, w.KeyDim), line(w.qk, 1, w.KeyDim)
	decay := w.c[:1]
	decay[0] = w.Decay[row*w.Heads+head]
	w.Exp(decay)
	read, v, out := w.read[:cols], w.v[:cols], w.delta[:cols]
	clear(read)
	for i := range w.KeyDim {
		w.AddScaled(read, part(state, i, 0, cols), k[i])
	}
	w.Convert(kernels.F32(v), part(w.QKV, row, w.value(head), cols))
	w.AddScaled(v, kernels.F32(read), -decay[0])
	w.Scale(kernels.F32(v), kernels.F32(v), w.Beta[row*w.Heads+head])
	clear(out)
	for i := range w.KeyDim {
		of := part(state, i, 0, cols)
		w.Scale(of, of, decay[0])
		w.AddScaled(line(numbers(state), i, cols), kernels.F32(v), k[i])
		w.AddScaled(out, of, q[i])
	}
	w.Convert(part(w.Out, row, head*cols, cols), kernels.F32(out))
}
