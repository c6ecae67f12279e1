// Command levels compares a training step in bf16 with one in fp32 at a chosen level of instructions, or with one in
// bf16 at another level (-against). It times the operations of one decoder block of SmolLM2-135M, forward and backward,
// and the optimizer, and prints a markdown table. Both sides take turns in one process, on one thread. Times are the
// thread's CPU time, so that a busy machine gives the same result.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// The block of SmolLM2-135M, and the positions of a step.
const (
	positions, hidden, heads, kvHeads, headDim, inter = 1024, 576, 9, 3, 64, 1536

	qkvCols = (heads + 2*kvHeads) * headDim
	params  = hidden * (qkvCols + heads*headDim + 3*inter)
)

func main() {
	name := flag.String("level", "",
		"instructions: plain, avx2, avx512, avx512bf16 or amx; if empty, the best without bf16 that this machine has")
	turns := flag.Int("turns", 9, "turns of each type")
	against := flag.String("against", "", "compare with bf16 at this level of instructions, in place of fp32 at -level")
	only := flag.String("only", "", "measure what has this in its name")
	flag.Parse()
	level := min(isa.Best(), isa.AVX512)
	if *name != "" {
		level = harness.Level("-level", *name, isa.Available())
	}
	sides := [2]side{{level, tensor.F32}, {level, tensor.BF16}}
	if *against != "" {
		sides[0] = side{harness.Level("-against", *against, isa.Available()), tensor.BF16}
	}
	run(sides, *turns, *only)
}

// side is one of the two that take turns.
type side struct {
	level isa.Level
	dtype tensor.DType
}

func (s side) String() string { return fmt.Sprintf("%v, %v", s.dtype, s.level) }

// operation is one line of the table.
type operation struct {
	name  string
	flops float64 // 0 where memory is what counts
	run   [2]func()
}

func run(sides [2]side, turns int, only string) {
	runtime.LockOSThread()
	all := operations(sides)
	fmt.Printf("A is %v, B is %v; the fastest of %d turns, CPU time of one thread\n\n", sides[0], sides[1], turns)
	harness.Head("| operation | A ms | B ms | B/A, median (range) | A GFLOP/s | B GFLOP/s |")
	sums := [2]harness.Series{make(harness.Series, turns), make(harness.Series, turns)}
	for _, o := range all {
		if !strings.Contains(o.name, only) {
			continue
		}
		var ms [2]harness.Series
		for turn := range turns + 1 { // the first one only warms up
			for d := range ms {
				start := harness.ThreadTime()
				o.run[d]()
				if t := float64(harness.ThreadTime()-start) / 1e6; turn > 0 {
					ms[d] = append(ms[d], t)
					sums[d][turn-1] += t
				}
			}
		}
		line(o.name, ms, o.flops)
	}
	line("all", sums, 0)
}

func line(name string, ms [2]harness.Series, flops float64) {
	ratios := ms[1].Over(ms[0])
	a, b := slices.Min(ms[0]), slices.Min(ms[1]) // other work takes caches and memory, and gives nothing
	rates := " | "
	if flops > 0 {
		rates = fmt.Sprintf("%.0f | %.0f", flops/a/1e6, flops/b/1e6)
	}
	fmt.Printf("| %s | %.2f | %.2f | %.2f (%.2f to %.2f) | %s |\n", name, a, b,
		ratios.Median(), slices.Min(ratios), slices.Max(ratios), rates)
}

// inline runs tasks on the calling goroutine.
type inline struct{}

func (inline) Workers() int { return 1 }

func (inline) Run(tasks int, f func(worker, task int)) {
	for t := range tasks {
		f(0, t)
	}
}

type multiplier struct{ *gemm.Engine }

func (m multiplier) Multiply(worker int, p attention.Product) {
	op := gemm.Op{C: gemm.Mat(p.C), A: gemm.Mat(p.A), B: gemm.Mat(p.B),
		TransA: p.TransposeA, TransB: p.TransposeB, Accumulate: p.Accumulate}
	if p.Packed != nil {
		m.MulPacked(worker, op, p.Packed)
		return
	}
	m.MulSerial(worker, op)
}

func (m multiplier) PackB(worker int, to []float32, b kernels.Mat, transpose bool) {
	m.Engine.PackB(worker, to, gemm.Mat(b), transpose)
}

