package gemm

import (
	"math"
	"math/rand/v2"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// fma32 is a*b + c with one rounding; with flushed, a denormal result is a zero of its sign. The product is exact in
// float64. The sum is rounded to odd there (the last bit is set if anything was lost), after which rounding to fp32 is
// right: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
func fma32(a, b, c float32, flushed bool) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	t := s - p
	lost := (p - (s - t)) + (z - t) // exact: Knuth's TwoSum
	if lost != 0 && !math.IsInf(s, 0) {
		bits := math.Float64bits(s)
		if bits&1 == 0 {
			if (lost > 0) == (s > 0) {
				bits++
			} else {
				bits--
			}
		}
		s = math.Float64frombits(bits)
	}
	// A result is denormal if it is too small when it is rounded without a least exponent (Intel SDM, volume 1, 4.9.1.5).
	if flushed && math.Abs(s) < 1 && math.Abs(float64(float32(s*0x1p64))) < 0x1p-62 {
		return float32(math.Copysign(0, s))
	}
	return float32(s)
}

// flush makes a denormal a zero of its sign.
func flush(x float32) float32 {
	if math.Float32bits(x)&0x7f800000 == 0 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// tileSum is the sum of a block of k by TDPBF16PS, from k to end - 1, as the package comment has it: what kernelAMX
// computes.
func tileSum(a, b *source, i, j, k, end int) float32 {
	sum := float32(0)
	for ; k < end; k += 32 {
		var parts [2]float32 // of the even and of the odd k
		for l := k; l < k+32; l++ {
			var x, y float32
			if l < end {
				x, y = a.load(i, l), b.load(j, l)
			}
			parts[(l-k)%2] = fma32(flush(x), flush(y), parts[(l-k)%2], true)
		}
		sum = flush(sum + flush(parts[0]+parts[1]))
	}
	return sum
}

// TilesAgree reports whether products of level AMX have, on this CPU, the bits that this package documents. It
// multiplies once in a process: no such CPU was there when the level was written, only an emulator (bochs has it).
var TilesAgree = sync.OnceValue(func() bool { return agrees(kernelsFor(isa.AMX)) })

// agrees compares products of bf16, denormals among the operands, with tileSum.
func agrees(kern kernels) bool {
	const m, n, k = 35, 37, 77
	rng := rand.New(rand.NewPCG(1, 2))
	a, b, c := make([]uint16, m*k), make([]uint16, n*k), make([]float32, m*n)
	for _, x := range [][]uint16{a, b} {
		for i := range x {
			x[i] = tensor.BF16FromF32(float32(math.Ldexp(rng.NormFloat64(), rng.IntN(2)*-62)))
		}
	}
	a[3], b[5] = 0x0001, 0x8003 // denormals
	op := Op{C: Mat{unsafe.Pointer(&c[0]), tensor.F32, m, n, n}, A: Mat{unsafe.Pointer(&a[0]), tensor.BF16, m, k, k},
		B: Mat{unsafe.Pointer(&b[0]), tensor.BF16, n, k, k}, TransB: true}
	e := &Engine{kern: kern, workers: []worker{newWorker(kern, m, n)}}
	e.MulSerial(0, op)
	left, right := newSource(&op.A, false, 1), newSource(&op.B, false, 1)
	for i := range m {
		for j := range n {
			if math.Float32bits(c[i*n+j]) != math.Float32bits(tileSum(&left, &right, i, j, 0, k)) {
				return false
			}
		}
	}
	return true
}
