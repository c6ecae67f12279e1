package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// source is an operand as packing sees it: a panel takes `width` neighbours across (rows of op(A) or columns of op(B)),
// and for each of them all of a block of k.
type source struct {
	data    unsafe.Pointer
	bf16    bool
	kRows   bool    // a row in memory holds one k and runs across; otherwise it runs along k
	perUnit int     // elements in a packed unit: 2 for pairs of bf16
	left    bool    // op(A), of which tiles have rows; otherwise op(B)
	stride  uintptr // bytes from row to row
	esize   uintptr
}

func newSource(m *Mat, kRows bool, perUnit int) source {
	e := uintptr(m.DType.Bytes())
	return source{data: m.Data, bf16: m.DType == tensor.BF16, kRows: kRows, perUnit: perUnit, esize: e,
		stride: uintptr(m.Stride) * e}
}

// at is the address of the element (across, k).
func (s *source) at(across, k int) unsafe.Pointer {
	if s.kRows {
		return unsafe.Add(s.data, uintptr(k)*s.stride+uintptr(across)*s.esize)
	}
	return unsafe.Add(s.data, uintptr(across)*s.stride+uintptr(k)*s.esize)
}

// load is the element as fp32.
func (s *source) load(across, k int) float32 {
	p := s.at(across, k)
	if s.bf16 {
		return tensor.F32FromBF16(*(*uint16)(p))
	}
	return *(*float32)(p)
}

// packPlain packs one element at a time, k from..to-1 of the panel, for kernels that take fp32. Neighbours past the
// edge become zeros.
func packPlain(dst unsafe.Pointer, s *source, width, first, n, k0, from, to int) {
	d := unsafe.Slice((*float32)(dst), width*to)
	for k := from; k < to; k++ {
		row := d[k*width : k*width+width]
		for i := range n {
			row[i] = s.load(first+i, k0+k)
		}
		clear(row[n:])
	}
}

// edgeTable is a worker's memory for the addresses and rows that packing makes up at an edge.
type edgeTable struct {
	offsets [32]uintptr // of the source rows of a panel
	pair    [64]uint16  // the last row of an odd k, and a row of zeros
	units   [512]uint32 // 16 units of a panel of op(A) that tiles are to take
}

// rows fills the offsets. Rows past the edge repeat the last one; their sums are never written.
func (t *edgeTable) rows(stride uintptr, n, width int) {
	for i := range width {
		t.offsets[i] = uintptr(min(i, n-1)) * stride
	}
}
