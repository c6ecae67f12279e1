package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
)

//go:generate go run ../../../workshop/assembly/gemm

func assemblyKernels(level isa.Level) (k kernels, ok bool) {
	switch level {
	case isa.AMX:
		k = kernels{kernel512{}, kernelAMX{}}
	case isa.AVX512BF16:
		k = kernels{kernel512{pairs: true}, kernel512{pairs: true}}
	case isa.AVX512:
		k = kernels{kernel512{}, kernel512{}}
	case isa.AVX2:
		k = kernels{kernel256{}, kernel256{}}
	}
	return k, k.f32 != nil
}

// kernel512 is AVX-512 with 12 x 32 sums. Edges are masks and narrower tiles.
type kernel512 struct{ pairs bool }

func (q kernel512) size() tileSize { return tileSize{mr: 12, nr: 32, pairs: q.pairs} }

// mask has a bit for each of n <= 64 lanes.
func mask(n int) uint64 { return 1<<uint(n) - 1 }

func (q kernel512) pack(e *edgeTable, dst unsafe.Pointer, s *source, width, first, n, k0, k int) {
	src := s.at(first, k0)
	if !s.kRows {
		e.rows(s.stride, n, min(ceilTo(width, 16), 32))
		units := ceilDiv(k, s.perUnit)
		blocks := uintptr(ceilDiv(units, 16))
		rest := k - 16*s.perUnit*(int(blocks)-1) // elements in the last block
		for i := 0; i < width; i += 16 {
			lanes, ahead := mask(min(16, width-i)), 16*s.stride
			d, offsets := unsafe.Add(dst, 4*i), unsafe.Pointer(&e.offsets[i])
			switch {
			case s.bf16 && s.perUnit == 1:
				transposeWiden512(d, uintptr(4*width), src, offsets, blocks, mask(rest), lanes, ahead)
			case s.bf16:
				transpose512(d, uintptr(4*width), src, offsets, blocks, mask(rest), lanes, ahead)
			default:
				transpose512(d, uintptr(4*width), src, offsets, blocks, mask(2*rest), lanes, ahead)
			}
		}
		return
	}
	switch {
	case s.perUnit == 2:
		copyPairs := copyPairs512x12
		if width == 32 {
			copyPairs = copyPairs512x32
		}
		if k > 1 {
			copyPairs(dst, src, s.stride, uintptr(k/2), mask(n))
		}
		if k%2 == 1 {
			row := unsafe.Slice((*uint16)(s.at(first, k0+k-1)), n)
			copy(e.pair[:], row) // e.pair[32:] stays zero
			copyPairs(unsafe.Add(dst, 4*width*(k/2)), unsafe.Pointer(&e.pair[0]), 64, 1, mask(n))
		}
	case s.bf16 && width == 32:
		copyWiden512x32(dst, src, s.stride, uintptr(k), mask(n))
	case s.bf16:
		copyWiden512x12(dst, src, s.stride, uintptr(k), mask(n))
	case width == 32:
		copy512x32(dst, src, s.stride, uintptr(k), mask(n))
	default:
		copy512x12(dst, src, s.stride, uintptr(k), mask(n))
	}
}

func (q kernel512) tile(w *worker, pairs bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int,
	add bool) {
	sum := uintptr(0)
	if add {
		sum = 1
	}
	k, r, m := uintptr(units), uintptr(rows), mask(cols)
	fetch, step := w.ahead.take(units / 4)
	switch {
	case pairs && rows > 8:
		tile512BF16x12(k, a, b, c, ldc, r, m, sum, fetch, step)
	case pairs && rows > 4:
		tile512BF16x8(k, a, b, c, ldc, r, m, sum, fetch, step)
	case pairs:
		tile512BF16x4(k, a, b, c, ldc, r, m, sum, fetch, step)
	case rows > 8:
		tile512F32x12(k, a, b, c, ldc, r, m, sum, fetch, step)
	case rows > 4:
		tile512F32x8(k, a, b, c, ldc, r, m, sum, fetch, step)
	default:
		tile512F32x4(k, a, b, c, ldc, r, m, sum, fetch, step)
	}
}

// readsInPlace implements inPlaceKernel: rows of whole units that need not be widened. Rows that whole pages separate
// would share a few sets of L1, and are packed.
func (q kernel512) readsInPlace(a *source, k int) bool {
	const page = 4096
	return !a.kRows && k%a.perUnit == 0 && (!a.bf16 || a.perUnit == 2) && a.stride%page != 0
}

func (q kernel512) tileInPlace(w *worker, pairs bool, units int, a unsafe.Pointer, lda uintptr, b, c unsafe.Pointer,
	ldc uintptr, cols int, add bool) {
	fetch, step := w.ahead.take(units / 4)
	sum := uintptr(0)
	if add {
		sum = 1
	}
	if pairs {
		tile512BF16InPlacex12(uintptr(units), a, b, c, ldc, 12, mask(cols), sum, lda, fetch, step)
		return
	}
	tile512F32InPlacex12(uintptr(units), a, b, c, ldc, 12, mask(cols), sum, lda, fetch, step)
}

