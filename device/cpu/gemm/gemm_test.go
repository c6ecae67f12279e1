package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// poison fills what no product may touch: the padding between rows and around matrices.
const poison = 0x7fc1

// newMat makes a matrix of random normal numbers inside poisoned memory; offset moves it off its alignment.
func newMat(rng *rand.Rand, d tensor.DType, rows, cols, stride, offset int) Mat {
	words := make([]uint16, (rows*stride+2*offset+64)*int(d.Bytes())/2)
	for i := range words {
		words[i] = poison
	}
	m := Mat{Data: unsafe.Pointer(&words[offset*int(d.Bytes())/2]), DType: d, Rows: rows, Cols: cols, Stride: stride}
	for i := range rows {
		for j := range cols {
			m.Set(i, j, float32(rng.NormFloat64()))
		}
	}
	return m
}

// clone copies a matrix to other strides and alignment, transposed or not.
func clone(m Mat, transpose bool, pad, offset int) Mat {
	rows, cols := m.Rows, m.Cols
	if transpose {
		rows, cols = cols, rows
	}
	c := newMat(rand.New(rand.NewPCG(0, 0)), m.DType, rows, cols, cols+pad, offset)
	for i := range m.Rows {
		for j := range m.Cols {
			if transpose {
				c.Set(j, i, m.At(i, j))
			} else {
				c.Set(i, j, m.At(i, j))
			}
		}
	}
	return c
}

// paddingTouched reports a write between the rows of a matrix made by newMat.
func paddingTouched(m *Mat) bool {
	for i := range m.Rows {
		for j := m.Cols; j < m.Stride; j++ {
			p := m.address(i, j)
			if *(*uint16)(p) != poison || m.DType == tensor.F32 && *(*uint16)(unsafe.Add(p, 2)) != poison {
				return true
			}
		}
	}
	return false
}

// bound returns the largest error of a sum of k products, given the sum of their absolute values: the rounding errors
// of the sums in fp32, and one rounding of a bf16 C.
func bound(op *Op, i, j int, want float64) float64 {
	_, _, k := op.Shape()
	a, b := newSource(&op.A, op.TransA, 1), newSource(&op.B, !op.TransB, 1)
	abs := math.Abs(want)
	for l := range k {
		abs += math.Abs(float64(a.load(i, l)) * float64(b.load(j, l)))
	}
	tol := abs * float64(k+4) * 0x1p-24
	if op.C.DType == tensor.BF16 {
		tol += math.Abs(want) * 0x1p-8
	}
	return tol
}

func dtypes(t *rapid.T) (operand, result tensor.DType) {
	both := rapid.SampledFrom([]tensor.DType{tensor.F32, tensor.BF16})
	return both.Draw(t, "operands"), both.Draw(t, "C")
}

// dim draws sizes that are not round, and sizes around the widths of panels and blocks.
func dim(t *rapid.T, name string, most int) int {
	n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, most),
		rapid.SampledFrom([]int{1, 2, 11, 12, 13, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65})).Draw(t, name)
	return min(n, most)
}

func forLevels(t *testing.T, f func(t *testing.T, level isa.Level, e *Engine)) {
	p := pool.New(3, nil)
	t.Cleanup(p.Close)
	for _, level := range levelsHere() {
		t.Run(level.String(), func(t *testing.T) { f(t, level, newEngine(kernelsAt(level), p)) })
	}
}

// Every path agrees with float64: all levels, dtypes, transpositions, strides, shapes, Mul and MulSerial.
func TestMulAgainstReference(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			m, n := dim(t, "m", 70), dim(t, "n", 100)
			k := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 1500)).Draw(t, "k")
			if k > 500 {
				m, n = min(m, 30), min(n, 40)
			}
			checkProduct(t, e, m, n, k)
		})
	})
}

