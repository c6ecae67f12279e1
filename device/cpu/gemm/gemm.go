// Package gemm multiplies matrices on the CPU: C = op(A) op(B), or C += op(A) op(B), fp32 or bf16 operands, fp32 sums.
//
// The method is that of GotoBLAS and BLIS (Goto and van de Geijn, 2008; Van Zee and van de Geijn, 2015): both operands
// are copied ("packed") block by block into panels that a register tile reads in order, so that transposition,
// strides and alignment concern the copy only. Packing routines and register tiles are Go assembly, written by the
// program in workshop/assembly/gemm.
//
//   - Mat and Op say what to multiply.
//   - Engine holds the packing buffers, allocated once, and shares the work among the workers of a Runner.
//   - Reference is the slow float64 oracle.
//
// # Bits
//
// The bits of an element of C depend on its row of op(A), its column of op(B), its old value if Accumulate is set, K,
// the dtypes and the isa.Level; on nothing else: not M or N, the place in the matrix, strides, alignment,
// transposition, the number of workers, or Mul against MulSerial. The arithmetic is:
//
//   - k = 0..K-1 is cut into blocks, a function of K or Op.Of, the operands' dtype and the level alone (see kBlocks),
//     or as Op.Block says.
//   - A block's sum starts at +0 and takes its products in the order of k.
//   - The block sums are added in order, in fp32: ((S0 + S1) + S2) + ..., or with Accumulate, ((C + S0) + S1) + ...
//   - A bf16 C is widened before and rounded once after all of this: to nearest, ties to even, denormals kept.
//
// One step of a block's sum is, by level:
//
//   - Plain: s = round(s + round(a*b)).
//   - AVX2 and AVX512: s = fma(a, b, s), bf16 operands widened; the two levels agree to the bit.
//   - AVX512BF16: fp32 operands as above. bf16 operands go in pairs (k, k+1) through VDPBF16PS, which computes
//     s = fma(a[k+1], b[k+1], s), then s = fma(a[k], b[k], s), and which treats denormal inputs as zeros and makes
//     denormal results zeros. An odd K ends with a pair whose second half is zero.
//   - AMX: fp32 operands as above. bf16 operands go through TDPBF16PS, 32 k at a time; the last ones are filled up with
//     zeros. Even and odd k have sums of their own, which start at +0 and take the products in the order of k, each by
//     fma; then s = s + (even + odd). Denormal inputs and results of each of these operations are zeros.
//
// The tests hold every level to this, bit by bit, with an emulation in plain Go.
//
// A product with a NaN operand is a NaN; which NaN is not defined.
package gemm

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// Mat is a row-major matrix: element (i, j) starts (i*Stride+j)*DType.Bytes() bytes after Data.
type Mat struct {
	Data               unsafe.Pointer
	DType              tensor.DType
	Rows, Cols, Stride int // Stride is in elements, at least Cols
}

// Op is one product: C = op(A) op(B), or C += op(A) op(B) with Accumulate, where op transposes if the flag is set.
//
// op(A) is [M, K], op(B) is [K, N], C is [M, N]. A and B have the same dtype, F32 or BF16; C is F32 or BF16. C overlaps
// neither A nor B. K = 0 is an empty sum: C becomes zero, or stays.
type Op struct {
	C, A, B                    Mat
	TransA, TransB, Accumulate bool
	// Block, if it is not 0, is the length of the blocks of k: a number that IsBlock has.
	Block int
	// Of, if it is more than K, has the blocks of a product with that K, of which this one has the first ones and perhaps
	// a part of the next one. That product has these bits if its other terms are zeros; the sign of a zero may differ.
	Of int
}

// IsBlock reports whether blocks of k may have that length. Products of each block by itself, added one after the other
// by Accumulate, have the same bits; but C is read and written once for up to maxUnits units of k.
func IsBlock(n int) bool { return n > 0 && n <= maxUnits && n%(2*panelQuantum) == 0 }

// Shape is M, N, K. It panics if the matrices do not fit together: that is a bug of the caller.
func (o *Op) Shape() (m, n, k int) {
	m, k = o.A.Rows, o.A.Cols
	if o.TransA {
		m, k = k, m
	}
	kb, n := o.B.Rows, o.B.Cols
	if o.TransB {
		kb, n = n, kb
	}
	ok := (o.Block == 0 || IsBlock(o.Block)) && k == kb && o.C.Rows == m && o.C.Cols == n && o.A.DType == o.B.DType
	for _, x := range []*Mat{&o.A, &o.B, &o.C} {
		ok = ok && (x.DType == tensor.F32 || x.DType == tensor.BF16) && x.Rows >= 0 && x.Cols >= 0 &&
			(x.Stride >= x.Cols || x.Rows <= 1) && (x.Data != nil || x.Rows == 0 || x.Cols == 0)
	}
	if !ok {
		panic(fmt.Sprintf("gemm: impossible product: C %v = A %v (transposed %v) x B %v (transposed %v)",
			o.C, o.A, o.TransA, o.B, o.TransB))
	}
	return m, n, k
}

