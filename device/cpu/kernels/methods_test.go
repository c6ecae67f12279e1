package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// The tests of this file compare the public functions with float64 formulas that are written down independently, on
// shapes that are not round, and check that cutting the work into ranges changes no bit.

// array is a matrix of either type with a gap after each row.
type array struct {
	Mat
	f []float32
	h []uint16
}

func newArray(d tensor.DType, rows, cols, gap int, fill func() float32) array {
	a := array{Mat: Mat{DType: d, Rows: rows, Cols: cols, Stride: cols + gap}}
	n := rows*(cols+gap) + 1
	a.f, a.h = make([]float32, n), make([]uint16, n)
	for i := range n {
		a.f[i] = fill()
		a.h[i] = tensor.BF16FromF32(a.f[i])
	}
	a.Data = F32(a.f).Data
	if d == tensor.BF16 {
		a.Data = BF16(a.h).Data
	}
	return a
}

func (a array) at(r, c int) float64 {
	i := r*a.Stride + c
	if a.DType == tensor.BF16 {
		return float64(tensor.F32FromBF16(a.h[i]))
	}
	return float64(a.f[i])
}

func (a array) vec() Vec { return Vec{a.Data, a.DType, a.Cols} }

// near fails unless got is want within the type's rounding and a few of fp32's, relative to size.
func near(t *testing.T, what string, d tensor.DType, got, want, size float64) {
	t.Helper()
	limit := 4e-6 * size
	if d == tensor.BF16 {
		limit += math.Abs(want) / 256
	}
	if !(math.Abs(got-want) <= limit) {
		t.Fatalf("%s: %g, want %g (limit %g)", what, got, want, limit)
	}
}

// forAll runs f for every level and type.
func forAll(t *testing.T, f func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand)) {
	for _, level := range isa.Available() {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(level.String()+"/"+d.String(), func(t *testing.T) { f(t, For(level), d, rand.New(rand.NewPCG(5, 6))) })
		}
	}
}

// cut calls f for ranges that cover [0, n), in a random order.
func cut(rng *rand.Rand, n int, f func(lo, hi int)) {
	mid := rng.IntN(n + 1)
	f(mid, n)
	f(0, mid)
}

func normal(rng *rand.Rand) func() float32 {
	return func() float32 { return float32(rng.NormFloat64()) }
}

func nan() float32 { return float32(math.NaN()) }

func TestRMSNorm(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		for _, s := range []struct {
			rows, groups, dim int
			offset            float32
		}{{3, 1, 37, 0}, {2, 5, 16, 1}, {5, 3, 20, 0}, {1, 1, 600, 1}} {
			cols := s.groups * s.dim
			x, dy, res := newArray(d, s.rows, cols, 3, normal(rng)), newArray(d, s.rows, cols, 1, normal(rng)), newArray(d, s.rows, cols, 0, normal(rng))
			y, dx := newArray(d, s.rows, cols, 2, nan), newArray(d, s.rows, cols, 0, nan)
			w := newArray(d, 1, s.dim, 0, normal(rng))
			dw := make([]float32, s.dim)
			const before = 0.5 // gradients accumulate
			for j := range dw {
				dw[j] = before
			}
			weight := NormWeight(nil, w.vec(), s.offset, s.dim)
			op := RMSNorm{X: x.Mat, Y: y.Mat, Weight: weight, RStd: make([]float32, s.rows*s.groups), Groups: s.groups,
				Eps: 1e-5, DX: dx.Mat, DY: dy.Mat, DWeight: dw}
			residual := s.rows > 1
			if residual {
				op.Residual = res.Mat
			}
			cut(rng, s.rows, func(lo, hi int) { k.RMSNormForward(&op, lo, hi) })
			cut(rng, s.rows, func(lo, hi int) { k.RMSNormBackward(&op, lo, hi) })
			cut(rng, s.dim, func(lo, hi int) { k.RMSNormWeightGrad(&op, s.rows, lo, hi) })
			wantDW := make([]float64, s.dim)
			for r := range s.rows {
				for g := range s.groups {
					var squares, mean float64
					at := func(a array, j int) float64 { return a.at(r, g*s.dim+j) }
					for j := range s.dim {
						squares += at(x, j) * at(x, j)
					}
					rstd := 1 / math.Sqrt(squares/float64(s.dim)+1e-5)
					near(t, "rstd", tensor.F32, float64(op.RStd[r*s.groups+g]), rstd, rstd)
					for j := range s.dim {
						mean += (w.at(0, j) + float64(s.offset)) * at(dy, j) * at(x, j) * rstd / float64(s.dim)
					}
					for j := range s.dim {
						xhat := at(x, j) * rstd
						near(t, "y", d, at(y, j), (w.at(0, j)+float64(s.offset))*xhat, 4)
						want := rstd * ((w.at(0, j)+float64(s.offset))*at(dy, j) - xhat*mean)
						if residual {
							want += at(res, j)
						}
						near(t, "dx", d, at(dx, j), want, 8)
						wantDW[j] += at(dy, j) * xhat
					}
				}
			}
			for j := range dw {
				near(t, "dw", tensor.F32, float64(dw[j]), before+wantDW[j], 8)
			}
		}
	})
}

