package cuda_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// speedShape is a block and a head, and how they are visited.
type speedShape struct {
	rows, document                      int // positions of a micro-batch, and of each document in it
	hidden, inner, heads, keys, headDim int
	tile                                int // rows of the head's matrix that are taken at once
	parameters                          int // that one update takes

	others []heads            // of other models
	deltas []device.DeltaSpec // gated delta nets of other models
}

// heads are attention's.
type heads struct {
	of                 string // models
	heads, keys, width int
	softCap            float32
}

// String says which heads they are, for a row's name.
func (h heads) String() string {
	s := fmt.Sprintf("%d heads of %d (%s)", h.heads, h.width, h.of)
	if h.softCap > 0 {
		s = "capped, " + s
	}
	return s
}

// operations have the methods that a stream and the rules of operands share.
type operations interface {
	device.LinearOps
	device.ElementOps
	device.NormOps
	device.AttentionOps
	device.MLPOps
	device.HeadOps
	device.EmbeddingOps
	device.OptimizerOps
	device.RoutingOps
	device.ExpertOps
	device.ConvOps
	device.DeltaOps
}

// speedTask is an operation to time.
type speedTask struct {
	name    string
	product bool  // a matrix product, which two kinds of kernels can take
	flops   int64 // of matrix products in it
	inPlace bool  // what it writes it also reads
	run     func(s operations)
}

// speedRow holds one line of the row speeds.
type speedRow struct {
	Name         string  `json:"name"`
	Milliseconds float64 `json:"ms"` // median
	TFLOPS       float64 `json:"tflops,omitempty"`
	GBPerSec     float64 `json:"gb_per_sec"` // each operand once
	// LimitMilliseconds is the longer one of what the products take at the rate of the fastest product here, and what the
	// bytes take at the rate of a copy.
	LimitMilliseconds float64      `json:"limit_ms"`
	Kernels           []kernelTime `json:"kernels"` // of this program, in their order; none where the library computes
	product           bool
	flops, bytes      int64
}

type kernelTime struct {
	Name         string  `json:"name"`
	Milliseconds float64 `json:"ms"`
}

