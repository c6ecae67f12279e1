package cpu

import (
	"math"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// AdamW implements device.OptimizerOps.
func (s *Stream) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.operands.AdamW(args, tally)
	s.enqueue(func() {
		n := args.Weights.Cols
		m, v, grad := floats(args.M), floats(args.V), vec(args.Grad)
		var all told
		var update func(lo, hi int) kernels.Tally
		perParam := 2*(4+4) + args.Grad.DType.Bytes() + 2*masterBytes(args.Weights, args.Low)
		switch {
		case args.Weights.DType == tensor.F32:
			p, g := floats(args.Weights), floats(args.Grad)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamWF32(p[lo:hi], m[lo:hi], v[lo:hi], g[lo:hi], &args.AdamWScalars)
			}
		case args.Low.DType == tensor.I8:
			high, low := halves(args.Weights), lowHalves[int8](args.Low)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamWSplit24(high[lo:hi], low[lo:hi], m[lo:hi], v[lo:hi], grad.Slice(lo, hi), args.Draw.At(lo),
					&args.AdamWScalars)
			}
		default:
			high, low := halves(args.Weights), lowHalves[int16](args.Low)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamWSplit(high[lo:hi], low[lo:hi], m[lo:hi], v[lo:hi], grad.Slice(lo, hi), &args.AdamWScalars)
			}
		}
		s.crew.split(n, columns, perParam, func(lo, hi int) { all.add(update(lo, hi)) })
		all.tell(tally)
	})
}

// AdamW8 implements device.OptimizerOps.
func (s *Stream) AdamW8(args device.AdamW8Args, tally device.Mem) {
	s.operands.AdamW8(args, tally)
	s.enqueue(func() {
		n := args.Weights.Cols
		moments := kernels.Moments8{M: bytes(args.M.Mem), V: bytes(args.V.Mem), MScale: floats(args.MScale), VScale: floats(args.VScale)}
		grad := vec(args.Grad)
		var all told
		var update func(lo, hi int) kernels.Tally
		perParam := 2*int64(args.M.Cols+args.V.Cols)/int64(max(n, 1)) + args.Grad.DType.Bytes() +
			2*masterBytes(args.Weights, args.Low)
		switch {
		case args.Weights.DType == tensor.F32:
			p, g := floats(args.Weights), floats(args.Grad)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamW8F32(p[lo:hi], moments.Slice(lo, hi), g[lo:hi], args.Draw.At(lo), &args.AdamWScalars)
			}
		case args.Low.DType == tensor.I8:
			high, low := halves(args.Weights), lowHalves[int8](args.Low)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamW8Split24(high[lo:hi], low[lo:hi], moments.Slice(lo, hi), grad.Slice(lo, hi), args.Draw.At(lo),
					&args.AdamWScalars)
			}
		default:
			high, low := halves(args.Weights), lowHalves[int16](args.Low)
			update = func(lo, hi int) kernels.Tally {
				return s.crew.AdamW8Split(high[lo:hi], low[lo:hi], moments.Slice(lo, hi), grad.Slice(lo, hi), args.Draw.At(lo),
					&args.AdamWScalars)
			}
		}
		s.crew.split(n, tensor.MomentBlock, perParam, func(lo, hi int) { all.add(update(lo, hi)) })
		all.tell(tally)
	})
}

// masterBytes is the size of a weight between updates.
func masterBytes(weights, low device.Mat) int64 { return weights.DType.Bytes() + low.DType.Bytes() }

// told gathers what pieces of an update tell.
type told struct {
	mu sync.Mutex
	kernels.Tally
}

func (t *told) add(piece kernels.Tally) {
	t.mu.Lock()
	t.Add(piece)
	t.mu.Unlock()
}

// tell adds it to what earlier updates have told.
func (t *told) tell(tally device.Mem) {
	to := unsafe.Slice((*int64)(start(tally)), 2)
	to[0] += int64(t.Bad)
	to[1] = max(to[1], int64(math.Float32bits(t.Longest)))
}

// SumSquares implements device.OptimizerOps.
func (s *Stream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.enqueue(func() {
		v := vec(x)
		s.reduce(dst, x, func(sums []float64, lo, hi int) { s.crew.SumSquares(sums, v.Slice(lo, hi)) })
	})
}

// reduce adds the chunks of x, each summed by f, in order.
func (s *Stream) reduce(dst device.Mem, x device.Mat, f func(sums []float64, lo, hi int)) {
	total := 0.0
	for first := 0; first < x.Cols; first += len(s.sums) * kernels.SumChunk {
		n := min(len(s.sums)*kernels.SumChunk, x.Cols-first)
		s.crew.split(kernels.SumChunks(n), 1, kernels.SumChunk*x.DType.Bytes(), func(lo, hi int) {
			f(s.sums[lo:hi], first+lo*kernels.SumChunk, first+min(hi*kernels.SumChunk, n))
		})
		for _, sum := range s.sums[:kernels.SumChunks(n)] {
			total += sum
		}
	}
	*(*float64)(start(dst)) = total
}