func TestLayerNorm(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		for i, s := range []struct{ rows, dim int }{{3, 37}, {2, 16}, {4, unitPiece + 70}, {1, 600}} {
			off := func() float32 { return float32(rng.NormFloat64()) + 3 }
			x, dy := newArray(d, s.rows, s.dim, 3, off), newArray(d, s.rows, s.dim, 1, normal(rng))
			res, y := newArray(d, s.rows, s.dim, 0, normal(rng)), newArray(d, s.rows, s.dim, 2, nan)
			dx, dw := newArray(d, s.rows, s.dim, 0, nan), make([]float32, s.dim)
			w, b := newArray(d, 1, s.dim, 0, normal(rng)), newArray(d, 1, s.dim, 0, normal(rng))
			const before = 0.5 // gradients accumulate
			for j := range dw {
				dw[j] = before
			}
			op := LayerNorm{X: x.Mat, Y: y.Mat, Weight: NormWeight(nil, w.vec(), 0, s.dim), Eps: 1e-5,
				Stat: make([]float32, 2*s.rows), DX: dx.Mat, DY: dy.Mat, DWeight: dw}
			biased, residual := i%2 == 0, s.rows > 1
			if biased {
				op.Bias = NormWeight(nil, b.vec(), 0, s.dim)
			}
			if residual {
				op.Residual = res.Mat
			}
			cut(rng, s.rows, func(lo, hi int) { k.LayerNormForward(&op, lo, hi) })
			cut(rng, s.rows, func(lo, hi int) { k.LayerNormBackward(&op, lo, hi) })
			cut(rng, s.dim, func(lo, hi int) { k.LayerNormWeightGrad(&op, s.rows, lo, hi) })
			wantDW, n := make([]float64, s.dim), float64(s.dim)
			for r := range s.rows {
				var mean, squares, all, along float64
				for j := range s.dim {
					mean += x.at(r, j) / n
				}
				for j := range s.dim {
					squares += (x.at(r, j) - mean) * (x.at(r, j) - mean)
				}
				rstd := 1 / math.Sqrt(squares/n+1e-5)
				near(t, "mean", tensor.F32, float64(op.Stat[2*r]), mean, 1)
				near(t, "rstd", tensor.F32, float64(op.Stat[2*r+1]), rstd, rstd)
				xhat := func(j int) float64 { return (x.at(r, j) - mean) * rstd }
				for j := range s.dim {
					all += w.at(0, j) * dy.at(r, j) / n
					along += w.at(0, j) * dy.at(r, j) * xhat(j) / n
				}
				for j := range s.dim {
					want := w.at(0, j) * xhat(j)
					if biased {
						want += b.at(0, j)
					}
					near(t, "y", d, y.at(r, j), want, 4)
					want = rstd * (w.at(0, j)*dy.at(r, j) - all - xhat(j)*along)
					if residual {
						want += res.at(r, j)
					}
					near(t, "dx", d, dx.at(r, j), want, 8)
					wantDW[j] += dy.at(r, j) * xhat(j)
				}
			}
			for j := range dw {
				near(t, "dw", tensor.F32, float64(dw[j]), before+wantDW[j], 8)
			}
		}
	})
}

