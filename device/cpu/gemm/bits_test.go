package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// twin is an element of C by the arithmetic that the package documents for a level, in plain Go.
func twin(level isa.Level, op *Op, i, j int, old float32) float32 {
	_, _, k := op.Shape()
	a, b := newSource(&op.A, op.TransA, 1), newSource(&op.B, !op.TransB, 1)
	perUnit := 1
	if level >= isa.AVX512BF16 && op.A.DType == tensor.BF16 {
		perUnit = 2
	}
	count, size := kBlocks(max(k, op.Of), perUnit)
	count = min(count, (k+size-1)/size)
	if op.Block > 0 {
		count, size = ceilDiv(k, op.Block), op.Block
	}
	total := old
	for block := range count {
		sum := float32(0)
		end := min((block+1)*size, k)
		if level == isa.AMX && perUnit == 2 {
			sum = tileSum(&a, &b, i, j, block*size, end)
			end = 0
		}
		for l := block * size; l < end; l += perUnit {
			x, y := a.load(i, l), b.load(j, l)
			switch {
			case perUnit == 2:
				var x1, y1 float32
				if l+1 < end {
					x1, y1 = a.load(i, l+1), b.load(j, l+1)
				}
				sum = fma32(flush(x1), flush(y1), sum, true)
				sum = fma32(flush(x), flush(y), sum, true)
			case level == isa.Plain:
				sum += float32(x * y)
			default:
				sum = fma32(x, y, sum, false)
			}
		}
		if block == 0 && !op.Accumulate {
			total = sum
		} else {
			total += sum
		}
	}
	if op.C.DType == tensor.BF16 {
		total = tensor.F32FromBF16(tensor.BF16FromF32(total))
	}
	return total
}

// Every level computes what its documentation says, to the bit, denormals and overflow included.
func TestBitsOfTwin(t *testing.T) {
	forLevels(t, func(t *testing.T, level isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			ab, cd := dtypes(t)
			m, n := rapid.IntRange(1, 34).Draw(t, "m"), rapid.IntRange(1, 34).Draw(t, "n")
			k := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(600, 1500)).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
			op := Op{A: newMat(rng, ab, m, k, k, 0), B: newMat(rng, ab, k, n, n, 0), C: newMat(rng, cd, m, n, n, 0),
				Accumulate: rapid.Bool().Draw(t, "accumulate"), Block: rapid.SampledFrom([]int{0, 0, 32, 128, 256,
					640}).Draw(t, "block"), Of: rapid.SampledFrom([]int{0, 0, k, k + 1, 2 * k, k + 700}).Draw(t, "of")}
			exponent := rapid.SampledFrom([]int{0, 0, -64, -70, -126, 62}).Draw(t, "exponent")
			for _, x := range []*Mat{&op.A, &op.B} {
				for i := range x.Rows {
					for j := range x.Cols {
						x.Set(i, j, float32(math.Ldexp(float64(x.At(i, j)), exponent+rng.IntN(9)-4)))
					}
				}
			}
			old := clone(op.C, false, 0, 0)
			e.Mul(op)
			for i := range m {
				for j := range n {
					got, want := op.C.At(i, j), twin(level, &op, i, j, old.At(i, j))
					if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
						t.Fatalf("C[%d,%d] = %x, want %x (k %d, %v)", i, j, got, want, k, op)
					}
				}
			}
		})
	})
}

// A product of the first terms, whose others are zeros, has the bits of all terms if it is told how many these are.
func TestBitsOfFirstTerms(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			ab, _ := dtypes(t)
			m, n := rapid.IntRange(1, 34).Draw(t, "m"), rapid.IntRange(1, 34).Draw(t, "n")
			all := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(600, 3000)).Draw(t, "all")
			k := rapid.IntRange(1, all).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
			whole := Op{A: newMat(rng, ab, all, m, m, 0), B: newMat(rng, ab, all, n, n, 0),
				C: newMat(rng, tensor.F32, m, n, n, 0), TransA: true, Accumulate: rapid.Bool().Draw(t, "accumulate")}
			for l := k; l < all; l++ {
				for i := range m {
					whole.A.Set(l, i, 0)
				}
			}
			first := whole
			first.A, first.B, first.C, first.Of = whole.A.rows(0, k), whole.B.rows(0, k), clone(whole.C, false, 0, 0), all
			e.Mul(whole)
			e.Mul(first)
			for i := range m {
				for j := range n {
					if got, want := first.C.At(i, j), whole.C.At(i, j); math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("C[%d,%d] = %x, with %d of %d terms %x (%v)", i, j, want, k, all, got, whole)
					}
				}
			}
		})
	})
}