func operations(sides [2]side) []operation {
	var all []operation
	for d, side := range sides {
		dtype, e, k := side.dtype, gemm.New(side.level, inline{}), kernels.For(side.level)
		i := 0
		add := func(name string, flops float64, f func()) {
			if d == 0 {
				all = append(all, operation{name: name, flops: flops})
			}
			all[i].run[d] = f
			i++
		}
		// linear adds the three products of a layer: y = x w^T, dx = dy w, dw += dy^T x.
		linear := func(name string, in, out int) {
			x, w, y := matrix(dtype, positions, in), matrix(dtype, out, in), matrix(dtype, positions, out)
			dx, dw, dy := matrix(dtype, positions, in), matrix(tensor.F32, out, in), matrix(dtype, positions, out)
			flops := 2 * float64(positions*in*out)
			mul := func(c, a, b kernels.Mat, transA, transB bool) func() {
				op := gemm.Op{C: gemm.Mat(c), A: gemm.Mat(a), B: gemm.Mat(b), TransA: transA, TransB: transB, Accumulate: transA}
				return func() { e.Mul(op) }
			}
			add(name+" y", flops, mul(y, x, w, false, true))
			add(name+" dx", flops, mul(dx, dy, w, false, false))
			add(name+" dw", flops, mul(dw, dy, x, true, false))
		}
		linear("qkv", hidden, qkvCols)
		linear("o", heads*headDim, hidden)
		linear("gate+up", hidden, 2*inter)
		linear("down", inter, hidden)

		s := &attention.Spec{Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 0.125,
			DocStart: make([]int32, positions), LSE: make([]float32, positions*heads), Delta: make([]float32, positions*heads),
			HeadGrads: make([]float32, attention.HeadGradsLen(positions, heads, headDim))}
		for _, m := range []*kernels.Mat{&s.Q, &s.Out, &s.DOut, &s.DQ} {
			*m = matrix(dtype, positions, heads*headDim)
		}
		for _, m := range []*kernels.Mat{&s.K, &s.V, &s.DK, &s.DV} {
			*m = matrix(dtype, positions, kvHeads*headDim)
		}
		scratch := aligned(attention.ScratchBytes(headDim))
		memory := elements[float32](matrix(tensor.F32, positions, 4*kvHeads*headDim))
		pack := func(backward bool) *attention.Packing {
			packing := attention.NewPacking(multiplier{e}, s, backward, memory)
			for t := range packing.Tasks(s) {
				packing.Run(multiplier{e}, 0, s, t)
			}
			return packing
		}
		pairs := float64(positions) * (positions + 1) / 2
		add("attention", 4*headDim*heads*pairs, func() {
			packing := pack(false)
			for t := range s.ForwardTasks() {
				attention.Forward(k, multiplier{e}, 0, s, packing, t, scratch)
			}
		})
		add("attention grad", 10*headDim*heads*pairs, func() {
			packing, turns := pack(true), attention.NewTurns(s)
			for t := range s.BackwardTasks() {
				attention.Backward(k, multiplier{e}, 0, s, packing, turns, t, scratch)
			}
			for t := range s.ReduceTasks() {
				attention.Reduce(k, s, t)
			}
		})

		glu := &kernels.GLU{GateUp: matrix(dtype, positions, 2*inter), H: matrix(dtype, positions, inter),
			DH: matrix(dtype, positions, inter), DGateUp: matrix(dtype, positions, 2*inter)}
		add("swiglu", 0, func() { k.GLUForward(glu, 0, positions) })
		add("swiglu grad", 0, func() { k.GLUBackward(glu, 0, positions) })
		x := matrix(dtype, positions, hidden)
		norm := &kernels.RMSNorm{X: x, Y: matrix(dtype, positions, hidden), Weight: make([]float32, hidden),
			RStd: make([]float32, positions), Groups: 1, Eps: 1e-5,
			DX: matrix(dtype, positions, hidden), DY: matrix(dtype, positions, hidden), Residual: x,
			DWeight: make([]float32, hidden)}
		add("two norms", 0, func() {
			for range 2 {
				k.RMSNormForward(norm, 0, positions)
			}
		})
		add("two norms' grads", 0, func() {
			for range 2 {
				k.RMSNormBackward(norm, 0, positions)
				k.RMSNormWeightGrad(norm, positions, 0, hidden)
			}
		})
		weights, grad := matrix(dtype, 1, params), matrix(dtype, 1, params)
		m, v := make([]float32, params), make([]float32, params)
		adam := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}.Scalars(10, 1e-5, 1, true)
		if dtype == tensor.F32 {
			add("adamw", 0, func() { k.AdamWF32(elements[float32](weights), m, v, elements[float32](grad), &adam) })
		} else {
			low := make([]int16, params)
			add("adamw", 0, func() { k.AdamWSplit(elements[uint16](weights), low, m, v, vector(grad), &adam) })
		}
	}
	return all
}

func vector(m kernels.Mat) kernels.Vec {
	return kernels.Vec{Data: m.Data, DType: m.DType, Len: m.Rows * m.Cols}
}

func elements[E any](m kernels.Mat) []E { return unsafe.Slice((*E)(m.Data), m.Rows*m.Cols) }

// matrix has normal numbers, and begins a cache line.
func matrix(d tensor.DType, rows, cols int) kernels.Mat {
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	memory := aligned(rows * cols * int(d.Bytes()))
	m := kernels.Mat{Data: unsafe.Pointer(&memory[0]), DType: d, Rows: rows, Cols: cols, Stride: cols}
	for i := range rows * cols {
		x := float32(rng.NormFloat64())
		if d == tensor.F32 {
			elements[float32](m)[i] = x
		} else {
			elements[uint16](m)[i] = tensor.BF16FromF32(x)
		}
	}
	return m
}

func aligned(bytes int) []byte {
	b := make([]byte, bytes+63)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return b[skip : skip+bytes]
}
