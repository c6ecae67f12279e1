package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// Sizes of the blocks. maxUnits sets bits; the others only speed. A unit is 4 bytes of k in a packed panel: one fp32, or
// two bf16 where the kernel takes pairs.
const (
	maxUnits = 640 // longest block of k

	packChunk = 16 // rows of k that packing reads at a time, even

	panelQuantum = 16 // a packed panel has room for a multiple of units: transposition writes as many at a time

	// A shared block: packed A (5 MiB), packed B (10 MiB) and the sums of a bf16 C (8 MiB) live in L3.
	sharedRows = 2064
	sharedCols = 4096
	sharedSums = 2064 * 1024

	// A worker's own block for MulSerial lives in L2: packed A (480 KiB), a few panels of B that are packed when their
	// turn comes (320 KiB), and the sums of a bf16 C (192 KiB).
	ownRows   = 192
	ownCols   = 256
	panelCols = 128
)

// kBlocks cuts k into blocks of nearly equal length: count blocks of size elements, the last one shorter. It depends on
// k and on the elements in a unit only, since it sets bits. A short remainder would cost as many passes over C as a
// long one.
func kBlocks(k, perUnit int) (count, size int) {
	return split(k, maxUnits*perUnit, 8*perUnit)
}

// split cuts n into count pieces of at most limit, nearly equal, each but the last of size, a multiple of quantum (of
// which limit is a multiple).
func split(n, limit, quantum int) (count, size int) {
	if n == 0 {
		return 0, 0
	}
	count = (n + limit - 1) / limit
	size = ceilTo((n+count-1)/count, quantum)
	return (n + size - 1) / size, size
}

func ceilDiv(n, d int) int { return (n + d - 1) / d }

func ceilTo(n, d int) int { return ceilDiv(n, d) * d }

// blocking is the scratch for one block of a product.
type blocking struct {
	// most rows of op(A), columns of op(B) that are packed at once, elements of C that are kept as fp32
	rows, cols, sums int
	a, b             []float32
	c                []float32 // sums of a bf16 C between blocks of k, one register tile after another
}

func newBlocking(kern kernels, rows, cols, sums int) blocking {
	s := kern.bf16.size()
	rows, cols = ceilTo(rows, s.mr), ceilTo(cols, s.nr)
	sums = ceilTo(sums, rows*s.nr)
	return blocking{rows: rows, cols: cols, sums: sums,
		a: alignedFloats(rows * maxUnits), b: alignedFloats(cols * maxUnits), c: alignedFloats(sums)}
}

func (b *blocking) bytes() int64 { return 4 * int64(len(b.a)+len(b.b)+len(b.c)) }

// alignedFloats starts at a cache line, and ends with a page that prefetches may touch.
func alignedFloats(n int) []float32 {
	const line, page = 64, 4096
	s := make([]float32, n+(line+page)/4)
	skip := int(-uintptr(unsafe.Pointer(&s[0]))%line) / 4
	return s[skip : skip+n]
}

// job is the state of one product while its blocks are walked.
type job struct {
	kern kernel
	size tileSize
	op   Op
	a, b source
	blk  *blocking

	m0, n0, k0      int // first element of the block
	m, n, k         int // its size
	depth           int // of the product: all of k
	units           int // k in units
	part            int // units of k that are summed before they are added to C
	panelUnits      int // units that a packed panel has room for
	first, last     bool
	alone           bool          // one worker has the block, and packs a few panels of B at a time
	inPlace         inPlaceKernel // reads op(A) where it is, except the panel at its edge; nil: all is packed
	few             fewKernel     // reads op(B) where it is; nil: that is packed, too
	rows            rowsOfUnits   // op(A) for few
	firstB          int           // panel of B that begins the packed ones
	packed          []float32     // op(B), packed before; nil: it is packed here
	aGroup, bGroup  int           // panels that one packing task packs
	aTasks          int           // packing tasks of A; the rest are of B
	tileA, tileB    int           // panels of A and of B that one tile task covers
	tileTasksAcross int
}