// String is "f32[2048 576 +1024]", the number being the stride.
func (x Mat) String() string { return fmt.Sprintf("%v[%d %d +%d]", x.DType, x.Rows, x.Cols, x.Stride) }

// Runner runs tasks 0..tasks-1 on its workers and returns when all are done; worker is in 0..Workers()-1 and runs one
// task at a time. pool.Pool is one.
type Runner interface {
	Workers() int
	Run(tasks int, f func(worker, task int))
}

// Engine multiplies. One Mul at a time; MulSerial calls may overlap with each other if their workers differ.
type Engine struct {
	kern    kernels
	run     Runner
	shared  blocking // what all workers of a Mul share
	workers []worker
	job     job // the product that Mul is at

	few few   // the product of few rows that Mul is at
	all group // the products that MulAll is at

	packTask, tileTask, fewTask, pieceTask func(worker, task int) // bound once, so that Mul does not allocate
}

// worker holds the memory of one worker.
type worker struct {
	own   blocking // for MulSerial
	job   job
	tile  []float32 // one register tile of a bf16 C
	spare []float32 // one register tile that goes over the edge
	edge  edgeTable
	ahead ahead // what tiles fetch
}

func newWorker(kern kernels, rows, cols int) worker {
	sums := kern.bf16.size().mr * kern.bf16.size().nr
	return worker{own: newBlocking(kern, rows, min(cols, panelCols), rows*cols), tile: alignedFloats(sums),
		spare: alignedFloats(sums)}
}

// New makes an engine for a level that this machine has, with scratch for the runner's workers.
func New(level isa.Level, run Runner) *Engine {
	if level > isa.Highest() {
		panic(fmt.Sprintf("gemm: this machine has no %v", level))
	}
	return newEngine(kernelsFor(level), run)
}

func newEngine(kern kernels, run Runner) *Engine {
	e := &Engine{kern: kern, run: run}
	e.shared = newBlocking(e.kern, sharedRows, sharedCols, sharedSums)
	e.workers = make([]worker, run.Workers())
	for i := range e.workers {
		e.workers[i] = newWorker(e.kern, ownRows, ownCols)
	}
	e.packTask = func(w, task int) { e.job.pack(&e.workers[w], task) }
	e.tileTask = func(w, task int) { e.job.tileTask(&e.workers[w], task) }
	e.few.ranges = make([]pieceRange, len(e.workers))
	e.fewTask = func(w, task int) { e.few.task(e, w, task) }
	e.pieceTask = func(w, task int) { e.all.piece(e, w, task) }
	return e
}

// ScratchBytes returns the memory that the engine holds, whatever it multiplies.
func (e *Engine) ScratchBytes() int64 {
	n := e.shared.bytes()
	for i := range e.workers {
		n += e.workers[i].own.bytes() + 8*int64(len(e.workers[i].tile))
	}
	return n
}

// Mul multiplies on all workers. It does not allocate.
func (e *Engine) Mul(op Op) {
	if m, _, _ := op.Shape(); m <= fewRows {
		e.mulFew(op)
	} else {
		e.mulMany(op)
	}
}

// mulMany packs op(A) and op(B) for all workers.
func (e *Engine) mulMany(op Op) {
	e.job.multiply(e.kern, op, nil, &e.shared, func() {
		e.job.plan(len(e.workers))
		e.run.Run(e.job.packTasks(), e.packTask)
		e.run.Run(e.job.tileTasks(), e.tileTask)
	})
}

// MulSerial multiplies on the calling goroutine with the scratch of one worker, to the same bits as Mul. It is for
// small blocks inside the tasks that another package runs on the pool.
func (e *Engine) MulSerial(worker int, op Op) { e.mulSerial(worker, op, nil) }

func (e *Engine) mulSerial(worker int, op Op, packed []float32) {
	w := &e.workers[worker]
	w.job.alone = true
	w.job.multiply(e.kern, op, packed, &w.own, func() { w.job.block(w) })
}
