package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// routed is a routing, and the blocks of a call for all of its experts.
type routed struct {
	tokens, topK, experts int
	rows, first, count    int
	choices, order        []int32
	rank, starts          []int32
	// of each row of the matrix of blocks: the expert, -1 for none, and the place of its choice in the order
	blocks, places []int32
}

// aRouting has more experts than a program looks at together, and four that rows choose more often.
func aRouting(b *bench) *routed { return routedOf(b, 60, 140, 8, 2, 70) }

func routedOf(b *bench, tokens, experts, rows, first, count int) *routed {
	m := &routed{tokens: tokens, topK: 2, experts: experts, rows: rows, first: first, count: count}
	counts := make([]int32, m.experts+1)
	for range m.tokens {
		other := int32(5 + b.rng.IntN(m.experts-5))
		mine := []int32{3, other}
		if b.rng.IntN(2) == 0 {
			mine = []int32{int32(b.rng.IntN(3)), other}
		}
		m.choices = append(m.choices, mine...)
		for _, e := range mine {
			counts[e+1]++
		}
	}
	m.starts = counts
	for e := range m.experts {
		m.starts[e+1] += m.starts[e]
	}
	next := slices.Clone(m.starts)
	m.order, m.rank = make([]int32, len(m.choices)), make([]int32, len(m.choices))
	for c, e := range m.choices {
		m.order[next[e]], m.rank[c] = int32(c), next[e]
		next[e]++
	}
	m.blocks, m.places = slices.Repeat([]int32{-1}, m.rows*m.count), make([]int32, m.rows*m.count)
	number := 0
	for e := range m.experts {
		for i := m.starts[e]; i < m.starts[e+1]; i++ {
			within := int(i - m.starts[e])
			if at := number + within/m.rows - m.first; 0 <= at && at < m.count {
				row := at*m.rows + within%m.rows
				m.blocks[row], m.places[row] = int32(e), i
			}
		}
		number += (int(m.starts[e+1]-m.starts[e]) + m.rows - 1) / m.rows
	}
	return m
}

// args lists the arguments that most kernels of blocks take.
func (m *routed) args(b *bench) []any {
	return []any{b.ints(m.starts), m.experts, m.rows, m.first, m.count}
}

// matrix has a row for each one of the blocks.
func (m *routed) matrix(b *bench, d tensor.DType, cols, stride int) *field {
	return b.normal(d, m.rows*m.count, cols, stride)
}

func withBlocks(make func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field)) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		m := aRouting(b)
		before, after, written := make(b, d, m)
		return slices.Concat(before, m.args(b), after), written
	}
}

// ofExperts are the operands of the kernels of blocks, for the comparison of their variants.
var ofExperts = map[string]operands{
	"gather_rows.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		y, x := m.matrix(b, d, 528, 544), b.normal(d, m.tokens, 528, 560)
		return []any{y, x, b.ints(m.order)}, []any{m.topK, 528, y.stride, x.stride}, []*field{y}
	}),
	"expert_bias_grad.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		db, dy, weights := b.normal(tensor.F32, m.experts, 80, 96), m.matrix(b, d, 80, 112), b.normal(tensor.F32,
			m.tokens, m.topK, m.topK)
		return []any{db, dy, weights, b.ints(m.order)}, []any{min(m.experts, m.count), 80, 1, db.stride, dy.stride},
			[]*field{db}
	}),
	"expert_bias_dot.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		dweights, dy, bias := b.normal(tensor.F32, m.tokens, m.topK, m.topK), m.matrix(b, d, 528, 544), b.normal(d,
			m.experts, 528, 560)
		return []any{dweights, dy, bias, b.ints(m.order)}, []any{528, dy.stride, bias.stride}, []*field{dweights}
	}),
	"expert_glu.silu.A": expertGLU, "expert_glu.gelu.A": expertGLU, "expert_glu.gelu_tanh.A": expertGLU,
	"expert_glu_grad.silu.A": expertGLUGrad, "expert_glu_grad.gelu.A": expertGLUGrad,
	"expert_glu_grad.gelu_tanh.A": expertGLUGrad,
	"combine_rows.own.A":          combined(func(d tensor.DType) tensor.DType { return d }),
	"combine_rows.f32.A":          combined(func(tensor.DType) tensor.DType { return tensor.F32 }),
}

