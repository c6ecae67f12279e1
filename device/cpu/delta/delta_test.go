package delta

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// multiplier is the matrix product of the device, on one worker.
type multiplier struct{ *gemm.Engine }

type alone struct{}

func (alone) Workers() int                    { return 1 }
func (alone) Run(int, func(worker, task int)) { panic("serial only") }

func (m multiplier) Multiply(worker int, p attention.Product) {
	m.MulSerial(worker, gemm.Op{C: gemm.Mat(p.C), A: gemm.Mat(p.A), B: gemm.Mat(p.B), TransA: p.TransposeA,
		TransB: p.TransposeB, Accumulate: p.Accumulate})
}
func (m multiplier) PackB(int, []float32, kernels.Mat, bool) { panic("nothing is packed") }
func (m multiplier) PackedFloats(tensor.DType, int, int) int { return 0 }

// matrix makes a matrix with a gap after each row.
func matrix(d tensor.DType, rows, cols int, fill func() float32) kernels.Mat {
	x, h := make([]float32, rows*(cols+3)), make([]uint16, rows*(cols+3))
	for i := range x {
		x[i] = fill()
		h[i] = tensor.BF16FromF32(x[i])
	}
	m := kernels.MatF32(x, cols+3)
	if d == tensor.BF16 {
		m = kernels.MatBF16(h, cols+3)
	}
	m.Cols = cols
	return m
}

// problem is a recurrence over documents of these lengths. Outputs are NaNs.
func problem(rng *rand.Rand, d tensor.DType, keyHeads, heads, keyDim, valueDim int, lengths ...int) *Spec {
	s := &Spec{KeyHeads: keyHeads, Heads: heads, KeyDim: keyDim, ValueDim: valueDim}
	for _, n := range lengths {
		s.Start = append(s.Start, slices.Repeat([]int32{int32(len(s.Start))}, n)...)
	}
	t, qkv := s.rows(), 2*keyHeads*keyDim+heads*valueDim
	normal := func() float32 { return float32(rng.NormFloat64()) }
	s.QKV, s.DOut = matrix(d, t, qkv, normal), matrix(d, t, heads*valueDim, normal)
	for i := range t * heads {
		size := []float32{0.001, 0.1, 0.03, 1}[i/heads%4]
		if i%301 == 300 {
			size = 300 // nothing is left of the state
		}
		s.Decay, s.Beta = append(s.Decay, -size*rng.Float32()), append(s.Beta, rng.Float32())
	}
	s.poison(d)
	return s
}

// poison places outputs.
func (s *Spec) poison(d tensor.DType) {
	nan := func() float32 { return float32(math.NaN()) }
	vec := func(n int) []float32 { return slices.Repeat([]float32{nan()}, n) }
	t := s.rows()
	states := (t + Chunk - 1) / Chunk * s.Heads * s.KeyDim * s.ValueDim
	s.Out, s.DQKV = matrix(d, t, s.Heads*s.ValueDim, nan), matrix(d, t, s.QKV.Cols, nan)
	s.DDecay, s.DBeta, s.States, s.DStates = vec(t*s.Heads), vec(t*s.Heads), vec(states), vec(states)
}

// run computes both directions in chunks.
func (s *Spec) run(level isa.Level) {
	memory := make([]byte, ScratchBytes(s.KeyDim, s.ValueDim)+63)
	memory = memory[-uintptr(unsafe.Pointer(&memory[0]))&63:]
	k, m, d := kernels.For(level), multiplier{gemm.New(level, alone{})}, s.Documents()
	for task := range d.Tasks(s) {
		Forward(k, m, 0, s, d, task, memory)
	}
	for task := range d.Tasks(s) {
		Backward(k, m, 0, s, d, task, memory)
	}
}

// outputs holds the results of both directions, by name.
func (s *Spec) outputs() map[string][]float32 {
	flat := func(m kernels.Mat) (all []float32) {
		for r := range m.Rows {
			for c := range m.Cols {
				all = append(all, part(m, r, c, 1).At(0))
			}
		}
		return all
	}
	return map[string][]float32{"out": flat(s.Out), "dqkv": flat(s.DQKV), "states": s.States, "dstates": s.DStates,
		"ddecay": s.DDecay, "dbeta": s.DBeta}
}