// rowsAtOnce implements fewKernel.
func (kernel512) rowsAtOnce(m, _ int) int {
	switch {
	case m == 1:
		return 1
	case m <= 4:
		return 4
	case m <= 8:
		return 8
	}
	return 0
}

func (q kernel512) tileOfRows(w *worker, a rowsOfUnits, b *source, first, k0, k int, c unsafe.Pointer, ldc uintptr,
	rows, cols int, add bool) {
	units, sum := uintptr(ceilDiv(k, b.perUnit)), uintptr(0)
	if add {
		sum = 1
	}
	routines, perBlock, bits := &few512BF16, 32, 1 // elements of a block of 64 bytes, and bits of a mask for each
	switch {
	case !b.bf16:
		routines, perBlock, bits = &few512F32, 16, 2
	case b.perUnit == 1:
		routines = &few512Widen
	}
	rest := bits * (k - (k-1)/perBlock*perBlock) // of the last block
	// Of the next 16 columns it fetches what it reads of these; all of that where they are dense, and then in the order
	// of addresses.
	step, turn := b.stride, 64-16*b.stride
	if b.stride == uintptr(k)*b.esize {
		step, turn = 64, 0
	}
	for i := 0; i < cols; i += 16 {
		n := min(16, cols-i)
		w.edge.rows(b.stride, n, 16)
		routines[a.atOnce/4](units, a.at, a.stride, b.at(first+i, k0), unsafe.Pointer(&w.edge.offsets[0]), 16*b.stride,
			step, turn, unsafe.Add(c, 4*i), ldc, uintptr(rows), sum, mask(n), mask(rest))
	}
}

func (kernel512) widen(t, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	widenTile512(t, 128, c, ldc, uintptr(rows), mask(cols))
}

func (kernel512) round(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows, cols int) {
	roundTile512(c, ldc, t, 128, uintptr(rows), mask(cols))
}

// kernel256 is AVX2 with 6 x 16 sums. AVX2 has no cheap masks: edges go through plain Go.
type kernel256 struct{}

func (kernel256) size() tileSize { return tileSize{mr: 6, nr: 16} }

func (kernel256) pack(e *edgeTable, dst unsafe.Pointer, s *source, width, first, n, k0, k int) {
	src := s.at(first, k0)
	if !s.kRows {
		e.rows(s.stride, n, width)
		if blocks := uintptr(k / 8); blocks > 0 {
			offsets := unsafe.Pointer(&e.offsets[0])
			switch {
			case s.bf16 && width == 16:
				transposeWiden256x16(dst, src, offsets, blocks)
			case s.bf16:
				transposeWiden256x6(dst, src, offsets, blocks)
			case width == 16:
				transpose256x16(dst, src, offsets, blocks)
			default:
				transpose256x6(dst, src, offsets, blocks)
			}
		}
		packPlain(dst, s, width, first, n, k0, k&^7, k)
		return
	}
	if n < width {
		packPlain(dst, s, width, first, n, k0, 0, k)
		return
	}
	switch {
	case s.bf16 && width == 16:
		copyWiden256x16(dst, src, s.stride, uintptr(k))
	case s.bf16:
		copyWiden256x6(dst, src, s.stride, uintptr(k))
	case width == 16:
		copy256x16(dst, src, s.stride, uintptr(k))
	default:
		copy256x6(dst, src, s.stride, uintptr(k))
	}
}

func (kernel256) tile(w *worker, _ bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool) {
	if rows == 6 && cols == 16 {
		sum := uintptr(0)
		if add {
			sum = 1
		}
		tile256(uintptr(units), a, b, c, ldc, sum)
		return
	}
	tile256(uintptr(units), a, b, unsafe.Pointer(&w.spare[0]), 64, 0)
	writeTile(c, ldc, w.spare, 16, rows, cols, add)
}

// rowsAtOnce implements fewKernel.
func (kernel256) rowsAtOnce(m, k int) int {
	switch {
	case k%8 != 0:
		return 0
	case m == 1:
		return 1
	case m <= 4:
		return 4
	}
	return 0
}

func (kernel256) tileOfRows(w *worker, a rowsOfUnits, b *source, first, k0, k int, c unsafe.Pointer, ldc uintptr,
	rows, cols int, add bool) {
	routines, sum := &few256F32, uintptr(0)
	if b.bf16 {
		routines = &few256Widen
	}
	t, ldt := c, ldc
	if whole := rows == a.atOnce && cols == 16; !whole {
		t, ldt = unsafe.Pointer(&w.spare[0]), 64
	} else if add {
		sum = 1
	}
	for i := 0; i < cols; i += 8 {
		w.edge.rows(b.stride, min(8, cols-i), 8)
		routines[a.atOnce/4](uintptr(k/8), a.at, a.stride, b.at(first+i, k0), unsafe.Pointer(&w.edge.offsets[0]),
			16*b.stride, unsafe.Add(t, 4*i), ldt, sum)
	}
	if t != c {
		writeTile(c, ldc, w.spare, 16, rows, cols, add)
	}
}

