package kerneltest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	cpu "github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/tensor"
)

// sets are the kernels of each target, unpacked once.
var sets = map[string]func() (*kernels.Set, error){
	"sm80":  sync.OnceValues(func() (*kernels.Set, error) { return kernels.Load("sm80") }),
	"sm90a": sync.OnceValues(func() (*kernels.Set, error) { return kernels.Load("sm90a") }),
}

// kernelRun is a test that launches kernels.
type kernelRun struct {
	name string
	run  func(t *testing.T, on *backend)
}

// runs are the tests that launch kernels on any backend.
var runs = []kernelRun{
	{"Add", testAdd}, {"Norm", testNorms}, {"NormGrad", testNormGrads}, {"RotatedSum", testRotatedSum},
	{"Sum", testSums}, {"Loss", testLoss}, {"Picks", testPicks}, {"Draws", testDraws}, {"Fold", testFold},
	{"ScatterAdd", testScatterAdd},
	{"Variants", testVariants}, {"MatMul", testMatMul}, {"Attention", testAttention},
	{"Routing", testRouting}, {"ExpertProducts", testExpertProducts},
	{"GateGrad", testGateGrad}, {"DeltaGates", testDeltaGates}, {"Delta", testDelta},
	{"AttendCache", testAttendCache}, {"ContinueDelta", testContinueDelta},
	{"LargeMatMul", testLargeMatMul}, {"LargeAttention", testLargeAttention}, {"LargeExperts", testLargeExperts},
}

var types = []tensor.DType{tensor.F32, tensor.BF16}

func asType(d tensor.DType, x float64) float64 {
	if d == tensor.BF16 {
		return float64(tensor.F32FromBF16(tensor.BF16FromF32(float32(x))))
	}
	return float64(float32(x))
}

// Both variants compute the same bits, in place too, and write nothing else.
func testAdd(t *testing.T, on *backend) {
	for _, d := range types {
		for _, variant := range []string{".any", ".a16"} {
			b := benchFor(t, on, 1)
			x, y := b.normal(d, 7, 528, 544), b.normal(d, 7, 528, 560)
			b.ref.Add(b.of(y), b.of(x), b.of(y))
			want := b.wanted(y)
			for i, sum := range want {
				want[i] = asType(d, sum)
			}
			b.run("add."+typeWord(d)+variant, y, x, y, x.rows, x.cols, y.stride, x.stride, y.stride)
			b.compare("sum", y, want, within(0x1p-149))
			if !y.intact() {
				t.Errorf("%v%s: written between the rows", d, variant)
			}
		}
	}
}

// The three ways to take a norm agree.
func testNorms(t *testing.T, on *backend) {
	for _, d := range types {
		tolerance := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 2e-2}[d]
		var first []float64
		for _, variant := range []string{".any", ".a16", ".narrow"} {
			const rows, groups, dim = 6, 5, 96
			b := benchFor(t, on, 2)
			x, w := b.normal(d, rows, groups*dim, groups*dim+16), b.normal(d, 1, dim, dim)
			y, rstd := b.field(d, rows, groups*dim, groups*dim+48), b.field(tensor.F32, rows, groups, groups)
			a := typeWord(d)
			b.run("rmsnorm."+a+variant, y, rstd, x, w, rows, groups, dim, y.stride, x.stride, float32(1e-5),
				float32(1), 1)
			var got []float64
			for _, f := range []*field{y, rstd} {
				if !f.intact() {
					t.Errorf("%v%s: written between the rows", d, variant)
				}
				for r := range f.rows {
					for c := range f.cols {
						got = append(got, f.get(r, c))
					}
				}
			}
			for i := range first {
				if !(math.Abs(got[i]-first[i]) <= tolerance*(1+math.Abs(first[i]))) {
					t.Fatalf("%v%s: number %d is %v, of .any %v", d, variant, i, got[i], first[i])
				}
			}
			if first == nil {
				first = got
			}
			for i, x := range first {
				if x != x {
					t.Fatalf("%v%s: number %d is NaN", d, variant, i)
				}
			}
		}
	}
}

