package gemm

import "unsafe"

// A product of few rows, as of a token that is generated, reads each element of op(B) once and does little with it: it
// takes the time of the reads. To pack all of op(B) before the first tile, for all workers, would write it to L3 and
// read it again. So each worker multiplies some columns by itself: it packs a few panels, which stay in L2, and
// computes their tiles before it reads on. The bits are those of any other way.

// fewRows are the most rows for which that is done.
const fewRows = 16

// mulFew has each worker multiply some columns.
func (e *Engine) mulFew(op Op) {
	_, n, _ := op.Shape()
	if n == 0 {
		return
	}
	e.few.plan(op, n, len(e.workers), e.kern.of(op.A.DType).size().nr)
	e.run.Run(e.few.tasks(), e.fewTask)
	e.few = few{}
}

// few is such a product, cut into ranges of columns.
type few struct {
	op      Op
	n, each int // columns, and those of a task
}

// plan cuts a product of n columns for the workers; each range but the last is of whole panels of nr columns.
func (f *few) plan(op Op, n, workers, nr int) {
	each := ceilTo(ceilDiv(n, workers*fewTasks), nr)
	*f = few{op, n, min(max(each, fewColumns), ceilTo(n, nr))}
}

// A task has at least fewColumns columns, so that packing op(A) costs little, and a worker has at most fewTasks tasks.
const fewColumns, fewTasks = 128, 4

func (f *few) tasks() int { return ceilDiv(f.n, f.each) }

// part is the product of a task.
func (f *few) part(task int) Op {
	op, first := f.op, task*f.each
	n := min(f.each, f.n-first)
	op.C = columns(op.C, first, n)
	if op.TransB {
		op.B = rows(op.B, first, n)
	} else {
		op.B = columns(op.B, first, n)
	}
	return op
}

func columns(m Mat, first, n int) Mat {
	m.Data, m.Cols = unsafe.Add(m.Data, first*int(m.DType.Bytes())), n
	return m
}

func rows(m Mat, first, n int) Mat {
	m.Data, m.Rows = unsafe.Add(m.Data, first*m.Stride*int(m.DType.Bytes())), n
	return m
}
