package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// continuedRows are rows of two sequences with 9 rows each in a cache: some that begin one, and some that continue the
// other one after its fifth position.
func continuedRows(b *bench) (start, end any, rows, each int) {
	return b.ints([]int32{0, 9, 0, 9, 0, 9}), b.ints([]int32{6, 10, 7, 11, 8, 12}), 6, 9
}

// ofCaches are the operands of the kernels of caches, for the comparison of their variants.
var ofCaches = map[string]operands{
	"attend_cache.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		const heads, kvHeads, headDim, cached = 6, 2, 80, 100
		q, out := b.normal(d, 3, heads*headDim, heads*headDim+16), b.field(d, 3, heads*headDim, heads*headDim+32)
		k, v := b.normal(d, cached, kvHeads*headDim, kvHeads*headDim+16), b.normal(d, cached, kvHeads*headDim, 192)
		start, end := b.ints([]int32{0, 0, 70}), b.ints([]int32{1, 70, 99})
		return []any{out, q, k, v, 0, start, end, 3, heads, kvHeads, heads / kvHeads, headDim, 60, out.stride, q.stride,
			k.stride, v.stride, float32(0.1), float32(0)}, []*field{out}
	},
	"put.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		cache, x := b.normal(d, 7, 528, 544), b.normal(d, 5, 528, 560)
		return []any{cache, x, b.ints([]int32{6, -1, 0, 7, 3}), 5, 528, 7, cache.stride, x.stride}, []*field{cache}
	},
	"continue_conv.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		start, end, rows, each := continuedRows(b)
		x, tail, w := b.normal(d, rows, 1040, 1056), b.normal(d, 6, 1040, 1072), b.normal(d, 1040, 4, 5)
		y := b.field(d, rows, 1040, 1088)
		return []any{y, tail, x, w, start, end, rows, 1040, 4, each, y.stride, tail.stride, x.stride, w.stride},
			[]*field{y}
	},
	"keep_rows.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		start, end, rows, each := continuedRows(b)
		x, tail := b.normal(d, rows, 1040, 1056), b.normal(d, 4, 1040, 1072)
		return []any{tail, x, start, end, rows, 1040, 2, each, tail.stride, x.stride}, []*field{tail}
	},
}

// Heads of any width, more query heads of a key head than a tile has rows, windows, soft caps and sinks, over blocks
// of keys that are not full; and a row that sees nothing.
func testAttendCache(t *testing.T, on *backend) {
	for _, c := range []struct {
		heads, kvHeads, headDim, window int
		softCap                         float32
		sunk                            bool
	}{{4, 2, 6, 0, 0, false}, {18, 1, 20, 9, 0, true}, {1, 1, 131, 0, 30, false}, {2, 1, 260, 0, 2, true}} {
		for _, d := range types {
			t.Run(fmt.Sprintf("%s %+v", typeWord(d), c), func(t *testing.T) {
				const cached = 90
				b := benchFor(t, on, uint64(c.headDim))
				start, end := []int32{0, 50, 0, 50}, []int32{41, 51, 40, 50}
				rows, group, scale := len(start), c.heads/c.kvHeads, 1/math.Sqrt(float64(c.headDim))
				q := b.normal(d, rows, c.heads*c.headDim, c.heads*c.headDim+3)
				k := b.normal(d, cached, c.kvHeads*c.headDim, c.kvHeads*c.headDim+5)
				v := b.normal(d, cached, c.kvHeads*c.headDim, c.kvHeads*c.headDim+1)
				for row := 41; row < 50; row++ { // no row sees it
					k.put(row, 0, math.NaN())
					v.put(row, 0, math.NaN())
				}
				sinks, sunk := b.normal(d, 1, c.heads, c.heads), any(0)
				if c.sunk {
					sunk = sinks
				}
				out := b.field(d, rows, c.heads*c.headDim, c.heads*c.headDim+7)
				var want []float64
				for r := range rows {
					for h := range c.heads {
						kv, first := h/group*c.headDim, int(start[r])
						if c.window > 0 {
							first = max(first, int(end[r])-c.window)
						}
						sum, of := 0.0, make([]float64, c.headDim)
						if c.sunk {
							sum = math.Exp(sinks.get(0, h))
						}
						for key := first; key < int(end[r]); key++ {
							score := 0.0
							for i := range c.headDim {
								score += q.get(r, h*c.headDim+i) * k.get(key, kv+i)
							}
							score *= scale
							if limit := float64(c.softCap); limit > 0 {
								score = limit * math.Tanh(score/limit)
							}
							sum += math.Exp(score)
							for i := range of {
								of[i] += math.Exp(score) * v.get(key, kv+i)
							}
						}
						for _, x := range of {
							want = append(want, x/max(sum, 1e-300))
						}
					}
				}
				b.run("attend_cache."+typeWord(d)+".any", out, q, k, v, sunk, b.ints(start), b.ints(end), rows, c.heads,
					c.kvHeads, group, c.headDim, c.window, out.stride, q.stride, k.stride, v.stride, float32(scale),
					c.softCap)
				// As of attention: see attentionCase.run.
				limit := map[tensor.DType]float64{tensor.F32: 1e-5 + 4e-7*float64(c.softCap), tensor.BF16: 1e-2}[d]
				b.compare("out", out, want, within(3*limit))
				if !out.intact() {
					t.Error("out is written between the rows")
				}
			})
		}
	}
}

