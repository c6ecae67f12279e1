package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/device"
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
		return []any{out, q, k, v, 0, start, end, 0, 3, heads, kvHeads, heads / kvHeads, headDim, 60, 1, out.stride,
			q.stride, k.stride, v.stride, float32(0.1), float32(0)}, []*field{out}
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
// of keys that are not full; a row that sees nothing; and rows of sequences that a table deals out.
func testAttendCache(t *testing.T, on *backend) {
	for _, c := range []struct {
		heads, kvHeads, headDim, window int
		softCap                         float32
		sunk                            bool
		block                           int
	}{{4, 2, 6, 0, 0, false, 0}, {18, 1, 20, 9, 0, true, 0}, {1, 1, 131, 0, 30, false, 0}, {2, 1, 260, 0, 2, true, 0},
		{4, 2, 6, 0, 0, false, 10}, {6, 2, 20, 33, 0, true, 3}} {
		for _, d := range types {
			t.Run(fmt.Sprintf("%s %+v", typeWord(d), c), func(t *testing.T) {
				const cached = 90
				b := benchFor(t, on, uint64(c.headDim))
				start, end := []int32{0, 50, 0, 50}, []int32{41, 51, 40, 50}
				rows, group, scale := len(start), c.heads/c.kvHeads, 1/math.Sqrt(float64(c.headDim))
				q := b.normal(d, rows, c.heads*c.headDim, c.heads*c.headDim+3)
				k := b.normal(d, cached, c.kvHeads*c.headDim, c.kvHeads*c.headDim+5)
				v := b.normal(d, cached, c.kvHeads*c.headDim, c.kvHeads*c.headDim+1)
				row, table, tabled, block := func(r int) int { return r }, []int32{}, any(0), max(c.block, 1)
				var inBlocks device.CacheBlocks
				if c.block > 0 {
					for i := range cached / block {
						table = append(table, int32((7*i+2)%(cached/block)))
					}
					row = func(r int) int { return int(table[r/block])*block + r%block }
					f := b.ints(table)
					tabled, inBlocks = f, device.CacheBlocks{Table: b.of(f).Mem, Rows: block, Each: block}
				}
				for r := 41; r < 50; r++ { // no row sees it
					k.put(row(r), 0, math.NaN())
					v.put(row(r), 0, math.NaN())
				}
				sinks, sunk := b.normal(d, 1, c.heads, c.heads), any(0)
				if c.sunk {
					sunk = sinks
				}
				out := b.field(d, rows, c.heads*c.headDim, c.heads*c.headDim+7)
				starts, ends := b.ints(start), b.ints(end)
				spec := device.AttentionSpec{Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.headDim, Window: c.window,
					Scale: float32(scale), SoftCap: c.softCap, Docs: b.docs(starts, ends), Blocks: inBlocks}
				if c.sunk {
					spec.Sinks = b.of(sinks)
				}
				b.ref.AttendCache(b.of(out), b.of(q), b.of(k), b.of(v), spec)
				b.run("attend_cache."+typeWord(d)+".any", out, q, k, v, sunk, starts, ends, tabled, rows, c.heads,
					c.kvHeads, group, c.headDim, c.window, block, out.stride, q.stride, k.stride, v.stride, float32(scale),
					c.softCap)
				// As of attention: see attentionCase.run.
				limit := map[tensor.DType]float64{tensor.F32: 1e-5 + 4e-7*float64(c.softCap), tensor.BF16: 1e-2}[d]
				b.compare("out", out, b.wanted(out), within(3*limit))
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
		for _, pass := range []struct{ start, end []int32 }{
			{[]int32{0, 18, 0}, []int32{1, 19, 2}}, {[]int32{18, 0, 18, 18}, []int32{20, 3, 21, 22}}} {
			rows := len(pass.start)
			qkv := b.normal(d, rows, 2*keyHeads*keyDim+heads*valueDim, 2*keyHeads*keyDim+heads*valueDim+3)
			decay, beta := b.normal(tensor.F32, rows, heads, heads), b.normal(tensor.F32, rows, heads, heads)
			out := b.field(d, rows, heads*valueDim, heads*valueDim+2)
			for r := range rows {
				for h := range heads {
					decay.put(r, h, -math.Abs(decay.get(r, h)))
				}
			}
			start, end := b.ints(pass.start), b.ints(pass.end)
			b.ref.ContinueDelta(b.of(out), b.of(states), b.of(qkv), b.of(decay), b.of(beta), device.DeltaSpec{
				KeyHeads: keyHeads, Heads: heads, KeyDim: keyDim, ValueDim: valueDim, Docs: b.docs(start, end)}, each)
			b.run("continue_delta."+typeWord(d), out, states, qkv, decay, beta, start, end,
				rows, sequences, keyHeads, heads, keyDim, valueDim, each, out.stride, qkv.stride)
			limit := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 1.0 / 32}[d]
			b.compare("out", out, b.wanted(out), within(limit))
			if !out.intact() {
				t.Error("out is written between the rows")
			}
		}
		for _, sequence := range []int{0, 2} {
			got := b.field(tensor.F32, 1, heads*size, heads*size)
			for i := range got.cols {
				got.put(0, i, states.get(sequence, i))
			}
			b.compare("states", got, b.wanted(states)[sequence*got.cols:][:got.cols], within(1e-4))
		}
		if x := states.get(1, 0); x == x {
			t.Error("the state of a sequence without rows is written")
		}
	}
}
