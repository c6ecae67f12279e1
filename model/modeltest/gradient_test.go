package modeltest

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The products show each error of a backward pass: an element that is off, rows or columns that are exchanged, a sign,
// a number of elements.
func TestGradientsThatDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, columns := rapid.IntRange(3, 20).Draw(t, "rows"), rapid.IntRange(3, 20).Draw(t, "columns")
		right := rapid.SliceOfN(rapid.Float32Range(-1, 1), rows*columns, rows*columns).Draw(t, "gradient")
		right[0] = 1 // not all are zero
		g := Gradient{Rows: rows, Columns: columns, Kept: make([]float32, rows+columns)}
		g.Kept = g.Of(right)
		if d, e := g.RelDiff(right), g.ElementDiff(right, 1e-4, 1e-5); d != 0 || e != 0 {
			t.Fatalf("a gradient differs from itself by %v, %v", d, e)
		}
		off := rapid.IntRange(0, len(right)-1).Draw(t, "element")
		other := rapid.IntRange(0, len(right)-1).Draw(t, "other element")
		for what, wrong := range map[string]func(g []float32){
			"an element": func(g []float32) { g[off] += 0.5 },
			"two elements": func(g []float32) {
				g[off] += 0.5
				g[other] -= 0.25
			},
			"a NaN": func(g []float32) { g[off] = float32(math.NaN()) },
			"rows": func(g []float32) {
				for c := range columns {
					g[c], g[columns+c] = g[columns+c]+0.5, g[c]
				}
			},
			"columns": func(g []float32) {
				for r := range rows {
					g[r*columns], g[r*columns+1] = g[r*columns+1]+0.5, g[r*columns]
				}
			},
			"all but a sign": func(g []float32) {
				for i := range g {
					g[i] = -g[i]
				}
			},
		} {
			changed := append([]float32(nil), right...)
			wrong(changed)
			if d, e := g.RelDiff(changed), g.ElementDiff(changed, 1e-4, 1e-5); !(d > 1e-4) || !(e > 1) {
				t.Errorf("%s of %d x %d: differs by %v, %v", what, rows, columns, d, e)
			}
		}
		if d := g.RelDiff(right[1:]); !math.IsInf(d, 1) {
			t.Errorf("one element less differs by %v", d)
		}
	})
}

// The norm of the products stands for that of the gradient: a difference of some part of the norm shows as about that
// part.
func TestGradientsNorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.IntRange(0, 1<<20).Draw(t, "seed")
		g := Gradient{Rows: 40, Columns: 30, Kept: make([]float32, 70)}
		right, wrong := make([]float32, 1200), make([]float32, 1200)
		for i := range right {
			right[i] = float32(factor(seed + i))
			wrong[i] = right[i] + 1e-3*float32(factor(seed+1200+i))
		}
		g.Kept = g.Of(right)
		if whole, kept := RelDiff(wrong, right), g.RelDiff(wrong); !(kept > whole/2 && kept < whole*2) {
			t.Errorf("a difference of %v shows as %v", whole, kept)
		}
	})
}