func TestFMA32(t *testing.T) {
	for _, c := range []struct{ a, b, c, want float32 }{
		{3, 4, 5, 17},
		{0, 0, float32(math.Copysign(0, -1)), 0},
		// Rounded in float64 first, the sum would be half-way and become even.
		{1 + 0x1p-12, 1 + 0x1p-12, 0x1p-70, 1 + 0x1p-11 + 0x1p-23},
		{0x1p-126, 0.5, 0, 0x1p-127},
		{0x1p100, 0x1p100, 1, float32(math.Inf(1))},
	} {
		if got := fma32(c.a, c.b, c.c, false); got != c.want {
			t.Errorf("fma32(%x, %x, %x) = %x, want %x", c.a, c.b, c.c, got, c.want)
		}
	}
}

// The blocks of k set bits: a change here changes what every run computes.
func TestBlocksOfK(t *testing.T) {
	for _, c := range []struct{ k, perUnit, count, size int }{
		{1, 1, 1, 8}, {1, 2, 1, 16}, {576, 1, 1, 576}, {640, 1, 1, 640}, {641, 1, 2, 328}, {960, 1, 2, 480},
		{1536, 1, 3, 512}, {1536, 2, 2, 768}, {4096, 1, 7, 592}, {4096, 2, 4, 1024}, {11008, 2, 9, 1232},
	} {
		if count, size := kBlocks(c.k, c.perUnit); count != c.count || size != c.size {
			t.Errorf("k %d in units of %d: %d blocks of %d, want %d of %d", c.k, c.perUnit, count, size, c.count, c.size)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		k, perUnit := rapid.IntRange(1, 1<<20).Draw(t, "k"), rapid.IntRange(1, 2).Draw(t, "perUnit")
		count, size := kBlocks(k, perUnit)
		if size > maxUnits*perUnit || size%perUnit != 0 || count*size < k || (count-1)*size >= k {
			t.Fatalf("%d blocks of %d", count, size)
		}
	})
}

// The check of level AMX passes kernels with the documented bits, and no others.
func TestAgrees(t *testing.T) {
	t.Log("levels of this machine:", isa.Available())
	for _, level := range levelsHere() {
		if got := agrees(kernelsAt(level)); got != (level == isa.AMX) {
			t.Errorf("%v agrees with level AMX: %v", level, got)
		}
	}
}

// A result that is too small before it is rounded to the least normal number is a zero.
func TestFlushedFMA32(t *testing.T) {
	for _, c := range []struct{ a, b, c, want float32 }{
		{0x1p-126, 0.5, 0, 0},
		{-0x1p-126, 0.5, 0, float32(math.Copysign(0, -1))},
		{0x1p-126, 1, 0, 0x1p-126},
		{0x1.fffffep-64, 0x1.fffffep-64, 0, 0},   // (1 - 2^-24)^2 of 2^-126: rounded to 24 bits it is smaller
		{0x1p-100, -0x1p-52, 0x1p-126, 0x1p-126}, // 2^-26 less: rounded to 24 bits it is not
		{0x1p-100, -0x1.8p-51, 0x1p-126, 0},      // 3 * 2^-26 less: it is
		{0x1p100, 0x1p100, 1, float32(math.Inf(1))},
	} {
		if got := fma32(c.a, c.b, c.c, true); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("fma32(%x, %x, %x), flushed, = %x, want %x", c.a, c.b, c.c, got, c.want)
		}
	}
}
