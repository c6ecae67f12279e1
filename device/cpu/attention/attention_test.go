package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// problem is a Spec over memory of its own, with Q, K and V side by side in rows that have a gap, as a model keeps
// them.
type problem struct {
	*Spec
	t int
}

func mat(d tensor.DType, rows, cols int, fill func() float32) kernels.Mat {
	x, h := make([]float32, rows*cols), make([]uint16, rows*cols)
	for i := range x {
		x[i] = fill()
		h[i] = tensor.BF16FromF32(x[i])
	}
	if d == tensor.F32 {
		return kernels.MatF32(x, cols)
	}
	return kernels.MatBF16(h, cols)
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+63)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return b[skip : skip+n]
}

// multiplier is the matrix product of the device.
type multiplier struct{ engine *gemm.Engine }

func newMultiplier(level isa.Level, workers int) multiplier {
	return multiplier{gemm.New(level, idle(workers))}
}

func (m multiplier) Multiply(worker int, p Product) {
	op := gemm.Op{C: gemm.Mat(p.C), A: gemm.Mat(p.A), B: gemm.Mat(p.B),
		TransA: p.TransposeA, TransB: p.TransposeB, Accumulate: p.Accumulate}
	if p.Packed != nil {
		op.B.Data = unsafe.Pointer(new(byte)) // products must not look at it
		m.engine.MulPacked(worker, op, p.Packed)
		return
	}
	m.engine.MulSerial(worker, op)
}

// PackB implements Multiplier.
func (m multiplier) PackB(worker int, to []float32, b kernels.Mat, transpose bool) {
	m.engine.PackB(worker, to, gemm.Mat(b), transpose)
}

// PackedFloats implements Multiplier.
func (m multiplier) PackedFloats(d tensor.DType, k, n int) int { return m.engine.PackedFloats(d, k, n) }

// idle is a gemm.Runner for engines that multiply serially only.
type idle int

func (w idle) Workers() int                    { return int(w) }
func (w idle) Run(int, func(worker, task int)) { panic("serial only") }

func newProblem(rng *rand.Rand, dtype tensor.DType, t, heads, kvHeads, headDim, window, docs int) problem {
	normal := func() float32 { return float32(rng.NormFloat64()) }
	poison := func() float32 { return float32(math.NaN()) }
	q, kv := heads*headDim, kvHeads*headDim
	cols := q + 2*kv
	in := mat(dtype, t, cols+3, normal)
	grad := mat(dtype, t, cols+3, poison)
	s := &Spec{
		Q: part(in, 0, t, 0, q), K: part(in, 0, t, q, q+kv), V: part(in, 0, t, q+kv, cols),
		Out: mat(dtype, t, q, poison), LSE: make([]float32, t*heads),
		Heads: heads, KVHeads: kvHeads, HeadDim: headDim,
		Scale: float32(1 / math.Sqrt(float64(headDim))), Window: window, DocStart: make([]int32, t),
		DOut: mat(dtype, t, q, normal),
		DQ:   part(grad, 0, t, 0, q), DK: part(grad, 0, t, q, q+kv), DV: part(grad, 0, t, q+kv, cols),
	}
	s.HeadGrads = make([]float32, s.HeadGradsLen())
	for i := range s.HeadGrads {
		s.HeadGrads[i] = poison()
	}
	s.Delta = make([]float32, t*heads)
	start := 0
	for i := range s.DocStart {
		if i > 0 && rng.IntN(t) < docs {
			start = i
		}
		s.DocStart[i] = int32(start)
	}
	s.cut()
	return problem{s, t}
}

// pack packs into memory for a share of all blocks.
func (p problem) pack(mul Multiplier, rng *rand.Rand, backward bool, share float64) *Packing {
	memory := make([]float32, int(share*4*float64((p.t+keyBlock)*p.KVHeads*p.HeadDim)))
	for i := range memory {
		memory[i] = float32(math.NaN())
	}
	packing := NewPacking(mul, p.Spec, backward, memory)
	for _, task := range rng.Perm(packing.Tasks(p.Spec)) {
		packing.Run(mul, 0, p.Spec, task)
	}
	return packing
}

// run does all tasks, those that may come in any order in a random one.
func (p problem) run(k *kernels.Table, mul Multiplier, rng *rand.Rand) {
	scratch := alignedBytes(ScratchBytes(p.HeadDim))
	for i := range scratch {
		scratch[i] = 0xff // NaN in both types
	}
	packing := p.pack(mul, rng, false, 0.7)
	for _, task := range rng.Perm(p.ForwardTasks()) {
		Forward(k, mul, 0, p.Spec, packing, task, scratch)
	}
	packing = p.pack(mul, rng, true, 0.7)
	turns := NewTurns(p.Spec)
	for task := range p.BackwardTasks() {
		Backward(k, mul, 0, p.Spec, packing, turns, task, scratch)
	}
	for _, task := range rng.Perm(p.ReduceTasks()) {
		Reduce(k, p.Spec, task)
	}
}

