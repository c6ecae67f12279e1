// Package device is the contract between the engine and the drivers that compute.
//
// A [Device] makes things: buffers, pinned host memory, streams, events. It does no work. A [Stream] is an ordered
// queue of work: copies, operations, events. Three drivers implement the contract:
//
//   - device/cpu is the reference, and runs where there is no GPU;
//   - device/cuda drives an NVIDIA GPU;
//   - device/null computes nothing and counts everything, for rehearsals.
//
// Rules that every driver keeps, and devicetest checks:
//
//   - Work of one stream happens in order; only events order the work of two streams.
//   - An operation never allocates and never blocks its caller for another operation's sake. It reads its inputs and
//     writes its outputs, nothing else; inputs and outputs do not overlap unless the operation's text says so.
//   - Gradients of parameters accumulate (+=) in fp32; gradients of activations are written (=).
//   - Results do not depend on timing, on the number of workers or on the addresses of operands.
//   - An error sticks to its stream: later work is skipped, events fire with the error, and Sync returns it. A stream that
//     waits for such an event takes the error over.
//   - Operands that break the text of an operation are a bug and panic in the caller's goroutine; see [Operands].
package device

import (
	"time"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// Device makes buffers, streams and events.
type Device interface {
	Info() Info

	// Alloc reserves device memory, zeroed. The error says how much was asked for, for what, and how much there is.
	Alloc(purpose string, bytes int64) (Buffer, error)

	// Register makes host memory known to the device, pinned where that means something, so that streams can copy
	// from and to it. Where Info.ReachesHost says so, operations may use it in place. The region must outlive the buffer.
	Register(r *hostmem.Region) (Buffer, error)

	// NewStream makes an ordered queue; name appears in traces and errors.
	NewStream(name string) (Stream, error)

	// NewEvent makes an event that has not been recorded.
	NewEvent() (Event, error)

	// PrepareAttention reserves what the driver needs of its own (see Info.AttentionElemBytes) for the gradient of an
	// attention over queries [positions, heads*headDim], before streams are made. Without it the first gradient that
	// needs more reserves it. Operands have the type t. It fails for heads that are wider than Info.MaxHeadDim says of
	// scores without a soft cap.
	PrepareAttention(positions, heads, headDim int, t tensor.DType) error

	// Close releases the device. Streams and buffers must have been closed.
	Close() error
}

// ProductTuner is a [Device] that has several algorithms for a matrix product. They differ in speed and in the last
// bits of results.
type ProductTuner interface {
	// TuneProducts times the algorithms for products, and keeps the fastest one for each shape that has no choice yet.
	// It comes before other work of the device. It overwrites all of scratch, and leaves zeros; it places operands in
	// scratch where the later products have theirs.
	TuneProducts(products []Product, scratch Mem) error
	// Algorithms returns the choices that were made, or taken over and found to be possible, as lines of text: the shape
	// of a product, ": ", and the algorithm for it. A device with the same Info.Numerics that uses them computes the
	// same bits.
	Algorithms() []string
	// UseAlgorithms takes over choices before the first product; one that is not possible is made again. The error names
	// a line that is not a choice.
	UseAlgorithms(lines []string) error
}

// MemoryReporter is a [Device] that knows how much of its memory nothing holds: no program, driver or library.
type MemoryReporter interface {
	FreeBytes() (int64, error)
}

// MaxDevices bounds the devices that compute in a run.
const MaxDevices = 64

// Info describes a device: what it is and what it can do.
type Info struct {
	Name string // for people: "CPU (AMD EPYC, AVX-512 BF16, 2 threads)"

	// Kind is Name without which one of several it is: devices of a kind have the same rates. Empty: it is Name.
	Kind string

	// Unified devices compute on host memory: a registered buffer is bound in place instead of being copied.
	Unified bool

	// ReachesHost says that operations also take registered host memory as operands, over the link where the device is
	// not unified.
	ReachesHost bool

	// MemoryBytes is the memory of this program: OverheadBytes plus the bytes that can be allocated. It is 0 where only
	// the host's memory is the limit.
	MemoryBytes int64

	// TotalBytes is the memory that the device has, used or free; 0: it is not known. Unlike MemoryBytes it is the same at
	// each start.
	TotalBytes int64

	// OverheadBytes is memory that the driver always holds for itself (packing buffers, workspaces, scratch of workers
	// and streams). The plan counts it: in host memory on a unified device, else in the device's own.
	OverheadBytes int64

	// AttentionElemBytes is memory that the driver holds for itself in addition to OverheadBytes, for each element of
	// the largest queries [T, Heads*HeadDim] that an AttentionGrad has seen or PrepareAttention has announced.
	AttentionElemBytes int64

	// PinnedDeviceBytesPerMiB and PinnedHostBytesPerMiB are the device memory and the host memory that the driver takes
	// for each MiB of registered host memory: page tables on the device, records of pages on the host. The plan counts
	// both.
	PinnedDeviceBytesPerMiB, PinnedHostBytesPerMiB int64

	// MaxExperts is the most experts of which a row can choose; 0: there is no limit.
	MaxExperts int

	// MaxHeadDim is the most columns that a head of an attention may have. The driver has no kernels for more, or no
	// scratch.
	MaxHeadDim HeadDims

	// MaxDeltaDim is the most columns of queries, keys and values that a head of a gated delta net may have; 0: there
	// is no limit. The driver has no scratch for more, or no kernels.
	MaxDeltaDim int

	// MaxDeltaHeads is the most heads that a gated delta net may have; 0: there is no limit. The driver has no scratch
	// for a chunk of more.
	MaxDeltaHeads int

	// Workers is the number of threads that share one operation.
	Workers int

	// Numerics names in one line everything that decides the bits of results, other than the operands: two devices with
	// the same Numerics compute the same bits.
	Numerics string

	// TunesProducts says that the device is a [ProductTuner] with something to choose from.
	TunesProducts bool

	// CutsRows says that an operation may leave out rows at the end of operands, where they are zeros in gradients and
	// nothing reads the others: the bits are those with them. A product that adds up rows is told how many there were
	// (MatMulFlags.Of). One thing may differ: the sign of a sum that is zero because it was too small for its type.
	CutsRows bool

	// PeerCopies says of the devices that compute together that each copies from the others: see [Peers]. Of a single
	// one it says nothing.
	PeerCopies bool

	// Warning says in a line why the device is slower than it could be, and what to do; empty: nothing is known.
	Warning string
}

// Memory that a GPU and its host use for pinned host memory. Each page of 4 KiB takes an entry of 8 B in the GPU's page
// tables, and 16 B that NVIDIA's driver keeps in the kernel. Neither figure is documented, and neither was measured
// here.
const (
	GPUPinnedDeviceBytesPerMiB = 8 * (1 << 20 / 4096)
	GPUPinnedHostBytesPerMiB   = 16 * (1 << 20 / 4096)
)

// GPUMaxExperts is Info.MaxExperts of a GPU: a program of the kernels that route has all experts of a row at once.
const GPUMaxExperts = 512

// HeadDims are limits of the columns of a head of an attention, by what is asked of it; 0: there is no limit.
type HeadDims struct {
	BF16  int // of operands in bf16, if scores have no soft cap
	Other int // in fp32, or with a soft cap
}

// Of is the limit for operands of a type, for scores with a soft cap or without one.
func (m HeadDims) Of(t tensor.DType, capped bool) int {
	if t == tensor.BF16 && !capped {
		return m.BF16
	}
	return m.Other
}

// GPUMaxHeadDim is Info.MaxHeadDim of a GPU. Operands of wider heads in fp32 are more than the shared memory of most
// GPUs holds, and no model has wider ones with a soft cap.
var GPUMaxHeadDim = HeadDims{BF16: 512, Other: 256}

// GPUMaxDeltaDim is Info.MaxDeltaDim of a GPU: a program of the kernels for gradients of queries and keys has all
// columns of a head at once.
const GPUMaxDeltaDim = 128

// GPUDeltaBytes is the memory that a GPU has for what kernels of gated delta nets leave for each other.
const GPUDeltaBytes = 128 << 20

// GPUMaxDeltaHeads is Info.MaxDeltaHeads of a GPU: the gradient leaves two matrices of DeltaChunk rows and two of
// values of each head of a chunk in fp32.
const GPUMaxDeltaHeads = GPUDeltaBytes / (4 * DeltaChunk * (2*DeltaChunk + 2*GPUMaxDeltaDim))

// GPU returns the Info that all GPUs share: of one that is open, and of one that a plan is made for.
func GPU() Info {
	return Info{ReachesHost: true, PinnedDeviceBytesPerMiB: GPUPinnedDeviceBytesPerMiB,
		PinnedHostBytesPerMiB: GPUPinnedHostBytesPerMiB,
		MaxExperts:            GPUMaxExperts, MaxHeadDim: GPUMaxHeadDim, MaxDeltaDim: GPUMaxDeltaDim,
		MaxDeltaHeads: GPUMaxDeltaHeads}
}

// Buffer is an allocation of one driver.
type Buffer interface {
	Bytes() int64
	Close() error
}

// Event marks a place in a stream. Record and Stream.Wait follow the usual GPU rule: a wait refers to the latest Record
// that was queued before it, and waiting for an event that was never recorded does not wait.
type Event interface {
	// Wait blocks the host until the latest recorded place is reached. It returns the error that stuck to the
	// recording stream before that place, if any.
	Wait() error
	// Since is the time that passed on the device from the latest recorded place of an earlier event of the same
	// device to this one's. Both must have been reached.
	Since(earlier Event) time.Duration
	Close() error
}

// Mem is a range of bytes in a buffer. It is a value and owns nothing. The zero Mem stands for "no memory".
type Mem struct {
	Buf      Buffer
	Off, Len int64 // bytes
}

// Whole is all of a buffer.
func Whole(b Buffer) Mem { return Mem{Buf: b, Len: b.Bytes()} }

// IsZero reports whether m stands for no memory.
func (m Mem) IsZero() bool { return m.Buf == nil && m.Len == 0 }

// Slice is the range of n bytes at off. It panics when that leaves m: offsets come from layouts and arenas, so a bad
// one is a bug.
func (m Mem) Slice(off, n int64) Mem {
	if off < 0 || n < 0 || off > m.Len-n {
		panic("device: slice outside of its memory")
	}
	return Mem{Buf: m.Buf, Off: m.Off + off, Len: n}
}

// Mat is a row-major matrix in device memory: element (i, j) is Stride*i + j elements after the start of Mem.
// A vector is a matrix of one row. The zero Mat stands for "none" where an operation allows it.
type Mat struct {
	Mem
	DType      tensor.DType
	Rows, Cols int
	Stride     int // elements from row to row, >= Cols
}

// NewMat views the start of mem as a dense matrix. It panics when mem is too short.
func NewMat(mem Mem, t tensor.DType, rows, cols int) Mat {
	return Mat{Mem: mem.Slice(0, int64(rows)*int64(cols)*t.Bytes()), DType: t, Rows: rows, Cols: cols, Stride: cols}
}

// NewVec views the start of mem as a matrix of one row.
func NewVec(mem Mem, t tensor.DType, n int) Mat { return NewMat(mem, t, 1, n) }

// RowRange is the sub-matrix of rows [first, first+n).
func (m Mat) RowRange(first, n int) Mat { return m.sub(first, n, 0, m.Cols) }

// ColRange is the sub-matrix of columns [first, first+n); it shares m's stride.
func (m Mat) ColRange(first, n int) Mat { return m.sub(0, m.Rows, first, n) }

func (m Mat) sub(r, rows, c, cols int) Mat {
	if r < 0 || rows < 0 || c < 0 || cols < 0 || r+rows > m.Rows || c+cols > m.Cols {
		panic("device: sub-matrix outside of its matrix")
	}
	m.Mem = m.Mem.Slice((int64(r)*int64(m.Stride)+int64(c))*m.DType.Bytes(), span(rows, cols, m.Stride)*m.DType.Bytes())
	m.Rows, m.Cols = rows, cols
	return m
}

// span is the number of elements from the first to the last one of a strided matrix.
func span(rows, cols, stride int) int64 {
	if rows == 0 || cols == 0 {
		return 0
	}
	return int64(rows-1)*int64(stride) + int64(cols)
}
