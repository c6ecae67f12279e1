// Command delta times the operations of a gated delta net as wide as those of Qwen3.5 on the CPU driver, with one
// worker, in CPU time, and prints a markdown table. The recurrence row by row, with the same loops of its
// instruction set, is for comparison, and so is torch_delta.py, in this folder.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/delta"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// The shape: of the 16 key heads of Qwen3.5's smaller models those that make a turn short, with two heads each.
var net = device.DeltaSpec{KeyHeads: 4, Heads: 8, KeyDim: 128, ValueDim: 128}

const taps = 4

func main() {
	rows := flag.Int("rows", 1024, "rows of the one document")
	turns := flag.Int("turns", 7, "turns; the fastest counts")
	name := flag.String("level", "", "instructions: plain, avx2, avx512, avx512bf16 or amx; if empty, the best here")
	flag.Parse()
	level := isa.Best()
	if *name != "" {
		level = harness.Level("-level", *name, isa.Available())
	}
	runtime.GOMAXPROCS(1)
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		fmt.Printf("%v, %v, %d rows, %d key heads, %d heads of %d columns, the fastest of %d turns\n\n", d, level,
			*rows, net.KeyHeads, net.Heads, net.KeyDim, *turns)
		measure(d, level, *rows, *turns)
	}
}

// memory hands out matrices in a device's memory, from an arena.
type memory struct {
	*device.Arena
	bytes []byte
	rng   *rand.Rand
}

func newMemory(d device.Device, n int64) (*memory, func()) {
	region := harness.Must(hostmem.New().Reserve("operands", n))
	buffer := harness.Must(d.Register(region))
	return &memory{device.NewArena(device.Whole(buffer)), region.Bytes(), rand.New(rand.NewPCG(1, 2))}, func() {
		buffer.Close()
		region.Close()
	}
}

// filled is a matrix of numbers.
func (m *memory) filled(d tensor.DType, rows, cols int, number func() float64) device.Mat {
	a := m.Mat(d, rows, cols)
	for i := int64(0); i < a.Len; i += d.Bytes() {
		x := float32(number())
		if d == tensor.BF16 {
			binary.NativeEndian.PutUint16(m.bytes[a.Off+i:], tensor.BF16FromF32(x))
		} else {
			binary.NativeEndian.PutUint32(m.bytes[a.Off+i:], math.Float32bits(x))
		}
	}
	return a
}

// floats is a matrix of F32 as numbers.
func (m *memory) floats(a device.Mat) []float32 { return hostmem.F32(m.bytes[a.Off:][:a.Len]) }

// kernel is a dense matrix as kernels see it.
func (m *memory) kernel(a device.Mat) kernels.Mat {
	if a.DType == tensor.BF16 {
		return kernels.MatBF16(hostmem.U16(m.bytes[a.Off:][:a.Len]), a.Cols)
	}
	return kernels.MatF32(m.floats(a), a.Cols)
}

func measure(d tensor.DType, level isa.Level, rows, turns int) {
	dev := harness.Must(cpu.New(cpu.Options{Workers: 1, Level: &level}))
	defer dev.Close()
	m, free := newMemory(dev, 1<<30)
	defer free()
	s := harness.Must(dev.NewStream("delta"))
	defer s.Close()

	normal, share := m.rng.NormFloat64, m.rng.Float64
	act := func(cols int) device.Mat { return m.filled(d, rows, cols, normal) }
	perHead := func() device.Mat { return m.filled(tensor.F32, rows, net.Heads, share) }
	vec := func(d tensor.DType) device.Mat { return m.filled(d, 1, net.Heads, normal) }
	start := make([]int32, rows) // one document
	spec := net
	spec.Docs = device.Docs{Start: m.Take(4 * int64(rows)), End: m.Take(4 * int64(rows))}
	chunks, size := spec.States(rows)
	cols := spec.QKVCols()
	x, dx, w, dw := act(cols), act(cols), m.filled(d, cols, taps, normal), m.filled(tensor.F32, cols, taps, normal)
	qkv, dqkv := act(cols), act(cols)
	values := spec.Values()
	out, dout, z, dz, y := act(values), act(values), act(values), act(values), act(values)
	a, b, da, db := act(net.Heads), act(net.Heads), act(net.Heads), act(net.Heads)
	aLog, dtBias, daLog, ddtBias := vec(d), vec(d), vec(tensor.F32), vec(tensor.F32)
	decay, beta, ddecay, dbeta := perHead(), perHead(), perHead(), perHead()
	states, dstates := m.Mat(tensor.F32, chunks, size), m.Mat(tensor.F32, chunks, size)
	s.DeltaGates(decay, beta, a, b, aLog, dtBias)

	byRows := &delta.Spec{KeyHeads: net.KeyHeads, Heads: net.Heads, KeyDim: net.KeyDim, ValueDim: net.ValueDim,
		Start: start, QKV: m.kernel(qkv), Out: m.kernel(out), Decay: m.floats(decay), Beta: m.floats(beta),
		States: m.floats(states), DOut: m.kernel(dout), DQKV: m.kernel(dqkv), DDecay: m.floats(ddecay),
		DBeta: m.floats(dbeta), DStates: m.floats(dstates)}
	each := func(f func(*kernels.Table, *delta.Spec, int)) {
		for h := range net.KeyHeads {
			f(kernels.For(level), byRows, h)
		}
	}
	forward, backward := spec.FLOPs(rows)
	operations := []operation{
		{"CausalConv", 0, func() { s.CausalConv(qkv, x, w, spec.Docs) }, nil},
		{"CausalConvGrad", 0, func() { s.CausalConvGrad(dx, dw, dqkv, x, w, spec.Docs) }, nil},
		{"DeltaGates", 0, func() { s.DeltaGates(decay, beta, a, b, aLog, dtBias) }, nil},
		{"DeltaGatesGrad", 0, func() {
			s.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
		}, nil},
		{"Gate, silu", 0, func() { s.Gate(y, out, z, device.SiLUGate) }, nil},
		{"GateGrad, silu", 0, func() { s.GateGrad(y, dz, dout, out, z, device.SiLUGate) }, nil},
		{"GatedDelta row by row", forward, func() { each(delta.Reference) }, nil},
		{"GatedDelta", forward, func() { s.GatedDelta(out, states, qkv, decay, beta, spec) }, nil},
		{"GatedDeltaGrad row by row", backward, func() { each(delta.ReferenceGrad) }, nil},
		{"GatedDeltaGrad", backward, func() {
			s.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
		}, nil},
	}
	for range turns + 1 {
		for i := range operations {
			begin := harness.ProcessTime()
			operations[i].run()
			if err := s.Sync(); err != nil {
				log.Fatal(err)
			}
			operations[i].ms = append(operations[i].ms, 1e3*(harness.ProcessTime()-begin).Seconds())
		}
	}
	harness.Head("| operation | ms | GFLOP/s of the chunked form |")
	for _, o := range operations {
		least := slices.Min(o.ms[1:]) // the first turn warms up
		rate := ""
		if o.flops > 0 {
			rate = fmt.Sprintf("%.1f", float64(o.flops)/least/1e6)
		}
		fmt.Printf("| %s | %.2f | %s |\n", o.name, least, rate)
	}
	fmt.Println()
}

// operation is a line of the table.
type operation struct {
	name  string
	flops int64 // 0: no rate
	run   func()
	ms    harness.Series
}