// plain multiplies in the obvious way.
type plain struct{}

// Multiply implements Multiplier.
func (plain) Multiply(_ int, p Product) {
	inner := p.A.Cols
	if p.TransposeA {
		inner = p.A.Rows
	}
	p.eachElement(func(i, j int) (sum float32) {
		for l := range inner {
			b := element(p.B, l, j, p.TransposeB)
			if p.Packed != nil {
				b = p.Packed[j*inner+l]
			}
			sum += float32(element(p.A, i, l, p.TransposeA) * b)
		}
		return sum
	})
}

// eachElement writes what product returns for row i and column j.
func (p Product) eachElement(product func(i, j int) float32) {
	for i := range p.C.Rows {
		for j := range p.C.Cols {
			c := (*float32)(unsafe.Add(p.C.Data, 4*(i*p.C.Stride+j)))
			sum := product(i, j)
			if p.Accumulate {
				sum += *c
			}
			*c = sum
		}
	}
}

// PackB implements Multiplier: one column after the other.
func (plain) PackB(_ int, to []float32, b kernels.Mat, transpose bool) {
	k, n := b.Rows, b.Cols
	if transpose {
		k, n = n, k
	}
	for j := range n {
		for l := range k {
			to[j*k+l] = element(b, l, j, transpose)
		}
	}
}

// PackedFloats implements Multiplier.
func (plain) PackedFloats(_ tensor.DType, k, n int) int { return k * n }

func element(m kernels.Mat, r, c int, transpose bool) float32 {
	if transpose {
		r, c = c, r
	}
	at := r*m.Stride + c
	if m.DType == tensor.F32 {
		return *(*float32)(unsafe.Add(m.Data, 4*at))
	}
	return tensor.F32FromBF16(*(*uint16)(unsafe.Add(m.Data, 2*at)))
}

// floats is m without gaps.
func floats(m kernels.Mat) []float64 {
	var all []float64
	for r := range m.Rows {
		for c := range m.Cols {
			all = append(all, float64(element(m, r, c, false)))
		}
	}
	return all
}

// reference computes everything in float64 with whole rows of scores, and returns the greatest error of each output
// relative to the output's greatest element.
func (p problem) reference() map[string]float64 {
	type array = []float64
	qc, kc := p.Heads*p.HeadDim, p.KVHeads*p.HeadDim
	q, key, value, dout := floats(p.Q), floats(p.K), floats(p.V), floats(p.DOut)
	out, dq, dk, dv := make(array, p.t*qc), make(array, p.t*qc), make(array, p.t*kc), make(array, p.t*kc)
	lse, dsinks := make(array, p.t*p.Heads), make(array, p.Heads)
	for h := range p.Heads {
		kv, d := h/(p.Heads/p.KVHeads), p.HeadDim
		for t := range p.t {
			lo := int(p.DocStart[t])
			if p.Window > 0 {
				lo = max(lo, t-p.Window+1)
			}
			prob, slope := make(array, t+1-lo), make(array, t+1-lo)
			most := math.Inf(-1)
			if p.Sinks.Len > 0 {
				most = float64(p.Sinks.At(h))
			}
			for j := range prob {
				for c := range d {
					prob[j] += q[t*qc+h*d+c] * key[(lo+j)*kc+kv*d+c]
				}
				prob[j] *= float64(p.Scale)
				slope[j] = 1
				if limit := float64(p.SoftCap); limit > 0 {
					th := math.Tanh(prob[j] / limit)
					prob[j], slope[j] = limit*th, 1-th*th
				}
				most = max(most, prob[j])
			}
			var sum, delta float64
			for j := range prob {
				prob[j] = math.Exp(prob[j] - most)
				sum += prob[j]
			}
			if p.Sinks.Len > 0 {
				sum += math.Exp(float64(p.Sinks.At(h)) - most)
			}
			lse[t*p.Heads+h] = most + math.Log(sum)
			for j := range prob {
				prob[j] /= sum
				for c := range d {
					out[t*qc+h*d+c] += prob[j] * value[(lo+j)*kc+kv*d+c]
				}
			}
			for c := range d {
				delta += dout[t*qc+h*d+c] * out[t*qc+h*d+c]
			}
			if p.Sinks.Len > 0 {
				dsinks[h] -= math.Exp(float64(p.Sinks.At(h))-lse[t*p.Heads+h]) * delta
			}
			for j := range prob {
				var dp float64
				for c := range d {
					dp += dout[t*qc+h*d+c] * value[(lo+j)*kc+kv*d+c]
				}
				ds := prob[j] * (dp - delta) * slope[j] * float64(p.Scale)
				for c := range d {
					dv[(lo+j)*kc+kv*d+c] += prob[j] * dout[t*qc+h*d+c]
					dk[(lo+j)*kc+kv*d+c] += ds * q[t*qc+h*d+c]
					dq[t*qc+h*d+c] += ds * key[(lo+j)*kc+kv*d+c]
				}
			}
		}
	}
	worst := func(m kernels.Mat, want array) float64 {
		var diff, most float64
		for i, g := range floats(m) {
			if g != g {
				return math.Inf(1)
			}
			diff, most = max(diff, math.Abs(want[i]-g)), max(most, math.Abs(want[i]))
		}
		return diff / max(most, 0.1)
	}
	return map[string]float64{"out": worst(p.Out, out), "lse": worst(kernels.MatF32(p.LSE, p.Heads), lse),
		"dq": worst(p.DQ, dq), "dk": worst(p.DK, dk), "dv": worst(p.DV, dv), "dsinks": worst(kernels.MatF32(p.sinkGrad(), p.Heads), dsinks)}
}