// speedTasks lays the operands of each operation of a block and a head out in an arena, and says how to run it.
func speedTasks(z speedShape, docs func(a *device.Arena, rows, document int) device.Docs,
	ids func(a *device.Arena, n, below int) device.Mem, steps func(a *device.Arena, n, step int) device.Mem,
	zero func(device.Mem)) []func(a *device.Arena) speedTask {
	const bf16, f32 = tensor.BF16, tensor.F32
	product := func(name string, m, n, k int, f device.MatMulFlags, c tensor.DType,
		onto bool) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			rows, cols := [2]int{m, k}, [2]int{k, n}
			if f.TransA {
				rows = [2]int{k, m}
			}
			if f.TransB {
				cols = [2]int{n, k}
			}
			y, x, w := a.Mat(c, m, n), a.Mat(bf16, rows[0], rows[1]), a.Mat(bf16, cols[0], cols[1])
			f := f
			if onto {
				f.Onto = a.Mat(c, m, n)
			}
			return speedTask{name: name, product: true, flops: 2 * int64(m) * int64(n) * int64(k), inPlace: f.Accumulate,
				run: func(s operations) { s.MatMul(y, x, w, f) }}
		}
	}
	attention := func(name string, h heads, document int, grad bool) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			mat := func(heads int) device.Mat { return a.Mat(bf16, z.rows, heads*h.width) }
			q, k, v, out, lse := mat(h.heads), mat(h.keys), mat(h.keys), mat(h.heads), a.Mat(f32, z.rows, h.heads)
			spec := device.AttentionSpec{Heads: h.heads, KVHeads: h.keys, HeadDim: h.width, SoftCap: h.softCap,
				Scale: float32(1 / math.Sqrt(float64(h.width))), Docs: docs(a, z.rows, document)}
			pairs := int64(z.rows/document) * int64(document) * int64(document+1) / 2
			t := speedTask{name: name, flops: 2 * 2 * pairs * int64(h.heads*h.width),
				run: func(s operations) { s.Attention(out, lse, q, k, v, spec) }}
			if grad {
				dq, dk, dv, dout, delta := mat(h.heads), mat(h.keys), mat(h.keys), mat(h.heads), a.Mat(f32, z.rows, h.heads)
				t.flops = t.flops / 2 * 5
				t.run = func(s operations) { s.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec) }
			}
			return t
		}
	}
	delta := func(spec device.DeltaSpec, of string, grad bool) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			spec := spec
			spec.Docs = docs(a, z.rows, z.document)
			mat := func(t tensor.DType, cols int) device.Mat { return a.Mat(t, z.rows, cols) }
			out, qkv := mat(bf16, spec.Values()), mat(bf16, spec.QKVCols())
			decay, beta := mat(f32, spec.Heads), mat(f32, spec.Heads)
			chunks, cols := spec.States(z.rows)
			states := a.Mat(f32, chunks, cols)
			zero(decay.Mem) // it is never positive
			forward, backward := spec.FLOPs(z.rows)
			t := speedTask{name: "gated delta net" + of, flops: forward,
				run: func(s operations) { s.GatedDelta(out, states, qkv, decay, beta, spec) }}
			if grad {
				dqkv, ddecay, dbeta := mat(bf16, spec.QKVCols()), mat(f32, spec.Heads), mat(f32, spec.Heads)
				dstates := a.Mat(f32, chunks, cols)
				zero(states.Mem)
				t.name, t.flops = "gradient of gated delta net"+of, backward
				t.run = func(s operations) {
					s.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, out, qkv, decay, beta, states, spec)
				}
			}
			return t
		}
	}
	// conv has the width of the queries, keys and values of delta, and four taps.
	adamw8 := func(name string, first, second int) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			vec := func(t tensor.DType) device.Mat { return a.Mat(t, 1, z.parameters) }
			codes := func(bits int) (codes, scales device.Mat) {
				block := tensor.MomentBlock * bits / 8
				return a.Mat(tensor.U8, 1, z.parameters*bits/8), a.Mat(tensor.F32, 1, z.parameters/block)
			}
			args := device.AdamW8Args{Weights: vec(tensor.BF16), Low: vec(tensor.I16), Grad: vec(tensor.BF16),
				AdamWScalars: speedScalars}
			args.M, args.MScale = codes(first)
			args.V, args.VScale = codes(second)
			tally := a.Take(device.TallyBytes)
			zero(args.VScale.Mem)
			return speedTask{name: name, inPlace: true, run: func(s operations) { s.AdamW8(args, tally) }}
		}
	}
	conv := func(grad bool) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			const taps = 4
			cols := (z.heads + 2*z.keys) * z.headDim
			y, x, w := a.Mat(bf16, z.rows, cols), a.Mat(bf16, z.rows, cols), a.Mat(bf16, cols, taps)
			d := docs(a, z.rows, z.document)
			if grad {
				dx, dw := a.Mat(bf16, z.rows, cols), a.Mat(f32, cols, taps)
				return speedTask{name: "gradient of convolution",
					run: func(s operations) { s.CausalConvGrad(dx, dw, y, x, w, d) }}
			}
			return speedTask{name: "convolution", run: func(s operations) { s.CausalConv(y, x, w, d) }}
		}
	}
	// mixture has all rows of the step in one call: each chooses one expert, and each expert has as many rows.
	mixture := func(a *device.Arena, each int) device.Blocks {
		experts := max(z.rows/each, 1)
		r := device.Routing{Rows: z.rows, TopK: 1, Experts: experts, Choices: ids(a, z.rows, experts), Order: ids(a,
			z.rows, z.rows),
			Rank: ids(a, z.rows, z.rows), Starts: steps(a, experts+1, z.rows/experts)}
		size := min(z.rows/experts, 256)
		return device.Blocks{Routing: r, Experts: experts, Rows: size, Count: z.rows / size}
	}
	grouped := func(each int, grad bool) func(a *device.Arena) speedTask {
		return func(a *device.Arena) speedTask {
			b, inner := mixture(a, each), z.hidden/2
			y, x := a.Mat(bf16, z.rows, inner), a.Mat(bf16, z.rows, z.hidden)
			t := speedTask{name: fmt.Sprintf("product of experts, %d rows each", each),
				flops: 2 * int64(z.rows) * int64(inner) * int64(z.hidden)}
			if grad {
				dw := a.Mat(f32, b.Experts*inner, z.hidden)
				t.name, t.inPlace = fmt.Sprintf("gradient of experts' weights, %d rows each", each), true
				t.run = func(s operations) { s.ExpertWeightGrad(dw, y, x, b) }
				return t
			}
			w := a.Mat(bf16, b.Experts*inner, z.hidden)
			t.run = func(s operations) {
				s.ExpertMatMul(y, x, w, device.Mat{}, device.ExpertProduct{Transposed: true}, b)
			}
			return t
		}
	}
	x := func(a *device.Arena) device.Mat { return a.Mat(bf16, z.rows, z.hidden) }
	nt, tn := device.MatMulFlags{TransB: true}, device.MatMulFlags{TransA: true, Accumulate: true}
	qkv := (z.heads + 2*z.keys) * z.headDim
	own := heads{"", z.heads, z.keys, z.headDim, 0}
	ownDelta := device.DeltaSpec{KeyHeads: z.keys, Heads: z.heads, KeyDim: z.headDim, ValueDim: z.headDim}
	var others []func(a *device.Arena) speedTask
	for _, h := range z.others {
		others = append(others, attention("attention, "+h.String(), h, z.document, false),
			attention("gradient of attention, "+h.String(), h, z.document, true))
	}
	for _, d := range z.deltas {
		of := fmt.Sprintf(", %d and %d heads of %d", d.KeyHeads, d.Heads, d.ValueDim)
		others = append(others, delta(d, of, false), delta(d, of, true))
	}
	return append([]func(a *device.Arena) speedTask{
		product("product q, k, v", z.rows, qkv, z.hidden, nt, bf16, false),
		product("product gate, up", z.rows, 2*z.inner, z.hidden, nt, bf16, false),
		product("product down", z.rows, z.hidden, z.inner, nt, bf16, true),
		product("gradient of gate, up's input", z.rows, z.hidden, 2*z.inner, device.MatMulFlags{}, bf16, false),
		product("gradient of gate, up's weights", 2*z.inner, z.hidden, z.rows, tn, f32, false),
		product("gradient of down's weights", z.hidden, z.inner, z.rows, tn, f32, false),
		product("logits of a tile", z.rows, z.tile, z.hidden, nt, f32, false),
		product("product of as many rows, dense", z.rows, z.hidden/2, z.hidden, nt, bf16, false),
		grouped(2048, false), grouped(256, false), grouped(64, false),
		product("gradient of dense weights", z.hidden/2, z.hidden, z.rows, tn, f32, false),
		grouped(2048, true), grouped(256, true),
		attention("attention", own, z.document, false),
		attention("gradient of attention", own, z.document, true),
		attention("attention, one document", own, z.rows, false),
		attention("gradient of attention, one document", own, z.rows, true),
		func(a *device.Arena) speedTask { // the next token of each of some texts
			texts, keys := 32, z.rows/32
			bounds, n := steps(a, texts+1, keys), int64(texts)*4
			q, out := a.Mat(bf16, texts, z.heads*z.headDim), a.Mat(bf16, texts, z.heads*z.headDim)
			k, v := a.Mat(bf16, z.rows, z.keys*z.headDim), a.Mat(bf16, z.rows, z.keys*z.headDim)
			spec := device.AttentionSpec{Heads: z.heads, KVHeads: z.keys, HeadDim: z.headDim,
				Scale: float32(1 / math.Sqrt(float64(z.headDim))), Docs: device.Docs{Positions: ids(a, texts, texts),
					Start: bounds.Slice(0, n), End: bounds.Slice(4, n)}}
			return speedTask{name: fmt.Sprintf("attention of %d rows over caches", texts),
				run: func(s operations) { s.AttendCache(out, q, k, v, spec) }}
		},
		product("product of 8 rows", 8, 2*z.inner, z.hidden, nt, bf16, false),
		delta(ownDelta, "", false), delta(ownDelta, "", true), conv(false), conv(true),
		func(a *device.Arena) speedTask {
			y, rstd, x, w := x(a), a.Mat(f32, z.rows, 1), x(a), a.Mat(bf16, 1, z.hidden)
			norm := device.NormSpec{Groups: 1, Eps: 1e-6}
			return speedTask{name: "norm", run: func(s operations) { s.RMSNorm(y, rstd, x, w, norm) }}
		},
		func(a *device.Arena) speedTask {
			dx, dw, dy, x, w, rstd, around := x(a), a.Mat(f32, 1, z.hidden), x(a),
				x(a), a.Mat(bf16, 1, z.hidden), a.Mat(f32, z.rows, 1), x(a)
			return speedTask{name: "gradients of norm",
				run: func(s operations) { s.RMSNormGrad(dx, dw, dy, x, w, rstd, around, device.NormSpec{Groups: 1}) }}
		},
		func(a *device.Arena) speedTask {
			q, bias := a.Mat(bf16, z.rows, z.heads*z.headDim), a.Mat(bf16, 1, z.heads*z.headDim)
			cos, sin := a.Mat(f32, z.document, z.headDim/2), a.Mat(f32, z.document, z.headDim/2)
			positions := docs(a, z.rows, z.document).Positions
			return speedTask{name: "bias and rotary positions", inPlace: true,
				run: func(s operations) { s.RoPE(q, q, bias, z.heads, cos, sin, positions, false) }}
		},
		func(a *device.Arena) speedTask {
			y, gateUp := a.Mat(bf16, z.rows, z.inner), a.Mat(bf16, z.rows, 2*z.inner)
			return speedTask{name: "SwiGLU", run: func(s operations) { s.GLU(y, gateUp, device.GLUSpec{}) }}
		},
		func(a *device.Arena) speedTask {
			dGateUp, act, dy, gateUp := a.Mat(bf16, z.rows, 2*z.inner), a.Mat(bf16, z.rows, z.inner),
				a.Mat(bf16, z.rows, z.inner), a.Mat(bf16, z.rows, 2*z.inner)
			return speedTask{name: "gradient of SwiGLU", run: func(s operations) {
				s.GLUGrad(dGateUp, act, dy, gateUp, device.GLUSpec{})
			}}
		},
		func(a *device.Arena) speedTask {
			y, x, z := x(a), x(a), x(a)
			return speedTask{name: "addition", run: func(s operations) { s.Add(y, x, z) }}
		},
		func(a *device.Arena) speedTask {
			stat, logits, targets := a.Mat(f32, z.rows, device.HeadStats), a.Mat(f32, z.rows, z.tile), ids(a, z.rows, z.tile)
			return speedTask{name: "sums of the loss", run: func(s operations) { s.LSEUpdate(stat, logits, targets, 0, 0) }}
		},
		func(a *device.Arena) speedTask {
			stat, logits := a.Mat(f32, z.rows, device.HeadStats), a.Mat(f32, z.rows, z.tile)
			draws := steps(a, z.rows*device.DrawWords, 0) // of likeliest tokens, whose noise is made all the same
			return speedTask{name: "drawing of tokens",
				run: func(s operations) { s.DrawTokens(device.Mat{}, stat, logits, draws, 0, z.tile, 0) }}
		},
		func(a *device.Arena) speedTask {
			d, logits, stat, targets, weights := a.Mat(bf16, z.rows, z.tile), a.Mat(f32, z.rows, z.tile),
				a.Mat(f32, z.rows, device.HeadStats), ids(a, z.rows, z.tile), a.Take(int64(4*z.rows))
			return speedTask{name: "gradient of the loss",
				run: func(s operations) { s.CrossEntropyGrad(d, logits, stat, targets, weights, device.Mem{}, 0, 0) }}
		},
		func(a *device.Arena) speedTask {
			dtable, dy, ids := a.Mat(f32, z.tile, z.hidden), x(a), ids(a, z.rows, z.tile)
			return speedTask{name: "gradient of the embedding", run: func(s operations) {
				s.ScatterAdd(dtable, dy, ids, 0, 1)
			}}
		},
		func(a *device.Arena) speedTask {
			to, from := a.Mat(bf16, 2*z.inner, z.hidden), a.Mat(f32, 2*z.inner, z.hidden)
			return speedTask{name: "rounding of gradients", run: func(s operations) { s.Cast(to, from) }}
		},
		func(a *device.Arena) speedTask {
			dst, x := a.Take(8), a.Mat(bf16, 1, z.parameters)
			return speedTask{name: "sum of squares", run: func(s operations) { s.SumSquares(dst, x) }}
		},
		func(a *device.Arena) speedTask {
			vec := func(t tensor.DType) device.Mat { return a.Mat(t, 1, z.parameters) }
			args := device.AdamWArgs{Weights: vec(bf16), Low: vec(tensor.I16), Grad: vec(bf16), M: vec(f32),
				V: vec(f32), AdamWScalars: speedScalars}
			tally := a.Take(device.TallyBytes)
			zero(args.V.Mem) // no square is negative
			return speedTask{name: "AdamW", inPlace: true, run: func(s operations) { s.AdamW(args, tally) }}
		},
		adamw8("AdamW with 8-bit moments", 8, 8),
		adamw8("AdamW with 8+4-bit moments", 8, 4),
		adamw8("AdamW with 4-bit moments", 4, 4),
	}, others...)
}

