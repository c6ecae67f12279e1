package ptx

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sample is a kernel of testdata/samples.py.
func sample(t testing.TB, name string) *Kernel {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("testdata", name+".ptx"))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, src)
}

// run launches a kernel with arguments, on a grid, with the shared memory that samples need at most.
func run(t testing.TB, k *Kernel, h *heap, x, y int, args ...any) {
	t.Helper()
	t.Helper()
	c := Config{Grid: [3]uint32{uint32(x), uint32(y), 1}, Block: [3]uint32{uint32(k.MaxThreads), 1, 1},
		SharedBytes: 32 << 10,
		Params:      paramBlock(t, k, args...), Workers: 2}
	if err := k.Run(h, c); err != nil {
		t.Fatal(err)
	}
}

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// bf16s rounds values, in place too.
func bf16s(x []float32) []uint16 {
	y := make([]uint16, len(x))
	for i := range x {
		y[i] = toBF16(x[i])
		x[i] = fromBF16(y[i])
	}
	return y
}

func TestSoftmax(t *testing.T) {
	const rows, cols, stride = 5, 333, 340
	r := rand.New(rand.NewPCG(1, 2))
	x := normal(r, rows*stride)
	h := &heap{}
	in := put(h, bf16s(x))
	out := put(h, slices.Repeat([]uint16{0x1234}, rows*stride))
	run(t, sample(t, "softmax"), h, rows, 1, out, in, cols, stride)
	got := get[uint16](h, out)
	for i := range rows {
		sum := 0.0
		for _, v := range x[i*stride:][:cols] {
			sum += math.Exp(float64(v))
		}
		for j := range stride {
			want := math.Exp(float64(x[i*stride+j])) / sum
			switch g := got[i*stride+j]; {
			case j >= cols:
				if g != 0x1234 {
					t.Fatalf("row %d: written beyond its end", i)
				}
			case math.Abs(float64(fromBF16(g))-want) > want*0x1p-8:
				t.Fatalf("row %d, column %d: %g, want %g", i, j, fromBF16(g), want)
			}
		}
	}
}

// TestMatmul: shapes that are multiples of 16 as the kernels demand, but not of their tiles.
func TestMatmul(t *testing.T) {
	for _, test := range []struct {
		name         string
		tileM, tileN int
		aT, bT       bool
		m, n, k      int
	}{
		{"matmul-bf16-nn", 32, 32, false, false, 48, 80, 112},
		{"matmul-bf16-tt", 32, 32, true, true, 48, 80, 112},
		{"matmul-bf16-tt", 32, 32, true, true, 16, 16, 16},
		{"matmul-f32-nn", 16, 16, false, false, 32, 48, 80},
		{"wgmma-bf16-nn", 64, 32, false, false, 80, 48, 112},
		{"wgmma-bf16-tt", 64, 32, true, true, 80, 48, 112},
		{"wgmma-bf16-registers", 64, 16, false, false, 80, 48, 112},
	} {
		r := rand.New(rand.NewPCG(3, 4))
		m, n, k := test.m, test.n, test.k
		stride := 128
		a, b := normal(r, max(m, k)*stride), normal(r, max(n, k)*stride)
		h := &heap{}
		var pa, pb uint64
		if strings.Contains(test.name, "bf16") {
			pa, pb = put(h, bf16s(a)), put(h, bf16s(b))
		} else {
			pa, pb = put(h, a), put(h, b)
		}
		out := put(h, make([]float32, m*stride))
		run(t, sample(t, test.name), h, (m+test.tileM-1)/test.tileM, (n+test.tileN-1)/test.tileN, out, pa, pb, m, n, k,
			stride, stride, stride)
		got := get[float32](h, out)
		for i := range m {
			for j := range stride {
				want, size := 0.0, 0.0
				for q := range k {
					x, y := a[i*stride+q], b[q*stride+min(j, n)]
					if test.aT {
						x = a[q*stride+i]
					}
					if test.bT {
						y = b[min(j, n-1)*stride+q]
					}
					want += float64(x) * float64(y)
					size += math.Abs(float64(x) * float64(y))
				}
				if test.name == "wgmma-bf16-registers" {
					want, size = 2*want, 2*size
				}
				if j >= n {
					want = 0 // beyond the matrix
				}
				if !(math.Abs(float64(got[i*stride+j])-want) <= 3e-6*size) {
					t.Fatalf("%s: element %d, %d is %g, want %g", test.name, i, j, got[i*stride+j], want)
				}
			}
		}
	}
}

