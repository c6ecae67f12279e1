package kerneltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
)

// bench runs kernels on matrices. The gaps between rows are full of NaN, and tests verify that they still are.
type bench struct {
	t        failer
	on       *backend
	set      *kernels.Set
	rng      *rand.Rand
	matrices []*field
	last     string // the kernel that ran last
	stride   int    // of matrices whose rows are apart; 0: each has its own
	skip     uint64 // the number of first blocks of grids that are not run
	// ref computes what kernels should give, on copies of matrices (of).
	ref    device.Stream
	copies map[*field]device.Mat
	// large: what a GPU gets is too large for the interpreter, so the results of the two are not compared.
	large bool
}

// failer is the part of testing.T that a bench uses.
type failer interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// benchFor makes a bench of a backend.
func benchFor(t failer, on *backend, seed uint64) *bench {
	t.Helper()
	set, err := sets[on.target]()
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, on: on, set: set, rng: rand.New(rand.NewPCG(seed, 1)), ref: devicetest.WideStream(),
		copies: map[*field]device.Mat{}}
}

// of is the copy of a matrix for operations of the reference, made when a test first asks for it.
func (b *bench) of(f *field) device.Mat {
	if _, ok := b.copies[f]; !ok {
		b.copies[f] = devicetest.Wide(f.dtype, f.rows, f.cols, f.stored, f.bytes)
	}
	return b.copies[f]
}

// again is a new copy of a matrix, as kernels have left it.
func (b *bench) again(f *field) device.Mat {
	delete(b.copies, f)
	return b.of(f)
}

// wanted has the numbers that operations of the reference have left of a matrix, before they are rounded.
func (b *bench) wanted(f *field) []float64 { return devicetest.WideNumbers(b.of(f)) }

// docs has documents for operations of the reference.
func (b *bench) docs(start, end *field) device.Docs {
	return device.Docs{Start: b.of(start).Mem, End: b.of(end).Mem}
}

// backend runs the kernels of a target.
type backend struct {
	target string
	gpu    *gpu // nil: the interpreter of PTX, in which an access outside of all matrices fails the launch
	report report
}

// report collects the outcome of each kernel.
type report struct {
	mu      sync.Mutex
	kernels map[string]*outcome
}

// outcome records the launches and errors of one kernel.
type outcome struct {
	launches int
	failed   bool
	worst    float64 // of its errors, as a share of what is allowed
	where    string
}

// of returns the outcome of a kernel so far. The caller holds the mutex.
func (r *report) of(name string) *outcome {
	if r.kernels == nil {
		r.kernels = map[string]*outcome{}
	}
	if r.kernels[name] == nil {
		r.kernels[name] = &outcome{}
	}
	return r.kernels[name]
}

func (r *report) launched(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(name).launches++
}

// error notes an error as a share of what is allowed.
func (r *report) error(name, where string, share float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.of(name)
	if !(share <= o.worst) {
		o.worst, o.where = share, where
	}
	o.failed = o.failed || !(share <= 1)
}

// compare holds a result of the last kernel against what it should be, element by element.
func (b *bench) compare(what string, got *field, want []float64, allowed func(want float64) float64) {
	b.t.Helper()
	b.compareOf(b.last, what, got, want, allowed)
}

// compareOf is compare for a kernel that ran before the last one.
func (b *bench) compareOf(kernel, what string, got *field, want []float64, allowed func(want float64) float64) {
	b.t.Helper()
	worst, at := 0.0, 0
	for i, w := range want {
		share := math.Abs(got.get(i/got.cols, i%got.cols)-w) / allowed(w)
		if math.IsInf(w, 0) && got.get(i/got.cols, i%got.cols) == w {
			share = 0
		}
		if !(share <= worst) {
			worst, at = share, i
		}
		if share != share {
			break // a NaN is the worst
		}
	}
	b.on.report.error(kernel, what, worst)
	if !(worst <= 1) {
		b.t.Errorf("%s: %s[%d, %d] = %v, want %v: %.3g times what is allowed", kernel, what, at/got.cols, at%got.cols,
			got.get(at/got.cols, at%got.cols), want[at], worst)
	}
}

// within is a limit that does not depend on the number.
func within(limit float64) func(float64) float64 { return func(float64) float64 { return limit } }

// field is a matrix or a vector.
type field struct {
	at                 uint64
	bytes              []byte
	dtype              tensor.DType
	rows, cols, stride int
	stored             int  // the stride of bytes; that which kernels are told may be far longer
	together           bool // the rows cannot be apart: all of the memory is there
}

// apartBytes is from one matrix to the next: room for rows that are far apart.
const apartBytes = 1 << 44

// At implements ptx.Memory.
func (b *bench) At(addr uint64, n int) ([]byte, error) {
	for _, f := range b.matrices {
		if addr < f.at || addr >= f.at+apartBytes {
			continue
		}
		at, size := addr-f.at, uint64(f.dtype.Bytes())
		if f.stored != f.stride {
			row, within := at/(uint64(f.stride)*size), at%(uint64(f.stride)*size)
			if within+uint64(n) > uint64(f.stored)*size {
				break
			}
			at = row*uint64(f.stored)*size + within
		}
		if at+uint64(n) <= uint64(len(f.bytes)) {
			return f.bytes[at:][:n], nil
		}
	}
	return nil, fmt.Errorf("no matrix has [%#x, %#x)", addr, addr+uint64(n))
}