func TestRoPE(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		const rows, heads, headDim, most = 4, 3, 26, 50
		x, y, z := newArray(d, rows, heads*headDim, 5, normal(rng)), newArray(d, rows, heads*headDim, 0, nan), newArray(d, rows, heads*headDim, 2, nan)
		summed, parts := newArray(d, rows, heads*headDim, 3, nan), newArray(d, rows, heads*headDim, 1, nan)
		bias := newArray(d, 1, heads*headDim, 0, normal(rng))
		op := RoPE{X: x.Mat, Y: y.Mat, Heads: heads, HeadDim: headDim, Positions: []int32{0, 7, 49, 7}}
		for p := range most {
			for i := range headDim / 2 {
				angle := float64(p) * math.Pow(10000, -2*float64(i)/headDim)
				op.Cos, op.Sin = append(op.Cos, float32(math.Cos(angle))), append(op.Sin, float32(math.Sin(angle)))
			}
		}
		cut(rng, rows, func(lo, hi int) { k.RoPERows(&op, lo, hi) })
		back := op
		back.X, back.Y, back.Inverse = y.Mat, z.Mat, true
		cut(rng, rows, func(lo, hi int) { k.RoPERows(&back, lo, hi) })
		biased, turn := op, op
		biased.Y, biased.Bias = summed.Mat, Vec{Data: bias.Data, DType: d, Len: heads * headDim}
		cut(rng, rows, func(lo, hi int) { k.RoPERows(&biased, lo, hi) })
		for r := range rows {
			k.Add(Vec{Data: parts.Mat.at(r, 0), DType: d, Len: heads * headDim}, Vec{Data: x.Mat.at(r, 0), DType: d, Len: heads * headDim}, biased.Bias)
		}
		turn.X, turn.Y = parts.Mat, parts.Mat
		k.RoPERows(&turn, 0, rows)
		for r := range rows {
			for c := range heads * headDim {
				if got, want := summed.at(r, c), parts.at(r, c); got != want {
					t.Fatalf("[%d, %d] of a sum is turned to %g, of a sum that was stored to %g", r, c, got, want)
				}
				h, i := c/headDim*headDim, c%headDim
				angle := float64(op.Positions[r]) * math.Pow(10000, -2*float64(i%(headDim/2))/headDim)
				want := x.at(r, c) * math.Cos(angle)
				if i < headDim/2 {
					want -= x.at(r, h+i+headDim/2) * math.Sin(angle)
				} else {
					want += x.at(r, h+i-headDim/2) * math.Sin(angle)
				}
				near(t, "y", d, y.at(r, c), want, 3)
				if d == tensor.F32 {
					near(t, "there and back", d, z.at(r, c), x.at(r, c), 3)
				}
			}
		}
	})
}

// A norm without a weight multiplies by 1, and an offset of 0 leaves a weight its sign.
func TestNormWeight(t *testing.T) {
	w := []float32{float32(math.Copysign(0, -1)), -1, 0.5}
	if got := NormWeight(nil, F32(w), 0, 3); !math.Signbit(float64(got[0])) || got[1] != -1 || got[2] != 0.5 {
		t.Errorf("offset 0 makes %v of %v", got, w)
	}
	if got := NormWeight(nil, F32(w), 1, 3); !slices.Equal(got, []float32{1, 0, 1.5}) {
		t.Errorf("offset 1 makes %v of %v", got, w)
	}
	if got := NormWeight(nil, Vec{}, 0, 3); !slices.Equal(got, []float32{1, 1, 1}) {
		t.Errorf("no weight is %v", got)
	}
}

