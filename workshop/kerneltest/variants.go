package kerneltest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/tensor"
)

// operands makes the arguments of a kernel, the same for all of its variants, and says which are written.
type operands func(b *bench, d tensor.DType) (args []any, written []*field)

// Operands that every variant takes: addresses, columns and strides are multiples of 16. Blocks are several, and not
// full. Matrices that may have any stride have one that is longer than their columns.
var aligned = map[string]operands{
	"add.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, y := b.normal(d, 7, 528, 544), b.normal(d, 7, 528, 560)
		return []any{y, x, y, 7, 528, y.stride, x.stride, y.stride}, []*field{y}
	},
	"add_bias.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		y, bias := b.normal(d, 7, 528, 544), b.normal(d, 1, 528, 528)
		return []any{y, bias, 7, 528, y.stride}, []*field{y}
	},
	"cast.A_f32":  cast(tensor.F32),
	"cast.A_bf16": cast(tensor.BF16),
	"bias_grad.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		const slices = 32
		dy, part := b.normal(d, 1100, 80, 96), b.field(tensor.F32, slices, 80, 80)
		return []any{part, dy, 1100, 80, slices, dy.stride}, []*field{part}
	},
	"rmsnorm.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, w, y, rstd := b.normal(d, 5, 3*96, 304), b.normal(d, 1, 96, 96), b.field(d, 5, 3*96, 320), b.field(tensor.F32, 5, 3, 3)
		return []any{y, rstd, x, w, 5, 3, 96, y.stride, x.stride, float32(1e-5), float32(1), 1}, []*field{y, rstd}
	},
	"layernorm.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, w, y, stat := b.normal(d, 5, 2064, 2080), b.normal(d, 1, 2064, 2064), b.field(d, 5, 2064, 2096),
			b.field(tensor.F32, 5, 2, 2)
		return []any{y, stat, x, w, w, 5, 2064, y.stride, x.stride, float32(1e-5), 1}, []*field{y, stat}
	},
	"layernorm_grad.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, w, dy, stat := b.normal(d, 5, 2064, 2080), b.normal(d, 1, 2064, 2064), b.normal(d, 5, 2064, 2096),
			b.normal(tensor.F32, 5, 2, 2)
		part := b.field(tensor.F32, 2, 2064, 2064)
		return []any{part, dy, dy, x, w, stat, x, 5, 2064, 2, dy.stride, dy.stride, x.stride, x.stride, 1},
			[]*field{part, dy}
	},
	"rmsnorm_grad.A":       normGrad,
	"rmsnorm_grad.A.resid": normGrad,
	"rope.A":               rope(1),
	"rope.A.bias":          rope(0),
	"move_heads.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, y := b.normal(d, 5, 17*96, 17*96+16), b.normal(d, 5, 17*112, 17*112+32)
		return []any{y, x, 5, 17, 80, 112, 96, y.stride, x.stride}, []*field{y}
	},
	"sum_heads.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, y := b.normal(d, 19, 17*96, 17*96+16), b.field(d, 19, 80, 96)
		return []any{y, x, 19, 17, 80, 96, y.stride, x.stride}, []*field{y}
	},
	"scale.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, y := b.normal(d, 7, 528, 544), b.field(d, 7, 528, 560)
		return []any{y, x, 7, 528, y.stride, x.stride, float32(1.7)}, []*field{y}
	},
	"glu.silu.A": glu, "glu.gelu.A": glu, "glu.gelu_tanh.A": glu,
	"glu_grad.silu.A": gluGrad, "glu_grad.gelu.A": gluGrad, "glu_grad.gelu_tanh.A": gluGrad,
	"lse_update":     lseUpdate(0),
	"lse_update.cap": lseUpdate(1.5),
	"ce_grad.A":      lossGrad(0),
	"ce_grad.A.cap":  lossGrad(1.5),

	"ce_grad.A.entropy":     lossGrad(0),
	"ce_grad.A.entropy.cap": lossGrad(1.5),

	"draw_tokens":     drawTokens(0),
	"draw_tokens.cap": drawTokens(1.5),
	"gather.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		y, table := b.normal(d, 6, 528, 544), b.normal(d, 4, 528, 560)
		return []any{y, table, b.ints([]int32{12, 10, 9, 14, 13, -1}), 6, 528, 10, 4, y.stride, table.stride}, []*field{y}
	},
	"scatter_add.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		table, dy := b.normal(tensor.F32, 4, 1040, 1072), b.normal(d, 6, 1040, 1056)
		ids := b.ints([]int32{12, 10, 9, 12, 13, 10})
		return []any{table, dy, ids, 6, 1040, 10, 4, table.stride, dy.stride, float32(1.7)}, []*field{table}
	},
}