func checkProduct(t *rapid.T, e *Engine, m, n, k int) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	ab, c := dtypes(t)
	op := Op{TransA: rapid.Bool().Draw(t, "transA"), TransB: rapid.Bool().Draw(t, "transB"),
		Accumulate: rapid.Bool().Draw(t, "accumulate")}
	mat := func(d tensor.DType, rows, cols int, transposed bool) Mat {
		if transposed {
			rows, cols = cols, rows
		}
		return newMat(rng, d, rows, cols, cols+rapid.IntRange(0, 9).Draw(t, "pad"), rapid.IntRange(0, 17).Draw(t, "offset"))
	}
	op.A, op.B, op.C = mat(ab, m, k, op.TransA), mat(ab, k, n, op.TransB), mat(c, m, n, false)
	want := op
	want.C = clone(op.C, false, 0, 0)
	want.C.DType = c
	exact := clone(op.C, false, 0, 0)
	if c == tensor.BF16 { // the oracle keeps fp32, so that bound knows the error of one rounding only
		exact = newMat(rng, tensor.F32, m, n, n, 0)
		for i := range m {
			for j := range n {
				exact.Set(i, j, op.C.At(i, j))
			}
		}
	}
	want.C = exact
	Reference(want)
	if rapid.Bool().Draw(t, "serial") {
		e.MulSerial(rapid.IntRange(0, len(e.workers)-1).Draw(t, "worker"), op)
	} else {
		e.Mul(op)
	}
	for i := range m {
		for j := range n {
			got, ref := float64(op.C.At(i, j)), float64(want.C.At(i, j))
			if !(math.Abs(got-ref) <= bound(&op, i, j, ref)) {
				t.Fatalf("C[%d,%d] = %v, want %v (%v)", i, j, got, ref, op)
			}
		}
	}
	if paddingTouched(&op.C) {
		t.Fatalf("wrote between the rows of C (%v)", op)
	}
}

// The bits of an element do not depend on the rest of the matrix, on its place, on memory layout or on who computes.
func TestBitsDependOnRowAndColumnOnly(t *testing.T) {
	p1 := pool.New(1, nil)
	defer p1.Close()
	forLevels(t, func(t *testing.T, level isa.Level, e *Engine) {
		alone := newEngine(kernelsAt(level), p1)
		rapid.Check(t, func(t *rapid.T) {
			ab, cd := dtypes(t)
			m, n := dim(t, "m", 90), dim(t, "n", 110)
			k := rapid.OneOf(rapid.IntRange(1, 70), rapid.IntRange(600, 1400)).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
			whole := Op{A: newMat(rng, ab, m, k, k, 0), B: newMat(rng, ab, k, n, n, 0), C: newMat(rng, cd, m, n, n, 0),
				Accumulate: rapid.Bool().Draw(t, "accumulate")}
			old := clone(whole.C, false, 0, 0)
			e.Mul(whole)

			// A part of the rows and columns, in other memory, otherwise transposed, on another engine.
			i0, j0 := rapid.IntRange(0, m-1).Draw(t, "i0"), rapid.IntRange(0, n-1).Draw(t, "j0")
			rows, cols := rapid.IntRange(1, m-i0).Draw(t, "rows"), rapid.IntRange(1, n-j0).Draw(t, "cols")
			part := whole
			part.TransA, part.TransB = rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB")
			move := func(m Mat, i, j, rows, cols int, transpose bool) Mat {
				m.Data, m.Rows, m.Cols = m.address(i, j), rows, cols
				return clone(m, transpose, rapid.IntRange(0, 5).Draw(t, "pad"), rapid.IntRange(0, 17).Draw(t, "offset"))
			}
			part.A = move(whole.A, i0, 0, rows, k, part.TransA)
			part.B = move(whole.B, 0, j0, k, cols, part.TransB)
			part.C = move(old, i0, j0, rows, cols, false)
			switch rapid.IntRange(0, 2).Draw(t, "engine") {
			case 0:
				e.Mul(part)
			case 1:
				alone.Mul(part)
			case 2:
				e.MulSerial(1, part)
			}
			for i := range rows {
				for j := range cols {
					got, want := part.C.At(i, j), whole.C.At(i0+i, j0+j)
					if math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("C[%d,%d] = %x, in the whole %x (k %d)", i, j, got, want, k)
					}
				}
			}
		})
	})
}