func TestFloats(t *testing.T) {
	const n = 1000
	r := rand.New(rand.NewPCG(5, 6))
	x, z := normal(r, n), normal(r, n)
	h := &heap{}
	out := put(h, make([]float32, n))
	k := sample(t, "floats")
	if lines := k.MayFuse(); len(lines) != 0 {
		t.Errorf("lines %v may be fused", lines)
	}
	run(t, k, h, (n+63)/64, 1, out, put(h, x), put(h, z), n)
	for i, got := range get[float32](h, out) {
		a, b := x[i], z[i]
		q := a / b
		s := float32(q*a) + b
		// a product of float32 is exact in float64; ties aside, so is this
		fused := math.FMA(float64(a), float64(b), float64(s))
		s = float32(math.Sqrt(math.Abs(float64(s)))) - float32(fused)
		if a < b {
			s = min(s, b)
		} else {
			s = max(s, -a)
		}
		if got != s {
			t.Fatalf("%d: of %g and %g: %g, want %g", i, a, b, got, s)
		}
	}
}

func TestIntegers(t *testing.T) {
	const n = 300
	r := rand.New(rand.NewPCG(7, 8))
	x, z := make([]int32, n), make([]int32, n)
	for i := range x {
		x[i], z[i] = int32(r.Uint32())>>r.IntN(32), int32(r.Uint32())>>r.IntN(32)|1
	}
	sums := make([]int64, 9)
	h := &heap{}
	out, total := put(h, make([]int32, n)), put(h, make([]int64, 9))
	const blocks = (n + 63) / 64
	run(t, sample(t, "integers"), h, blocks, 1, out, put(h, x), put(h, z), total, n)
	sums[0] = blocks*64 - n // what is beyond the end counts as 1
	for i, got := range get[int32](h, out) {
		a, b := x[i], z[i]
		high, _ := bits.Mul32(uint32(a), uint32(b))
		want := a/b + a%b + a<<3 + a>>2 + a&b + (a ^ b) + min(a, b) + max(a, -a) + int32(high) + int32(int64(a)*int64(b)>>7)
		if got != want {
			t.Fatalf("%d: of %d and %d: %d, want %d", i, a, b, got, want)
		}
		sums[0] += int64(a)
		sums[1+a&7] += int64(b)
	}
	if got := get[int64](h, total); !slices.Equal(got, sums) {
		t.Errorf("sums %v, want %v", got, sums)
	}
}

func TestFirst(t *testing.T) {
	ids := []int32{3, 1, 3, 0, 1, 3}
	const cols = 40
	h := &heap{}
	out := put(h, make([]float32, 4*cols))
	run(t, sample(t, "first"), h, len(ids), 1, out, put(h, ids), len(ids), cols)
	for i, got := range get[float32](h, out) {
		want := []float32{1, 2, 0, 3}[i/cols] + float32(i%cols)
		if i/cols == 2 { // an id that there is not
			want = 0
		}
		if got != want {
			t.Fatalf("row %d, column %d: %g, want %g", i/cols, i%cols, got, want)
		}
	}
}

func TestSquares(t *testing.T) {
	const n = 700
	r := rand.New(rand.NewPCG(9, 10))
	x := normal(r, n)
	h := &heap{}
	out := put(h, make([]float64, 3))
	run(t, sample(t, "squares"), h, 3, 1, out, put(h, x), n)
	for i, got := range get[float64](h, out) {
		want := 0.0
		for _, v := range x[i*256 : min(n, (i+1)*256)] {
			want += float64(v) * float64(v)
		}
		if math.Abs(got-want) > 1e-12*want {
			t.Errorf("sum %d is %g, want %g", i, got, want)
		}
	}
}

// BenchmarkMatmul counts the instructions of lanes that are executed per second.
func BenchmarkMatmul(b *testing.B) {
	for _, name := range []string{"matmul-bf16-nn", "matmul-f32-nn"} {
		b.Run(name, func(b *testing.B) {
			k := sample(b, name)
			h := &heap{}
			const size = 128
			x, y, z := put(h, make([]float32, size*size)), put(h, make([]float32, size*size)), put(h, make([]float32, size*size))
			args := paramBlock(b, k, z, x, y, size, size, size, size, size, size)
			l := &launch{Config: Config{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}, SharedBytes: 32 << 10,
				Params:           args,
				WarpInstructions: defaultBudget}, kernel: k, memory: h, params: args}
			block := newBlock(l)
			executed := int64(0)
			for b.Loop() {
				if err := block.run(); err != nil {
					b.Fatal(err)
				}
				for _, w := range block.warps {
					executed += defaultBudget - w.steps
				}
			}
			b.ReportMetric(float64(executed*lanes)/b.Elapsed().Seconds()/1e6, "Mlanes/s")
		})
	}
}
