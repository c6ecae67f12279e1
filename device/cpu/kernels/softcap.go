package kernels

// SoftCap writes softCap*tanh(x*scale/softCap) to dst, which may be x: scaled scores or logits that stay between
// -softCap and softCap. With e = exp(2*x*scale/softCap) in fp32, tanh is 1 - 2/(e + 1) in float64, and the result is
// rounded once: it is off by less than 2^-23*softCap. A NaN stays one. The bits are the same at all levels.
func (t *Table) SoftCap(dst, x []float32, scale, softCap float32) {
	t.ExpSum(F32(dst), x, 2*scale/softCap, 0)
	for i, e := range dst {
		dst[i] = float32(float64(softCap) * (1 - 2/(float64(e)+1)))
	}
}

// SoftCapGrad replaces each d by (d - shift)*scale*(1 - (y/softCap)^2): the gradient of a capped y, less shift, becomes
// that of what SoftCap capped and scaled.
func SoftCapGrad(d, y []float32, shift, scale, softCap float32) {
	for i, y := range y {
		t := y / softCap
		d[i] = (d[i] - shift) * scale * (1 - float32(t*t))
	}
}
