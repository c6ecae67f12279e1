package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// Vec is a run of Len elements without gaps.
type Vec struct {
	Data  unsafe.Pointer
	DType tensor.DType // F32 or BF16
	Len   int          // elements
}

// F32 is x as a Vec.
func F32(x []float32) Vec { return Vec{unsafe.Pointer(unsafe.SliceData(x)), tensor.F32, len(x)} }

// BF16 is x, whose elements are the bits of bfloat16 numbers, as a Vec.
func BF16(x []uint16) Vec { return Vec{unsafe.Pointer(unsafe.SliceData(x)), tensor.BF16, len(x)} }

// Slice is the elements [lo, hi) of v.
func (v Vec) Slice(lo, hi int) Vec {
	check(0 <= lo && lo <= hi && hi <= v.Len, "Vec.Slice out of range")
	if lo == hi {
		return Vec{v.Data, v.DType, 0} // v.Data + Len would be a pointer past the end of its memory
	}
	return Vec{unsafe.Add(v.Data, lo*size(v.DType)), v.DType, hi - lo}
}

// At is element i of v.
func (v Vec) At(i int) float32 {
	check(0 <= i && i < v.Len, "Vec.At out of range")
	at := unsafe.Add(v.Data, i*size(v.DType))
	if kind(v.DType) == 0 {
		return *(*float32)(at)
	}
	return tensor.F32FromBF16(*(*uint16)(at))
}

// Mat is a matrix stored by rows: element (r, c) is at Data + (r*Stride + c) elements. Its fields are those of gemm.Mat.
type Mat struct {
	Data               unsafe.Pointer
	DType              tensor.DType // F32 or BF16
	Rows, Cols, Stride int          // elements; Stride >= Cols
}

// MatF32 is x as a matrix of rows of cols elements without gaps.
func MatF32(x []float32, cols int) Mat {
	return Mat{unsafe.Pointer(unsafe.SliceData(x)), tensor.F32, len(x) / cols, cols, cols}
}

// MatBF16 is x, the bits of bfloat16 numbers, as a matrix of rows of cols elements without gaps.
func MatBF16(x []uint16, cols int) Mat {
	return Mat{unsafe.Pointer(unsafe.SliceData(x)), tensor.BF16, len(x) / cols, cols, cols}
}

// at is the address of element (r, c).
func (m Mat) at(r, c int) unsafe.Pointer {
	return unsafe.Add(m.Data, (r*m.Stride+c)*size(m.DType))
}

// has checks the shape of m once per call.
func (m Mat) has(rows, cols int) bool {
	return m.Rows >= rows && m.Cols >= cols && m.Stride >= m.Cols
}

// size is the bytes of one element, without the table look-up of DType.Bytes.
func size(d tensor.DType) int {
	if d == tensor.F32 {
		return 4
	}
	return 2
}

// kind indexes the pairs of kernels that exist for F32 (0) and BF16 (1).
func kind(d tensor.DType) int {
	switch d {
	case tensor.F32:
		return 0
	case tensor.BF16:
		return 1
	}
	panic("kernels: element type " + d.String() + " is neither f32 nor bf16")
}

func check(ok bool, what string) {
	if !ok {
		panic("kernels: " + what)
	}
}