// A gated unit's arguments: that there are ups, alpha, limit and what is added to up. Those of experts have the last
// three.
var unit = []any{1, float32(1.702), float32(0.75), float32(1)}

func glu(b *bench, d tensor.DType) ([]any, []*field) {
	x, y := b.normal(d, 5, 2*528, 2*528+16), b.field(d, 5, 528, 544)
	return append([]any{y, x, 5, 528, y.stride, x.stride}, unit...), []*field{y}
}

func gluGrad(b *bench, d tensor.DType) ([]any, []*field) {
	x, dy := b.normal(d, 5, 2*528, 2*528+16), b.normal(d, 5, 528, 560)
	return append([]any{x, dy, dy, x, 5, 528, x.stride, dy.stride, dy.stride, x.stride}, unit...), []*field{x, dy}
}

func cast(to tensor.DType) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		src, dst := b.normal(d, 7, 528, 544), b.field(to, 7, 528, 560)
		return []any{dst, src, 7, 528, dst.stride, src.stride}, []*field{dst}
	}
}

func rope(inverse int) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		x, bias := b.normal(d, 3, 17*144, 17*144+16), b.normal(d, 1, 17*144, 17*144)
		cos, sin := b.normal(tensor.F32, 9, 72, 72), b.normal(tensor.F32, 9, 72, 72)
		return []any{x, x, bias, cos, sin, b.ints([]int32{8, 0, 5}), 3, 17, 144, inverse, x.stride, x.stride}, []*field{x}
	}
}

func lseUpdate(softCap float32) operands {
	return func(b *bench, _ tensor.DType) ([]any, []*field) {
		stat, logits := b.normal(tensor.F32, 3, 4, 4), b.normal(tensor.F32, 3, 2064, 2080)
		for r := range 3 {
			stat.put(r, 1, 2)
		}
		return []any{stat, logits, b.ints([]int32{110, -1, 5000}), 3, 2064, 100, logits.stride, softCap}, []*field{stat}
	}
}

// drawTokens draws tokens of a tile, of which the last ones are padding, after a token of the tiles before.
func drawTokens(softCap float32) operands {
	return func(b *bench, _ tensor.DType) ([]any, []*field) {
		stat, logits, drawn := b.normal(tensor.F32, 4, 4, 4), b.normal(tensor.F32, 4, 2064, 2080),
			b.field(tensor.F32, 4, 2, 2)
		for r := range 4 {
			stat.put(r, 1, 2)
			stat.put(r, 3, 7)
		}
		draws := b.ints(drawsOf(b, 4))
		return []any{drawn, stat, logits, draws, 4, 2064, 96, 2150, 1, logits.stride, softCap}, []*field{drawn, stat}
	}
}

// drawsOf are the draws of rows, of several temperatures.
func drawsOf(b *bench, rows int) (all []int32) {
	for r := range rows {
		var of [device.DrawWords]int32
		device.TokenDraw{Key: [2]uint32{b.rng.Uint32(), b.rng.Uint32()}, Text: b.rng.Uint64(), At: b.rng.Uint32() >> 2,
			Inverse: device.Inverse([]float64{0, 1, 0.5, 2}[r%4])}.Put(of[:])
		all = append(all, of[:]...)
	}
	return all
}