// Both gradients of a norm at the widths of models, in place of dy and of the residual, in slices of different lengths.
func testNormGrads(t *testing.T, on *backend) {
	for _, d := range types {
		rounding := map[tensor.DType]float64{tensor.F32: 0x1p-24, tensor.BF16: 0x1p-8}[d]
		allowed := func(want float64) float64 { return 1e-4 + 1.01*rounding*math.Abs(want) }
		for _, c := range []struct {
			variant                   string
			rows, groups, dim, slices int
		}{
			{".any", 5, 2, 1030, 2}, {".a16", 3, 1, 8208, 2}, {".narrow", 23, 5, 128, 3}, {".narrow", 9, 1, 256, 1},
			{".c2048", 7, 1, 2048, 3}, {".c4096", 5, 1, 3584, 2}, {".c8192", 3, 1, 8192, 2},
		} {
			for _, withResid := range []bool{false, true} {
				offset := 0.0
				if withResid {
					offset = 1
				}
				b, name := benchFor(t, on, 2), "rmsnorm_grad."+typeWord(d)
				cols := c.groups * c.dim
				dy, x, w := b.normal(d, c.rows, cols, cols+32), b.normal(d, c.rows, cols, cols+16), b.normal(d, 1, c.dim, c.dim)
				rstd, part := b.normal(tensor.F32, c.rows, c.groups, c.groups), b.field(tensor.F32, c.slices, c.dim, c.dim)
				dx, resid := dy, x
				if withResid {
					name += ".resid"
					resid = b.normal(d, c.rows, cols, cols)
					dx = resid
				}
				long := (c.rows + c.slices - 1) / c.slices // the rows of a slice
				if c.variant == ".narrow" {
					long = (long + 3) / 4 * 4
				}
				b.ref.Zero(b.of(part).Mem)
				for slice := range c.slices {
					first := slice * long
					rows := func(f *field) device.Mat { return b.of(f).RowRange(first, min(long, c.rows-first)) }
					more := device.Mat{}
					if withResid {
						more = rows(resid)
					}
					b.ref.RMSNormGrad(rows(dx), b.of(part).RowRange(slice, 1), rows(dy), rows(x), b.of(w), rows(rstd),
						more, device.NormSpec{Groups: c.groups, Offset: float32(offset)})
				}
				b.run(name+c.variant, part, dx, dy, x, w, rstd, resid, c.rows, c.groups, c.dim, c.slices, dx.stride, dy.stride, x.stride,
					resid.stride, float32(offset), 1)
				b.compare(fmt.Sprintf("%s%s %+v: dx", name, c.variant, c), dx, b.wanted(dx), allowed)
				b.compare(fmt.Sprintf("%s%s %+v: part", name, c.variant, c), part, b.wanted(part), within(1e-4))
				if !dx.intact() || !part.intact() {
					t.Errorf("%s%s: written between the rows", name, c.variant)
				}
			}
		}
	}
}

// A rotation with a bias has the bits of the bias's addition and the rotation.
func testRotatedSum(t *testing.T, on *backend) {
	const rows, heads, headDim = 5, 3, 128
	for _, d := range types {
		for _, variant := range []string{".any", ".a16"} {
			b, a := benchFor(t, on, 3), typeWord(d)
			x, bias := b.normal(d, rows, heads*headDim, heads*headDim+16), b.normal(d, 1, heads*headDim, heads*headDim)
			y := b.field(d, rows, heads*headDim, heads*headDim)
			cos, sin := b.normal(tensor.F32, 9, headDim/2, headDim/2), b.normal(tensor.F32, 9, headDim/2, headDim/2)
			at := b.ints([]int32{8, 0, 5, 5, 1})
			b.run("rope."+a+".bias"+variant, y, x, bias, cos, sin, at, rows, heads, headDim, 0, y.stride, x.stride)
			b.run("add_bias."+a+variant, x, bias, rows, heads*headDim, x.stride)
			b.run("rope."+a+variant, x, x, bias, cos, sin, at, rows, heads, headDim, 0, x.stride, x.stride)
			var want []float64
			for r := range rows {
				for c := range x.cols {
					want = append(want, x.get(r, c))
				}
			}
			b.compare("rotated sum", y, want, within(0x1p-149))
		}
	}
}

