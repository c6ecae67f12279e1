package modeltest

import (
	"math"
	"strings"
)

// Gradient stands for a tensor's gradient in a golden file. Random numbers do not compress, so of a matrix G, whose
// last dimension is columns and whose others are rows, it keeps G·v, a number for each row, and u·G, one for each
// column (Freivalds, "Probabilistic machines can use less running time", 1977). One wrong element changes both, and
// elements that change neither do not happen by chance, since the factors in u and v differ. The norm of the products
// is about in proportion to that of G, and so is the norm of their difference to that of the gradients' difference.
// Gradients that are smaller whole are kept whole.
type Gradient struct {
	Rows, Columns int       // a gradient that is kept whole has one row
	Kept          []float32 // [Columns] where it is whole, else [Rows] of G·v and then [Columns] of u·G
}

// factor is element i of u and of v: a sign and a magnitude in [1, 2), from the output i of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014). golden.py has the same function.
func factor(i int) float64 {
	x := uint64(i+1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return (1 + float64(x>>11)/(1<<53)) * (1 - 2*float64(x&1))
}

// Elems is the number of the tensor's elements.
func (g Gradient) Elems() int { return g.Rows * g.Columns }

// Of is the same of another gradient, [Elems]. It is nil where that has another number of elements.
func (g Gradient) Of(other []float32) []float32 {
	if len(other) != g.Elems() {
		return nil
	}
	if len(g.Kept) == g.Elems() {
		return other
	}
	sums := make([]float64, g.Rows+g.Columns)
	for r := range g.Rows {
		for c, x := range other[r*g.Columns : (r+1)*g.Columns] {
			sums[r] += float64(x) * factor(c)
			sums[g.Rows+c] += float64(x) * factor(r)
		}
	}
	kept := make([]float32, len(sums))
	for i, x := range sums {
		kept[i] = float32(x)
	}
	return kept
}

// RelDiff is [RelDiff] of what is kept of a gradient and of this one.
func (g Gradient) RelDiff(got []float32) float64 { return RelDiff(g.Of(got), g.Kept) }

// ElementDiff is the largest difference of two numbers that are kept, one of them of got, over what it may be: part of
// the number itself and floor of the largest. It is +Inf where a difference is not a number.
func (g Gradient) ElementDiff(got []float32, part, floor float64) float64 {
	of, largest, worst := g.Of(got), 0.0, 0.0
	if of == nil {
		return math.Inf(1)
	}
	for _, x := range g.Kept {
		largest = max(largest, math.Abs(float64(x)))
	}
	for i, x := range g.Kept {
		d := math.Abs(float64(of[i])-float64(x)) / (part*math.Abs(float64(x)) + floor*largest)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = max(worst, d)
	}
	return worst
}

// gradients reads the entries of a file whose names begin with a prefix, by the names of the tensors. Of a matrix there
// are two, PREFIXrows.NAME and PREFIXcolumns.NAME; a gradient that is whole has one, PREFIXwhole.NAME.
func (f *tensors) gradients(prefix string) map[string]Gradient {
	all := map[string]Gradient{}
	for entry := range f.entries {
		if name, ok := strings.CutPrefix(entry, prefix+"whole."); ok {
			kept := read[float32](f, entry)
			all[name] = Gradient{Rows: 1, Columns: len(kept), Kept: kept}
		}
		if name, ok := strings.CutPrefix(entry, prefix+"rows."); ok {
			rows, columns := read[float32](f, entry), read[float32](f, prefix+"columns."+name)
			all[name] = Gradient{Rows: len(rows), Columns: len(columns), Kept: append(rows, columns...)}
		}
	}
	return all
}