// Products larger than one shared block, with rows and columns spot-checked against a product of that row and column.
func TestBlocksAreJoined(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices")
	}
	p := pool.New(2, nil)
	defer p.Close()
	e := New(isa.Best(), p)
	if isa.Best() == isa.Plain {
		t.Skip("slow in plain Go")
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for _, s := range []struct{ m, n, k int }{{sharedRows + 13, 70, 1300}, {50, sharedCols + 33, 1301}, {2050, 1100, 1400}} {
		for _, cd := range []tensor.DType{tensor.F32, tensor.BF16} {
			op := Op{A: newMat(rng, tensor.BF16, s.m, s.k, s.k, 0), B: newMat(rng, tensor.BF16, s.k, s.n, s.n, 0),
				C: newMat(rng, cd, s.m, s.n, s.n+3, 1)}
			e.Mul(op)
			if paddingTouched(&op.C) {
				t.Fatalf("wrote between the rows of C (%v)", op)
			}
			for range 40 {
				i, j := rng.IntN(s.m), rng.IntN(s.n)
				one := op
				one.A.Data, one.A.Rows = op.A.address(i, 0), 1
				one.B.Data, one.B.Cols = op.B.address(0, j), 1
				one.C = newMat(rng, cd, 1, 1, 1, 0)
				e.MulSerial(0, one)
				if got, want := op.C.At(i, j), one.C.At(0, 0); math.Float32bits(got) != math.Float32bits(want) {
					t.Fatalf("%v C[%d,%d] = %v, alone %v", op, i, j, got, want)
				}
			}
		}
	}
}

func TestEmptySum(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rng := rand.New(rand.NewPCG(4, 4))
		for _, accumulate := range []bool{false, true} {
			c := newMat(rng, tensor.BF16, 3, 5, 7, 0)
			old := clone(c, false, 0, 0)
			e.Mul(Op{A: Mat{DType: tensor.F32, Rows: 3}, B: Mat{DType: tensor.F32, Cols: 5, Stride: 5}, C: c, Accumulate: accumulate})
			for i := range 3 {
				for j := range 5 {
					want := float32(0)
					if accumulate {
						want = old.At(i, j)
					}
					if c.At(i, j) != want {
						t.Errorf("accumulate %v: C[%d,%d] = %v, want %v", accumulate, i, j, c.At(i, j), want)
					}
				}
			}
			if paddingTouched(&c) {
				t.Error("wrote between the rows of C")
			}
		}
	})
}

// A bf16 result is rounded like tensor.BF16FromF32, for every kind of number.
func TestRoundingOfBF16(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rng := rand.New(rand.NewPCG(5, 5))
		const n = 77
		one := newMat(rng, tensor.F32, 1, 1, 1, 0)
		one.Set(0, 0, 1)
		for range 200 {
			b, c := newMat(rng, tensor.F32, 1, n, n, 0), newMat(rng, tensor.BF16, 1, n, n, 1)
			for j := range n {
				b.Set(0, j, math.Float32frombits(rng.Uint32()&^uint32(rng.IntN(2)*0xffff)|uint32(rng.IntN(2)*0x8000)))
			}
			e.Mul(Op{A: one, B: b, C: c})
			for j := range n {
				x := b.At(0, j)
				got, want := c.At(0, j), tensor.F32FromBF16(tensor.BF16FromF32(x))
				if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
					t.Fatalf("%x became %x, want %x", x, got, want)
				}
			}
		}
	})
}

