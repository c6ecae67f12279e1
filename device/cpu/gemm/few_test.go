package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// A product of few rows has the bits of the same product on packed panels, which is the slow way: all numbers of rows,
// edges, types and strides, by workers that share it and by one alone.
func TestBitsOfFewRows(t *testing.T) {
	forLevels(t, func(t *testing.T, level isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			ab, cd := dtypes(t)
			m, n := rapid.IntRange(1, 9).Draw(t, "m"), dim(t, "n", 300)
			k := rapid.OneOf(rapid.IntRange(1, 70), rapid.IntRange(600, 1500)).Draw(t, "k")
			if rapid.Bool().Draw(t, "whole") {
				k = ceilTo(k, 16)
			}
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 11))
			mat := func(d tensor.DType, rows, cols int) Mat {
				return newMat(rng, d, rows, cols, cols+rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "pad"),
					rapid.IntRange(0, 17).Draw(t, "offset"))
			}
			op := Op{A: mat(ab, m, k), B: mat(ab, n, k), C: mat(cd, m, n), TransB: true,
				Accumulate: rapid.Bool().Draw(t, "accumulate"),
				Block:      rapid.SampledFrom([]int{0, 0, 32, 256}).Draw(t, "block")}
			if rapid.Bool().Draw(t, "denormal") {
				for i := range m {
					for l := range k {
						op.A.Set(i, l, op.A.At(i, l)*0x1p-125)
					}
				}
			}
			want := op
			want.C = clone(op.C, false, 0, 0)
			e.mulMany(want)
			if rapid.Bool().Draw(t, "serial") {
				e.MulSerial(1, op)
			} else {
				e.Mul(op)
			}
			for i := range m {
				for j := range n {
					if got, want := op.C.At(i, j), want.C.At(i, j); math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("C[%d,%d] = %x, on panels %x (%v)", i, j, got, want, op)
					}
				}
			}
			if paddingTouched(&op.C) {
				t.Fatalf("wrote between the rows of C (%v)", op)
			}
		})
	})
}

// Levels with assembly read the weights of few rows where they are. AMX does for fp32 alone.
func TestFewRowsAreNotPacked(t *testing.T) {
	p := pool.New(1, nil)
	defer p.Close()
	rng := rand.New(rand.NewPCG(12, 12))
	for _, level := range isa.Available() {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			e := New(level, p)
			panels := e.workers[0].own.b
			panels[0] = 42
			e.Mul(Op{A: newMat(rng, d, 3, 64, 64, 0), B: newMat(rng, d, 40, 64, 64, 0), C: newMat(rng, d, 3, 40, 40, 0),
				TransB: true})
			packs := level == isa.Plain || level == isa.AMX && d == tensor.BF16
			if packed := panels[0] != 42; packed != packs {
				t.Errorf("%v %v: packed %v, want %v", level, d, packed, packs)
			}
		}
	}
}

// oneWorker runs all tasks on the last of its workers.
type oneWorker int

func (n oneWorker) Workers() int { return int(n) }

func (n oneWorker) Run(tasks int, f func(worker, task int)) {
	for t := range tasks {
		f(int(n)-1, t)
	}
}

// A worker that begins first multiplies the columns of those that do not come.
func TestFewRowsOfLateWorkers(t *testing.T) {
	const n, k = 500, 32
	rng := rand.New(rand.NewPCG(13, 13))
	op := Op{A: newMat(rng, tensor.F32, 1, k, k, 0), B: newMat(rng, tensor.F32, n, k, k, 0),
		C: newMat(rng, tensor.F32, 1, n, n, 0), TransB: true}
	want := op
	want.C = clone(op.C, false, 0, 0)
	e := New(isa.Best(), oneWorker(3))
	e.mulMany(want)
	for range 2 { // the second product begins with ranges of its own
		for j := range n {
			op.C.Set(0, j, float32(math.NaN()))
		}
		e.Mul(op)
		for j := range n {
			if got, want := op.C.At(0, j), want.C.At(0, j); got != want {
				t.Fatalf("C[0,%d] = %v, want %v", j, got, want)
			}
		}
	}
}