// multiply walks the blocks of a product, and calls block for each of them.
func (j *job) multiply(kern kernels, op Op, packed []float32, blk *blocking, block func()) {
	m, n, k := op.Shape()
	if m == 0 || n == 0 {
		return
	}
	if k == 0 {
		if !op.Accumulate {
			clearMat(&op.C)
		}
		return
	}
	j.kern, j.op, j.blk, j.packed, j.depth = kern.of(op.A.DType), op, blk, packed, k
	j.size = j.kern.size()
	perUnit := j.size.perUnit(op.A.DType)
	j.a = newSource(&op.A, op.TransA, perUnit)
	j.a.left = true
	j.b = newSource(&op.B, !op.TransB, perUnit)
	if in, ok := j.kern.(inPlaceKernel); ok && in.readsInPlace(&j.a, k) {
		j.inPlace = in
	}
	if few, ok := j.kern.(fewKernel); ok && j.alone && packed == nil && !j.a.kRows && !j.b.kRows {
		if n := few.rowsAtOnce(m, k); n > 0 {
			j.few, j.inPlace, j.rows.atOnce = few, nil, n
		}
	}

	kCount, kSize := kBlocks(max(k, op.Of), perUnit)
	kCount = min(kCount, ceilDiv(k, kSize))
	if op.Block > 0 {
		kSize = maxUnits * perUnit / op.Block * op.Block
		kCount, j.inPlace = ceilDiv(k, kSize), nil
	}
	mCount, mSize := split(m, blk.rows/j.size.mr*j.size.mr, j.size.mr)
	cols := blk.cols
	switch {
	case j.few != nil && kCount > 1:
		cols = j.size.nr // all blocks of k of a column before the next one: rows are read to their ends
	case j.alone:
		cols = ceilTo(n, j.size.nr)
	}
	if op.C.DType == tensor.BF16 && kCount > 1 {
		cols = min(cols, blk.sums/mSize/j.size.nr*j.size.nr)
	}
	nCount, nSize := split(n, cols, j.size.nr)
	for mb := range mCount {
		for nb := range nCount {
			j.m0, j.n0 = mb*mSize, nb*nSize
			j.m, j.n = min(mSize, m-j.m0), min(nSize, n-j.n0)
			for kb := range kCount {
				j.k0 = kb * kSize
				j.k = min(kSize, k-j.k0)
				j.units = ceilDiv(j.k, perUnit)
				j.panelUnits = ceilTo(j.units, panelQuantum)
				if j.part = j.units; op.Block > 0 {
					j.part = op.Block / perUnit
				}
				j.first, j.last = kb == 0, kb == kCount-1
				block()
			}
		}
	}
	*j = job{} // keep no pointer to the caller's memory
}

// block computes a block on one worker.
func (j *job) block(w *worker) {
	panelsA, panels, most := ceilDiv(j.m, j.size.mr), ceilDiv(j.n, j.size.nr), j.blk.cols/j.size.nr
	if j.few != nil {
		j.rowsOfA()
		j.tiles(w, 0, panelsA, 0, panels)
		return
	}
	j.packA(w, 0, panelsA)
	for j.firstB = 0; j.firstB < panels; j.firstB += most {
		end := min(j.firstB+most, panels)
		if j.packed == nil {
			j.packPanels(w, &j.b, j.blk.b, j.firstB, j.firstB, end, j.size.nr, j.n0, j.n)
		}
		w.ahead = j.after(end, most)
		j.tiles(w, 0, panelsA, j.firstB, end)
	}
	j.firstB = 0
	w.ahead = ahead{}
}

// after is the memory of the panels of B that a worker packs after those before the panel end.
func (j *job) after(end, most int) ahead {
	first, k, length := end*j.size.nr, j.k0, j.k
	if first >= j.n { // the next block of k begins
		first, k = 0, j.k0+j.k
		length = min(j.k, j.depth-k)
	}
	n := min(most*j.size.nr, j.n-first)
	// Rows of bf16 that run across are short here: what tiles fetched of them cost as much as it saved.
	if j.packed != nil || length <= 0 || j.b.kRows && j.b.bf16 {
		return ahead{}
	}
	if j.b.kRows {
		n, length = length, n
	}
	return ahead{at: uintptr(j.b.at(j.n0+first, k)), stride: j.b.stride, rows: n,
		columns: length * int(j.b.esize) / fetched}
}

