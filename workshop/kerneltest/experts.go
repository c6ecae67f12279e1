package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/tensor"
)

// routed is a routing, and the blocks of a call for all of its experts.
type routed struct {
	device.Blocks
	choices, order, rank, starts *field
	of                           []int32 // of each row of the matrix of blocks: the expert, -1 for none
}

// aRouting has more experts than a program looks at together, and four that rows choose more often.
func aRouting(b *bench) *routed { return routedOf(b, 60, 140, 8, 2, 70) }

func routedOf(b *bench, tokens, experts, rows, from, count int) *routed {
	var choices []int32
	for range tokens {
		other := int32(5 + b.rng.IntN(experts-5))
		mine := []int32{3, other}
		if b.rng.IntN(2) == 0 {
			mine = []int32{int32(b.rng.IntN(3)), other}
		}
		choices = append(choices, mine...)
	}
	m := &routed{choices: b.ints(choices), of: slices.Repeat([]int32{-1}, rows*count)}
	m.order, m.rank, m.starts = b.blank(len(choices)), b.blank(len(choices)), b.blank(experts+1)
	of := device.Routing{Rows: tokens, TopK: 2, Experts: experts, Choices: b.of(m.choices).Mem,
		Order: b.of(m.order).Mem, Rank: b.of(m.rank).Mem, Starts: b.of(m.starts).Mem}
	m.Blocks = device.Blocks{Routing: of, Experts: experts, Rows: rows, From: from, Count: count}
	b.ref.SortChoices(m.Routing)
	for _, f := range []*field{m.order, m.rank, m.starts} {
		for i, x := range b.wanted(f) {
			f.putInt(i, int32(x))
		}
	}
	number, starts := 0, b.wanted(m.starts)
	for e := range experts {
		n := int(starts[e+1] - starts[e])
		for i := range n {
			if at := number + i/rows - from; 0 <= at && at < count {
				m.of[at*rows+i%rows] = int32(e)
			}
		}
		number += (n + rows - 1) / rows
	}
	return m
}

// args lists the arguments that most kernels of blocks take.
func (m *routed) args() []any { return []any{m.starts, m.Experts, m.Rows, m.From, m.Count} }

// matrix has a row for each one of the blocks.
func (m *routed) matrix(b *bench, d tensor.DType, cols, stride int) *field {
	return b.normal(d, m.Rows*m.Count, cols, stride)
}

// perChoice has a number for each choice.
func (m *routed) perChoice(b *bench) *field {
	return b.normal(tensor.F32, m.Routing.Rows, m.Routing.TopK, m.Routing.TopK)
}

func withBlocks(make func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field)) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		m := aRouting(b)
		before, after, written := make(b, d, m)
		return slices.Concat(before, m.args(), after), written
	}
}

// ofExperts are the operands of the kernels of blocks, for the comparison of their variants.
var ofExperts = map[string]operands{
	"gather_rows.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		y, x := m.matrix(b, d, 528, 544), b.normal(d, m.Routing.Rows, 528, 560)
		return []any{y, x, m.order}, []any{m.Routing.TopK, 528, y.stride, x.stride}, []*field{y}
	}),
	"expert_bias_grad.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		db, dy, weights := b.normal(tensor.F32, m.Experts, 80, 96), m.matrix(b, d, 80, 112), m.perChoice(b)
		return []any{db, dy, weights, m.order}, []any{min(m.Experts, m.Count), 80, 1, db.stride, dy.stride},
			[]*field{db}
	}),
	"expert_bias_dot.A": withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
		dweights, dy, bias := m.perChoice(b), m.matrix(b, d, 528, 544), b.normal(d,
			m.Experts, 528, 560)
		return []any{dweights, dy, bias, m.order}, []any{528, dy.stride, bias.stride}, []*field{dweights}
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
		y, x, begin := b.field(d, m.Routing.Rows, 1040, 1056), b.normal(d, m.Routing.Rows*m.Routing.TopK, 1040, 1072),
			b.normal(from(d), m.Routing.Rows, 1040, 1056)
		weights := m.perChoice(b)
		return []any{y, x, begin, weights, m.rank, m.Routing.Rows, m.Routing.TopK, 1040, 1, y.stride, x.stride,
			begin.stride}, []*field{y}
	}
}

var expertGLU = withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
	y, x := m.matrix(b, d, 528, 544), m.matrix(b, d, 2*528, 2*528+16)
	return []any{y, x}, append([]any{528, y.stride, x.stride}, unit[1:]...), []*field{y}
})