func lossGrad(softCap float32) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		grad, stat, logits := b.field(d, 3, 1040, 1056), b.normal(tensor.F32, 3, 4, 4), b.normal(tensor.F32, 3, 1040, 1072)
		for r := range 3 {
			stat.put(r, 1, 2)
		}
		targets := b.ints([]int32{110, -1, 5000})
		weights, slopes := b.normal(tensor.F32, 1, 3, 3), b.normal(tensor.F32, 1, 3, 3)
		return []any{grad, logits, stat, targets, weights, slopes, 3, 1040, 100, grad.stride, logits.stride, softCap},
			[]*field{grad}
	}
}

// normGrad has rows for more than one turn of a slice; the first slice is whole blocks of rows.
func normGrad(b *bench, d tensor.DType) ([]any, []*field) {
	const rows, slices = 15, 2
	dy, x, w, resid := b.normal(d, rows, 3*96, 304), b.normal(d, rows, 3*96, 288), b.normal(d, 1, 96, 96), b.normal(d, rows, 3*96, 336)
	rstd, part := b.normal(tensor.F32, rows, 3, 3), b.field(tensor.F32, slices, 96, 96)
	return []any{part, dy, dy, x, w, rstd, resid, rows, 3, 96, slices, dy.stride, dy.stride, x.stride, resid.stride,
		float32(1), 1}, []*field{dy, part}
}

// bits makes a vector of random bits.
func (b *bench) bits(d tensor.DType, n int) *field {
	f := b.field(d, 1, n, n)
	for i := range f.bytes {
		f.bytes[i] = byte(b.rng.Uint32())
	}
	return f
}

// counter is the number of four elements that have random words together.
type counter uint64

// draw names random words: key, part and the first counter.
var draw = []any{uint64(5)<<61 + 7, uint64(3)<<33 + 1, counter(1<<34 - 9)}

// inBits are the bits of codes of first and second moments.
type inBits [2]int

var inF32 inBits

// codes makes codes of n moments, and scales.
func (b *bench) codes(n, bits int) (codes, scales *field) {
	blocks := n / tensor.MomentBlock
	if bits == 4 {
		blocks = n / tensor.MomentBlock4
	}
	codes, scales = b.bits(tensor.U8, n*bits/8), b.normal(tensor.F32, 1, blocks, blocks)
	for i := range blocks {
		scales.put(0, i, math.Abs(scales.get(0, i)))
	}
	return codes, scales
}

// ofUpdates are the updates of all masters, with moments of all forms.
func ofUpdates() map[string]operands {
	all := map[string]operands{}
	for name, in := range map[string]inBits{"adamw": inF32, "adamw8": {8, 8}, "adamw84": {8, 4}, "adamw4": {4, 4}} {
		all[name+".split.A"] = adamW(tensor.BF16, tensor.I16, in)
		all[name+".split24.A"] = adamW(tensor.BF16, tensor.I8, in)
		all[name+".f32.A"] = adamW(tensor.F32, tensor.I16, in)
	}
	return all
}

// adamW steps weights of any bits, NaNs among them, which are counted.
func adamW(weights, lows tensor.DType, in inBits) operands {
	return func(b *bench, d tensor.DType) ([]any, []*field) {
		const n = 5 * tensor.MomentBlock
		w, low, grad, tally := b.bits(weights, n), b.bits(lows, n), b.normal(d, 1, n, n), b.field(tensor.I64, 1, 2, 2)
		var scalars []any
		for _, s := range []float32{0.75, 0.999, 0.1, 0.999, 0.001, 3e-3, 0.05, 1e-8} {
			scalars = append(scalars, s)
		}
		if in == inF32 {
			m, v := b.normal(tensor.F32, 1, n, n), b.normal(tensor.F32, 1, n, n)
			for i := range n {
				v.put(0, i, math.Abs(v.get(0, i)))
			}
			args := []any{w, low, m, v, grad, tally, n}
			if lows == tensor.I8 {
				args = append(args, draw...)
			}
			return append(args, scalars...), []*field{w, low, m, v, tally}
		}
		m, ms := b.codes(n, in[0])
		v, vs := b.codes(n, in[1])
		args := []any{w, low, m, v, ms, vs, grad, tally}
		for s := range in[1] / 4 { // what 8 bits stand for
			values := b.field(tensor.F32, 1, 256, 256)
			for i := range 256 { // any increasing numbers will do
				values.put(0, i, float64(i-127*(1-s))/128)
			}
			args = append(args, values)
		}
		args = append(append(args, n), draw...)
		return append(args, scalars...), []*field{w, low, m, v, ms, vs, tally}
	}
}