var speedScalars = device.AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 0.001,
	StepSize: 1e-5, SqrtBC2: 1, Eps: 1e-8}

// traffic returns the bytes that an operation moves if each operand passes once.
func (t speedTask) traffic() int64 {
	var o device.Operands
	t.run(&o)
	var n int64
	for _, m := range o.List {
		bytes := int64(m.Rows) * int64(m.Cols) * m.DType.Bytes()
		n += bytes
		if m.Write && t.inPlace {
			n += bytes
		}
	}
	return n
}

// launches notes the time of each kernel that the program launches, while it is on.
type launches struct {
	*driver.API
	on     bool
	events []launched

	mu    sync.Mutex // a device loads its kernels on several threads
	names map[driver.Function]string
	err   error
}

type launched struct {
	name       string
	begin, end driver.Event
}

// timeLaunches puts itself between the program and a driver.
func timeLaunches(api *driver.API) (*driver.API, *launches) {
	l := &launches{API: api, names: map[driver.Function]string{}}
	timed := *api
	timed.ModuleGetFunction = func(f *driver.Function, m driver.Module, name *byte) driver.Result {
		r := api.ModuleGetFunction(f, m, name)
		l.mu.Lock()
		defer l.mu.Unlock()
		var text []byte
		for at := name; *at != 0; at = (*byte)(unsafe.Add(unsafe.Pointer(at), 1)) {
			text = append(text, *at)
		}
		l.names[*f] = string(text)
		return r
	}
	timed.LaunchKernel = func(f driver.Function, x, y, z, bx, by, bz, shared uint32,
		s driver.Stream, params, extra *unsafe.Pointer) driver.Result {
		if !l.on {
			return api.LaunchKernel(f, x, y, z, bx, by, bz, shared, s, params, extra)
		}
		e := launched{name: l.names[f]}
		l.err = errors.Join(l.err, api.EventCreate(&e.begin, 0).Err("cuEventCreate"),
			api.EventCreate(&e.end, 0).Err("cuEventCreate"), api.EventRecord(e.begin, s).Err("cuEventRecord"))
		r := api.LaunchKernel(f, x, y, z, bx, by, bz, shared, s, params, extra)
		l.err = errors.Join(l.err, api.EventRecord(e.end, s).Err("cuEventRecord"))
		l.events = append(l.events, e)
		return r
	}
	return &timed, l
}