// The chunked form agrees with the recurrence, row by row, at the width of real heads, over many chunks and documents.
func TestChunksAgainstRows(t *testing.T) {
	for _, c := range []struct {
		keyHeads, heads, keyDim, valueDim int
		lengths                           []int
	}{
		{1, 2, 128, 128, []int{1000}}, {1, 1, 128, 64, []int{64, 1, 191, 40}}, {2, 4, 33, 65, []int{7, 9, 300, 2, 128}},
	} {
		for _, level := range isa.Available() {
			if level == isa.Plain && testing.Short() {
				continue
			}
			for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
				t.Run(fmt.Sprint(c, level, d), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(1, 2))
					s := problem(rng, d, c.keyHeads, c.heads, c.keyDim, c.valueDim, c.lengths...)
					s.run(level)
					got := s.outputs()
					s.poison(d)
					for h := range s.KeyHeads {
						Reference(kernels.For(level), s, h)
						ReferenceGrad(kernels.For(level), s, h)
					}
					for name, want := range s.outputs() {
						compare(t, name, got[name], want, d)
					}
				})
			}
		}
	}
}

// compare allows a share of the largest number, and roundings of the type.
func compare(t *testing.T, name string, got, want []float32, d tensor.DType) {
	t.Helper()
	largest, worst := 0.0, 0.0
	for _, x := range want {
		largest = max(largest, math.Abs(float64(x)))
	}
	for i, x := range want {
		limit := 2e-6 * largest
		if d == tensor.BF16 {
			limit += math.Abs(float64(x)) / 128
		}
		share := math.Abs(float64(got[i]-x)) / limit
		if !(share <= 1) {
			t.Fatalf("%s[%d] is %v in chunks, %v row by row", name, i, got[i], x)
		}
		worst = max(worst, share)
	}
	t.Logf("%s: the worst error is %.2g of what is allowed", name, worst)
}

// How documents are put into tasks changes no bit: here each document, or all of them, is a task's.
func TestRunsOfDocuments(t *testing.T) {
	s := problem(rand.New(rand.NewPCG(3, 4)), tensor.F32, 1, 2, 16, 8, 5, 100, 30, 200, 1, 64, 300, 2)
	if n := len(s.Documents()); n != 3 {
		t.Errorf("%d runs of documents", n)
	}
	level := isa.Best()
	s.run(level)
	want := s.outputs()
	s.poison(tensor.F32)
	memory := make([]byte, ScratchBytes(s.KeyDim, s.ValueDim)+63)
	memory = memory[-uintptr(unsafe.Pointer(&memory[0]))&63:]
	var each Documents
	for first, end := 0, 1; end <= s.rows(); end++ {
		if s.ends(end) {
			each = append(each, struct{ First, End int }{first, end})
			first = end
		}
	}
	k, m := kernels.For(level), multiplier{gemm.New(level, alone{})}
	for task := each.Tasks(s) - 1; task >= 0; task-- {
		Forward(k, m, 0, s, each, task, memory)
	}
	for task := each.Tasks(s) - 1; task >= 0; task-- {
		Backward(k, m, 0, s, each, task, memory)
	}
	for name, got := range s.outputs() {
		if !slices.Equal(got, want[name]) {
			t.Errorf("%s has other bits where each document is a task's", name)
		}
	}
}

// A document's bits do not depend on its place: alone it has the outputs and the gradients that it has in any row, at any
// offset.
func TestDocumentsHaveTheirOwnBits(t *testing.T) {
	for _, level := range isa.Available() {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprint(level, d), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(5, 6))
				for range 12 {
					before, after := []int{1 + rng.IntN(200)}, []int{1 + rng.IntN(80)}
					if rng.IntN(2) == 0 {
						before = append(before, 1+rng.IntN(70))
					}
					n, first := 1+rng.IntN(260), 0
					for _, m := range before {
						first += m
					}
					row := problem(rng, d, 2, 4, 12, 9, slices.Concat(before, []int{n}, after)...)
					alone := problem(rng, d, 2, 4, 12, 9, n)
					rows := func(m kernels.Mat) kernels.Mat { return block(m, first, first+n, 0, m.Cols) }
					of := func(x []float32) []float32 { return x[first*row.Heads:][:n*row.Heads] }
					alone.QKV, alone.DOut, alone.Decay, alone.Beta = rows(row.QKV), rows(row.DOut), of(row.Decay), of(row.Beta)
					row.run(level)
					alone.run(level)
					row.Out, row.DQKV, row.DDecay, row.DBeta = rows(row.Out), rows(row.DQKV), of(row.DDecay), of(row.DBeta)
					got := row.outputs()
					for name, want := range alone.outputs() {
						if name != "states" && name != "dstates" && !slices.Equal(got[name], want) {
							t.Errorf("%s: a document of %d rows has other bits at row %d", name, n, first)
						}
					}
				}
			})
		}
	}
}
