// Command experts compares the operations of a mixture of experts with dense products of as many rows. It runs the
// visits of one part of nn.Experts, forward and backward, on the CPU driver, measures each operation, and prints a
// markdown table for each shape and type. A dense product has the rows of all experts of the part together, and the
// weight of one of them.
//
// With one worker it measures CPU time, so that a busy machine gives the same result; with more, time.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// shape is a mixture, the experts of the part that is measured, and the rows of a step.
type shape struct {
	name          string
	hidden, inner int
	experts, topK int
	part, rows    int
	activation    device.GLUSpec
}

func shapes() []shape {
	small := shape{"small", 512, 256, 32, 4, 32, 2048, device.GLUSpec{}}
	limited := small
	limited.name, limited.activation = "small, limited", device.GLUSpec{Alpha: 1.702, Limit: 7}
	all := []shape{small, limited}
	for _, rows := range []int{16, 64, 128, 512} {
		all = append(all, shape{fmt.Sprintf("Qwen3-30B-A3B, %d rows an expert", rows), 2048, 768, 128, 8, 16,
			16 * rows, device.GLUSpec{}})
	}
	return all
}

// expected is the number of rows of the part, about.
func (s *shape) expected() int { return s.rows * s.topK * s.part / s.experts }

// The most rows of a call, as the planner chooses them for small steps.
const chunk = 2048

// now reads the clock that counts.
var now = func() time.Duration { return time.Since(epoch) }

var epoch = time.Now()

func main() {
	threads := flag.Int("threads", 1, "workers; with 1, times are CPU times")
	turns := flag.Int("turns", 7, "turns that count; the fastest does")
	only := flag.String("only", "", "regular expression on shape and type")
	name := flag.String("level", "",
		"instructions: plain, avx2, avx512, avx512bf16 or amx; if empty, the best that this machine has")
	flag.Parse()
	level := isa.Best()
	if *name != "" {
		level = harness.Level("-level", *name, isa.Available())
	}
	runtime.GOMAXPROCS(*threads)
	if *threads == 1 {
		now = harness.ProcessTime
	}
	filter := regexp.MustCompile(*only)
	for _, s := range shapes() {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			if title := fmt.Sprintf("%s, %v", s.name, d); filter.MatchString(title) {
				fmt.Printf("%s, %v, %d workers, the fastest of %d turns\n\n", title, level, *threads, *turns)
				measure(s, d, cpu.Options{Workers: *threads, Level: &level}, *turns)
			}
		}
	}
}

// row is a line of the table.
type row struct {
	name  string
	dense string  // the product to compare with
	flops float64 // of products
	bytes float64 // that other operations read and write
	times harness.Series
}

// table has the lines in the order in which they came first.
type table struct {
	rows []*row
	turn int
}

// add counts time to a line, in the present turn.
func (t *table) add(name, dense string, flops, bytes float64, took time.Duration) {
	i := slices.IndexFunc(t.rows, func(r *row) bool { return r.name == name })
	if i < 0 {
		i = len(t.rows)
		t.rows = append(t.rows, &row{name: name, dense: dense})
	}
	r := t.rows[i]
	if len(r.times) <= t.turn {
		r.times = append(r.times, 0)
		r.flops, r.bytes = 0, 0
	}
	r.times[t.turn] += took.Seconds() * 1e3
	r.flops += flops
	r.bytes += bytes
}

func (t *table) find(name string) *row {
	return t.rows[slices.IndexFunc(t.rows, func(r *row) bool { return r.name == name })]
}

func (t *table) print() {
	harness.Head("| operation | ms | dense ms | rate, of dense: median (range) | GFLOP/s | GB/s |")
	for _, r := range t.rows {
		if r.name == r.dense {
			continue
		}
		dense, ratio, rates := "", "", " | "
		if r.dense != "" {
			ratios := t.find(r.dense).times.Over(r.times)
			dense = fmt.Sprintf("%.3f", slices.Min(t.find(r.dense).times))
			ratio = fmt.Sprintf("%.2f (%.2f to %.2f)", ratios.Median(), slices.Min(ratios), slices.Max(ratios))
		}
		switch ms := slices.Min(r.times); {
		case r.flops > 0:
			rates = fmt.Sprintf("%.0f | ", r.flops/ms/1e6)
		case r.bytes > 0:
			rates = fmt.Sprintf(" | %.1f", r.bytes/ms/1e6)
		}
		fmt.Printf("| %s | %.3f | %s | %s | %s |\n", r.name, slices.Min(r.times), dense, ratio, rates)
	}
	fmt.Println()
}