// The last elements of vectors of more than 2^32, whose first ones are not there: the bits are those of a short vector.
func testLongVectors(t *testing.T, on *backend) {
	const missing = 1 << 33
	// moved makes pointers to vectors that begin before their memory, and a count of all elements.
	moved := func(args []any, before func(i int, f *field) uint64) []any {
		args = slices.Clone(args)
		for i, a := range args {
			switch a := a.(type) {
			case *field:
				f := *a
				f.at -= before(i, a)
				args[i] = &f
			case int:
				args[i] = a + missing
			case counter:
				args[i] = a - missing/4
			}
		}
		return args
	}
	same := func(name string, make func(b *bench) ([]any, []*field), before func(i int, f *field) uint64) {
		near, far := benchFor(t, on, 7), benchFor(t, on, 7)
		args, want := make(near)
		near.run(name, args...)
		args, got := make(far)
		k, _ := far.set.Find(name)
		elements := cmp.Or(k.Constants["BLOCK"], k.Constants["ELEMENTS"])
		far.skip = missing / uint64(elements)
		far.run(name, moved(args, before)...)
		for i := range want {
			if err := differ(got[i], want[i], false); err != nil {
				t.Errorf("%s: operand %d of a long vector and of a short one: %v", name, i, err)
			}
		}
	}
	for _, words := range []string{"split.f32", "split.bf16", "split24.f32", "split24.bf16", "f32.f32"} {
		weights, lows, d := tensor.F32, tensor.I16, tensor.F32
		if strings.HasPrefix(words, "split") {
			weights = tensor.BF16
		}
		if strings.HasPrefix(words, "split24") {
			lows = tensor.I8
		}
		if strings.HasSuffix(words, "bf16") {
			d = tensor.BF16
		}
		for _, variant := range []string{".any", ".a16"} {
			fp32 := func(b *bench) ([]any, []*field) { return adamW(weights, lows, inF32)(b, d) }
			same("adamw."+words+variant, fp32, func(i int, f *field) uint64 {
				if i == 5 { // tally
					return 0
				}
				return missing * uint64(f.dtype.Bytes())
			})
			for name, in := range map[string]inBits{"adamw8.": {8, 8}, "adamw84.": {8, 4}, "adamw4.": {4, 4}} {
				coded := func(b *bench) ([]any, []*field) { return adamW(weights, lows, in)(b, d) }
				same(name+words+variant, coded, func(i int, f *field) uint64 {
					switch i {
					case 2, 3: // codes
						return missing / 8 * uint64(in[i-2])
					case 4, 5: // scales, of blocks of 256 for 8 bits
						return missing / tensor.MomentBlock * 8 / uint64(in[i-4]) * uint64(f.dtype.Bytes())
					case 7, 8, 9: // tally, and what codes stand for
						return 0
					}
					return missing * uint64(f.dtype.Bytes())
				})
			}
		}
	}
	for name, d := range map[string]tensor.DType{"sum.f32": tensor.F32, "sumsq.f32": tensor.F32, "sumsq.bf16": tensor.BF16} {
		same(name, func(b *bench) ([]any, []*field) {
			const n = cpu.SumChunk + 77
			x, partials := b.normal(d, 1, n, n), doubles(b, 2)
			return []any{partials, x, n}, []*field{partials}
		}, func(i int, f *field) uint64 {
			if i == 0 {
				return missing / cpu.SumChunk * uint64(f.dtype.Bytes())
			}
			return missing * uint64(f.dtype.Bytes())
		})
	}
}

func doubles(b *bench, n int) *field { return b.field(tensor.F64, 1, n, n) }