// gates are activations and their derivatives in float64.
var gates = map[device.GLUSpec]func(x float64) (f, slope float64){
	{}: func(x float64) (f, slope float64) {
		s := 1 / (1 + math.Exp(-x))
		return x * s, s * (1 + x*(1-s))
	},
	{Gate: device.GELU}: func(x float64) (f, slope float64) {
		s := math.Erfc(-x/math.Sqrt2) / 2
		return x * s, s + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	},
	{Gate: device.GELUTanh}: func(x float64) (f, slope float64) {
		root := math.Sqrt(2 / math.Pi)
		tanh := math.Tanh(root * (x + 0.044715*x*x*x))
		return x * (1 + tanh) / 2, (1+tanh)/2 + x*(1-tanh*tanh)/2*root*(1+3*0.044715*x*x)
	},
}

func TestGLU(t *testing.T) {
	for spec, gate := range gates {
		forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
			const rows, n = 3, 45
			wide := func() float32 { return float32(rng.NormFloat64() * 8) }
			gu, dh := newArray(d, rows, 2*n, 3, wide), newArray(d, rows, n, 1, normal(rng))
			h, dgu := newArray(d, rows, n, 0, nan), newArray(d, rows, 2*n, 1, nan)
			op := GLU{GateUp: gu.Mat, H: h.Mat, DH: dh.Mat, DGateUp: dgu.Mat, GLUSpec: spec}
			cut(rng, rows, func(lo, hi int) { k.GLUForward(&op, lo, hi) })
			again := newArray(d, rows, n, 2, nan)
			op.H = again.Mat
			cut(rng, rows, func(lo, hi int) { k.GLUBackward(&op, lo, hi) })
			for r := range rows {
				for c := range n {
					g, u := gu.at(r, c), gu.at(r, n+c)
					f, slope := gate(g)
					near(t, "h", d, h.at(r, c), f*u, 1+math.Abs(g*u))
					if again.at(r, c) != h.at(r, c) {
						t.Errorf("h of the gradient is %g, of forward %g", again.at(r, c), h.at(r, c))
					}
					near(t, "dup", d, dgu.at(r, n+c), dh.at(r, c)*f, 1+math.Abs(g))
					near(t, "dgate", d, dgu.at(r, c), dh.at(r, c)*u*slope, 1+math.Abs(g*u))
				}
			}
		})
	}
}

// Gates of any size give numbers, and a NaN stays one.
func TestGLUOfOddGates(t *testing.T) {
	odd := []float32{0, 1e-40, 15.9, 16, 17, 1e4, 1e20, math.MaxFloat32}
	for spec, gate := range gates {
		for _, level := range isa.Available() {
			k := For(level)
			for _, size := range odd {
				for _, g := range []float32{size, -size, float32(math.NaN())} {
					gu, h, dgu := []float32{g, 1}, make([]float32, 1), make([]float32, 2)
					op := GLU{GateUp: MatF32(gu, 2), H: MatF32(h, 1), DH: MatF32([]float32{1}, 1),
						DGateUp: MatF32(dgu, 2), GLUSpec: spec}
					k.GLUBackward(&op, 0, 1)
					if g != g {
						if h[0] == h[0] || dgu[0] == dgu[0] || dgu[1] == dgu[1] {
							t.Errorf("%v %+v: a gate of NaN gives %v, %v", level, spec, h, dgu)
						}
						continue
					}
					f, slope := gate(float64(min(max(g, -40), 40))) // x or 0 beyond
					if math.Abs(float64(g)) > 40 {
						f = max(float64(g), 0)
					}
					what := fmt.Sprintf("%v %+v of %g: ", level, spec, g)
					near(t, what+"h", tensor.F32, float64(h[0]), f, 1+math.Abs(float64(g)))
					near(t, what+"dgate", tensor.F32, float64(dgu[0]), slope, 2)
				}
			}
		}
	}
}