// fetched are the bytes that tiles fetch at a time.
const fetched = 128

// ahead is memory that tiles fetch while they compute: rows of whole columns of fetched bytes. It has addresses in
// place of pointers, as they may be past the end of a matrix.
type ahead struct {
	at, stride    uintptr
	rows, columns int
	row, column   int // the next ones
}

// take is the place and the stride for a tile that fetches n times. Past the last row it fetches what comes after.
func (a *ahead) take(n int) (at, stride uintptr) {
	if a.column >= a.columns {
		return uintptr(unsafe.Pointer(a)), 0
	}
	at = a.at + uintptr(a.row)*a.stride + uintptr(a.column*fetched)
	if a.row += n; a.row >= a.rows {
		a.row, a.column = 0, a.column+1
	}
	return at, a.stride
}

// plan chooses how large the tasks of a block are: large enough to reuse what they load into L2, small enough that the
// workers finish together. Successive tasks share their panels of A.
func (j *job) plan(workers int) {
	pa, pb := ceilDiv(j.m, j.size.mr), ceilDiv(j.n, j.size.nr)
	if workers == 1 {
		j.aGroup, j.bGroup = pa, pb
		_, j.tileA = split(pa, serialRows/j.size.mr, 1)
		_, j.tileB = split(pb, serialCols/j.size.nr, 1)
		return
	}
	j.aGroup, j.bGroup = min(8, ceilDiv(pa, 4*workers)), min(4, ceilDiv(pb, 4*workers))
	for _, t := range taskSizes {
		_, j.tileA = split(pa, max(1, t.rows/j.size.mr), 1)
		_, j.tileB = split(pb, t.cols/j.size.nr, 1)
		if ceilDiv(pa, j.tileA)*ceilDiv(pb, j.tileB) >= 30*workers {
			return
		}
	}
}

// taskSizes are the most rows and columns of a tile task, in the order of preference; the last is taken in any case.
var taskSizes = [...]struct{ rows, cols int }{{192, 128}, {96, 128}, {96, 64}, {48, 64}, {24, 64}}

// The most rows and columns between which the loop of a single worker turns around.
const (
	serialRows = 192
	serialCols = 256
)

func (j *job) packTasks() int {
	j.aTasks = ceilDiv(ceilDiv(j.m, j.size.mr), j.aGroup)
	if j.inPlace != nil {
		j.aTasks = min(j.m%j.size.mr, 1)
	}
	return j.aTasks + ceilDiv(ceilDiv(j.n, j.size.nr), j.bGroup)
}

func (j *job) tileTasks() int {
	j.tileTasksAcross = ceilDiv(ceilDiv(j.n, j.size.nr), j.tileB)
	return ceilDiv(ceilDiv(j.m, j.size.mr), j.tileA) * j.tileTasksAcross
}

// pack is one packing task.
func (j *job) pack(w *worker, task int) {
	if task < j.aTasks {
		j.packA(w, task*j.aGroup, (task+1)*j.aGroup)
		return
	}
	panel := (task - j.aTasks) * j.bGroup
	j.packPanels(w, &j.b, j.blk.b, 0, panel, panel+j.bGroup, j.size.nr, j.n0, j.n)
}

// packA packs panels of A, or only the one at its edge if the others are read where they are.
func (j *job) packA(w *worker, panel, end int) {
	if j.inPlace != nil {
		panel, end = j.m/j.size.mr, j.m/j.size.mr+1
	}
	j.packPanels(w, &j.a, j.blk.a, 0, panel, end, j.size.mr, j.m0, j.m)
}