// Sums have the bits of the CPU's, in one batch or several.
func testSums(t *testing.T, on *backend) {
	const chunk = cpu.SumChunk
	for _, n := range []int{1, 77, chunk, chunk + 1, 3*chunk + 5} {
		b := benchFor(t, on, 4)
		x := b.field(tensor.F32, 1, n, n)
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(b.rng.NormFloat64() * math.Exp2(float64(i%40-20)))
			x.put(0, i, float64(v[i]))
		}
		chunks := cpu.SumChunks(n)
		want := make([]float64, chunks)
		cpu.For(isa.Best()).Sum(want, v)
		half := b.field(tensor.BF16, 1, n, n)
		halves := make([]uint16, n)
		for i, x := range v {
			half.put(0, i, float64(x))
			halves[i] = tensor.BF16FromF32(x)
		}
		squares, of := doubles(b, chunks), make([]float64, chunks)
		b.run("sumsq.f32", squares, x, n)
		cpu.For(isa.Best()).SumSquares(of, cpu.F32(v))
		b.compare(fmt.Sprint("squares of ", n, " numbers"), squares, of, within(0x1p-1000))
		b.run("sumsq.bf16", squares, half, n)
		cpu.For(isa.Best()).SumSquares(of, cpu.BF16(halves))
		b.compare(fmt.Sprint("squares of ", n, " bf16 numbers"), squares, of, within(0x1p-1000))
		partials, dst := doubles(b, chunks), doubles(b, 1)
		b.run("sum.f32", partials, x, n)
		b.run("sum_fold", dst, partials, chunks, 0)
		b.compare(fmt.Sprint(n, " numbers"), dst, []float64{cpu.Total(want)}, within(0x1p-1000))
		if n > 2*chunk {
			head, tail := *partials, *x
			b.run("sum.f32", partials, x, 2*chunk)
			b.run("sum_fold", dst, &head, 2, 0)
			tail.at += 4 * 2 * chunk
			b.run("sum.f32", partials, &tail, n-2*chunk)
			b.run("sum_fold", dst, partials, chunks-2, 1)
			b.compare(fmt.Sprint(n, " numbers in two batches"), dst, []float64{cpu.Total(want)}, within(0x1p-1000))
		}
	}
}

// Losses of positions, some of which do not count, from where a softmax begins.
func testLoss(t *testing.T, on *backend) {
	testLossOf(t, on, "", 0)
	testLossOf(t, on, ".cap", 1.5)
}

func testLossOf(t *testing.T, on *backend, word string, softCap float32) {
	const rows, cols = 300, 40
	b := benchFor(t, on, 8)
	stat, logits := b.field(tensor.F32, rows, device.HeadStats, device.HeadStats), b.normal(tensor.F32, rows, cols, cols+3)
	figures := b.field(tensor.F32, device.TokenFigures, rows, rows)
	targets := make([]int32, rows)
	for r := range targets {
		if targets[r] = int32(b.rng.IntN(cols)); r%7 == 3 {
			targets[r] = -100
		}
	}
	ids := b.ints(targets)
	b.ref.LSEInit(b.of(stat))
	b.run("lse_init", stat, rows)
	b.compare("stat", stat, b.wanted(stat), within(0x1p-149))
	b.ref.LSEUpdate(b.of(stat), b.of(logits), b.of(ids).Mem, 0, softCap)
	b.ref.TokenLoss(b.of(figures), b.of(stat), b.of(ids).Mem)
	b.run("lse_update"+word+".any", stat, logits, ids, rows, cols, 0, logits.stride, softCap)
	b.run("token_loss", figures, stat, ids, rows)
	b.compare("figures", figures, b.wanted(figures), within(1e-5))
	weights, slopes := b.normal(tensor.F32, 1, rows, rows), b.normal(tensor.F32, 1, rows, rows) // of both signs
	for _, c := range []struct {
		entropy string
		slopes  *field
		of      device.Mem
	}{{"", weights, device.Mem{}}, {".entropy", slopes, b.of(slopes).Mem}} {
		grad := b.field(tensor.F32, rows, cols, cols+1)
		b.ref.CrossEntropyGrad(b.of(grad), b.of(logits), b.of(stat), b.of(ids).Mem, b.of(weights).Mem, c.of, 0, softCap)
		b.run("ce_grad.f32"+c.entropy+word+".any", grad, logits, stat, ids, weights, c.slopes, rows, cols, 0, grad.stride,
			logits.stride, softCap)
		b.compare("gradient"+c.entropy, grad, b.wanted(grad), within(1e-6))
	}
}

