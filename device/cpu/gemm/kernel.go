package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// tileSize is the shape of a kernel's register tile, which is also the width of the packed panels.
type tileSize struct {
	mr, nr int
	pairs  bool // bf16 operands are packed as pairs; otherwise they are widened
	depth  int  // elements of k that an instruction takes, if more than a unit
}

// perUnit is the elements of a type in a packed unit.
func (s tileSize) perUnit(d tensor.DType) int {
	if s.pairs && d == tensor.BF16 {
		return 2
	}
	return 1
}

// kernel is the inner part of a product at one level.
type kernel interface {
	size() tileSize
	// pack copies a panel: n <= width neighbours from `first` on, k elements from k0 on, laid out [units][width].
	pack(e *edgeTable, dst unsafe.Pointer, s *source, width, first, n, k0, k int)
	// tile computes rows x cols sums over packed panels and stores them to C, or adds them to it. ldc is in bytes.
	tile(w *worker, pairs bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool)
	// widen copies a bf16 tile of C to a fp32 tile [mr][nr].
	widen(t, c unsafe.Pointer, ldc uintptr, rows, cols int)
	// round copies an fp32 tile [mr][nr] to a bf16 tile of C, to nearest, ties to even.
	round(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows, cols int)
}

// inPlaceKernel is a kernel that also computes whole tiles with rows of op(A) where they are, without a packed panel.
type inPlaceKernel interface {
	kernel
	// readsInPlace says whether it can with this op(A), of that many elements of k.
	readsInPlace(a *source, k int) bool
	// tileInPlace is tile with all rows of a tile, which run along k and begin lda bytes after each other.
	tileInPlace(w *worker, pairs bool, units int, a unsafe.Pointer, lda uintptr, b, c unsafe.Pointer, ldc uintptr,
		cols int, add bool)
}

// fewKernel is a kernel that also computes tiles of few rows with columns of op(B) where they are, without a packed
// panel.
type fewKernel interface {
	kernel
	// rowsAtOnce is the number of rows that it computes at a time, of a product of m <= that many; 0 if there are too
	// many, or if it cannot with that many elements of k.
	rowsAtOnce(m, k int) int
	// tileOfRows is tile with rows of units, and with columns of op(B) from `first` on that run along k.
	tileOfRows(w *worker, a rowsOfUnits, b *source, first, k0, k int, c unsafe.Pointer, ldc uintptr, rows, cols int,
		add bool)
}

// rowsOfUnits are rows of op(A) as a fewKernel takes them, each with its units one after the other.
type rowsOfUnits struct {
	at     unsafe.Pointer
	stride uintptr // bytes from row to row
	atOnce int     // as many rows
}

// from are the rows from that unit on.
func (r rowsOfUnits) from(unit int) rowsOfUnits {
	r.at = unsafe.Add(r.at, 4*unit)
	return r
}

// plainKernel is portable Go: the oracle of the others' shape handling, and what runs where there is no assembly.
type plainKernel struct{}

func (plainKernel) size() tileSize { return tileSize{mr: 4, nr: 4} }

func (plainKernel) pack(_ *edgeTable, dst unsafe.Pointer, s *source, width, first, n, k0, k int) {
	packPlain(dst, s, width, first, n, k0, 0, k)
}

func (plainKernel) tile(w *worker, _ bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool) {
	var sum [16]float32
	pa, pb := unsafe.Slice((*[4]float32)(a), units), unsafe.Slice((*[4]float32)(b), units)
	for k := range pa {
		x, y := &pa[k], &pb[k]
		for i := range 4 {
			// The conversion keeps the compiler from fusing the product into the sum.
			sum[4*i] += float32(x[i] * y[0])
			sum[4*i+1] += float32(x[i] * y[1])
			sum[4*i+2] += float32(x[i] * y[2])
			sum[4*i+3] += float32(x[i] * y[3])
		}
	}
	writeTile(c, ldc, sum[:], 4, rows, cols, add)
}

func (plainKernel) widen(t, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	widenPlain(t, 4, c, ldc, rows, cols)
}

func (plainKernel) round(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows, cols int) {
	roundPlain(c, ldc, t, 4, rows, cols)
}

// writeTile stores or adds part of a tile of sums to C.
func writeTile(c unsafe.Pointer, ldc uintptr, sums []float32, nr, rows, cols int, add bool) {
	for i := range rows {
		out := unsafe.Slice((*float32)(unsafe.Add(c, uintptr(i)*ldc)), cols)
		in := sums[i*nr : i*nr+cols]
		if !add {
			copy(out, in)
			continue
		}
		for j, s := range in {
			out[j] += s
		}
	}
}

// widenPlain is kernel.widen for tiles of nr columns.
func widenPlain(t unsafe.Pointer, nr int, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	for i := range rows {
		in := unsafe.Slice((*uint16)(unsafe.Add(c, uintptr(i)*ldc)), cols)
		out := unsafe.Slice((*float32)(unsafe.Add(t, 4*i*nr)), cols)
		for j, x := range in {
			out[j] = tensor.F32FromBF16(x)
		}
	}
}

// roundPlain is kernel.round for tiles of nr columns.
func roundPlain(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, nr, rows, cols int) {
	for i := range rows {
		out := unsafe.Slice((*uint16)(unsafe.Add(c, uintptr(i)*ldc)), cols)
		in := unsafe.Slice((*float32)(unsafe.Add(t, 4*i*nr)), cols)
		for j, x := range in {
			out[j] = tensor.BF16FromF32(x)
		}
	}
}

// kernels holds the kernels of a level, by the operands' dtype. A panel of the one for bf16 is at least as wide.
type kernels struct{ f32, bf16 kernel }

// kernelsFor picks the kernels of a level.
func kernelsFor(level isa.Level) kernels {
	if k, ok := assemblyKernels(level); ok {
		return k
	}
	return kernels{plainKernel{}, plainKernel{}}
}

func (k *kernels) of(d tensor.DType) kernel {
	if d == tensor.BF16 {
		return k.bf16
	}
	return k.f32
}