func TestCrossEntropy(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		testCrossEntropy(t, k, d, rng, nil)
		testCrossEntropy(t, k, d, rng, []float32{-0.5, 0.125, 1, 0, 0.25})
	})
}

func testCrossEntropy(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand, slopes []float32) {
	const rows, vocab, tile = 5, 103, 40
	logits := newArray(tensor.F32, rows, vocab, 0, func() float32 { return float32(rng.NormFloat64()*10 + 300) })
	grad := newArray(d, rows, vocab, 0, nan)
	op := CrossEntropy{Stats: make([]float32, rows*StatLen), Targets: []int32{0, 102, -1, 40, 39},
		Loss: make([]float32, rows), Entropy: make([]float32, rows), Hit: make([]float32, rows),
		Weights: []float32{0.25, -3, 1, 0, 2}, EntropySlopes: slopes}
	tiles := func(f func()) {
		for c := 0; c < vocab; c += tile {
			n := min(tile, vocab-c)
			op.ColFirst = c
			op.Logits = Mat{logits.Mat.at(0, c), tensor.F32, rows, n, vocab}
			op.DLogits = Mat{grad.Mat.at(0, c), d, rows, n, vocab}
			f()
		}
	}
	cut(rng, rows, func(lo, hi int) { k.LSEReset(&op, lo, hi) })
	tiles(func() { cut(rng, rows, func(lo, hi int) { k.LSEUpdate(&op, lo, hi) }) })
	cut(rng, rows, func(lo, hi int) { k.LSEFinish(&op, lo, hi) })
	tiles(func() { cut(rng, rows, func(lo, hi int) { k.CrossEntropyGrad(&op, lo, hi) }) })
	for r := range rows {
		target := int(op.Targets[r])
		var sum, entropy float64
		for c := range vocab {
			sum += math.Exp(logits.at(r, c) - 300)
		}
		for c := range vocab {
			x := logits.at(r, c) - 300 - math.Log(sum)
			entropy -= math.Exp(x) * x
		}
		want := 0.0
		if target >= 0 {
			want = math.Log(sum) + 300 - logits.at(r, target)
		}
		near(t, "loss", tensor.F32, float64(op.Loss[r]), want, 10)
		for c := range vocab {
			want := 0.0
			if target >= 0 {
				p := math.Exp(logits.at(r, c)-300) / sum
				want = p * float64(op.Weights[r])
				if slopes != nil {
					want -= float64(slopes[r]) * p * (math.Log(p) + entropy)
				}
				if c == target {
					want -= float64(op.Weights[r])
				}
			}
			near(t, "gradient", d, grad.at(r, c), want, 1)
		}
	}
}