// Logits of tokens of a tile that is in the middle of the vocabulary, and gradients in their places.
func testPicks(t *testing.T, on *backend) {
	for word, softCap := range map[string]float32{"": 0, ".cap": 1.5} {
		const rows, cols, first, n = 37, 40, 100, 150
		b := benchFor(t, on, 18)
		logits, picked := b.normal(tensor.F32, rows, cols, cols+3), b.normal(tensor.F32, rows, n, n)
		values := b.normal(tensor.F32, rows, n, n)
		var all []int32
		for range rows {
			for i, id := range b.rng.Perm(2 * first)[:n] {
				if all = append(all, int32(id)); i%7 == 3 {
					all[len(all)-1] = -1
				}
			}
		}
		ids := b.ints(all)
		b.ref.PickLogits(b.of(picked), b.of(logits), b.of(ids).Mem, first, softCap)
		b.run("pick_logits"+word, picked, logits, ids, rows, n, cols, first, logits.stride, softCap)
		b.compare("logits", picked, b.wanted(picked), within(1e-6))
		for name, t := range map[string]tensor.DType{"f32": tensor.F32, "bf16": tensor.BF16} {
			grad := b.normal(t, rows, cols, cols+1)
			b.ref.PutLogitGrads(b.of(grad), b.of(logits), b.of(values), b.of(ids).Mem, first, softCap)
			b.run("put_logit_grads."+name+word, grad, logits, values, ids, rows, n, cols, first, grad.stride, logits.stride,
				softCap)
			limit := 1e-6
			if t == tensor.BF16 {
				limit = 0x1p-6
			}
			b.compare("gradients", grad, b.wanted(grad), within(limit))
		}
	}
}

// Rows draw tokens of three tiles, the last of which is mostly padding.
func testDraws(t *testing.T, on *backend) {
	for word, softCap := range map[string]float32{"": 0, ".cap": 1.5} {
		const rows, tile, tiles, vocab = 21, 1030, 3, 2075
		b := benchFor(t, on, 19)
		logits, stat := b.normal(tensor.F32, rows, tiles*tile, tiles*tile+3), b.field(tensor.F32, rows, 4, 4)
		drawn := b.field(tensor.F32, rows, 2, 2)
		for c := range vocab { // of two equal logits the first one is the likelier
			logits.put(0, c, 0)
		}
		logits.put(4, 9, math.NaN())
		draws := b.ints(drawsOf(b, rows))
		for i := range tiles {
			of, to, last := logits.columns(i*tile, tile), device.Mat{}, 0
			if i == tiles-1 {
				to, last = b.of(drawn), 1
			}
			b.ref.DrawTokens(to, b.of(stat), b.of(logits).ColRange(i*tile, tile), b.of(draws).Mem, i*tile, vocab, softCap)
			b.run("draw_tokens"+word+".any", drawn, stat, of, draws, rows, tile, i*tile, vocab, last, logits.stride, softCap)
		}
		b.compare("tokens", drawn, b.wanted(drawn), within(1e-5))
	}
}

// Parts of a gradient are added to it.
func testFold(t *testing.T, on *backend) {
	const slices, cols = 77, 300
	b := benchFor(t, on, 9)
	part, dst := b.normal(tensor.F32, slices, cols, cols), b.normal(tensor.F32, 1, cols, cols)
	b.ref.BiasGrad(b.of(dst), b.of(part))
	b.run("fold.f32", dst, part, slices, cols)
	b.compare("sum", dst, b.wanted(dst), within(1e-5))
}

// One id that many positions have, and ids that are met once, in the order of positions.
func testScatterAdd(t *testing.T, on *backend) {
	const rows, cols, first, tableRows = 1500, 5, 10, 8
	b := benchFor(t, on, 5)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(b.rng.IntN(2000)) - 1000
		if i%97 == 3 {
			ids[i] = first + 2
		}
	}
	dy, table := b.normal(tensor.F32, rows, cols, cols), b.normal(tensor.F32, tableRows, cols, cols)
	b.ref.ScatterAdd(b.of(table), b.of(dy), b.of(b.ints(ids)).Mem, first, 1.7)
	b.run("scatter_add.f32.any", table, dy, b.ints(ids), rows, cols, first, tableRows, cols, cols, float32(1.7))
	b.compare("table", table, b.wanted(table), within(0x1p-149))
}
