package kernels

import "unsafe"

// The loops below work on a row of a block of scores, for package attention. n is the number of keys that the row's
// mask lets through. Sums have the 16 fp32 lanes of RMSNorm.

// Max returns the greatest element of x, ignoring NaNs; -Inf if x has no other elements. It uses 16 lanes, as sums do.
func (t *Table) Max(x []float32) float32 {
	return t.max(unsafe.Pointer(unsafe.SliceData(x)), len(x))
}

// Exp replaces each element of x by the package's Exp of it.
func (t *Table) Exp(x []float32) {
	p := unsafe.Pointer(unsafe.SliceData(x))
	t.expMul[0](p, p, len(x), 0, 1)
}

// ExpSum writes p = exp(x*scale - max) to dst, rounded, and returns the sum of the unrounded p.
func (t *Table) ExpSum(dst Vec, x []float32, scale, max float32) float32 {
	check(dst.Len == len(x), "ExpSum: lengths differ")
	return t.expSum[kind(dst.DType)](dst.Data, unsafe.Pointer(unsafe.SliceData(x)), len(x), scale, max)
}

// ScoreGrad writes p = exp(s*scale - lse) and ds = (p*(dp - delta))*scale, each rounded once; ds is computed from the
// unrounded p. ds, p have the same type; s, dp, p and ds the same length.
func (t *Table) ScoreGrad(ds, p Vec, s, dp []float32, scale, lse, delta float32) {
	check(ds.Len == len(s) && p.Len == len(s) && len(dp) == len(s) && ds.DType == p.DType, "ScoreGrad: types or lengths differ")
	t.scoreGrad[kind(p.DType)](ds.Data, p.Data, unsafe.Pointer(unsafe.SliceData(s)), unsafe.Pointer(unsafe.SliceData(dp)), len(s), scale, lse, delta)
}

// Dot is the inner product of a and b, of one type, each product rounded.
func (t *Table) Dot(a, b Vec) float32 {
	check(a.Len == b.Len && a.DType == b.DType, "Dot: types or lengths differ")
	return t.dot[kind(a.DType)](a.Data, b.Data, a.Len)
}
