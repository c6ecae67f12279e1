package attention

import "github.com/millrace/millrace/device/cpu/kernels"

// Backward runs one of BackwardTasks: a head and a block of queries. It writes their elements of DQ and Delta, and adds
// to the head's part of HeadGrads. When all are done, Reduce writes DK and DV.
//
// Tasks begin in the order of their numbers, on as many workers as there are: a task adds to the gradients of a block
// of keys when the task of the head's block of queries before it has, if that is of the same document, and waits until
// then. So the sums have one order.
// Neighbours among tasks are of different heads, and seldom wait. turns are new ones of the operation, and packing has
// keys and values that were packed before; nil: the tasks pack them.
//
// For each block of queries, then of keys, with delta = row sum of dout*out:
//
//	p  = exp(scale*(q k^T) - lse)      dp = dout v^T      ds = p * (dp - delta) * scale
//	dv += p^T dout                     dk += ds^T q       dq += ds k
//
// With a soft cap, s' = SoftCap*tanh(s/SoftCap) takes the place of the scaled score s in p, and ds is multiplied by 1 -
// (s'/SoftCap)^2.
func Backward(k *kernels.Table, mul Multiplier, worker int, s *Spec, packing *Packing, turns *Turns, task int,
	scratch []byte) {
	h, d := task%s.Heads, s.HeadDim
	kv, turn := h/s.group(), &turns.heads[h]
	block := task / s.Heads
	of := s.blocks[block]
	b := newBlock(s.Q.DType, d, scratch)
	dk, dv := s.headGrads(h)
	clear(dk[of.first*d : of.end*d]) // no earlier block sees these keys
	clear(dv[of.first*d : of.end*d])
	dkMat, dvMat, dqMat := kernels.MatF32(dk, d), kernels.MatF32(dv, d), kernels.MatF32(b.out, d)
	delta := b.max

	for t := of.first; t < of.end; t++ {
		delta[t-of.first] = k.Dot(row(s.DOut, t, h*d, (h+1)*d), row(s.Out, t, h*d, (h+1)*d))
		s.Delta[t*s.Heads+h] = delta[t-of.first]
	}
	clear(b.out[:(of.end-of.first)*d])
	for i, hi := s.seen(of); i < hi; i++ {
		keys := s.within(of, i)
		k0, k1 := keys.first, keys.end
		r0, r1 := s.rowsOf(of, keys)
		q := part(s.Q, of.first+r0, of.first+r1, h*d, (h+1)*d)
		dout := part(s.DOut, of.first+r0, of.first+r1, h*d, (h+1)*d)
		key := part(s.K, k0, k1, kv*d, (kv+1)*d)
		value := part(s.V, k0, k1, kv*d, (kv+1)*d)
		packedKey, packedValue := packing.find(kv, i)
		scores := part(kernels.MatF32(b.scores, keyBlock), r0, r1, 0, k1-k0)
		dscores := part(kernels.MatF32(b.dscores, keyBlock), r0, r1, 0, k1-k0)
		mul.Multiply(worker, Product{C: scores, A: q, B: key, TransposeB: true, Packed: packedKey})
		mul.Multiply(worker, Product{C: dscores, A: dout, B: value, TransposeB: true, Packed: packedValue})
		for r := r0; r < r1; r++ {
			c0, c1 := s.columns(of.first+r, keys)
			p, ds := row(b.p, r, 0, k1-k0), row(b.ds, r, 0, k1-k0)
			if c0 < c1 {
				at := r * keyBlock
				x, dp, scale, shift := b.scores[at:][c0:c1], b.dscores[at:][c0:c1], s.Scale, delta[r]
				if s.SoftCap > 0 { // what is left for ScoreGrad is p*dp
					k.SoftCap(x, x, s.Scale, s.SoftCap)
					kernels.SoftCapGrad(dp, x, shift, s.Scale, s.SoftCap)
					scale, shift = 1, 0
				}
				k.ScoreGrad(ds.Slice(c0, c1), p.Slice(c0, c1), x, dp, scale, s.LSE[(of.first+r)*s.Heads+h], shift)
			}
			for _, v := range [...]kernels.Vec{p, ds} {
				k.Zero(v.Slice(0, c0))
				k.Zero(v.Slice(c1, v.Len))
			}
		}
		p, ds := part(b.p, r0, r1, 0, k1-k0), part(b.ds, r0, r1, 0, k1-k0)
		mul.Multiply(worker, Product{C: part(dqMat, r0, r1, 0, d), A: ds, B: key, Accumulate: true})
		if !of.begins() {
			turn.await(block-1, min(k1, of.first))
		}
		mul.Multiply(worker, Product{C: part(dvMat, k0, k1, 0, d), A: p, B: dout, TransposeA: true, Accumulate: true})
		mul.Multiply(worker, Product{C: part(dkMat, k0, k1, 0, d), A: ds, B: q, TransposeA: true, Accumulate: true})
		turn.done(block, k1)
	}
	for t := of.first; t < of.end; t++ {
		k.Convert(row(s.DQ, t, h*d, (h+1)*d), kernels.F32(b.out[(t-of.first)*d:(t-of.first+1)*d]))
	}
}

// Reduce runs one of ReduceTasks, after all of Backward: it adds what the query heads of a group contribute to some
// rows of DK and DV, in the order of heads, and rounds once.
func Reduce(k *kernels.Table, s *Spec, task int) {
	kv, d := task/s.reduceBlocks(), s.HeadDim
	t0 := task % s.reduceBlocks() * reduced
	t1 := min(t0+reduced, s.rows())
	first := kv * s.group()
	dk, dv := s.headGrads(first)
	dk, dv = dk[t0*d:t1*d], dv[t0*d:t1*d]
	for h := first + 1; h < first+s.group(); h++ {
		hk, hv := s.headGrads(h)
		k.AddTo(dk, kernels.F32(hk[t0*d:t1*d]))
		k.AddTo(dv, kernels.F32(hv[t0*d:t1*d]))
	}
	for t := t0; t < t1; t++ {
		k.Convert(row(s.DK, t, kv*d, (kv+1)*d), kernels.F32(dk[(t-t0)*d:(t-t0+1)*d]))
		k.Convert(row(s.DV, t, kv*d, (kv+1)*d), kernels.F32(dv[(t-t0)*d:(t-t0+1)*d]))
	}
}

// SinkGrad subtracts from dsinks [heads] the sum over rows of exp(sinks - lse)*delta, for lse and delta [T*heads], in
// the order of rows.
func SinkGrad(dsinks []float32, sinks kernels.Vec, lse, delta []float32) {
	heads := len(dsinks)
	for h := range heads {
		sink, sum := sinks.At(h), float32(0)
		for at := h; at < len(lse); at += heads {
			sum += float32(kernels.Exp(sink-lse[at]) * delta[at])
		}
		dsinks[h] -= sum
	}
}