// timed is a stream that waits for each operation on experts, and tells a table how long it took.
type timed struct {
	device.Stream
	*table
	filled func(device.Blocks) int // rows of the blocks of a call
	seen   device.Routing          // the last one
}

func (s *timed) time(name, dense string, flops, bytes float64, run func()) {
	must(s.Sync()) // what came before
	start := now()
	run()
	must(s.Sync())
	s.add(name, dense, flops, bytes, now()-start)
}

// moves is the memory of the call's rows in matrices of blocks.
func (s *timed) moves(b device.Blocks, ms ...device.Mat) float64 {
	n := 0
	for _, m := range ms {
		n += s.filled(b) * m.Cols * int(m.DType.Bytes())
	}
	return float64(n)
}

func (s *timed) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.time("Route", "", 0, float64(4*logits.Rows*logits.Cols), func() {
		s.Stream.Route(choices, weights, logits, bias,
			spec)
	})
}

func (s *timed) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.time("RouteGrad", "", 0, float64(8*logits.Rows*logits.Cols), func() {
		s.Stream.RouteGrad(dlogits, dweights,
			logits, choices, spec)
	})
}

func (s *timed) SortChoices(r device.Routing) {
	s.seen = r
	s.time("SortChoices", "", 0, float64(16*r.Rows*r.TopK), func() { s.Stream.SortChoices(r) })
}

func (s *timed) GatherRows(y, x device.Mat, b device.Blocks) {
	s.time("GatherRows", "", 0, s.moves(b, x, y), func() { s.Stream.GatherRows(y, x, b) })
}

func (s *timed) ExpertMatMul(c, a, w, bias device.Mat, of device.ExpertProduct, b device.Blocks) {
	name := fmt.Sprintf("ExpertMatMul %d x %d", a.Cols, c.Cols)
	if of.Transposed {
		name += " transposed"
	}
	s.time(name, "dense "+name, 2*float64(s.filled(b)*a.Cols*c.Cols), 0, func() {
		s.Stream.ExpertMatMul(c, a, w, bias, of, b)
	})
}

func (s *timed) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	name := fmt.Sprintf("ExpertWeightGrad %d x %d", dy.Cols, x.Cols)
	s.time(name, "dense "+name, 2*float64(s.filled(b)*dy.Cols*x.Cols), 0, func() {
		s.Stream.ExpertWeightGrad(dw, dy,
			x, b)
	})
}

func (s *timed) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.time("ExpertGLU", "", 0, s.moves(b, y, gateUp), func() { s.Stream.ExpertGLU(y, gateUp, spec, b) })
}

func (s *timed) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.time("ExpertGLUGrad", "", 0, s.moves(b, dGateUp, act, dy, gateUp), func() {
		s.Stream.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	})
}

func (s *timed) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	name := "CombineRows"
	if !weights.IsZero() {
		name += " with weights"
	}
	bytes := 0
	for _, m := range []device.Mat{y, from} {
		bytes += y.Rows * y.Cols * int(m.DType.Bytes())
	}
	bytes += topK * y.Rows * y.Cols * int(x.DType.Bytes())
	s.time(name, "", 0, float64(bytes), func() { s.Stream.CombineRows(y, x, from, weights, places, topK) })
}

// bench is a block with experts and the memory of a step.
type bench struct {
	shape
	dtype  tensor.DType
	region *hostmem.Region
	arena  *device.Arena
	stream device.Stream
	block  *nn.Block
	rng    *rand.Rand
}

func (b *bench) bytes(m device.Mem) []byte { return b.region.Bytes()[m.Off : m.Off+m.Len] }

// random fills memory with normal numbers of a spread.
func (b *bench) random(m device.Mem, d tensor.DType, spread float64) {
	to := b.bytes(m)
	for i := 0; i < len(to); i += int(d.Bytes()) {
		x := float32(spread * b.rng.NormFloat64())
		if d == tensor.BF16 {
			binary.LittleEndian.PutUint16(to[i:], tensor.BF16FromF32(x))
		} else {
			binary.LittleEndian.PutUint32(to[i:], math.Float32bits(x))
		}
	}
}

func (b *bench) mat(rows, cols int) device.Mat {
	m := b.arena.Mat(b.dtype, rows, cols)
	b.random(m.Mem, b.dtype, 1)
	return m
}