// A recurrence in two launches over mixtures of two sequences, of three that have a state.
func testContinueDelta(t *testing.T, on *backend) {
	const keyHeads, heads, keyDim, valueDim, sequences, each = 1, 2, 6, 37, 3, 9
	for _, d := range types {
		b := benchFor(t, on, 31)
		size := keyDim * valueDim
		states := b.field(tensor.F32, sequences, heads*size, heads*size)
		want := map[int32][]float64{} // by the first row of a sequence
		for _, pass := range []struct{ start, end []int32 }{
			{[]int32{0, 18, 0}, []int32{1, 19, 2}}, {[]int32{18, 0, 18, 18}, []int32{20, 3, 21, 22}}} {
			rows := len(pass.start)
			qkv := b.normal(d, rows, 2*keyHeads*keyDim+heads*valueDim, 2*keyHeads*keyDim+heads*valueDim+3)
			decay, beta := b.normal(tensor.F32, rows, heads, heads), b.normal(tensor.F32, rows, heads, heads)
			out := b.field(d, rows, heads*valueDim, heads*valueDim+2)
			var outs []float64
			for r, start := range pass.start {
				if want[start] == nil {
					want[start] = make([]float64, heads*size)
				}
				unit := func(first int) (x []float64) {
					sum := 1e-6
					for i := range keyDim {
						x = append(x, qkv.get(r, first+i))
						sum += x[i] * x[i]
					}
					for i := range x {
						x[i] /= math.Sqrt(sum)
					}
					return x
				}
				q, k := unit(0), unit(keyDim)
				for h := range heads {
					decay.put(r, h, -math.Abs(decay.get(r, h)))
					state := want[start][h*size:][:size]
					for c := range valueDim {
						read, o := 0.0, 0.0
						for i, x := range k {
							state[i*valueDim+c] *= math.Exp(decay.get(r, h))
							read += x * state[i*valueDim+c]
						}
						change := beta.get(r, h) * (qkv.get(r, 2*keyDim+h*valueDim+c) - read)
						for i, x := range k {
							state[i*valueDim+c] += x * change
							o += q[i] * state[i*valueDim+c] / math.Sqrt(keyDim)
						}
						outs = append(outs, o)
					}
				}
			}
			b.run("continue_delta."+typeWord(d), out, states, qkv, decay, beta, b.ints(pass.start), b.ints(pass.end),
				rows, sequences, keyHeads, heads, keyDim, valueDim, each, out.stride, qkv.stride)
			limit := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 1.0 / 32}[d]
			b.compare("out", out, outs, within(limit))
			if !out.intact() {
				t.Error("out is written between the rows")
			}
		}
		for start, state := range want {
			got := b.field(tensor.F32, 1, heads*size, heads*size)
			for i := range state {
				got.put(0, i, states.get(int(start)/each, i))
			}
			b.compare("states", got, state, within(1e-4))
		}
		if x := states.get(1, 0); x == x {
			t.Error("the state of a sequence without rows is written")
		}
	}
}