// ordered are the operations whose variants may add numbers up in different orders.
var ordered = []string{"rmsnorm.A", "rmsnorm_grad.A", "rmsnorm_grad.A.resid", "layernorm.A", "layernorm_grad.A",
	"bias_grad.A", "lse_update", "lse_update.cap", "draw_tokens", "draw_tokens.cap",
	"expert_bias_grad.A", "expert_bias_dot.A", "expert_glu_grad.silu.A", "expert_glu_grad.gelu.A",
	"expert_glu_grad.gelu_tanh.A"}

// computing are the sources whose kernels have tests of their own.
var computing = []string{"attention.py", "matmul.py", "delta.py", "delta_scan.py"}

// All variants of an operation compute the same, on each target: to the bit, except where the order of sums is not
// defined. A proof of one variant by devicetest is then a proof of all. Rows so far apart that offsets need 64 bits
// give the same bits as rows that are close.
func testVariants(t *testing.T, on *backend) {
	tested, patterns := map[string]bool{}, maps.Clone(aligned)
	maps.Copy(patterns, ofUpdates())
	maps.Copy(patterns, ofExperts)
	maps.Copy(patterns, aroundRecurrence)
	maps.Copy(patterns, ofCaches)
	for pattern, make := range patterns {
		for _, d := range types {
			op := strings.Replace(pattern, "A", typeWord(d), 1)
			var reference []*field
			from := ""
			for _, variant := range slices.Backward(kernels.Variants) {
				b := benchFor(t, on, 6)
				name := op + variant
				if _, ok := b.set.Find(name); !ok {
					continue
				}
				tested[name] = true
				args, written := make(b, d)
				b.run(name, args...)
				if on.gpu == nil {
					apart := benchFor(t, on, 6)
					apart.stride = longStride
					args, far := make(apart, d)
					apart.run(name, args...)
					for i, f := range far {
						if err := differ(f, written[i], false); err != nil {
							t.Errorf("%s: operand %d with rows far apart and not: %v", name, i, err)
						}
					}
				}
				if reference == nil {
					reference, from = written, name
					continue
				}
				for i, f := range written {
					if err := differ(f, reference[i], slices.Contains(ordered, pattern)); err != nil {
						t.Errorf("%s and %s: operand %d: %v", name, from, i, err)
					}
					if !f.intact() {
						t.Errorf("%s: operand %d is written between the rows", name, i)
					}
				}
			}
		}
	}
	set, err := kernels.Load(on.target)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range set.Names() {
		k, _ := set.Find(name)
		if len(k.Aligned) > 0 && !slices.Contains(computing, k.Source) && k.Limits.Loop == nil &&
			!tested[name] {
			t.Errorf("%s is compared with no other variant", name)
		}
	}
}

// differ compares two fields, to the bit or nearly.
func differ(got, want *field, nearly bool) error {
	if !nearly {
		for i, x := range got.bytes {
			if x != want.bytes[i] {
				return fmt.Errorf("byte %d is %#x and %#x", i, x, want.bytes[i])
			}
		}
		return nil
	}
	limit := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 2e-2}[got.dtype]
	for r := range got.rows {
		for c := range got.cols {
			if g, w := got.get(r, c), want.get(r, c); !(math.Abs(g-w) <= limit*(1+math.Abs(w))) {
				return fmt.Errorf("[%d, %d] is %v and %v", r, c, g, w)
			}
		}
	}
	return nil
}