// combined are the operands of a sum of rows that begins with others of the type that from returns.
func combined(from func(tensor.DType) tensor.DType) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		m := aRouting(b)
		y, x, begin := b.field(d, m.tokens, 1040, 1056), b.normal(d, m.tokens*m.topK, 1040, 1072),
			b.normal(from(d), m.tokens, 1040, 1056)
		weights := b.normal(tensor.F32, m.tokens, m.topK, m.topK)
		return []any{y, x, begin, weights, b.ints(m.rank), m.tokens, m.topK, 1040, 1, y.stride, x.stride, begin.stride},
			[]*field{y}
	}
}

var expertGLU = withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
	y, x := m.matrix(b, d, 528, 544), m.matrix(b, d, 2*528, 2*528+16)
	return []any{y, x}, append([]any{528, y.stride, x.stride}, unit[1:]...), []*field{y}
})

var expertGLUGrad = withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
	x, dy := m.matrix(b, d, 2*528, 2*528+16), m.matrix(b, d, 528, 544)
	weights, dweights := b.normal(tensor.F32, m.tokens, m.topK, m.topK), b.normal(tensor.F32, m.tokens, m.topK, m.topK)
	return []any{x, dy, dweights, dy, x, weights, b.ints(m.order)},
		append([]any{528, x.stride, dy.stride, dy.stride, x.stride}, unit[1:]...), []*field{x, dy, dweights}
})

