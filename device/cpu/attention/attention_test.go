package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// problem is a Spec over memory of its own, with Q, K and V side by side in rows that have a gap, as a model keeps them.
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
	start := 0
	for i := range s.DocStart {
		if i > 0 && rng.IntN(t) < docs {
			start = i
		}
		s.DocStart[i] = int32(start)
	}
	return problem{s, t}
}

// run does all tasks in a random order.
func (p problem) run(k *kernels.Table, mul Multiplier, rng *rand.Rand) {
	scratch := alignedBytes(ScratchBytes(p.HeadDim))
	for i := range scratch {
		scratch[i] = 0xff // NaN in both types
	}
	for _, task := range rng.Perm(p.ForwardTasks()) {
		Forward(k, mul, 0, p.Spec, task, scratch)
	}
	for _, task := range rng.Perm(p.BackwardTasks()) {
		Backward(k, mul, 0, p.Spec, task, scratch)
	}
	for _, task := range rng.Perm(p.ReduceTasks()) {
		Reduce(k, p.Spec, task)
	}
}

func get(m kernels.Mat, r, c int) float64 { return float64(element(m, r, c, false)) }

// reference computes everything in float64 with whole rows of scores, and returns the greatest error of each output
// relative to the output's greatest element.
func (p problem) reference() map[string]float64 {
	type array = []float64
	qc, kc := p.Heads*p.HeadDim, p.KVHeads*p.HeadDim
	out, dq, dk, dv := make(array, p.t*qc), make(array, p.t*qc), make(array, p.t*kc), make(array, p.t*kc)
	lse := make(array, p.t*p.Heads)
	for h := range p.Heads {
		kv, d := h/(p.Heads/p.KVHeads), p.HeadDim
		for t := range p.t {
			lo := int(p.DocStart[t])
			if p.Window > 0 {
				lo = max(lo, t-p.Window+1)
			}
			prob := make(array, t+1-lo)
			most := math.Inf(-1)
			for j := range prob {
				for c := range d {
					prob[j] += get(p.Q, t, h*d+c) * get(p.K, lo+j, kv*d+c)
				}
				prob[j] *= float64(p.Scale)
				most = max(most, prob[j])
			}
			var sum, delta float64
			for j := range prob {
				prob[j] = math.Exp(prob[j] - most)
				sum += prob[j]
			}
			lse[t*p.Heads+h] = most + math.Log(sum)
			for j := range prob {
				prob[j] /= sum
				for c := range d {
					out[t*qc+h*d+c] += prob[j] * get(p.V, lo+j, kv*d+c)
				}
			}
			for c := range d {
				delta += get(p.DOut, t, h*d+c) * out[t*qc+h*d+c]
			}
			for j := range prob {
				var dp float64
				for c := range d {
					dp += get(p.DOut, t, h*d+c) * get(p.V, lo+j, kv*d+c)
				}
				ds := prob[j] * (dp - delta) * float64(p.Scale)
				for c := range d {
					dv[(lo+j)*kc+kv*d+c] += prob[j] * get(p.DOut, t, h*d+c)
					dk[(lo+j)*kc+kv*d+c] += ds * get(p.Q, t, h*d+c)
					dq[t*qc+h*d+c] += ds * get(p.K, lo+j, kv*d+c)
				}
			}
		}
	}
	worst := func(m kernels.Mat, want array) float64 {
		var diff, most float64
		for r := range m.Rows {
			for c := range m.Cols {
				w, g := want[r*m.Cols+c], get(m, r, c)
				if g != g {
					return math.Inf(1)
				}
				diff, most = max(diff, math.Abs(w-g)), max(most, math.Abs(w))
			}
		}
		return diff / most
	}
	return map[string]float64{"out": worst(p.Out, out), "lse": worst(kernels.MatF32(p.LSE, p.Heads), lse),
		"dq": worst(p.DQ, dq), "dk": worst(p.DK, dk), "dv": worst(p.DV, dv)}
}

func TestAgainstFloat64(t *testing.T) {
	for _, c := range []struct{ t, heads, kvHeads, headDim, window, docs int }{
		{1, 1, 1, 8, 0, 1},
		{7, 2, 2, 16, 0, 1},
		{130, 3, 1, 16, 0, 3},
		{300, 2, 1, 64, 0, 1},
		{257, 4, 2, 80, 0, 9},
		{129, 1, 1, 128, 0, 2},
		{400, 2, 2, 8, 37, 2},
		{513, 2, 1, 16, 200, 1},
		{300, 1, 1, 24, 0, 100},
	} {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprintf("%s/%+v", dtype, c), func(t *testing.T) {
				limit := 2e-6
				if dtype == tensor.BF16 {
					limit = 1e-2
				}
				rng := rand.New(rand.NewPCG(1, uint64(c.t)))
				p := newProblem(rng, dtype, c.t, c.heads, c.kvHeads, c.headDim, c.window, c.docs)
				if err := p.Check(true); err != nil {
					t.Fatal(err)
				}
				p.run(kernels.For(isa.Best()), Plain{}, rng)
				for name, e := range p.reference() {
					if !(e <= limit) {
						t.Errorf("%s: error %.2g, limit %.2g", name, e, limit)
					}
				}
			})
		}
	}
}