// take returns the times since it was called last. The stream is synced, and the context current.
func (l *launches) take() (times []kernelTime, err error) {
	for _, e := range l.events {
		var ms float32
		l.err = errors.Join(l.err, l.EventElapsedTime(&ms, e.begin, e.end).Err("cuEventElapsedTime"),
			l.EventDestroy(e.begin).Err("cuEventDestroy"), l.EventDestroy(e.end).Err("cuEventDestroy"))
		times = append(times, kernelTime{e.name, float64(ms)})
	}
	l.events, err = nil, l.err
	return times, err
}

// speedRig is a device with room for the operands of each task.
type speedRig struct {
	*cuda.Device
	t       *testing.T
	stream  device.Stream
	mem     device.Mem
	events  [2]device.Event
	tasks   []func(a *device.Arena) speedTask
	kernels *launches
}

// openSpeeds opens a device for the tasks of a shape, until the end of the test.
func openSpeeds(t *testing.T, p products, z speedShape) *speedRig {
	api, err := loadDriver()
	if err != nil {
		t.Fatal(err)
	}
	api, kernels := timeLaunches(api)
	d, err := cuda.Open(cuda.Options{API: api, OwnProducts: p == ownProducts, OpenBLAS: gpuBLAS(api)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, d) })
	r := &speedRig{Device: d, t: t, kernels: kernels}
	region, err := hostmem.New().Reserve("vectors of numbers", int64(4*device.DrawWords*z.rows))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, region) })
	host, err := d.Register(region)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, host) })
	if r.stream, err = d.NewStream("speeds"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, r.stream) })
	s, counting := r.stream, true
	write := func(to device.Mem, value func(i int) int) device.Mem {
		if !counting {
			numbers := hostmem.I32(region.Bytes())[:to.Len/4]
			for i := range numbers {
				numbers[i] = int32(value(i))
			}
			s.Copy(to, device.Whole(host).Slice(0, to.Len))
			r.sync()
		}
		return to
	}
	docs := func(a *device.Arena, rows, document int) device.Docs {
		n := int64(rows) * 4
		return device.Docs{Positions: write(a.Take(n), func(i int) int { return i % document }),
			Start: write(a.Take(n), func(i int) int { return i / document * document }),
			End:   write(a.Take(n), func(i int) int { return i/document*document + document })}
	}
	ids := func(a *device.Arena, n, below int) device.Mem {
		return write(a.Take(int64(n)*4), func(i int) int { return i * 7919 % below })
	}
	steps := func(a *device.Arena, n, step int) device.Mem {
		return write(a.Take(int64(n)*4), func(i int) int { return i * step })
	}
	zero := func(m device.Mem) {
		if !counting {
			s.Zero(m)
			r.sync()
		}
	}
	r.tasks = speedTasks(z, docs, ids, steps, zero)
	count := device.NewArena(device.Mem{})
	for _, taskIn := range r.tasks {
		taskIn(count)
		count.Release(0)
	}
	counting = false
	buf, err := d.Alloc("arena", max(count.Peak(), copyBytes(z)*2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, buf) })
	r.mem = device.Whole(buf)
	for i := range r.events {
		if r.events[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mustClose(t, r.events[i]) })
	}
	return r
}