// sinkGrad computes the gradient of the sinks; without sinks it returns zeros.
func (p problem) sinkGrad() []float32 {
	d := make([]float32, p.Heads)
	if p.Sinks.Len > 0 {
		SinkGrad(d, p.Sinks, p.LSE, p.Delta)
	}
	return d
}

func TestAgainstFloat64(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: one goroutine computes, so there is no race to find; make test runs it")
	}
	for _, c := range []struct {
		t, heads, kvHeads, headDim, window, docs int
		softCap                                  float32
		sinks                                    bool
	}{
		{1, 1, 1, 8, 0, 1, 0, false},
		{7, 2, 2, 16, 0, 1, 0, false},
		{129, 3, 1, 16, 0, 3, 0, false},
		{260, 2, 1, 64, 0, 1, 0, false},
		{205, 4, 2, 80, 0, 9, 0, false},
		{70, 1, 1, 128, 0, 2, 0, false},
		{400, 2, 2, 8, 37, 2, 0, false},
		{401, 2, 1, 16, 200, 1, 0, false},
		{200, 1, 1, 24, 0, 80, 0, false},
		{129, 2, 1, 16, 0, 3, 1.5, false},
		{260, 2, 2, 64, 70, 1, 50, false},
		{129, 4, 2, 16, 0, 3, 0, true},
		{300, 3, 1, 256, 131, 2, 2, true},
		{200, 2, 1, 512, 0, 2, 0, false},
	} {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprintf("%s/%+v", dtype, c), func(t *testing.T) {
				limit := 5e-6
				if dtype == tensor.BF16 {
					limit = 1e-2
				}
				rng := rand.New(rand.NewPCG(1, uint64(c.t)))
				p := newProblem(rng, dtype, c.t, c.heads, c.kvHeads, c.headDim, c.window, c.docs)
				p.SoftCap = c.softCap
				if c.sinks { // some far below the scores, some far above
					n := -8.0
					p.Sinks = row(mat(dtype, 1, c.heads, func() float32 { n += 7; return float32(n + rng.NormFloat64()) }), 0, 0, c.heads)
				}
				if err := p.Check(true); err != nil {
					t.Fatal(err)
				}
				check := func(with string) {
					for name, e := range p.reference() {
						if !(e <= limit) {
							t.Errorf("%s: %s: error %.2g, limit %.2g", with, name, e, limit)
						}
					}
				}
				if c.t <= 129 {
					p.run(kernels.For(isa.Plain), plain{}, rng)
					check("plain")
				}
				p.run(kernels.For(isa.Best()), newMultiplier(isa.Best(), 1), rng)
				check(isa.Best().String())
			})
		}
	}
}

// BenchmarkAttention is one micro-batch of SmolLM2-135M on one worker; FLOPs are those of the causal half.
func BenchmarkAttention(b *testing.B) {
	const t, heads, kvHeads, headDim = 1024, 9, 3, 64
	for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
		rng := rand.New(rand.NewPCG(1, 1))
		p := newProblem(rng, dtype, t, heads, kvHeads, headDim, 0, 0)
		k, mul := kernels.For(isa.Best()), newMultiplier(isa.Best(), 1)
		scratch := alignedBytes(ScratchBytes(headDim))
		memory := make([]float32, 4*t*kvHeads*headDim)
		flops := 2.0 * t * (t + 1) / 2 * headDim * heads
		b.Run(dtype.String()+"/forward", func(b *testing.B) {
			for b.Loop() {
				packing := NewPacking(mul, p.Spec, false, memory)
				for task := range packing.Tasks(p.Spec) {
					packing.Run(mul, 0, p.Spec, task)
				}
				for task := range p.ForwardTasks() {
					Forward(k, mul, 0, p.Spec, packing, task, scratch)
				}
			}
			b.ReportMetric(2*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(dtype.String()+"/backward", func(b *testing.B) {
			for b.Loop() {
				packing, turns := NewPacking(mul, p.Spec, true, memory), NewTurns(p.Spec)
				for task := range packing.Tasks(p.Spec) {
					packing.Run(mul, 0, p.Spec, task)
				}
				for task := range p.BackwardTasks() {
					Backward(k, mul, 0, p.Spec, packing, turns, task, scratch)
				}
				for task := range p.ReduceTasks() {
					Reduce(k, p.Spec, task)
				}
			}
			b.ReportMetric(5*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