func TestEmbeddingAndBias(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		const rows, first, dim = 6, 10, 21
		by := float32(1)
		if d == tensor.BF16 {
			by = 1.5
		}
		ids := []int32{10, 15, 9, 16, 12, 15, 10}
		tab, dy := newArray(d, rows, dim, 2, normal(rng)), newArray(d, len(ids), dim, 1, normal(rng))
		y := newArray(d, len(ids), dim, 0, func() float32 { return 7 })
		dtab := newArray(tensor.F32, rows, dim, 3, func() float32 { return 1 })
		op := Embedding{IDs: ids, RowFirst: first, Table: tab.Mat, Y: y.Mat, DTable: dtab.Mat, DY: dy.Mat,
			By: by}
		found, ends := TokensByRow([]int32{9}, []int32{8}, ids, first, dtab.Rows)
		if !slices.Equal(found, []int32{0, 6, 4, 1, 5}) || !slices.Equal(ends, []int32{2, 2, 3, 3, 3, 5}) {
			t.Fatalf("tokens by row %v, rows end at %v", found, ends)
		}
		cut(rng, len(ids), func(lo, hi int) { k.EmbeddingGather(&op, lo, hi) })
		cut(rng, dim, func(lo, hi int) { k.EmbeddingScatterAdd(&op, found, lo, hi) })
		b := newArray(d, 1, dim, 0, normal(rng))
		z := newArray(d, len(ids), dim, 1, func() float32 { return 2 })
		cut(rng, len(ids), func(lo, hi int) { k.BiasAdd(z.Mat, b.vec(), lo, hi) })
		db := make([]float32, dim)
		cut(rng, dim, func(lo, hi int) { k.BiasGrad(db, dy.Mat, lo, hi) })
		for c := range dim {
			sum, sums := 0.0, [rows]float64{}
			for i, id := range ids {
				want, r := 7.0, int(id)-first
				if r >= 0 && r < rows {
					want = tab.at(r, c)
					sums[r] += dy.at(i, c)
				}
				near(t, "gather", tensor.F32, y.at(i, c), want, 0)
				near(t, "bias", d, z.at(i, c), 2+b.at(0, c), 2)
				sum += dy.at(i, c)
			}
			near(t, "bias gradient", tensor.F32, float64(db[c]), sum, 8)
			for r := range rows {
				near(t, "scatter", tensor.F32, dtab.at(r, c), 1+float64(by)*sums[r], 4)
			}
		}
	})
}

func TestSums(t *testing.T) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, rng *rand.Rand) {
		for _, n := range []int{0, 1, 15, 17, SumChunk - 1, SumChunk, 2*SumChunk + 333} {
			x := newArray(d, 1, n, 0, normal(rng))
			sums := make([]float64, SumChunks(n))
			k.SumSquares(sums, x.vec())
			var want float64
			for i := range n {
				want += x.at(0, i) * x.at(0, i)
			}
			if got := Total(sums); !(math.Abs(got-want) <= 1e-12*want) {
				t.Fatalf("%d elements: %g, want %g", n, got, want)
			}
			if n > SumChunk { // a chunk of its own
				one := make([]float64, 1)
				k.SumSquares(one, x.vec().Slice(SumChunk, min(2*SumChunk, n)))
				if one[0] != sums[1] {
					t.Fatal("the split shows")
				}
			}
			if d == tensor.F32 {
				k.Sum(sums, x.f[:n])
				want = 0
				for _, v := range x.f[:n] {
					want += float64(v)
				}
				if got := Total(sums); !(math.Abs(got-want) <= 1e-10*float64(n+1)) {
					t.Fatalf("%d elements: sum %g, want %g", n, got, want)
				}
			}
		}
	})
}

// TestAdamWFormula follows the textbook formula in float64 for some steps.
func TestAdamWFormula(t *testing.T) {
	const n, steps = 37, 20
	const lr, b1, b2, eps, wd = 1e-2, 0.9, 0.99, 1e-8, 0.1
	for _, level := range isa.Available() {
		rng := rand.New(rand.NewPCG(1, 1))
		p, m, v, g := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		P, M, V := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range p {
			p[i] = float32(rng.NormFloat64())
			P[i] = float64(p[i])
		}
		for step := 1; step <= steps; step++ {
			longest := 0.0 // in units of the learning rate
			for i := range g {
				g[i] = float32(rng.NormFloat64())
				G := float64(g[i]) * 0.5
				P[i] -= lr * wd * P[i]
				M[i] = b1*M[i] + (1-b1)*G
				V[i] = b2*V[i] + (1-b2)*G*G
				move := M[i] / (1 - math.Pow(b1, float64(step))) / (math.Sqrt(V[i]/(1-math.Pow(b2, float64(step)))) + eps)
				P[i] -= lr * move
				longest = max(longest, math.Abs(move))
			}
			s := optim.AdamW{Beta1: b1, Beta2: b2, Eps: eps, WeightDecay: wd}.Scalars(step, lr, 0.5, true)
			told := For(level).AdamWF32(p, m, v, g, &s)
			if told.Bad != 0 {
				t.Fatalf("%d bad weights", told.Bad)
			}
			near(t, "the longest move", tensor.F32, float64(told.Longest)/(1-math.Pow(b1, float64(step))), longest, 1)
		}
		for i := range p {
			near(t, "p", tensor.F32, float64(p[i]), P[i], 1)
		}
	}
}

