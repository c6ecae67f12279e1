package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// Convert writes src to dst in dst's element type: BF16 is rounded to nearest even, F32 is exact. The same type is a copy.
func (t *Table) Convert(dst, src Vec) {
	check(dst.Len == src.Len, "Convert: lengths differ")
	if kind(dst.DType) == kind(src.DType) {
		n := dst.Len * size(dst.DType)
		copy(unsafe.Slice((*byte)(dst.Data), n), unsafe.Slice((*byte)(src.Data), n))
		return
	}
	f := t.toF32
	if dst.DType == tensor.BF16 {
		f = t.toBF16
	}
	for i := 0; i < dst.Len; i += piece {
		f(unsafe.Add(dst.Data, i*size(dst.DType)), unsafe.Add(src.Data, i*size(src.DType)), min(piece, dst.Len-i))
	}
}

// SplitMaster cuts fp32 weights into hi and lo (tensor.SplitF32) and returns how many are infinite or NaN.
func (t *Table) SplitMaster(hi []uint16, lo []int16, src []float32) (bad int) {
	check(len(hi) == len(src) && len(lo) == len(src), "SplitMaster: lengths differ")
	for i := 0; i < len(src); i += piece {
		bad += t.split(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Pointer(&src[i]), min(piece, len(src)-i))
	}
	return bad
}

// JoinMaster is the inverse of SplitMaster (tensor.JoinF32).
func (t *Table) JoinMaster(dst []float32, hi []uint16, lo []int16) {
	check(len(hi) == len(dst) && len(lo) == len(dst), "JoinMaster: lengths differ")
	for i := 0; i < len(dst); i += piece {
		t.join(unsafe.Pointer(&dst[i]), unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), min(piece, len(dst)-i))
	}
}

// Zero fills x with zero bits.
func (t *Table) Zero(x Vec) {
	clear(unsafe.Slice((*byte)(x.Data), x.Len*size(x.DType)))
}

// Add writes a + b to dst; all have the same type and length.
func (t *Table) Add(dst, a, b Vec) {
	check(dst.Len == a.Len && dst.Len == b.Len, "Add: lengths differ")
	check(dst.DType == a.DType && dst.DType == b.DType, "Add: types differ")
	f, size := t.add[kind(dst.DType)], size(dst.DType)
	for i := 0; i < dst.Len; i += piece {
		f(unsafe.Add(dst.Data, i*size), unsafe.Add(a.Data, i*size), unsafe.Add(b.Data, i*size), min(piece, dst.Len-i))
	}
}

// AddTo adds a to dst, which stays in fp32.
func (t *Table) AddTo(dst []float32, a Vec) {
	check(len(dst) == a.Len, "AddTo: lengths differ")
	f, size := t.addTo[kind(a.DType)], size(a.DType)
	for i := 0; i < len(dst); i += piece {
		f(unsafe.Pointer(&dst[i]), unsafe.Add(a.Data, i*size), min(piece, len(dst)-i))
	}
}

// Scale writes s*a to dst; both have the same type and length.
func (t *Table) Scale(dst, a Vec, s float32) {
	check(dst.Len == a.Len && dst.DType == a.DType, "Scale: types or lengths differ")
	f, size := t.scale[kind(dst.DType)], size(dst.DType)
	for i := 0; i < dst.Len; i += piece {
		f(unsafe.Add(dst.Data, i*size), unsafe.Add(a.Data, i*size), min(piece, dst.Len-i), s)
	}
}

// MulAdd adds the products of a and b to dst, each product rounded.
func (t *Table) MulAdd(dst, a, b []float32) {
	check(len(dst) == len(a) && len(dst) == len(b), "MulAdd: lengths differ")
	for i := 0; i < len(dst); i += piece {
		n := min(piece, len(dst)-i)
		t.normWeight[0](unsafe.Pointer(&dst[i]), unsafe.Pointer(&a[i]), unsafe.Pointer(&b[i]), n, 1)
	}
}

// AddScaled adds s*a to dst, which stays in fp32. The product is rounded before it is added.
func (t *Table) AddScaled(dst []float32, a Vec, s float32) {
	check(len(dst) == a.Len, "AddScaled: lengths differ")
	f, size := t.addScaled[kind(a.DType)], size(a.DType)
	for i := 0; i < len(dst); i += piece {
		f(unsafe.Pointer(&dst[i]), unsafe.Add(a.Data, i*size), min(piece, len(dst)-i), s)
	}
}
