package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
)

// Several products have the bits that each of them has by itself, whatever their rows and whatever columns a task has.
func TestBitsOfMulAll(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			ab, cd := dtypes(t)
			n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(100, 700)).Draw(t, "n")
			k := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(600, 1400)).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 9))
			var ops, alone []Op
			for range rapid.IntRange(0, 5).Draw(t, "products") {
				m := rapid.OneOf(rapid.IntRange(0, 30), rapid.Just(ownRows+1)).Draw(t, "m")
				op := Op{TransB: rapid.Bool().Draw(t, "transB"), Accumulate: rapid.Bool().Draw(t, "accumulate")}
				op.A, op.B = newMat(rng, ab, m, k, k, 0), newMat(rng, ab, k, n, n+2, 0)
				if op.TransB {
					op.B = newMat(rng, ab, n, k, k+1, 0)
				}
				op.C = newMat(rng, cd, m, n, n+3, 0)
				want := op
				want.C = clone(op.C, false, 0, 0)
				ops, alone = append(ops, op), append(alone, want)
			}
			e.MulAll(ops)
			for i, op := range ops {
				e.Mul(alone[i])
				for r := range op.C.Rows {
					for c := range n {
						if got, want := op.C.At(r, c), alone[i].C.At(r,
							c); math.Float32bits(got) != math.Float32bits(want) {
							t.Fatalf("product %d: C[%d,%d] = %x, alone %x (%v)", i, r, c, got, want, op)
						}
					}
				}
				if paddingTouched(&op.C) {
					t.Fatalf("wrote between the rows of C (%v)", op)
				}
			}
		})
	})
}