// params places the weights of a part and its gradient.
func (b *bench) params(fields []tensor.Field) (weights, gradients nn.Params) {
	layout := harness.Must(tensor.NewLayout(fields...))
	weights = nn.Weights(b.arena.Take(layout.WeightElems*b.dtype.Bytes()), layout, b.dtype)
	b.random(weights.Mem, b.dtype, 1/math.Sqrt(float64(b.hidden)))
	return weights, nn.Gradients(b.arena.Take(layout.StateElems*4), layout)
}

func measure(s shape, dtype tensor.DType, options cpu.Options, turns int) {
	d := harness.Must(cpu.New(options))
	x := nn.Experts{Inner: s.inner, Number: s.experts, PerPart: s.part, Activation: s.activation,
		Route: device.RouteSpec{TopK: s.topK, Renormalize: true, Scale: 1}}
	b := &bench{shape: s, dtype: dtype, rng: rand.New(rand.NewPCG(1, 2)), block: &nn.Block{Hidden: s.hidden,
		Norm: nn.Norm{Eps: 1e-5}, Mixer: nn.Attention{Heads: 1, KVHeads: 1, HeadDim: 64, Scale: 0.125,
			Rope: nn.RopeFrequencies{HeadDim: 64, Theta: 1e6}}, FeedForward: x}}
	bytes := int64(3*s.part*s.inner*s.hidden)*8 + int64(s.rows)*int64(s.hidden+s.experts)*64 +
		int64(s.expected()+chunk)*int64(4*s.hidden+4*s.inner)*8 + 64<<20
	b.region = harness.Must(hostmem.New().Reserve("benchmark", bytes))
	buffer := harness.Must(d.Register(b.region))
	b.stream = harness.Must(d.NewStream("benchmark"))
	b.arena = device.NewArena(device.Whole(buffer))
	defer func() {
		for _, close := range []func() error{b.stream.Close, buffer.Close, d.Close, b.region.Close} {
			if err := close(); err != nil {
				log.Fatal(err)
			}
		}
	}()
	if err := d.PrepareAttention(s.rows, 1, 64, tensor.BF16); err != nil {
		log.Fatal(err)
	}
	b.run(turns)
}

// run measures the visits of the trunk that choose, those of the first part, and the dense products.
func (b *bench) run(turns int) {
	trunk, trunkGrad := b.params(b.block.Fields())
	part, partGrad := b.params(b.block.PartFields(0))
	ids := make([]int32, b.rows)
	ints := func(of func(i int) int) device.Mem {
		m := b.arena.Take(int64(4 * b.rows))
		for i := range ids {
			binary.LittleEndian.PutUint32(b.bytes(m)[4*i:], uint32(of(i)))
		}
		return m
	}
	const doc = 64 // rows; attention is not measured
	batch := &nn.MicroBatch{T: b.rows, Docs: device.Docs{Positions: ints(func(i int) int { return i % doc }),
		Start: ints(func(i int) int { return i / doc * doc }), End: ints(func(i int) int { return i/doc*doc + doc })}}
	x, y, dx := b.mat(b.rows, b.hidden), b.mat(b.rows, b.hidden), b.mat(b.rows, b.hidden)
	rope := &nn.Rope{Cos: b.arena.Mat(tensor.F32, doc, 32), Sin: b.arena.Mat(tensor.F32, doc, 32)}
	b.random(rope.Cos.Mem, tensor.F32, 0.5)
	b.random(rope.Sin.Mem, tensor.F32, 0.5)
	args := nn.Args{X: x, Y: y, DX: dx, Batch: batch, Rope: rope, Kept: b.block.NewKept(b.arena, b.dtype, b.rows,
		nn.KeepInput),
		Held: b.block.NewHeld(b.arena, b.dtype, b.rows, 1, true)}

	var starts []int32
	dense := b.newProducts(b.expected() * 5 / 4)
	s := &timed{Stream: b.stream, table: &table{}}
	s.filled = func(of device.Blocks) (rows int) {
		number := -of.From
		for e := of.First; e < of.First+of.Experts; e++ {
			for left := int(starts[e+1] - starts[e]); left > 0; number, left = number+1, left-of.Rows {
				if 0 <= number && number < of.Count {
					rows += min(left, of.Rows)
				}
			}
		}
		return rows
	}
	visit := func(to nn.Direction, work *nn.Work) {
		for _, stage := range b.block.Stages(to, false) {
			v, a := stage[0], args
			a.Work = work
			switch {
			case len(v.Parts) == 0:
				v.Run(s, &a)
				must(s.Sync())
			case v.Parts[0] > 1:
				continue
			case v.Parts[0] == 0:
				a.Weights, a.Gradients = []nn.Params{trunk}, []nn.Params{trunkGrad}
				v.Run(s, &a)
				must(s.Sync())
			default:
				a.Weights, a.Gradients = []nn.Params{part}, []nn.Params{partGrad}
				if starts == nil { // once, to learn how many rows the experts have
					starts = make([]int32, b.experts+1)
					v.Run(s, &a)
					must(s.Sync())
					for i := range starts {
						starts[i] = int32(binary.LittleEndian.Uint32(b.bytes(s.seen.Starts)[4*i:]))
					}
					dense = dense.cut(int(starts[b.part]))
					s.table.rows = nil
				}
				v.Run(s, &a)
				begin := now()
				v.Run(b.stream, &a)
				must(b.stream.Sync())
				s.add("part "+v.Name, "dense "+v.Name, 0, 0, now()-begin)
				b.dense(s, dense, v.Name)
			}
		}
	}
	mark := b.arena.Mark()
	for turn := range turns + 1 {
		visit(nn.Forward, b.block.NewForwardWork(b.arena, b.dtype, b.rows, nn.Cut{Chunk: chunk}, nn.KeepInput))
		b.arena.Release(mark)
		b.random(dx.Mem, b.dtype, 1)
		visit(nn.Backward, b.block.NewBackwardWork(b.arena, b.dtype, b.rows, nn.Cut{Chunk: chunk}, nn.KeepInput))
		b.arena.Release(mark)
		if turn == 0 { // it only warms up
			s.table.rows = nil
		} else {
			s.turn++
		}
	}
	s.print()
	fmt.Printf("Rows of the part's experts: %d\n\n", starts[1:b.part+1])
}

