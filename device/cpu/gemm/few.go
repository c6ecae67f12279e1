package gemm

import (
	"sync/atomic"
	"unsafe"
)

// A product of few rows, as of a token that is generated, reads each element of op(B) once and does little with it: it
// takes the time of the reads. To pack all of op(B) before the first tile, for all workers, would write it to L3 and
// read it again. So each worker multiplies some columns by itself. If the kernel can (fewKernel), it reads them where
// they are. Else it packs a few panels, which stay in L2, and computes their tiles before it reads on. The bits are
// those of any other way.
//
// A worker reads columns that follow each other: what it fetches ahead is then what it reads next. It has a range of
// them, and takes them a piece at a time, so that a worker that is through can help one that is late.

// fewRows are the most rows for which that is done.
const fewRows = 16

// mulFew has each worker multiply some columns.
func (e *Engine) mulFew(op Op) {
	_, n, _ := op.Shape()
	if n == 0 {
		return
	}
	e.few.plan(op, n, len(e.workers), e.kern.of(op.A.DType).size().nr)
	e.run.Run(len(e.workers), e.fewTask)
	e.few.op = Op{}
}

// few is such a product, cut into pieces of some columns.
type few struct {
	op      Op
	n, each int          // columns, and those of a piece
	ranges  []pieceRange // by task
}

// pieceRange are the pieces that a task begins with.
type pieceRange struct {
	next atomic.Int64
	end  int64
	_    [48]byte // a cache line for each
}

// Each worker should have fewPieces pieces, but none of more than fewColumns columns.
const fewPieces, fewColumns = 16, 256

// plan cuts a product of n columns for the workers; each piece but the last is of whole panels of nr columns.
func (f *few) plan(op Op, n, workers, nr int) {
	f.op, f.n, f.each = op, n, min(ceilTo(ceilDiv(n, workers*fewPieces), nr), fewColumns)
	pieces := ceilDiv(n, f.each)
	for i := range f.ranges {
		f.ranges[i].next.Store(int64(pieces * i / workers))
		f.ranges[i].end = int64(pieces * (i + 1) / workers)
	}
}

// task multiplies the pieces of its range, and then what is left of others.
func (f *few) task(e *Engine, worker, task int) {
	for i := range f.ranges {
		r := &f.ranges[(task+i)%len(f.ranges)]
		for p := r.next.Add(1) - 1; p < r.end; p = r.next.Add(1) - 1 {
			e.mulSerial(worker, f.piece(int(p)), nil)
		}
	}
}

// piece is the product of a piece.
func (f *few) piece(p int) Op {
	op, first := f.op, p*f.each
	n := min(f.each, f.n-first)
	op.C = op.C.columns(first, n)
	if op.TransB {
		op.B = op.B.rows(first, n)
	} else {
		op.B = op.B.columns(first, n)
	}
	return op
}

// rowsOfA makes a block of k of op(A) ready for a fewKernel. It copies the rows, if they must be widened, end within a
// unit, are fewer than what the kernel computes, or would share a few sets of L1 since whole pages separate them.
func (j *job) rowsOfA() {
	const page = 4096
	j.rows.at, j.rows.stride = j.a.at(j.m0, j.k0), j.a.stride
	widen, apart := j.a.bf16 && j.a.perUnit == 1, j.m == 1 || j.a.stride%page != 0
	if j.m == j.rows.atOnce && j.k%j.a.perUnit == 0 && !widen && apart {
		return
	}
	copies := j.blk.a[:j.rows.atOnce*j.panelUnits]
	clear(copies)
	for i := range j.m {
		from, to := j.a.at(j.m0+i, j.k0), unsafe.Pointer(&copies[i*j.panelUnits])
		if widen {
			j.widenRow(to, from)
			continue
		}
		bytes := j.k * int(j.a.esize)
		copy(unsafe.Slice((*byte)(to), bytes), unsafe.Slice((*byte)(from), bytes))
	}
	j.rows.at, j.rows.stride = unsafe.Pointer(&copies[0]), uintptr(4*j.panelUnits)
}

// widenRow widens a row of op(A), which it hands to the kernel as rows of a tile.
func (j *job) widenRow(to, from unsafe.Pointer) {
	nr := j.size.nr
	whole := j.k / nr
	if whole > 0 {
		j.kern.widen(to, from, uintptr(2*nr), whole, nr)
	}
	if rest := j.k % nr; rest > 0 {
		j.kern.widen(unsafe.Add(to, 4*nr*whole), unsafe.Add(from, 2*nr*whole), uintptr(2*nr), 1, rest)
	}
}

// tileOfRows computes the tile of the panel pb, without packing it.
func (j *job) tileOfRows(w *worker, pb int, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool) {
	first := j.n0 + pb*j.size.nr
	cols = min(cols, j.n-pb*j.size.nr)
	for u := 0; u < j.units; u += j.part {
		k := u * j.a.perUnit
		j.few.tileOfRows(w, j.rows.from(u), &j.b, first, j.k0+k, min(j.part*j.a.perUnit, j.k-k), c, ldc, rows, cols,
			add || u > 0)
	}
}
