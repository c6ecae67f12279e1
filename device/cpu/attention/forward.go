package attention

import (
	"math"

	"github.com/millrace/millrace/device/cpu/kernels"
)

// Forward runs one of ForwardTasks on a worker with scratch of ScratchBytes, aligned to 64 bytes. It writes the task's
// rows and head of Out and LSE. The first tasks are those of the last queries, which see most keys. packing has keys
// that were packed before; nil: the tasks pack them.
//
// For each block of keys: s = scale * q k^T; m' = max(m, row maximum); p = exp(s - m'); sum = sum*exp(m - m') + row sum of p;
// out = out*exp(m - m') + p v. At the end out/sum, and LSE = m + log(sum). A soft cap changes s; a sink is one more
// score, after all others, without a value.
func Forward(k *kernels.Table, mul Multiplier, worker int, s *Spec, packing *Packing, task int, scratch []byte) {
	h, d := task%s.Heads, s.HeadDim
	q := s.blocks[len(s.blocks)-1-task/s.Heads]
	kv := h / s.group()
	b := newBlock(s.Q.DType, d, scratch)
	b.begin(q.end-q.first, d)
	out := kernels.MatF32(b.out, d)
	for i, hi := s.seen(q); i < hi; i++ {
		keys := s.within(q, i)
		k0, k1 := keys.first, keys.end
		r0, r1 := s.rowsOf(q, keys)
		packed, _ := packing.find(kv, i)
		mul.Multiply(worker, Product{C: part(kernels.MatF32(b.scores, keyBlock), r0, r1, 0, k1-k0),
			A: part(s.Q, q.first+r0, q.first+r1, h*d, (h+1)*d),
			B: part(s.K, k0, k1, kv*d, (kv+1)*d), TransposeB: true, Packed: packed})
		b.weigh(k, s, r0, r1, k1-k0, func(r int) (c0, c1 int) { return s.columns(q.first+r, keys) })
		mul.Multiply(worker, Product{C: part(out, r0, r1, 0, d),
			A: part(b.p, r0, r1, 0, k1-k0),
			B: part(s.V, k0, k1, kv*d, (kv+1)*d), Accumulate: true})
	}
	for t := q.first; t < q.end; t++ {
		s.LSE[t*s.Heads+h] = b.end(k, s, t-q.first, t, h)
	}
}

// begin empties the sums of the first n rows, of heads of d columns.
func (b *block) begin(n, d int) {
	clear(b.out[:n*d])
	clear(b.sum[:n])
	for i := range n {
		b.max[i] = float32(math.Inf(-1))
	}
}

// weigh turns the scores of n keys into their weights in the sums of rows [r0, r1), which it brings to the new maximum.
// columns are the keys that a row sees.
func (b *block) weigh(k *kernels.Table, s *Spec, r0, r1, n int, columns func(r int) (c0, c1 int)) {
	d, scale := s.HeadDim, s.Scale
	if s.SoftCap > 0 {
		scale = 1 // what is capped is scaled
	}
	for r := r0; r < r1; r++ {
		c0, c1 := columns(r)
		b.next[r] = b.max[r]
		if c0 < c1 {
			x := b.scores[r*keyBlock:][c0:c1]
			if s.SoftCap > 0 {
				k.SoftCap(x, x, s.Scale, s.SoftCap)
			}
			b.next[r] = max(b.max[r], float32(k.Max(x)*scale))
		}
		b.fade[r] = b.max[r] - b.next[r]
	}
	k.Exp(b.fade[r0:r1])
	for r := r0; r < r1; r++ {
		c0, c1 := columns(r)
		p := row(b.p, r, 0, n)
		if c0 < c1 {
			if b.max[r] != b.next[r] {
				b.sum[r] *= b.fade[r]
				o := kernels.F32(b.out[r*d : (r+1)*d])
				k.Scale(o, o, b.fade[r])
				b.max[r] = b.next[r]
			}
			b.sum[r] += k.ExpSum(p.Slice(c0, c1), b.scores[r*keyBlock:][c0:c1], scale, b.max[r])
		}
		k.Zero(p.Slice(0, c0))
		k.Zero(p.Slice(c1, p.Len))
	}
}

// end writes the output of a row of the block, which is that of position t and head h, and returns the logarithm of
// its sum.
func (b *block) end(k *kernels.Table, s *Spec, r, t, h int) float32 {
	d := s.HeadDim
	o := kernels.F32(b.out[r*d : (r+1)*d])
	fade := float32(1)
	if s.Sinks.Len > 0 {
		sink := s.Sinks.At(h)
		m := max(b.max[r], sink)
		fade = kernels.Exp(b.max[r] - m)
		b.sum[r] = float32(b.sum[r]*fade) + kernels.Exp(sink-m)
		b.max[r] = m
	}
	k.Scale(o, o, fade/b.sum[r])
	k.Convert(row(s.Out, t, h*d, (h+1)*d), o)
	return b.max[r] + float32(math.Log(float64(b.sum[r])))
}