func (kernel256) widen(t, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	if cols < 16 {
		widenPlain(t, 16, c, ldc, rows, cols)
		return
	}
	widenTile256(t, 64, c, ldc, uintptr(rows))
}

func (kernel256) round(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows, cols int) {
	if cols < 16 {
		roundPlain(c, ldc, t, 16, rows, cols)
		return
	}
	roundTile256(c, ldc, t, 64, uintptr(rows))
}

// few512 are routines for 1, 4 and 8 rows.
type few512 [3]func(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

var (
	few512F32   = few512{few512F32x1, few512F32x4, few512F32x8}
	few512BF16  = few512{few512BF16x1, few512BF16x4, few512BF16x8}
	few512Widen = few512{few512Widenx1, few512Widenx4, few512Widenx8}
)

// few256 are routines for 1 and 4 rows.
type few256 [2]func(blocks uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead uintptr,
	c unsafe.Pointer, ldc, add uintptr)

var (
	few256F32   = few256{few256F32x1, few256F32x4}
	few256Widen = few256{few256Widenx1, few256Widenx4}
)

// The routines of kernels_amd64.s. Strides and steps are in bytes; a mask has one bit for each column, or for each 16
// bits of k in lastMask.

//go:noescape
func tile512F32x12(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512F32x8(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512F32x4(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512BF16x12(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512BF16x8(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512BF16x4(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, fetch, step uintptr)

//go:noescape
func tile512F32InPlacex12(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, lda, fetch,
	step uintptr)

//go:noescape
func tile512BF16InPlacex12(k uintptr, a, b, c unsafe.Pointer, ldc, rows uintptr, mask uint64, add, lda, fetch,
	step uintptr)

//go:noescape
func widenTile512(t unsafe.Pointer, ldt uintptr, c unsafe.Pointer, ldc, rows uintptr, mask uint64)

//go:noescape
func roundTile512(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, ldt, rows uintptr, mask uint64)

//go:noescape
func transpose512(dst unsafe.Pointer, dstStep uintptr, src, offsets unsafe.Pointer, blocks uintptr,
	lastMask, lanes uint64, ahead uintptr)

//go:noescape
func transposeWiden512(dst unsafe.Pointer, dstStep uintptr, src, offsets unsafe.Pointer, blocks uintptr,
	lastMask, lanes uint64, ahead uintptr)

//go:noescape
func copy512x12(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func copy512x32(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func copyWiden512x12(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func copyWiden512x32(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func copyPairs512x12(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func copyPairs512x32(dst, src unsafe.Pointer, stride, k uintptr, mask uint64)

//go:noescape
func tile256(k uintptr, a, b, c unsafe.Pointer, ldc, add uintptr)

//go:noescape
func widenTile256(t unsafe.Pointer, ldt uintptr, c unsafe.Pointer, ldc, rows uintptr)

//go:noescape
func roundTile256(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, ldt, rows uintptr)

//go:noescape
func transpose256x6(dst, src, offsets unsafe.Pointer, blocks uintptr)

//go:noescape
func transpose256x16(dst, src, offsets unsafe.Pointer, blocks uintptr)

//go:noescape
func transposeWiden256x6(dst, src, offsets unsafe.Pointer, blocks uintptr)

//go:noescape
func transposeWiden256x16(dst, src, offsets unsafe.Pointer, blocks uintptr)

//go:noescape
func copy256x6(dst, src unsafe.Pointer, stride, k uintptr)

//go:noescape
func copy256x16(dst, src unsafe.Pointer, stride, k uintptr)

//go:noescape
func copyWiden256x6(dst, src unsafe.Pointer, stride, k uintptr)

//go:noescape
func copyWiden256x16(dst, src unsafe.Pointer, stride, k uintptr)

//go:noescape
func few512F32x1(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512F32x4(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512F32x8(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512BF16x1(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512BF16x4(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512BF16x8(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512Widenx1(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512Widenx4(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few512Widenx8(k uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead, step, turn uintptr,
	c unsafe.Pointer, ldc, rows, add uintptr, lanes, lastMask uint64)

//go:noescape
func few256F32x1(blocks uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead uintptr,
	c unsafe.Pointer, ldc, add uintptr)

//go:noescape
func few256F32x4(blocks uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead uintptr,
	c unsafe.Pointer, ldc, add uintptr)

//go:noescape
func few256Widenx1(blocks uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead uintptr,
	c unsafe.Pointer, ldc, add uintptr)

//go:noescape
func few256Widenx4(blocks uintptr, a unsafe.Pointer, lda uintptr, b, offsets unsafe.Pointer, ahead uintptr,
	c unsafe.Pointer, ldc, add uintptr)