var expertGLUGrad = withBlocks(func(b *bench, d tensor.DType, m *routed) (before, after []any, written []*field) {
	x, dy := m.matrix(b, d, 2*528, 2*528+16), m.matrix(b, d, 528, 544)
	weights, dweights := m.perChoice(b), m.perChoice(b)
	return []any{x, dy, dweights, dy, x, weights, m.order},
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
			spec := device.RouteSpec{TopK: c.topK, Sigmoid: c.sigmoid != 0, Renormalize: true, Scale: 2,
				Groups: c.groups, TopGroups: c.topGroups, ByBest: c.byBest != 0}
			by := device.Mat{}
			if c.biased != 0 {
				by = b.of(bias)
			}
			dweights := b.normal(tensor.F32, c.rows, c.topK, c.topK)
			b.ref.Route(b.of(choices).Mem, b.of(weights), b.of(logits), by, spec)
			b.run("route"+variant, choices, weights, logits, bias, c.rows, c.experts, c.topK, c.groups, c.topGroups,
				c.byBest, logits.stride, c.sigmoid, 1,
				c.biased, float32(2))
			b.compare("weights", weights, b.wanted(weights), within(1e-5))
			sameInts(t, fmt.Sprintf("choices of route%s %+v", variant, c), choices, b.wanted(choices))
			for _, d := range types {
				dlogits := b.field(d, c.rows, c.experts, c.experts+1)
				b.ref.RouteGrad(b.of(dlogits), b.of(dweights), b.of(logits), b.of(choices).Mem, spec)
				b.run("route_grad."+typeWord(d)+variant, dlogits, dweights, logits, choices, c.rows, c.experts,
					c.topK, dlogits.stride, logits.stride,
					c.sigmoid, 1, float32(2))
				rel := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 1.0 / 256}[d]
				b.compare("gradient", dlogits, b.wanted(dlogits),
					func(w float64) float64 { return 1e-5 + rel*math.Abs(w) })
				if !dlogits.intact() {
					t.Errorf("route_grad%s: written between the rows", variant)
				}
			}
		}
	}
	b := benchFor(t, on, 11)
	m := aRouting(b)
	n := m.choices.cols
	order, rank, starts := b.blank(n), b.blank(n), b.blank(m.Experts+1)
	b.run("sort_choices", order, rank, starts, m.choices, n, m.Experts)
	sameInts(t, "order", order, b.wanted(m.order))
	sameInts(t, "rank", rank, b.wanted(m.rank))
	sameInts(t, "starts", starts, b.wanted(m.starts))
	counts := b.field(tensor.F32, 1, m.Experts, m.Experts)
	b.ref.CountChoices(b.of(counts), m.Routing, 0.5)
	b.run("count_choices", counts, starts, m.Experts, float32(0.5))
	b.compare("choices of experts", counts, b.wanted(counts), within(1e-9))

	x, dy := b.normal(tensor.F32, 1, n, n), b.normal(tensor.F32, 1, n, n)
	dfactors := b.field(tensor.F32, 1, m.Experts, m.Experts)
	for e := range m.Experts {
		dfactors.put(0, e, float64(e))
	}
	b.ref.ScaleChoicesGrad(b.of(dfactors), b.of(dy), b.of(x), m.Routing.Choices)
	b.run("scale_choices_grad", dfactors, dy, x, m.choices, n, m.Experts)
	b.compare("sums of experts", dfactors, b.wanted(dfactors),
		func(w float64) float64 { return 1e-5 * (1 + math.Abs(w)) })
	for _, d := range types {
		factors := b.normal(d, 1, m.Experts, m.Experts)
		b.ref.ScaleChoices(b.again(x), b.of(x), b.of(factors), m.Routing.Choices)
		b.run("scale_choices."+typeWord(d), x, x, factors, m.choices, n)
		b.compare("scaled choices", x, b.wanted(x), func(w float64) float64 { return 1e-6 * math.Abs(w) })
	}
}

func sameInts(t *testing.T, what string, got *field, want []float64) {
	t.Helper()
	for i, w := range want {
		if g := got.number(0, i); g != w {
			t.Fatalf("%s: number %d is %g, want %g", what, i, g, w)
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
			rel := devicetest.ToleranceOf(d).Rel
			pad := func(cols int) int { return (cols + 31) / 16 * 16 }
			for _, form := range []string{"nn", "nt"} {
				b := benchFor(t, on, 12)
				m := aRouting(b)
				a, c := m.matrix(b, d, k, pad(k)).apart(longStride), m.matrix(b, d, n, pad(n)).apart(longStride)
				height, width, more := k, n, 0
				if form == "nt" { // rows of the result at their places, and a bias
					height, width, more = n, k, 1
					c = b.normal(d, m.choices.cols, n, pad(n)).apart(longStride)
				}
				w, bias := b.normal(d, m.Experts*height, width, pad(width)), b.normal(d, m.Experts, n, pad(n))
				onto, how := device.Mat{}, device.ExpertProduct{}
				if form == "nt" {
					onto, how = b.of(bias), device.ExpertProduct{Transposed: true, Placed: true}
				}
				b.ref.ExpertMatMul(b.of(c), b.of(a), b.of(w), onto, how, m.Blocks)
				b.run(fmt.Sprintf("expert_matmul.%s.%s%s", typeWord(d), form, variant),
					slices.Concat([]any{c, a, w, bias}, m.args(), []any{n, k, more, more, c.stride, a.stride, w.stride,
						bias.stride})...)
				b.compare("product", c, b.wanted(c), func(w float64) float64 { return rel*math.Abs(w) + 2e-5 })
				if !c.intact() {
					t.Error("it writes between the rows")
				}
			}
			b := benchFor(t, on, 13)
			m := aRouting(b)
			dy, x := m.matrix(b, d, n, pad(n)).apart(longStride), m.matrix(b, d, k, pad(k)).apart(longStride)
			dw := b.normal(tensor.F32, m.Experts*n, k, pad(k))
			b.ref.ExpertWeightGrad(b.of(dw), b.of(dy), b.of(x), m.Blocks)
			b.run(fmt.Sprintf("expert_weight_grad.%s%s", typeWord(d), variant),
				slices.Concat([]any{dw, dy, x}, m.args(), []any{min(m.Experts, m.Count), n, k, dw.stride, dy.stride,
					x.stride})...)
			b.compare("gradient", dw, b.wanted(dw), func(w float64) float64 { return 4e-6*math.Abs(w) + 2e-5 })
			if !dw.intact() {
				t.Error("it writes between the rows")
			}
		}
	}
}
