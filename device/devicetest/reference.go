package devicetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// Reference is a device that carries out every operation of device/ops.go in float64, by a few plain loops, and rounds
// each result once. [Run] compares drivers with it. It also drives an engine: it has memory of its own, to which layers
// are streamed as to a GPU. A program that wants to change an operation, or to count it, wraps its streams.
//
// A stream carries out an operation at once, on the goroutine of its caller, so events need no waits. The operations
// are in reference_ops.go. Methods may be called from any goroutine.
type Reference struct {
	memoryBytes int64
	accounts    *hostmem.Accounts
	open        atomic.Int64 // buffers and streams that are not closed
}

// NewReference makes a device of a size in bytes. Its memory is not part of a run's host memory, so it has accounts of
// its own.
func NewReference(memoryBytes int64) *Reference {
	return &Reference{memoryBytes: memoryBytes, accounts: hostmem.New()}
}

// Info implements device.Device.
func (d *Reference) Info() device.Info {
	return device.Info{Name: "float64 reference", MemoryBytes: d.memoryBytes, Workers: 1, Numerics: "float64 reference"}
}

// Alloc implements device.Device.
func (d *Reference) Alloc(purpose string, bytes int64) (device.Buffer, error) {
	if used, _ := d.accounts.Total(); bytes > d.memoryBytes-used {
		return nil, fmt.Errorf("reference: %d bytes for %s do not fit: %d of %d are in use; lower batch_tokens",
			bytes, purpose, used, d.memoryBytes)
	}
	region, err := d.accounts.Reserve(purpose, bytes)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &referenceBuffer{device: d, bytes: region.Bytes(), region: region}, nil
}

// Register implements device.Device.
func (d *Reference) Register(r *hostmem.Region) (device.Buffer, error) {
	d.open.Add(1)
	return &referenceBuffer{device: d, bytes: r.Bytes()}, nil
}

// NewStream implements device.Device. The stream has a method Fail(error), which makes it fail as an operation would.
func (d *Reference) NewStream(name string) (device.Stream, error) {
	d.open.Add(1)
	return &referenceStream{device: d, name: name}, nil
}

// NewEvent implements device.Device.
func (d *Reference) NewEvent() (device.Event, error) { return &referenceEvent{}, nil }

// PrepareAttention implements device.Device: there is nothing to reserve.
func (d *Reference) PrepareAttention(positions, heads, headDim int, _ tensor.DType) error { return nil }

// Close implements device.Device.
func (d *Reference) Close() error {
	if n := d.open.Load(); n != 0 {
		return fmt.Errorf("reference: close: %d buffers and streams are still open", n)
	}
	return nil
}

// referenceBuffer is memory of a Reference or, without a region, registered host memory.
type referenceBuffer struct {
	device *Reference
	bytes  []byte
	region *hostmem.Region
	closed bool

	// wide, if it is not nil, has for each two bytes the number that an operation stored there, before it was rounded.
	// Operations read that number while the bytes still are its rounding. The results of a sequence of operations
	// then have the precision of float64.
	wide []float64
}

// newWideBuffer makes memory in which nothing is rounded.
func newWideBuffer(bytes int) *referenceBuffer {
	return &referenceBuffer{bytes: make([]byte, bytes), wide: make([]float64, bytes/2+1)}
}

// Wide copies the rows of a matrix for operations of [WideStream], which leave their results there as they were before
// they were rounded. So a test of code that computes an operation in another way than through a device, such as one
// kernel at a time, compares it with the same reference.
func Wide(d tensor.DType, rows, cols, stride int, bytes []byte) device.Mat {
	b := newWideBuffer(len(bytes))
	copy(b.bytes, bytes)
	return device.Mat{Mem: device.Whole(b), DType: d, Rows: rows, Cols: cols, Stride: stride}
}

// WideStream makes a stream of the reference for matrices of [Wide].
func WideStream() device.Stream { return &referenceStream{} }

// WideNumbers reads such a matrix, row by row.
func WideNumbers(m device.Mat) []float64 { return m.Buf.(*referenceBuffer).numbers(m) }

// Bytes implements device.Buffer.
func (b *referenceBuffer) Bytes() int64 { return int64(len(b.bytes)) }

// Close implements device.Buffer.
func (b *referenceBuffer) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.device.open.Add(-1)
	if b.region == nil {
		return nil
	}
	return b.region.Close()
}

// numbers reads a matrix row by row.
func (b *referenceBuffer) numbers(m device.Mat) []float64 {
	x := numbers(m, b.bytes)
	if b.wide != nil {
		eachRow(m, func(first int, at int64) {
			for i, stored := range x[first:][:m.Cols] {
				w := b.wide[(at+int64(i)*m.DType.Bytes())/2]
				if math.Float64bits(rounded(m.DType, w)) == math.Float64bits(stored) {
					x[first+i] = w
				}
			}
		})
	}
	return x
}

// put rounds numbers to the type of a matrix and writes them.
func (b *referenceBuffer) put(m device.Mat, x []float64) {
	eachRow(m, func(first int, at int64) {
		row, size := x[first:][:m.Cols], m.DType.Bytes()
		store(m.DType, b.bytes[at:], row)
		if b.wide != nil {
			for i, v := range row {
				b.wide[(at+int64(i)*size)/2] = v
			}
		}
	})
}

// numbers reads a matrix from the bytes of its buffer.
func numbers(m device.Mat, bytes []byte) []float64 {
	x := make([]float64, m.Rows*m.Cols)
	eachRow(m, func(first int, at int64) { load(m.DType, x[first:][:m.Cols], bytes[at:]) })
	return x
}