// TestAdamWSplitIsF32 is the promise of the split master: the same bits as fp32 weights, at any level, cut anywhere.
func TestAdamWSplitIsF32(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(0, 70).Draw(r, "n")
		float := rapid.Map(rapid.Uint32(), func(b uint32) float32 {
			if b&0x7f800000 == 0x7f800000 {
				b &^= 0x40000000 // finite
			}
			return math.Float32frombits(b)
		})
		draw := func(name string) []float32 { return rapid.SliceOfN(float, n, n).Draw(r, name) }
		p, m, v, g := draw("p"), draw("m"), draw("v"), draw("g")
		for i := range v {
			v[i] = float32(math.Abs(float64(v[i])))
		}
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}.Scalars(rapid.IntRange(1, 1000).Draw(r, "step"), 1e-3, 1, true)
		at := rapid.IntRange(0, n).Draw(r, "cut")
		wantP, wantM, wantV := append([]float32(nil), p...), append([]float32(nil), m...), append([]float32(nil), v...)
		want := For(isa.Plain).AdamWF32(wantP, wantM, wantV, g, &s)
		for _, level := range isa.Available() {
			k := For(level)
			hi, lo, back := make([]uint16, n), make([]int16, n), make([]float32, n)
			m, v := append([]float32(nil), m...), append([]float32(nil), v...)
			k.SplitMaster(hi, lo, p)
			told := k.AdamWSplit(hi[at:], lo[at:], m[at:], v[at:], F32(g[at:]), &s)
			told.Add(k.AdamWSplit(hi[:at], lo[:at], m[:at], v[:at], F32(g[:at]), &s))
			k.JoinMaster(back, hi, lo)
			if told != want {
				r.Fatalf("%v: told %+v, want %+v", level, told, want)
			}
			for i := range p {
				if !sameBits(back[i], wantP[i]) || !sameBits(m[i], wantM[i]) || !sameBits(v[i], wantV[i]) {
					r.Fatalf("%v: element %d: %g %g %g, want %g %g %g", level, i, back[i], m[i], v[i], wantP[i], wantM[i], wantV[i])
				}
				if x := math.Float32bits(m[i]) << 1; x != 0 && x < 1<<24 {
					r.Fatalf("%v: m is denormal", level)
				}
			}
		}
	})
}

func sameBits(x, y float32) bool {
	return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
}

func TestNoAllocations(t *testing.T) {
	const n = 300
	x, y, h, l := make([]float32, n), make([]float32, n), make([]uint16, n), make([]int16, n)
	s, sums := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0}.Scalars(1, 1e-3, 1, true), make([]float64, 1)
	norm := RMSNorm{X: MatF32(x, n), Y: MatF32(y, n), Weight: slices.Clone(y), RStd: make([]float32, 1),
		Groups: 1, Eps: 1}
	for _, level := range isa.Available() {
		k := For(level)
		if a := testing.AllocsPerRun(5, func() {
			k.AdamWSplit(h, l, x, y, F32(x), &s)
			k.SumSquares(sums, BF16(h))
			k.Sum(sums, x)
			k.Convert(BF16(h), F32(x))
			k.RMSNormForward(&norm, 0, 1)
		}); a != 0 {
			t.Errorf("%v: %v allocations", level, a)
		}
	}
}
