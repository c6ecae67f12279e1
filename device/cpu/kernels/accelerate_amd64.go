package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
)

// accelerate replaces the loops that a level has assembly for.
func accelerate(l *loops, level isa.Level) {
	if level >= isa.AVX512 {
		l.adamwSplit = [2]func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){adamwSplitF32AVX512, adamwSplitBF16AVX512}
		l.adamwSplit24 = [2]func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){
			adamwSplit24F32AVX512, adamwSplit24BF16AVX512}
		l.adamwF32 = adamwF32AVX512
		l.sumSquares = [2]func(x unsafe.Pointer, n int) float64{sumSquaresF32AVX512, sumSquaresBF16AVX512}
		l.sum = sumAVX512
		l.toBF16, l.toF32 = toBF16AVX512, toF32AVX512
		l.split, l.join = splitAVX512, joinAVX512
		l.add = [2]func(dst, a, b unsafe.Pointer, n int){addF32AVX512, addBF16AVX512}
		l.addTo = [2]func(dst, a unsafe.Pointer, n int){addToF32AVX512, addToBF16AVX512}
		l.scale = [2]func(dst, a unsafe.Pointer, n int, s float32){scaleF32AVX512, scaleBF16AVX512}
		l.addScaled = [2]func(dst, a unsafe.Pointer, n int, s float32){addScaledF32AVX512, addScaledBF16AVX512}
		l.normSquares = [2]func(x unsafe.Pointer, n int) float32{normSquaresF32AVX512, normSquaresBF16AVX512}
		l.normApply = [2]func(y, x, w unsafe.Pointer, n int, rstd float32){normApplyF32AVX512, normApplyBF16AVX512}
		l.normDot = [2]func(x, w, dy unsafe.Pointer, n int, rstd float32) float32{normDotF32AVX512, normDotBF16AVX512}
		l.normGrad = [2]func(dx, x, w, dy unsafe.Pointer, n int, rstd, mean float32){normGradF32AVX512, normGradBF16AVX512}
		l.normGradAdd = [2]func(dx, residual, x, w, dy unsafe.Pointer, n int, rstd, mean float32){normGradAddF32AVX512, normGradAddBF16AVX512}
		l.normWeight = [2]func(dw, x, dy unsafe.Pointer, n int, rstd float32){normWeightF32AVX512, normWeightBF16AVX512}
		l.rotate = [2]func(y0, y1, x0, x1, cos, sin unsafe.Pointer, n int, sign float32){rotateF32AVX512, rotateBF16AVX512}
		l.swiglu = gatedLoop{swigluF32AVX512, swigluBF16AVX512}
		l.swigluGrad = gatedGradLoop{swigluGradF32AVX512, swigluGradBF16AVX512}
		l.gate = [2]func(y, x, gate unsafe.Pointer, n int){gateF32AVX512, gateBF16AVX512}
		l.gateGrad = [2]func(dx, dgate, dy, x, gate unsafe.Pointer, n int){gateGradF32AVX512, gateGradBF16AVX512}
		l.geglu = gatedLoop{gegluF32AVX512, gegluBF16AVX512}
		l.gegluGrad = gatedGradLoop{gegluGradF32AVX512, gegluGradBF16AVX512}
		l.limited = limitedLoop{limitedF32AVX512, limitedBF16AVX512}
		l.limitedGrad = limitedGradLoop{limitedGradF32AVX512, limitedGradBF16AVX512}
		l.max, l.sumExp = maxAVX512, sumExpAVX512
		l.expMul = [2]func(dst, x unsafe.Pointer, n int, max, factor float32){expMulF32AVX512, expMulBF16AVX512}
		l.expSum = [2]func(dst, x unsafe.Pointer, n int, scale, max float32) float32{expSumF32AVX512, expSumBF16AVX512}
		l.dot = [2]func(a, b unsafe.Pointer, n int) float32{dotF32AVX512, dotBF16AVX512}
		l.scoreGrad = [2]func(ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32){scoreGradF32AVX512, scoreGradBF16AVX512}
		return
	}
	if level >= isa.AVX2 {
		l.adamwSplit = [2]func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){
			func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32) {
				k := n &^ 7
				var t tally
				t.add(adamwSplitF32AVX2(hi, lo, m, v, g, k, s))
				t.add(plainAdamWSplit[float32](after(hi, 2*k, n-k), after(lo, 2*k, n-k),
					after(m, 4*k, n-k), after(v, 4*k, n-k), after(g, 4*k, n-k), n-k, s))
				return t.bad, t.longest
			},
			func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32) {
				k := n &^ 7
				var t tally
				t.add(adamwSplitBF16AVX2(hi, lo, m, v, g, k, s))
				t.add(plainAdamWSplit[uint16](after(hi, 2*k, n-k), after(lo, 2*k, n-k),
					after(m, 4*k, n-k), after(v, 4*k, n-k), after(g, 2*k, n-k), n-k, s))
				return t.bad, t.longest
			},
		}
		l.adamwSplit24 = [2]func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){
			func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (int, uint32) {
				k := n &^ 7
				var t tally
				t.add(adamwSplit24F32AVX2(hi, lo, m, v, g, words, k, s))
				t.add(plainAdamWSplit24[float32](after(hi, 2*k, n-k), after(lo, k, n-k), after(m, 4*k, n-k),
					after(v, 4*k, n-k), after(g, 4*k, n-k), after(words, 4*k, n-k), n-k, s))
				return t.bad, t.longest
			},
			func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (int, uint32) {
				k := n &^ 7
				var t tally
				t.add(adamwSplit24BF16AVX2(hi, lo, m, v, g, words, k, s))
				t.add(plainAdamWSplit24[uint16](after(hi, 2*k, n-k), after(lo, k, n-k), after(m, 4*k, n-k),
					after(v, 4*k, n-k), after(g, 2*k, n-k), after(words, 4*k, n-k), n-k, s))
				return t.bad, t.longest
			},
		}
		l.adamwF32 = func(p, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32) {
			k := n &^ 7
			var t tally
			t.add(adamwF32AVX2(p, m, v, g, k, s))
			t.add(plainAdamWF32(after(p, 4*k, n-k), after(m, 4*k, n-k), after(v, 4*k, n-k), after(g, 4*k, n-k), n-k, s))
			return t.bad, t.longest
		}
		l.toBF16 = eights(toBF16AVX2, plainToBF16, 2, 4)
		l.toF32 = eights(toF32AVX2, plainToF32, 4, 2)
		l.split = func(hi, lo, src unsafe.Pointer, n int) int {
			k := n &^ 7
			return splitAVX2(hi, lo, src, k) + plainSplit(after(hi, 2*k, n-k), after(lo, 2*k, n-k), after(src, 4*k, n-k), n-k)
		}
		l.join = func(dst, hi, lo unsafe.Pointer, n int) {
			k := n &^ 7
			joinAVX2(dst, hi, lo, k)
			plainJoin(after(dst, 4*k, n-k), after(hi, 2*k, n-k), after(lo, 2*k, n-k), n-k)
		}
		l.sumSquares = [2]func(x unsafe.Pointer, n int) float64{
			func(x unsafe.Pointer, n int) float64 {
				var l lanes[float64]
				k := n &^ 15
				sumSquaresF32AVX2(x, k, &l)
				addSquares[float32](&l, after(x, 4*k, n-k), n-k)
				return l.sum()
			},
			func(x unsafe.Pointer, n int) float64 {
				var l lanes[float64]
				k := n &^ 15
				sumSquaresBF16AVX2(x, k, &l)
				addSquares[uint16](&l, after(x, 2*k, n-k), n-k)
				return l.sum()
			},
		}
		l.addTo = [2]func(dst, a unsafe.Pointer, n int){eights(addToF32AVX2, plainAddTo[float32], 4, 4),
			eights(addToBF16AVX2, plainAddTo[uint16], 4, 2)}
		l.addScaled = [2]func(dst, a unsafe.Pointer, n int, s float32){
			scaledEights(addScaledF32AVX2, plainAddScaled[float32], 4),
			scaledEights(addScaledBF16AVX2, plainAddScaled[uint16], 2)}
		l.swiglu = gatedLoop{runsSwiGLU[float32], runsSwiGLU[uint16]}
		l.swigluGrad = gatedGradLoop{runsSwiGLUGrad[float32], runsSwiGLUGrad[uint16]}
		l.geglu = gatedLoop{runsGeGLU[float32], runsGeGLU[uint16]}
		l.gegluGrad = gatedGradLoop{runsGeGLUGrad[float32], runsGeGLUGrad[uint16]}
		l.limited = limitedLoop{runsLimited[float32], runsLimited[uint16]}
		l.limitedGrad = limitedGradLoop{runsLimitedGrad[float32], runsLimitedGrad[uint16]}
		l.gate = [2]func(y, x, gate unsafe.Pointer, n int){runsGate[float32], runsGate[uint16]}
		l.gateGrad = [2]func(dx, dgate, dy, x, gate unsafe.Pointer, n int){runsGateGrad[float32], runsGateGrad[uint16]}
		l.sumExp = lanesSumExp
		l.expMul = [2]func(dst, x unsafe.Pointer, n int, max, factor float32){runsExpMul[float32], runsExpMul[uint16]}
		l.expSum = [2]func(dst, x unsafe.Pointer, n int, scale, max float32) float32{runsExpSum[float32], runsExpSum[uint16]}
		l.scoreGrad = [2]func(ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32){
			runsScoreGrad[float32], runsScoreGrad[uint16]}
		l.sum = func(x unsafe.Pointer, n int) float64 {
			var l lanes[float64]
			k := n &^ 15
			sumAVX2(x, k, &l)
			addAll(&l, after(x, 4*k, n-k), n-k)
			return l.sum()
		}
	}
}

// eights is a loop of AVX2 over whole eights of elements, and a plain one over the rest; the sizes are those of an
// element of each array in bytes.
func eights(f, plain func(dst, a unsafe.Pointer, n int), dstSize, aSize int) func(dst, a unsafe.Pointer, n int) {
	return func(dst, a unsafe.Pointer, n int) {
		k := n &^ 7
		f(dst, a, k)
		plain(after(dst, dstSize*k, n-k), after(a, aSize*k, n-k), n-k)
	}
}

// scaledEights is eights of a loop that adds what it scales to fp32.
func scaledEights(f, plain func(dst, a unsafe.Pointer, n int, s float32), aSize int) func(dst, a unsafe.Pointer, n int,
	s float32) {
	return func(dst, a unsafe.Pointer, n int, s float32) {
		k := n &^ 7
		f(dst, a, k, s)
		plain(after(dst, 4*k, n-k), after(a, aSize*k, n-k), n-k, s)
	}
}

// after is p + bytes, or p where nothing is left there: a pointer past the end of its memory must not exist.
func after(p unsafe.Pointer, bytes, left int) unsafe.Pointer {
	if left == 0 {
		return p
	}
	return unsafe.Add(p, bytes)
}