// field makes a matrix full of NaN. Its last row ends with its last column.
func (b *bench) field(d tensor.DType, rows, cols, stride int) *field {
	f := &field{at: uint64(len(b.matrices)+1) * apartBytes, dtype: d, rows: rows, cols: cols, stride: stride, stored: stride,
		together: b.on.gpu != nil}
	f.bytes = make([]byte, int64((rows-1)*stride+cols)*d.Bytes())
	for i := range f.bytes {
		f.bytes[i] = 0xff
	}
	b.matrices = append(b.matrices, f)
	if b.stride != 0 && stride > cols {
		f.apart(b.stride)
	}
	return f
}

func (b *bench) normal(d tensor.DType, rows, cols, stride int) *field {
	f := b.field(d, rows, cols, stride)
	for r := range rows {
		for c := range cols {
			f.put(r, c, b.rng.NormFloat64())
		}
	}
	return f
}

// longStride is a stride with which the third row already begins at an offset of more than 32 bits.
const longStride = 1 << 30

// apart moves the rows of a matrix apart, for kernels. There is no memory between the rows.
func (f *field) apart(stride int) *field {
	if !f.together {
		f.stride = stride
	}
	return f
}

func (b *bench) ints(values []int32) *field {
	f := b.field(tensor.I32, 1, len(values), len(values))
	for i, x := range values {
		f.putInt(i, x)
	}
	return f
}

// blank has room for integers.
func (b *bench) blank(n int) *field { return b.ints(make([]int32, n)) }

func (f *field) putInt(i int, x int32) { binary.LittleEndian.PutUint32(f.bytes[4*i:], uint32(x)) }

// columns is a range of a matrix' columns.
func (f *field) columns(first, n int) *field {
	part := *f
	size := uint64(f.dtype.Bytes())
	part.at += uint64(first) * size
	part.bytes, part.cols = f.bytes[uint64(first)*size:], n
	return &part
}

func (f *field) put(r, c int, x float64) {
	i := r*f.stored + c
	if f.dtype == tensor.BF16 {
		binary.LittleEndian.PutUint16(f.bytes[2*i:], tensor.BF16FromF32(float32(x)))
	} else {
		binary.LittleEndian.PutUint32(f.bytes[4*i:], math.Float32bits(float32(x)))
	}
}

func (f *field) putF64(r, c int, x float64) {
	binary.LittleEndian.PutUint64(f.bytes[8*(r*f.stored+c):], math.Float64bits(x))
}

func (f *field) get(r, c int) float64 {
	i := r*f.stored + c
	switch f.dtype {
	case tensor.BF16:
		return float64(tensor.F32FromBF16(binary.LittleEndian.Uint16(f.bytes[2*i:])))
	case tensor.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(f.bytes[8*i:]))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(f.bytes[4*i:])))
}

// numbers are all elements, row by row.
func (f *field) numbers() []float64 {
	all := make([]float64, 0, f.rows*f.cols)
	for r := range f.rows {
		for c := range f.cols {
			all = append(all, f.get(r, c))
		}
	}
	return all
}

// intact reports whether nothing was written between the rows.
func (f *field) intact() bool {
	size := int(f.dtype.Bytes())
	for i, x := range f.bytes {
		if i/size%f.stored >= f.cols && x != 0xff {
			return false
		}
	}
	return true
}

// run launches a kernel, which must take its operands. Arguments are fields, ints and float32s.
func (b *bench) run(name string, args ...any) {
	b.t.Helper()
	k, ok := b.set.Find(name)
	if !ok {
		b.t.Fatalf("no kernel %s", name)
	}
	var values []uint64
	for _, a := range args {
		switch a := a.(type) {
		case *field:
			values = append(values, a.at)
		case int:
			values = append(values, uint64(a))
		case uint64:
			values = append(values, a)
		case counter:
			values = append(values, uint64(a))
		case float32:
			values = append(values, uint64(math.Float32bits(a)))
		}
	}
	if !k.Takes(values) {
		b.t.Fatalf("%s does not take %v", name, args)
	}
	grid, err := k.Programs(values)
	if err != nil {
		b.t.Fatal(err)
	}
	b.last = name
	b.on.report.launched(name)
	launch := launch{kernel: k, values: values, grid: grid}
	if b.on.gpu != nil {
		b.on.gpu.run(b, launch)
	} else if err := b.interpret(launch); err != nil {
		b.on.report.error(name, err.Error(), math.Inf(1))
		b.t.Fatal(err)
	}
}

// launch is a kernel with the values of its arguments.
type launch struct {
	kernel *kernels.Kernel
	values []uint64
	grid   [3]uint32
}

// interpret runs a kernel in the interpreter of PTX.
func (b *bench) interpret(l launch) error {
	m, err := ptx.Parse([]byte(l.kernel.PTX))
	if err != nil {
		return fmt.Errorf("%s: %w", l.kernel.Name, err)
	}
	return m.Kernel(l.kernel.Entry).Run(b, ptx.Config{Grid: l.grid, Block: [3]uint32{uint32(l.kernel.Threads), 1, 1},
		SharedBytes: uint32(l.kernel.SharedBytes), Params: l.kernel.Params(l.values), Workers: 2, Skip: b.skip})
}