// Choices of rows and their places.
func testRouting(t *testing.T, on *backend) {
	for _, c := range []struct{ rows, experts, topK, groups, topGroups, byBest, sigmoid, biased int }{
		{7, 24, 4, 1, 0, 0, 0, 0}, {9, 120, 3, 4, 2, 0, 1, 1}, {6, 300, 9, 1, 0, 0, 0, 1}, {8, 40, 5, 4, 2, 1, 0, 0},
	} {
		for _, variant := range []string{".narrow", ".any"} {
			if variant == ".narrow" && c.experts > 128 {
				continue
			}
			b := benchFor(t, on, 10)
			logits, bias := b.normal(tensor.F32, c.rows, c.experts, c.experts+3), b.normal(tensor.F32, 1, c.experts,
				c.experts)
			choices, weights := b.ints(make([]int32, c.rows*c.topK)), b.field(tensor.F32, c.rows, c.topK, c.topK)
			b.run("route"+variant, choices, weights, logits, bias, c.rows, c.experts, c.topK, c.groups, c.topGroups,
				c.byBest, logits.stride, c.sigmoid, 1,
				c.biased, float32(2))
			var want, parts, slopes []float64
			dweights := b.normal(tensor.F32, c.rows, c.topK, c.topK)
			for r := range c.rows {
				scores, by := make([]float64, c.experts), make([]float64, c.experts)
				total := 0.0
				for e := range scores {
					scores[e] = math.Exp(logits.get(r, e))
					total += scores[e]
				}
				for e := range scores {
					if scores[e] /= total; c.sigmoid != 0 {
						scores[e] = 1 / (1 + math.Exp(-logits.get(r, e)))
					}
					by[e] = scores[e] + bias.get(0, e)*float64(c.biased)
				}
				size := c.experts / c.groups
				if c.groups > 1 {
					sums := make([]float64, c.groups)
					for g := range sums {
						of := slices.Sorted(slices.Values(by[g*size:][:size]))
						if sums[g] = of[size-1]; c.byBest == 0 {
							sums[g] += of[size-2]
						}
					}
					left := greatest(sums, c.topGroups)
					for e := range by {
						if !slices.Contains(left, e/size) {
							by[e] = math.Inf(-1)
						}
					}
				}
				mine := greatest(by, c.topK)
				sum, mean, inner := 0.0, 0.0, 0.0
				for _, e := range mine {
					sum += scores[e]
				}
				for i, e := range mine {
					want, parts = append(want, float64(e)), append(parts, 2*scores[e]/sum)
					mean += scores[e] / sum * dweights.get(r, i)
				}
				ds := make([]float64, c.experts)
				for i, e := range mine {
					ds[e] = 2 * (dweights.get(r, i) - mean) / sum
					inner += ds[e] * scores[e]
				}
				for e, score := range scores {
					if c.sigmoid != 0 {
						slopes = append(slopes, ds[e]*score*(1-score))
					} else {
						slopes = append(slopes, score*(ds[e]-inner))
					}
				}
			}
			b.compare("weights", weights, parts, within(1e-5))
			for i, w := range want {
				if got := int(math.Float32bits(float32(choices.get(0, i)))); got != int(w) {
					t.Errorf("route%s %+v: choice %d is %d, want %g", variant, c, i, got, w)
				}
			}
			for _, d := range types {
				dlogits := b.field(d, c.rows, c.experts, c.experts+1)
				b.run("route_grad."+typeWord(d)+variant, dlogits, dweights, logits, choices, c.rows, c.experts,
					c.topK, dlogits.stride, logits.stride,
					c.sigmoid, 1, float32(2))
				rel := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 1.0 / 256}[d]
				b.compare("gradient", dlogits, slopes, func(w float64) float64 { return 1e-5 + rel*math.Abs(w) })
				if !dlogits.intact() {
					t.Errorf("route_grad%s: written between the rows", variant)
				}
			}
		}
	}
	b := benchFor(t, on, 11)
	m := aRouting(b)
	order, rank, starts := b.ints(make([]int32, len(m.choices))), b.ints(make([]int32, len(m.choices))),
		b.ints(make([]int32, m.experts+1))
	b.run("sort_choices", order, rank, starts, b.ints(m.choices), len(m.choices), m.experts)
	sameInts(t, "order", order, m.order)
	sameInts(t, "rank", rank, m.rank)
	sameInts(t, "starts", starts, m.starts)
	counts, want := b.field(tensor.F32, 1, m.experts, m.experts), make([]float64, m.experts)
	b.run("count_choices", counts, starts, m.experts, float32(0.5))
	for e := range want {
		want[e] = float64(m.starts[e+1]-m.starts[e]) / 2
	}
	b.compare("choices of experts", counts, want, func(float64) float64 { return 1e-9 })

	n := len(m.choices)
	x, dy, choices := b.field(tensor.F32, 1, n, n), b.field(tensor.F32, 1, n, n), b.ints(m.choices)
	dfactors, sums := b.field(tensor.F32, 1, m.experts, m.experts), make([]float64, m.experts)
	for e := range sums {
		dfactors.put(0, e, float64(e))
		sums[e] = float64(e)
	}
	for i, e := range m.choices {
		x.put(0, i, b.rng.NormFloat64())
		dy.put(0, i, b.rng.NormFloat64())
		sums[e] += x.get(0, i) * dy.get(0, i)
	}
	b.run("scale_choices_grad", dfactors, dy, x, choices, n, m.experts)
	b.compare("sums of experts", dfactors, sums, func(w float64) float64 { return 1e-5 * (1 + math.Abs(w)) })
	for _, d := range types {
		factors, scaled := b.field(d, 1, m.experts, m.experts), make([]float64, n)
		for e := range m.experts {
			factors.put(0, e, b.rng.NormFloat64())
		}
		for i, e := range m.choices {
			scaled[i] = x.get(0, i) * factors.get(0, int(e))
		}
		b.run("scale_choices."+typeWord(d), x, x, factors, choices, n)
		b.compare("scaled choices", x, scaled, func(w float64) float64 { return 1e-6 * math.Abs(w) })
	}
}