// packPanels packs some of an operand's panels. The panel with the number base begins dst.
func (j *job) packPanels(w *worker, s *source, dst []float32, base, panel, end, width, first, total int) {
	end = min(end, ceilDiv(total, width))
	// Source rows that run across are read a few at a time for all the panels, not all of them for each panel: the
	// pages and the lines that the hardware fetches ahead are those of the next panel.
	chunk := j.k
	if s.kRows {
		chunk = max(packChunk, j.size.depth)
	}
	for k := 0; k < j.k; k += chunk {
		for p := panel; p < end; p++ {
			d := unsafe.Pointer(&dst[(p-base)*width*j.panelUnits+k/s.perUnit*width])
			j.kern.pack(&w.edge, d, s, width, first+p*width, min(width, total-p*width), j.k0+k, min(chunk, j.k-k))
		}
	}
}

// tileTask is one task of Mul.
func (j *job) tileTask(w *worker, task int) {
	pa, pb := task/j.tileTasksAcross*j.tileA, task%j.tileTasksAcross*j.tileB
	j.tiles(w, pa, min(pa+j.tileA, ceilDiv(j.m, j.size.mr)), pb, min(pb+j.tileB, ceilDiv(j.n, j.size.nr)))
}

// tiles computes the register tiles of the panels [pa0, pa1) of A and [pb0, pb1) of B.
func (j *job) tiles(w *worker, pa0, pa1, pb0, pb1 int) {
	mr, nr, add := j.size.mr, j.size.nr, !j.first || j.op.Accumulate
	c := &j.op.C
	esize := uintptr(c.DType.Bytes())
	ldc := uintptr(c.Stride) * esize
	for pb := pb0; pb < pb1; pb++ {
		cols := min(nr, j.n-pb*nr)
		for pa := pa0; pa < pa1; pa++ {
			rows := min(mr, j.m-pa*mr)
			at := unsafe.Add(c.Data, uintptr(j.m0+pa*mr)*ldc+uintptr(j.n0+pb*nr)*esize)
			if c.DType == tensor.F32 {
				if !j.alone && add {
					w.ahead = ahead{at: uintptr(at) + uintptr(rows)*ldc, stride: ldc, rows: min(mr, j.m-pa*mr-rows),
						columns: 1}
				}
				j.tile(w, pa, pb, at, ldc, rows, cols)
				continue
			}
			t := unsafe.Pointer(&w.tile[0])
			if !j.first || !j.last {
				t = unsafe.Pointer(&j.blk.c[(pa*ceilDiv(j.n, nr)+pb)*mr*nr])
			}
			if j.first && j.op.Accumulate {
				j.kern.widen(t, at, ldc, rows, cols)
			}
			j.tile(w, pa, pb, t, uintptr(nr)*4, rows, nr)
			if j.last {
				j.kern.round(at, ldc, t, rows, cols)
			}
		}
	}
}

// tile computes one register tile of the panels pa and pb into c.
func (j *job) tile(w *worker, pa, pb int, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	pairs, add := j.a.perUnit == 2, !j.first || j.op.Accumulate
	if j.few != nil {
		j.tileOfRows(w, pb, c, ldc, rows, cols, add)
		return
	}
	b := j.panelB(pb)
	if j.inPlace != nil && rows == j.size.mr {
		j.inPlace.tileInPlace(w, pairs, j.units, j.a.at(j.m0+pa*rows, j.k0), j.a.stride, b, c, ldc, cols, add)
		return
	}
	a := unsafe.Pointer(&j.blk.a[pa*j.size.mr*j.panelUnits])
	for u := 0; u < j.units; u += j.part {
		j.kern.tile(w, pairs, min(j.part, j.units-u), unsafe.Add(a, 4*u*j.size.mr), unsafe.Add(b, 4*u*j.size.nr), c,
			ldc, rows, cols, add || u > 0)
	}
}

func clearMat(c *Mat) {
	for i := range c.Rows {
		bytes := uintptr(c.DType.Bytes())
		row := unsafe.Add(c.Data, uintptr(i*c.Stride)*bytes)
		clear(unsafe.Slice((*byte)(row), uintptr(c.Cols)*bytes))
	}
}
