package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// queryBlocks calls do for each block of queries.
func (p problem) queryBlocks(do func(start, q0, q1 int)) {
	for start, end := 0, 0; start < p.t; start = end {
		for end = start + 1; end < p.t && int(p.DocStart[end]) == start; end++ {
		}
		for q0 := start; q0 < end; q0 += queryBlock {
			do(start, q0, min(q0+queryBlock, end))
		}
	}
}

// sees is the columns [lo, hi) of the keys [k0, k1) that query t sees; lo <= hi.
func (p problem) sees(t, k0, k1 int) (lo, hi int) {
	lo = min(max(p.first(t), k0), k1)
	hi = min(max(t+1, lo), k1)
	return lo - k0, hi - k0
}

// seers is the rows [r0, r1) of the queries [q0, q1) which see any key of [k0, k1).
func (p problem) seers(q0, q1, k0, k1 int) (r0, r1 int) {
	lo, hi := max(q0, k0), q1
	for lo < hi && p.first(lo) >= k1 {
		lo++
	}
	for lo < hi && p.first(hi-1) >= k1 {
		hi--
	}
	return lo - q0, hi - q0
}

// serialForward is Forward of one head and block of queries in its first form: each product packs its operands, and
// rows are rescaled one at a time.
func serialForward(k *kernels.Table, mul Multiplier, s problem, h, start, q0, q1 int, b block) {
	d, kv := s.HeadDim, h/s.group()
	out := kernels.MatF32(b.out, d)
	clear(b.out)
	clear(b.sum)
	for i := range b.max {
		b.max[i] = float32(math.Inf(-1))
	}
	scale := s.Scale
	if s.SoftCap > 0 {
		scale = 1
	}
	for k0 := start; k0 < q1; k0 += keyBlock {
		k1 := min(k0+keyBlock, q1)
		r0, r1 := s.seers(q0, q1, k0, k1)
		if r0 >= r1 {
			continue
		}
		mul.Multiply(0, Product{C: part(kernels.MatF32(b.scores, keyBlock), r0, r1, 0, k1-k0),
			A: part(s.Q, q0+r0, q0+r1, h*d, (h+1)*d), B: part(s.K, k0, k1, kv*d, (kv+1)*d), TransposeB: true})
		for r := r0; r < r1; r++ {
			c0, c1 := s.sees(q0+r, k0, k1)
			p := row(b.p, r, 0, k1-k0)
			if c0 < c1 {
				x := b.scores[r*keyBlock:][c0:c1]
				if s.SoftCap > 0 {
					k.SoftCap(x, x, s.Scale, s.SoftCap)
				}
				m := max(b.max[r], float32(k.Max(x)*scale))
				if b.max[r] != m {
					alpha := kernels.Exp(b.max[r] - m)
					b.sum[r] *= alpha
					o := kernels.F32(b.out[r*d : (r+1)*d])
					k.Scale(o, o, alpha)
					b.max[r] = m
				}
				b.sum[r] += k.ExpSum(p.Slice(c0, c1), x, scale, m)
			}
			k.Zero(p.Slice(0, c0))
			k.Zero(p.Slice(c1, p.Len))
		}
		mul.Multiply(0, Product{C: part(out, r0, r1, 0, d), A: part(b.p, r0, r1, 0, k1-k0),
			B: part(s.V, k0, k1, kv*d, (kv+1)*d), Accumulate: true})
	}
	for t := q0; t < q1; t++ {
		r := t - q0
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
		s.LSE[t*s.Heads+h] = b.max[r] + float32(math.Log(float64(b.sum[r])))
	}
}