// greatest are the numbers of the n greatest, ascending.
func greatest(x []float64, n int) []int {
	all := make([]int, len(x))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int {
		if x[a] > x[b] {
			return -1
		}
		if x[a] < x[b] {
			return 1
		}
		return 0
	})
	all = all[:n]
	slices.Sort(all)
	return all
}

func sameInts(t *testing.T, what string, got *field, want []int32) {
	t.Helper()
	for i, w := range want {
		if g := int32(math.Float32bits(float32(got.get(0, i)))); g != w {
			t.Fatalf("%s: number %d is %d, want %d", what, i, g, w)
		}
	}
}

// Products of experts, in tiles that are several and not full.
func testExpertProducts(t *testing.T, on *backend) {
	for _, d := range types {
		for _, variant := range []string{".any", ".a16"} {
			k, n := 37, 70
			if variant == ".a16" {
				k, n = 80, 144
			}
			rel := map[tensor.DType]float64{tensor.F32: 4e-6, tensor.BF16: 1.0 / 256}[d]
			pad := func(cols int) int { return (cols + 31) / 16 * 16 }
			for _, form := range []string{"nn", "nt"} {
				b := benchFor(t, on, 12)
				m := aRouting(b)
				a, c := m.matrix(b, d, k, pad(k)).apart(longStride), m.matrix(b, d, n, pad(n)).apart(longStride)
				height, width, more := k, n, 0
				if form == "nt" { // rows of the result at their places, and a bias
					height, width, more = n, k, 1
					c = b.normal(d, len(m.order), n, pad(n)).apart(longStride)
				}
				w, bias := b.normal(d, m.experts*height, width, pad(width)), b.normal(d, m.experts, n, pad(n))
				want := c.numbers()
				for row, e := range m.blocks {
					for j := 0; j < n && e >= 0; j++ {
						sum := 0.0
						for l := range k {
							if form == "nt" {
								sum += a.get(row, l) * w.get(int(e)*n+j, l)
							} else {
								sum += a.get(row, l) * w.get(int(e)*k+l, j)
							}
						}
						if form == "nt" {
							want[int(m.places[row])*n+j] = sum + bias.get(int(e), j)
						} else {
							want[row*n+j] = sum
						}
					}
				}
				b.run(fmt.Sprintf("expert_matmul.%s.%s%s", typeWord(d), form, variant),
					slices.Concat([]any{c, a, w, bias}, m.args(b), []any{n, k, more, more, c.stride, a.stride, w.stride,
						bias.stride})...)
				b.compare("product", c, want, func(w float64) float64 { return rel*math.Abs(w) + 2e-5 })
				if !c.intact() {
					t.Error("it writes between the rows")
				}
			}
			b := benchFor(t, on, 13)
			m := aRouting(b)
			dy, x := m.matrix(b, d, n, pad(n)).apart(longStride), m.matrix(b, d, k, pad(k)).apart(longStride)
			dw := b.normal(tensor.F32, m.experts*n, k, pad(k))
			want := dw.numbers()
			for row, e := range m.blocks {
				for i := 0; i < n && e >= 0; i++ {
					for j := range k {
						want[(int(e)*n+i)*k+j] += dy.get(row, i) * x.get(row, j)
					}
				}
			}
			b.run(fmt.Sprintf("expert_weight_grad.%s%s", typeWord(d), variant),
				slices.Concat([]any{dw, dy, x}, m.args(b), []any{min(m.experts, m.count), n, k, dw.stride, dy.stride,
					x.stride})...)
			b.compare("gradient", dw, want, func(w float64) float64 { return 4e-6*math.Abs(w) + 2e-5 })
			if !dw.intact() {
				t.Error("it writes between the rows")
			}
		}
	}
}