// products are the operands of dense products with all rows of the part.
type products struct {
	rows, out, gateUp, act     device.Mat
	up, down, upGrad, downGrad device.Mat // of one expert
}

func (b *bench) newProducts(rows int) *products {
	f32 := func(rows, cols int) device.Mat { return b.arena.Mat(tensor.F32, rows, cols) }
	return &products{b.mat(rows, b.hidden), b.mat(rows, b.hidden), b.mat(rows, 2*b.inner), b.mat(rows, b.inner),
		b.mat(2*b.inner, b.hidden), b.mat(b.hidden, b.inner), f32(2*b.inner, b.hidden), f32(b.hidden, b.inner)}
}

// cut returns the same products with n rows.
func (p *products) cut(n int) *products {
	q := *p
	for _, m := range []*device.Mat{&q.rows, &q.out, &q.gateUp, &q.act} {
		*m = m.RowRange(0, n)
	}
	return &q
}

// dense measures the products of a visit.
func (b *bench) dense(s *timed, p *products, visit string) {
	product := func(name string, c, x, y device.Mat, f device.MatMulFlags) {
		begin := now()
		b.stream.MatMul(c, x, y, f)
		must(b.stream.Sync())
		took := now() - begin
		s.add("dense "+name, "dense "+name, 0, 0, took)
		s.add("dense "+visit, "dense "+visit, 0, 0, took)
	}
	forward := func(c, a, w device.Mat) {
		product(fmt.Sprintf("ExpertMatMul %d x %d transposed", a.Cols, c.Cols), c, a, w,
			device.MatMulFlags{TransB: true})
	}
	back := func(c, a, w device.Mat) {
		product(fmt.Sprintf("ExpertMatMul %d x %d", a.Cols, c.Cols), c, a, w, device.MatMulFlags{})
	}
	gradient := func(dw, dy, x device.Mat) {
		product(fmt.Sprintf("ExpertWeightGrad %d x %d", dy.Cols, x.Cols), dw, dy, x, device.MatMulFlags{TransA: true,
			Accumulate: true})
	}
	forward(p.gateUp, p.rows, p.up)
	if visit == "forward" {
		forward(p.out, p.act, p.down)
		begin := now()
		b.stream.Copy(p.out.Mem, p.rows.Mem)
		must(b.stream.Sync())
		s.add("Copy, for comparison", "", 0, float64(p.out.Mem.Len+p.rows.Mem.Len), now()-begin)
		return
	}
	back(p.act, p.out, p.down)
	gradient(p.downGrad, p.out, p.act)
	gradient(p.upGrad, p.gateUp, p.rows)
	back(p.out, p.gateUp, p.up)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
