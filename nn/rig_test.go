package nn_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// rig is a CPU device whose memory the test can see.
type rig struct {
	t      testing.TB
	region *hostmem.Region
	stream device.Stream
	arena  *device.Arena
}

func newRig(t testing.TB) *rig {
	t.Helper()
	const bytes = 8 << 20
	d, err := cpu.New(cpu.Options{Workers: 2})
	check(t, err)
	region, err := hostmem.New().Reserve("test", bytes)
	check(t, err)
	buf, err := d.Register(region)
	check(t, err)
	s, err := d.NewStream("test")
	check(t, err)
	t.Cleanup(func() {
		check(t, s.Close())
		check(t, buf.Close())
		check(t, d.Close())
		check(t, region.Close())
	})
	r := &rig{t: t, region: region, stream: s, arena: device.NewArena(device.Whole(buf))}
	r.poison(device.Whole(buf))
	return r
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) sync() {
	r.t.Helper()
	check(r.t, r.stream.Sync())
}

func (r *rig) bytes(m device.Mem) []byte { return r.region.Bytes()[m.Off : m.Off+m.Len] }

// poison fills memory with NaNs of any type.
func (r *rig) poison(m device.Mem) {
	for i, b := 0, r.bytes(m); i < len(b); i++ {
		b[i] = 0xff
	}
}

// set writes a matrix, rounded to its type.
func (r *rig) set(m device.Mat, x []float32) {
	b := r.bytes(m.Mem)
	for i, v := range x {
		if m.DType == tensor.BF16 {
			binary.LittleEndian.PutUint16(b[2*i:], tensor.BF16FromF32(v))
		} else {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		}
	}
}

// get reads a dense matrix.
func (r *rig) get(m device.Mat) []float32 {
	b := r.bytes(m.Mem)
	x := make([]float32, m.Rows*m.Cols)
	for i := range x {
		if m.DType == tensor.BF16 {
			x[i] = tensor.F32FromBF16(binary.LittleEndian.Uint16(b[2*i:]))
		} else {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
	return x
}

// mat takes a matrix with these values.
func (r *rig) mat(t tensor.DType, rows, cols int, x []float32) device.Mat {
	m := r.arena.Mat(t, rows, cols)
	r.set(m, x)
	return m
}

func (r *rig) ints(x []int32) device.Mem {
	m := r.arena.Take(int64(4 * len(x)))
	for i, v := range x {
		binary.LittleEndian.PutUint32(r.bytes(m)[4*i:], uint32(v))
	}
	return m
}

// batch makes a micro-batch of documents with these lengths, and places their positions in the tables of frequencies.
func (r *rig) batch(docs []int, f nn.RopeFrequencies) *nn.MicroBatch {
	var positions, start, end []int32
	for _, n := range docs {
		first := int32(len(positions))
		for i := range int32(n) {
			positions, start, end = append(positions, i), append(start, first), append(end, first+int32(n))
		}
	}
	f.Place(positions, start, end, len(positions))
	b := &nn.MicroBatch{T: len(positions)}
	b.Docs = device.Docs{Positions: r.ints(positions), Start: r.ints(start), End: r.ints(end)}
	return b
}

// rope has the tables for documents of at most n positions; nil if nothing is rotated.
func (r *rig) rope(f nn.RopeFrequencies, n int) *nn.Rope {
	if f.HeadDim == 0 {
		return nil
	}
	rows := f.Rows(n)
	cos, sin := f.Tables(n, 0, rows)
	return &nn.Rope{Cos: r.mat(tensor.F32, rows, f.HeadDim/2, cos), Sin: r.mat(tensor.F32, rows, f.HeadDim/2, sin)}
}

func normal(rnd *rand.Rand, n int, mean, std float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(mean + std*rnd.NormFloat64())
	}
	return x
}

func dot(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) || want[i] != want[i] {
			t.Errorf("%s: element %d is %v, want %v", what, i, got[i], want[i])
			return
		}
	}
}

// checkGradient compares the derivative of loss along random directions of one operand with its gradient. The loss is
// computed in fp32, so the difference has an error of its own: the step is chosen so that truncation and rounding are
// both below a thousandth.
func checkGradient(t *testing.T, rnd *rand.Rand, what string, value, grad []float32, set func([]float32), loss func() float64) {
	t.Helper()
	size := math.Sqrt(dot(grad, grad))
	if size == 0 || math.IsNaN(size) {
		t.Errorf("%s: the gradient's norm is %g", what, size)
		return
	}
	for try := range 4 {
		// Along the gradient itself first: the strongest signal; then anywhere.
		u := make([]float32, len(value))
		for i := range u {
			if u[i] = grad[i] / float32(size); try > 0 {
				u[i] = float32(rnd.NormFloat64() / math.Sqrt(float64(len(u))))
			}
		}
		const h = 0.01
		at := func(step float32) float64 {
			x := make([]float32, len(value))
			for i := range x {
				x[i] = value[i] + step*u[i]
			}
			set(x)
			return loss()
		}
		// Central differences with two steps, extrapolated (Richardson), which leaves an error of order h^4.
		got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		set(value)
		if want := dot(grad, u); math.Abs(got-want) > 2e-3*size {
			t.Errorf("%s: slope %g along direction %d, gradient says %g (norm %g)", what, got, try, want, size)
		}
	}
}

// asDeclared leaves of the arguments of a visit what it says that it reads or writes, as a step does.
func asDeclared(v nn.Visit, a *nn.Args) *nn.Args {
	left, uses := *a, v.Reads|v.Writes
	clear := func(of nn.Uses, drop func()) {
		if !uses.Has(of) {
			drop()
		}
	}
	clear(nn.X, func() { left.X = device.Mat{} })
	clear(nn.Y, func() { left.Y = device.Mat{} })
	clear(nn.DX, func() { left.DX = device.Mat{} })
	clear(nn.Tokens, func() { left.Batch = &nn.MicroBatch{T: a.Batch.T} })
	clear(nn.HeldRows, func() { left.Held, left.Ending = nil, nil })
	clear(nn.Grads, func() { left.Gradients = make([]nn.Params, len(a.Gradients)) })
	clear(nn.Loads, func() { left.Loads = device.Mem{} })
	clear(nn.Balancing, func() { left.Balance = device.Mat{} })
	clear(nn.Outcomes, func() { left.Outcome = device.Mat{} })
	clear(nn.CacheRows, func() { left.Cache = nil })
	clear(nn.Sides, func() { left.Sides = nil })
	clear(nn.Loss, func() { left.Loss = device.Mem{} })
	clear(nn.LogitRows, func() { left.Wanted = nn.Wanted{} })
	return &left
}