// eachRow calls visit for each row: first counts the elements before it, and at is its offset in bytes.
func eachRow(m device.Mat, visit func(first int, at int64)) {
	for r := range m.Rows {
		visit(r*m.Cols, m.Off+int64(r*m.Stride)*m.DType.Bytes())
	}
}

// load reads numbers of type d, one after the other, from the start of b.
func load(d tensor.DType, x []float64, b []byte) {
	switch d {
	case tensor.F32:
		for i := range x {
			x[i] = float64(math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:])))
		}
	case tensor.BF16:
		for i := range x {
			x[i] = float64(tensor.F32FromBF16(binary.NativeEndian.Uint16(b[2*i:])))
		}
	case tensor.F64:
		for i := range x {
			x[i] = math.Float64frombits(binary.NativeEndian.Uint64(b[8*i:]))
		}
	case tensor.U8:
		for i := range x {
			x[i] = float64(b[i])
		}
	case tensor.I8:
		for i := range x {
			x[i] = float64(int8(b[i]))
		}
	case tensor.I16:
		for i := range x {
			x[i] = float64(int16(binary.NativeEndian.Uint16(b[2*i:])))
		}
	case tensor.I32:
		for i := range x {
			x[i] = float64(int32(binary.NativeEndian.Uint32(b[4*i:])))
		}
	case tensor.I64:
		for i := range x {
			x[i] = float64(int64(binary.NativeEndian.Uint64(b[8*i:])))
		}
	default:
		panic("devicetest: no numbers of type " + d.String())
	}
}

// store writes numbers of type d, one after the other, to the start of b, rounded to nearest even where the type has
// fractions.
func store(d tensor.DType, b []byte, x []float64) {
	switch d {
	case tensor.F32:
		for i, v := range x {
			binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(float32(v)))
		}
	case tensor.BF16:
		for i, v := range x {
			binary.NativeEndian.PutUint16(b[2*i:], tensor.BF16FromF32(float32(v)))
		}
	case tensor.F64:
		for i, v := range x {
			binary.NativeEndian.PutUint64(b[8*i:], math.Float64bits(v))
		}
	case tensor.U8:
		for i, v := range x {
			b[i] = uint8(v)
		}
	case tensor.I8:
		for i, v := range x {
			b[i] = uint8(int8(v))
		}
	case tensor.I16:
		for i, v := range x {
			binary.NativeEndian.PutUint16(b[2*i:], uint16(int16(v)))
		}
	case tensor.I32:
		for i, v := range x {
			binary.NativeEndian.PutUint32(b[4*i:], uint32(int32(v)))
		}
	case tensor.I64:
		for i, v := range x {
			binary.NativeEndian.PutUint64(b[8*i:], uint64(int64(v)))
		}
	default:
		panic("devicetest: no numbers of type " + d.String())
	}
}

// rounded is x as type d stores it. Integers come as they are.
func rounded(d tensor.DType, x float64) float64 {
	switch d {
	case tensor.F32:
		return float64(float32(x))
	case tensor.BF16:
		return float64(tensor.F32FromBF16(tensor.BF16FromF32(float32(x))))
	}
	return x
}

// referenceEvent points to the latest record of an event, nil before the first one.
type referenceEvent struct{ latest atomic.Pointer[record] }

// record has the time when a stream passed an event, and the stream's error.
type record struct {
	at  time.Time
	err error
}

func (e *referenceEvent) Wait() error {
	if r := e.latest.Load(); r != nil {
		return r.err
	}
	return nil
}

func (e *referenceEvent) Since(earlier device.Event) time.Duration {
	return e.latest.Load().at.Sub(earlier.(*referenceEvent).latest.Load().at)
}

func (e *referenceEvent) Close() error { return nil }

// referenceStream carries out each operation at once.
type referenceStream struct {
	device   *Reference
	name     string
	operands device.Operands // checks calls
	err      error           // the first one; it sticks
	closed   bool

	// twin, if it is not nil, takes the place of each buffer that operands name. So the operands of a call to another
	// device serve for the same call here.
	twin *referenceBuffer
}

// do carries out an operation whose operands were checked.
func (s *referenceStream) do(operation func()) {
	if s.err == nil {
		operation()
	}
}

// Fail makes the stream fail, as an operation would that a real device refuses.
func (s *referenceStream) Fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("stream %s: %w", s.name, err)
	}
}

func (s *referenceStream) Record(e device.Event) {
	e.(*referenceEvent).latest.Store(&record{time.Now(), s.err})
}

func (s *referenceStream) Wait(e device.Event) {
	if err := e.Wait(); err != nil {
		s.Fail(err)
	}
}

func (s *referenceStream) Sync() error { return s.err }

func (s *referenceStream) Close() error {
	if !s.closed {
		s.closed = true
		s.device.open.Add(-1)
	}
	return s.err
}

func (s *referenceStream) buffer(m device.Mem) *referenceBuffer {
	if s.twin != nil {
		return s.twin
	}
	return m.Buf.(*referenceBuffer)
}

func (s *referenceStream) bytes(m device.Mem) []byte { return s.buffer(m).bytes[m.Off:][:m.Len] }

func (s *referenceStream) numbers(m device.Mat) []float64 { return s.buffer(m.Mem).numbers(m) }

func (s *referenceStream) put(m device.Mat, x []float64) { s.buffer(m.Mem).put(m, x) }

// vector reads the first n numbers of a plain vector.
func (s *referenceStream) vector(m device.Mem, d tensor.DType, n int) []float64 {
	return s.numbers(device.NewVec(m, d, n))
}

func (s *referenceStream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.do(func() { copy(s.bytes(dst), s.bytes(src)) })
}

func (s *referenceStream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.do(func() { clear(s.bytes(dst)) })
}
