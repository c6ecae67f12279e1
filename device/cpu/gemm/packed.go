package gemm

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// PackedFloats is the length of the memory for PackB with an op(B) of [k, n]; 0 where k is more than one block.
func (e *Engine) PackedFloats(d tensor.DType, k, n int) int {
	if k > maxUnits {
		return 0
	}
	s := e.kern.of(d).size()
	return ceilTo(ceilDiv(k, s.perUnit(d)), panelQuantum) * ceilTo(n, s.nr)
}

// PackB copies op(B), [k, n], to the panels that register tiles read, for several MulPacked with the same B. The memory
// has PackedFloats, which is not 0, and begins a cache line. Calls may overlap if their workers differ.
func (e *Engine) PackB(worker int, to []float32, b Mat, trans bool) {
	k, n := b.Rows, b.Cols
	if trans {
		k, n = n, k
	}
	if k == 0 || n == 0 {
		return
	}
	e.checkPacked(to, b.DType, k, n)
	w := &e.workers[worker]
	j := &w.job
	j.kern = e.kern.of(b.DType)
	s := j.kern.size()
	j.size, j.k, j.panelUnits = s, k, ceilTo(ceilDiv(k, s.perUnit(b.DType)), panelQuantum)
	j.b = newSource(&b, !trans, s.perUnit(b.DType))
	j.packPanels(w, &j.b, to, 0, 0, ceilDiv(n, s.nr), s.nr, 0, n)
	*j = job{}
}

// MulPacked is MulSerial with an op(B) that PackB has packed. Of op.B it uses the shape and the type; there may be
// fewer columns than were packed. The bits are those of MulSerial.
func (e *Engine) MulPacked(worker int, op Op, packed []float32) {
	_, n, k := op.Shape()
	if n > 0 && k > 0 {
		e.checkPacked(packed, op.B.DType, k, n)
	}
	e.mulSerial(worker, op, packed)
}

func (e *Engine) checkPacked(panels []float32, d tensor.DType, k, n int) {
	if need := e.PackedFloats(d, k, n); need == 0 || len(panels) < need {
		panic(fmt.Sprintf("gemm: a packed B of %v [%d, %d] in %d floats", d, k, n, len(panels)))
	}
}

// panelB returns the start of the panel of op(B) with that number in the block.
func (j *job) panelB(panel int) unsafe.Pointer {
	if j.packed == nil {
		return unsafe.Pointer(&j.blk.b[(panel-j.firstB)*j.size.nr*j.panelUnits])
	}
	return unsafe.Pointer(&j.packed[(j.n0+panel*j.size.nr)*j.panelUnits])
}