// serialBackward is Backward of one head, one block of queries after the other.
func serialBackward(k *kernels.Table, mul Multiplier, s problem, h int, b block) {
	d, kv := s.HeadDim, h/s.group()
	dk, dv := s.headGrads(h)
	clear(dk)
	clear(dv)
	dkMat, dvMat, dqMat := kernels.MatF32(dk, d), kernels.MatF32(dv, d), kernels.MatF32(b.out, d)
	delta := b.max
	s.queryBlocks(func(start, q0, q1 int) {
		for t := q0; t < q1; t++ {
			delta[t-q0] = k.Dot(row(s.DOut, t, h*d, (h+1)*d), row(s.Out, t, h*d, (h+1)*d))
			s.Delta[t*s.Heads+h] = delta[t-q0]
		}
		clear(b.out)
		for k0 := start; k0 < q1; k0 += keyBlock {
			k1 := min(k0+keyBlock, q1)
			r0, r1 := s.seers(q0, q1, k0, k1)
			if r0 >= r1 {
				continue
			}
			q, dout := part(s.Q, q0+r0, q0+r1, h*d, (h+1)*d), part(s.DOut, q0+r0, q0+r1, h*d, (h+1)*d)
			key, value := part(s.K, k0, k1, kv*d, (kv+1)*d), part(s.V, k0, k1, kv*d, (kv+1)*d)
			scores, dscores := kernels.MatF32(b.scores, keyBlock), kernels.MatF32(b.dscores, keyBlock)
			mul.Multiply(0, Product{C: part(scores, r0, r1, 0, k1-k0), A: q, B: key, TransposeB: true})
			mul.Multiply(0, Product{C: part(dscores, r0, r1, 0, k1-k0), A: dout, B: value, TransposeB: true})
			for r := r0; r < r1; r++ {
				c0, c1 := s.sees(q0+r, k0, k1)
				p, ds := row(b.p, r, 0, k1-k0), row(b.ds, r, 0, k1-k0)
				if c0 < c1 {
					at := r * keyBlock
					x, dp, scale, shift := b.scores[at:][c0:c1], b.dscores[at:][c0:c1], s.Scale, delta[r]
					if s.SoftCap > 0 {
						k.SoftCap(x, x, s.Scale, s.SoftCap)
						kernels.SoftCapGrad(dp, x, shift, s.Scale, s.SoftCap)
						scale, shift = 1, 0
					}
					k.ScoreGrad(ds.Slice(c0, c1), p.Slice(c0, c1), x, dp, scale, s.LSE[(q0+r)*s.Heads+h], shift)
				}
				for _, v := range [...]kernels.Vec{p, ds} {
					k.Zero(v.Slice(0, c0))
					k.Zero(v.Slice(c1, v.Len))
				}
			}
			p, ds := part(b.p, r0, r1, 0, k1-k0), part(b.ds, r0, r1, 0, k1-k0)
			mul.Multiply(0, Product{C: part(dvMat, k0, k1, 0, d), A: p, B: dout, TransposeA: true, Accumulate: true})
			mul.Multiply(0, Product{C: part(dkMat, k0, k1, 0, d), A: ds, B: q, TransposeA: true, Accumulate: true})
			mul.Multiply(0, Product{C: part(dqMat, r0, r1, 0, d), A: ds, B: key, Accumulate: true})
		}
		for t := q0; t < q1; t++ {
			k.Convert(row(s.DQ, t, h*d, (h+1)*d), kernels.F32(b.out[(t-q0)*d:(t-q0+1)*d]))
		}
	})
}

// results are all that a problem's tasks have written.
func (p problem) results() []uint32 {
	var all []uint32
	lse, delta := kernels.MatF32(p.LSE, p.Heads), kernels.MatF32(p.Delta, p.Heads)
	for _, m := range []kernels.Mat{p.Out, lse, delta, p.DQ, p.DK, p.DV} {
		for _, x := range floats(m) {
			all = append(all, math.Float32bits(float32(x)))
		}
	}
	return all
}

// The bits stay those of the serial form, whatever is packed before, in however much memory, and with any number of
// workers and any order in which tasks end.
func TestBitsAreThoseOfSerialForm(t *testing.T) {
	for _, level := range isa.Available() {
		if level == isa.Plain {
			continue // the same loops, slower
		}
		t.Run(level.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { bitsOfSerialForm(t, level) })
		})
	}
}