func (r *speedRig) sync() {
	r.t.Helper()
	if err := r.stream.Sync(); err != nil {
		r.t.Fatal(err)
	}
}

// fill puts normal numbers into all of the memory.
func (r *speedRig) fill() {
	r.t.Helper()
	if err := r.ScatterNormals(r.mem); err != nil {
		r.t.Fatal(err)
	}
}

// milliseconds is the median time of something that is enqueued.
func (r *speedRig) milliseconds(run func()) float64 {
	r.t.Helper()
	var all []time.Duration
	for i := range 1 + timedRuns {
		r.stream.Record(r.events[0])
		run()
		r.stream.Record(r.events[1])
		r.sync()
		if i > 0 {
			all = append(all, r.events[1].Since(r.events[0]))
		}
	}
	slices.Sort(all)
	return float64(all[len(all)/2]) / 1e6
}

// launchedBy runs a task once more, and returns the kernels of this program that it launches.
func (r *speedRig) launchedBy(task speedTask) []kernelTime {
	r.t.Helper()
	r.kernels.on = true
	task.run(r.stream)
	r.sync()
	r.kernels.on = false
	times, err := r.kernels.take()
	if err != nil {
		r.t.Fatal(err)
	}
	return times
}

// speeds times the tasks on a device: all of them, or the matrix products alone.
func speeds(t *testing.T, p products, z speedShape,
	productsAlone bool) (rows []speedRow, copyRate float64, name string) {
	r := openSpeeds(t, p, z)
	r.fill()
	copied := copyBytes(z)
	copyRate = 2 * float64(copied) / (r.milliseconds(func() {
		r.stream.Copy(r.mem.Slice(copied, copied), r.mem.Slice(0, copied))
	}) / 1e3)
	for _, taskIn := range r.tasks {
		arena := device.NewArena(r.mem)
		r.fill()
		task := taskIn(arena)
		if productsAlone && !task.product {
			continue
		}
		if task.product {
			record := productOf(task)
			scratch := r.mem.Slice(0, arena.Peak())
			if err := errors.Join(r.TuneProducts([]device.Product{record}, scratch), r.ScatterNormals(scratch)); err != nil {
				t.Fatal(err)
			}
		}
		row := speedRow{Name: task.name, Milliseconds: r.milliseconds(func() { task.run(r.stream) }),
			product: task.product, flops: task.flops, bytes: task.traffic()}
		row.Kernels = r.launchedBy(task)
		if task.product && p == ownProducts {
			row.Name += ", own kernel"
		}
		row.GBPerSec = float64(row.bytes) / row.Milliseconds / 1e6
		row.TFLOPS = float64(row.flops) / row.Milliseconds / 1e9
		rows = append(rows, row)
	}
	return rows, copyRate, r.Info().Name
}

