package attention

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// byTiles multiplies as level AMX does, in plain Go and with other roundings: every 32 products have a sum of the even
// and one of the odd places. A product's bits may depend on the places of its inner sum, and so may these.
type byTiles struct{ plain }

// Multiply implements Multiplier.
func (byTiles) Multiply(_ int, p Product) {
	const tile = 32
	inner := p.A.Cols
	if p.TransposeA {
		inner = p.A.Rows
	}
	p.eachElement(func(i, j int) (sum float32) {
		for first := 0; first < inner; first += tile {
			var parts [2]float32
			for l := first; l < min(first+tile, inner); l++ {
				b := element(p.B, l, j, p.TransposeB)
				if p.Packed != nil {
					b = p.Packed[j*inner+l]
				}
				parts[l%2] += float32(element(p.A, i, l, p.TransposeA) * b)
			}
			sum += parts[0] + parts[1]
		}
		return sum
	})
}

// A document's bits do not depend on its place: alone it has the outputs and the gradients that it has in any row, at any
// offset. They are those of attention over a cache, too.
func TestDocumentsHaveTheirOwnBits(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: one goroutine computes, so there is no race to find; make test runs it")
	}
	for _, level := range isa.Available() {
		t.Run(level.String(), func(t *testing.T) {
			mul := newMultiplier(level, 1)
			for seed := range uint64(25) {
				documentAlone(t, seed, kernels.For(level), mul)
			}
		})
	}
	t.Run("as tiles sum", func(t *testing.T) {
		for seed := range uint64(10) {
			documentAlone(t, seed, kernels.For(isa.Best()), byTiles{})
		}
	})
}

func documentAlone(t *testing.T, seed uint64, k *kernels.Table, mul Multiplier) {
	rng := rand.New(rand.NewPCG(seed, 1))
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	before, n, after := one(0, 126, 190, 300)+rng.IntN(70), one(0, 126, 190, 300)+1+rng.IntN(70), one(0, 1, 60)
	kvHeads, headDim, window := one(1, 2), one(8, 17, 32), one(0, 0, 1, 31, 128, 200)
	heads := kvHeads * one(1, 2)
	dtype := []tensor.DType{tensor.F32, tensor.BF16}[rng.IntN(2)]
	row := newProblem(rng, dtype, before+n+after, heads, kvHeads, headDim, window, one(0, 4))
	alone := newProblem(rng, dtype, n, heads, kvHeads, headDim, window, 0)
	row.SoftCap = float32(one(0, 0, 2))
	if rng.IntN(2) == 0 {
		row.Sinks = kernels.F32([]float32{1, -1, 2, 0}[:heads])
	}
	alone.SoftCap, alone.Sinks = row.SoftCap, row.Sinks
	for i := range n + after {
		row.DocStart[before+i] = int32(before + i/n*n)
	}
	for _, p := range []problem{row, alone} {
		if err := p.Check(true); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range [][2]kernels.Mat{{alone.Q, row.Q}, {alone.K, row.K}, {alone.V, row.V}, {alone.DOut, row.DOut}} {
		for r := range n {
			k.Convert(rowOf(m[0], r), rowOf(m[1], before+r))
		}
	}
	row.run(k, mul, rng)
	alone.run(k, mul, rng)
	for _, of := range []struct {
		name      string
		row, want kernels.Mat
	}{
		{"out", row.Out, alone.Out}, {"dq", row.DQ, alone.DQ}, {"dk", row.DK, alone.DK}, {"dv", row.DV, alone.DV},
		{"lse", kernels.MatF32(row.LSE, heads), kernels.MatF32(alone.LSE, heads)},
		{"delta", kernels.MatF32(row.Delta, heads), kernels.MatF32(alone.Delta, heads)},
	} {
		if !slices.Equal(bitsOf(part(of.row, before, before+n, 0, of.row.Cols)), bitsOf(of.want)) {
			t.Errorf("%s: a document of %d rows has other bits at row %d (seed %d)", of.name, n, before, seed)
		}
	}

	cached := *alone.Spec
	cached.Out = mat(dtype, n, heads*headDim, func() float32 { return float32(math.NaN()) })
	for r := range n {
		cached.End = append(cached.End, int32(r+1))
	}
	c, err := NewCached(&cached)
	if err != nil {
		t.Fatal(err)
	}
	scratch := alignedBytes(ScratchBytes(headDim))
	for task := range c.Tasks() {
		c.Run(k, mul, 0, task, scratch)
	}
	if !slices.Equal(bitsOf(cached.Out), bitsOf(alone.Out)) {
		t.Errorf("out: a document of %d rows has other bits over a cache (seed %d)", n, seed)
	}
}

func rowOf(m kernels.Mat, r int) kernels.Vec { return row(m, r, 0, m.Cols) }

func bitsOf(m kernels.Mat) (all []uint32) {
	for _, x := range floats(m) {
		all = append(all, math.Float32bits(float32(x)))
	}
	return all
}

// A document begins at its first row.
func TestCheckRefusesDocuments(t *testing.T) {
	for _, starts := range [][]int32{{1, 1}, {-1, 0}, {0, 0, 1}, {0, 1, 0}, {0, 0, 2, 0}} {
		p := newProblem(rand.New(rand.NewPCG(1, 2)), tensor.F32, len(starts), 1, 1, 8, 0, 0)
		copy(p.DocStart, starts)
		if err := p.Check(false); err == nil {
			t.Errorf("documents that begin at %d: no error", starts)
		}
	}
}
