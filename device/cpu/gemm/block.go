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

	// A worker's own block for MulSerial lives in L2.
	ownRows = 192
	ownCols = 256
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
	rows, cols, sums int // most rows of op(A), columns of op(B), elements of C that are kept as fp32
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
	units           int // k in units
	panelUnits      int // units that a packed panel has room for
	first, last     bool
	inPlace         inPlaceKernel // reads op(A) where it is, except the panel at its edge; nil: all is packed
	packed          []float32     // op(B), packed before; nil: it is packed here
	aGroup, bGroup  int           // panels that one packing task packs
	aTasks          int           // packing tasks of A; the rest are of B
	tileA, tileB    int           // panels of A and of B that one tile task covers
	tileTasksAcross int
}

// multiply walks the blocks of a product. phase runs the tasks of one phase: packing, then tiles.
func (j *job) multiply(kern kernels, op Op, packed []float32, blk *blocking, workers int,
	phase func(tasks int, pack bool)) {
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
	j.kern, j.op, j.blk, j.packed = kern.of(op.A.DType), op, blk, packed
	j.size = j.kern.size()
	perUnit := j.size.perUnit(op.A.DType)
	j.a = newSource(&op.A, op.TransA, perUnit)
	j.a.left = true
	j.b = newSource(&op.B, !op.TransB, perUnit)
	if in, ok := j.kern.(inPlaceKernel); ok && in.readsInPlace(&j.a, k) {
		j.inPlace = in
	}

	kCount, kSize := kBlocks(k, perUnit)
	mCount, mSize := split(m, blk.rows/j.size.mr*j.size.mr, j.size.mr)
	cols := blk.cols
	if op.C.DType == tensor.BF16 && kCount > 1 {
		cols = min(cols, blk.sums/mSize/j.size.nr*j.size.nr)
	}
	nCount, nSize := split(n, cols, j.size.nr)
	for mb := range mCount {
		for nb := range nCount {
			j.m0, j.n0 = mb*mSize, nb*nSize
			j.m, j.n = min(mSize, m-j.m0), min(nSize, n-j.n0)
			j.plan(workers)
			for kb := range kCount {
				j.k0 = kb * kSize
				j.k = min(kSize, k-j.k0)
				j.units = ceilDiv(j.k, perUnit)
				j.panelUnits = ceilTo(j.units, panelQuantum)
				j.first, j.last = kb == 0, kb == kCount-1
				aTasks, bTasks := j.packTasks()
				phase(aTasks+bTasks, true)
				phase(j.tileTasks(), false)
			}
		}
	}
	*j = job{} // keep no pointer to the caller's memory
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

func (j *job) packTasks() (a, b int) {
	j.aTasks = ceilDiv(ceilDiv(j.m, j.size.mr), j.aGroup)
	if j.inPlace != nil {
		j.aTasks = min(j.m%j.size.mr, 1)
	}
	if j.packed == nil {
		b = ceilDiv(ceilDiv(j.n, j.size.nr), j.bGroup)
	}
	return j.aTasks, b
}

func (j *job) tileTasks() int {
	j.tileTasksAcross = ceilDiv(ceilDiv(j.n, j.size.nr), j.tileB)
	return ceilDiv(ceilDiv(j.m, j.size.mr), j.tileA) * j.tileTasksAcross
}

// pack is one packing task.
func (j *job) pack(w *worker, task int) {
	if task < j.aTasks && j.inPlace != nil {
		j.packPanels(w, &j.a, j.blk.a, j.m/j.size.mr, 1, j.size.mr, j.m0, j.m)
		return
	}
	if task < j.aTasks {
		j.packPanels(w, &j.a, j.blk.a, task*j.aGroup, j.aGroup, j.size.mr, j.m0, j.m)
		return
	}
	j.packPanels(w, &j.b, j.blk.b, (task-j.aTasks)*j.bGroup, j.bGroup, j.size.nr, j.n0, j.n)
}

func (j *job) packPanels(w *worker, s *source, dst []float32, panel, panels, width, first, total int) {
	end := min(panel+panels, ceilDiv(total, width))
	// Source rows that run across are read a few at a time for all the panels, not all of them for each panel: the
	// pages and the lines that the hardware fetches ahead are those of the next panel.
	chunk := j.k
	if s.kRows {
		chunk = max(packChunk, j.size.depth)
	}
	for k := 0; k < j.k; k += chunk {
		for p := panel; p < end; p++ {
			d := unsafe.Pointer(&dst[p*width*j.panelUnits+k/s.perUnit*width])
			j.kern.pack(&w.edge, d, s, width, first+p*width, min(width, total-p*width), j.k0+k, min(chunk, j.k-k))
		}
	}
}

// tiles is one tile task: all register tiles of a few panels of A and B.
func (j *job) tiles(w *worker, task int) {
	mr, nr := j.size.mr, j.size.nr
	pa0 := task / j.tileTasksAcross * j.tileA
	pb0 := task % j.tileTasksAcross * j.tileB
	pa1, pb1 := min(pa0+j.tileA, ceilDiv(j.m, mr)), min(pb0+j.tileB, ceilDiv(j.n, nr))
	c := &j.op.C
	esize := uintptr(c.DType.Bytes())
	ldc := uintptr(c.Stride) * esize
	for pb := pb0; pb < pb1; pb++ {
		cols := min(nr, j.n-pb*nr)
		b := j.panelB(pb)
		for pa := pa0; pa < pa1; pa++ {
			rows := min(mr, j.m-pa*mr)
			a := unsafe.Pointer(&j.blk.a[pa*mr*j.panelUnits])
			at := unsafe.Add(c.Data, uintptr(j.m0+pa*mr)*ldc+uintptr(j.n0+pb*nr)*esize)
			if c.DType == tensor.F32 {
				j.tile(w, pa, a, b, at, ldc, rows, cols)
				continue
			}
			t := unsafe.Pointer(&w.tile[0])
			if !j.first || !j.last {
				t = unsafe.Pointer(&j.blk.c[(pa*ceilDiv(j.n, nr)+pb)*mr*nr])
			}
			if j.first && j.op.Accumulate {
				j.kern.widen(t, at, ldc, rows, cols)
			}
			j.tile(w, pa, a, b, t, uintptr(nr)*4, rows, nr)
			if j.last {
				j.kern.round(at, ldc, t, rows, cols)
			}
		}
	}
}

// tile computes one register tile of the panel pa, packed at a, into c.
func (j *job) tile(w *worker, pa int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	pairs, add := j.a.perUnit == 2, !j.first || j.op.Accumulate
	if j.inPlace != nil && rows == j.size.mr {
		j.inPlace.tileInPlace(pairs, j.units, j.a.at(j.m0+pa*rows, j.k0), j.a.stride, b, c, ldc, cols, add)
		return
	}
	j.kern.tile(w, pairs, j.units, a, b, c, ldc, rows, cols, add)
}

func clearMat(c *Mat) {
	for i := range c.Rows {
		bytes := uintptr(c.DType.Bytes())
		row := unsafe.Add(c.Data, uintptr(i*c.Stride)*bytes)
		clear(unsafe.Slice((*byte)(row), uintptr(c.Cols)*bytes))
	}
}