func bitsOfSerialForm(t *rapid.T, level isa.Level) {
	seed := rapid.Uint64().Draw(t, "seed")
	rows, kvHeads := rapid.IntRange(1, 700).Draw(t, "rows"), rapid.IntRange(1, 2).Draw(t, "kvHeads")
	heads := kvHeads * rapid.IntRange(1, 3).Draw(t, "group")
	headDim := rapid.SampledFrom([]int{8, 17, 32, 64}).Draw(t, "headDim")
	window := rapid.SampledFrom([]int{0, 0, 0, 31, 200, 256}).Draw(t, "window")
	docs := rapid.SampledFrom([]int{0, 0, 2, 9, 50}).Draw(t, "docs")
	dtype := rapid.SampledFrom([]tensor.DType{tensor.F32, tensor.BF16}).Draw(t, "type")
	softCap := rapid.SampledFrom([]float32{0, 0, 2}).Draw(t, "softCap")
	hasSinks := rapid.Bool().Draw(t, "sinks")
	build := func() problem {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := newProblem(rng, dtype, rows, heads, kvHeads, headDim, window, docs)
		p.SoftCap = softCap
		if hasSinks {
			p.Sinks = row(mat(dtype, 1, heads, func() float32 { return float32(rng.NormFloat64()) }), 0, 0, heads)
		}
		return p
	}

	k, mul := kernels.For(level), newMultiplier(level, 3)
	want := build()
	b := newBlock(dtype, headDim, alignedBytes(ScratchBytes(headDim)))
	for h := range heads {
		want.queryBlocks(func(start, q0, q1 int) { serialForward(k, mul, want, h, start, q0, q1, b) })
	}
	for h := range heads {
		serialBackward(k, mul, want, h, b)
	}
	for task := range want.ReduceTasks() {
		Reduce(k, want.Spec, task)
	}

	p := build()
	rng := rand.New(rand.NewPCG(seed, 2))
	workers := rapid.IntRange(1, 3).Draw(t, "workers")
	share := rapid.SampledFrom([]float64{0, 0.3, 1, 3}).Draw(t, "share")
	run := pool.New(workers, nil)
	defer run.Close()
	scratch := make([][]byte, workers)
	for w := range scratch {
		scratch[w] = alignedBytes(ScratchBytes(headDim))
	}
	packing := p.pack(mul, rng, false, share)
	run.Run(p.ForwardTasks(), func(w, task int) { Forward(k, mul, w, p.Spec, packing, task, scratch[w]) })
	packing = p.pack(mul, rng, true, share)
	turns := NewTurns(p.Spec)
	run.Run(p.BackwardTasks(), func(w, task int) { Backward(k, mul, w, p.Spec, packing, turns, task, scratch[w]) })
	run.Run(p.ReduceTasks(), func(_, task int) { Reduce(k, p.Spec, task) })
	if !slices.Equal(p.results(), want.results()) {
		t.Fatal("bits differ from those of the serial form")
	}
}

// Every block of keys is packed once, for all heads of a group and all blocks of queries, where there is room.
func TestPackingIsShared(t *testing.T) {
	mul := newMultiplier(isa.Best(), 1)
	for _, c := range []struct{ t, window, docs int }{{1024, 0, 0}, {1000, 0, 0}, {4096, 1024, 0}, {4096, 0, 12}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p := newProblem(rand.New(rand.NewPCG(1, 2)), tensor.F32, c.t, 2, 1, 8, c.window, c.docs)
			memory := make([]float32, 3*c.t*8)
			packing := NewPacking(mul, p.Spec, false, memory)
			blocks := 0
			p.queryBlocks(func(start, q0, q1 int) {
				if q1 == p.t || int(p.DocStart[q1]) != start {
					blocks += (q1 - start + keyBlock - 1) / keyBlock
				}
			})
			if got := packing.Tasks(p.Spec); got != blocks {
				t.Errorf("%d blocks of keys are packed, expected %d", got, blocks)
			}
			few := NewPacking(mul, p.Spec, false, memory[:len(memory)/6])
			if got := few.Tasks(p.Spec); got == 0 || got >= blocks {
				t.Errorf("%d of %d blocks of keys are packed in a sixth of the memory", got, blocks)
			}
		})
	}
}