func TestMulDoesNotAllocate(t *testing.T) {
	p := pool.New(1, nil)
	defer p.Close()
	e := New(isa.Best(), p)
	rng := rand.New(rand.NewPCG(6, 6))
	op := Op{A: newMat(rng, tensor.BF16, 50, 50, 50, 0), B: newMat(rng, tensor.BF16, 50, 50, 50, 0), C: newMat(rng, tensor.BF16, 50, 50, 50, 0)}
	few := op
	few.A.Rows, few.C.Rows, few.TransB = 3, 3, true
	all := []Op{op, op}
	panels := alignedFloats(e.PackedFloats(tensor.BF16, 50, 50))
	for name, f := range map[string]func(){"Mul": func() { e.Mul(op) }, "Mul of few rows": func() { e.Mul(few) },
		"MulSerial": func() { e.MulSerial(0, op) }, "MulAll": func() { e.MulAll(all) },
		"PackB":     func() { e.PackB(0, panels, op.B, false) },
		"MulPacked": func() { e.MulPacked(0, op, panels) }} {
		if n := testing.AllocsPerRun(10, f); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestImpossibleProductPanics(t *testing.T) {
	f32 := func(rows, cols, stride int) Mat {
		return Mat{Data: unsafe.Pointer(new([64]float32)), DType: tensor.F32, Rows: rows, Cols: cols, Stride: stride}
	}
	bf16 := f32(3, 4, 4)
	bf16.DType = tensor.BF16
	for name, op := range map[string]Op{
		"k":      {A: f32(2, 3, 3), B: f32(4, 5, 5), C: f32(2, 5, 5)},
		"m":      {A: f32(2, 3, 3), B: f32(3, 5, 5), C: f32(3, 5, 5)},
		"n":      {A: f32(2, 3, 3), B: f32(3, 5, 5), C: f32(2, 4, 4), TransA: false},
		"stride": {A: f32(2, 3, 2), B: f32(3, 5, 5), C: f32(2, 5, 5)},
		"dtype":  {A: f32(2, 3, 3), B: bf16, C: f32(2, 4, 4)},
		"data":   {A: f32(2, 3, 3), B: Mat{DType: tensor.F32, Rows: 3, Cols: 4, Stride: 4}, C: f32(2, 4, 4)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			op.Shape()
		}()
	}
}

func ExampleEngine_Mul() {
	workers := pool.New(2, nil)
	defer workers.Close()
	e := New(isa.Best(), workers)
	mat := func(rows, cols int, x ...float32) Mat {
		return Mat{Data: unsafe.Pointer(&x[0]), DType: tensor.F32, Rows: rows, Cols: cols, Stride: cols}
	}
	c := mat(2, 1, 0, 0)
	e.Mul(Op{C: c, A: mat(2, 3, 1, 2, 3, 4, 5, 6), B: mat(1, 3, 1, 10, 100), TransB: true})
	fmt.Println(c.At(0, 0), c.At(1, 0))
	// Output: 321 654
}

// Workers inside the tasks of a pool's Run multiply at the same time.
func TestMulSerialInsideTasks(t *testing.T) {
	p := pool.New(3, nil)
	defer p.Close()
	e := New(isa.Best(), p)
	rng := rand.New(rand.NewPCG(7, 7))
	ops, want := make([]Op, 40), make([]Mat, 40)
	for i := range ops {
		m, n, k := 1+rng.IntN(150), 1+rng.IntN(150), 1+rng.IntN(150)
		ops[i] = Op{A: newMat(rng, tensor.BF16, m, k, k, 0), B: newMat(rng, tensor.BF16, n, k, k, 0),
			C: newMat(rng, tensor.F32, m, n, n, 0), TransB: true}
		want[i] = clone(ops[i].C, false, 0, 0)
		other := ops[i]
		other.C = want[i]
		e.Mul(other)
	}
	p.Run(len(ops), func(worker, task int) { e.MulSerial(worker, ops[task]) })
	for i, op := range ops {
		for r := range op.C.Rows {
			for c := range op.C.Cols {
				if op.C.At(r, c) != want[i].At(r, c) {
					t.Fatalf("product %d: C[%d,%d] = %v, want %v", i, r, c, op.C.At(r, c), want[i].At(r, c))
				}
			}
		}
	}
}