// copyBytes returns the size of the copy that tells the rate of the device's memory.
func copyBytes(z speedShape) int64 { return int64(z.parameters) * 4 }

// productOf is the matrix product that a task asks for.
func productOf(t speedTask) device.Product {
	var p recorder
	t.run(&p)
	return p.product
}

// recorder remembers a matrix product.
type recorder struct {
	device.Operands
	product device.Product
}

func (r *recorder) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	r.product = device.Product{C: c, A: a, B: b, MatMulFlags: f}
}

// speedsHeader begins the table, for the program that shows it.
const speedsHeader = "#"

// TestGPUSpeeds times every large kernel at the shapes of a 7B model, next to what bounds it: no kernel can be faster
// than the fastest product for its arithmetic, nor than a copy for its operands. The table says what to improve.
func TestGPUSpeeds(t *testing.T) {
	needGPU(t)
	rows, copyRate, name := speeds(t, library, gpuShape, false)
	if !strings.Contains(name, "own matrix products") {
		own, _, _ := speeds(t, ownProducts, gpuShape, true)
		rows = append(rows, own...)
	}
	fastest := 0.0
	for _, r := range rows {
		if r.product {
			fastest = max(fastest, r.TFLOPS)
		}
	}
	fmt.Printf(speedsHeader+"%-45s %9s %8s %8s %9s %6s\n", "", "ms", "TFLOP/s", "GB/s", "limit ms", "share")
	for i := range rows {
		r := &rows[i]
		r.LimitMilliseconds = max(float64(r.flops)/fastest/1e9, float64(r.bytes)/copyRate*1e3)
		tflops := ""
		if r.flops > 0 {
			tflops = fmt.Sprintf("%.0f", r.TFLOPS)
		}
		fmt.Printf("%-46s %9.3f %8s %8.0f %9.3f %5.0f%%\n", r.Name, r.Milliseconds, tflops, r.GBPerSec,
			r.LimitMilliseconds, r.share()*100)
		if len(r.Kernels) > 1 {
			for _, k := range r.Kernels {
				fmt.Printf("    %-42s %9.3f\n", k.Name, k.Milliseconds)
			}
		}
		if !(r.Milliseconds > 0) || !(r.bytes > 0) {
			t.Errorf("%s took %g ms for %d bytes", r.Name, r.Milliseconds, r.bytes)
		}
	}
	text, err := json.Marshal(struct {
		Device     string     `json:"device"`
		CopyPerSec float64    `json:"copy_bytes_per_sec"` // read and written
		TFLOPS     float64    `json:"fastest_product_tflops"`
		Rows       []speedRow `json:"rows"`
	}{name, copyRate, fastest, rows})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("SPEEDS %s\n", text)
	slices.SortStableFunc(rows, func(a, b speedRow) int { return cmp.Compare(a.share(), b.share()) })
	var slow []string
	for _, r := range rows[:3] {
		slow = append(slow, fmt.Sprintf("%s (%.0f%%)", r.Name, r.share()*100))
	}
	fmt.Printf("SUMMARY %d operations; products up to %.0f TFLOP/s, copies %.0f GB/s; furthest from these: %s\n",
		len(rows), fastest, copyRate/1e9, strings.Join(slow, ", "))
}

// share returns a row's limit over its time: 1 at the limit.
func (r *speedRow) share() float64 { return r.LimitMilliseconds / r.Milliseconds }
