package kernels

import "math/big"

// bigFMA rounds the exact a*b + c once.
func bigFMA(a, b, c float32) float32 {
	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(x)) }
	p := exact(0).Mul(exact(a), exact(b))
	y, _ := p.Add(p, exact(c)).Float32()
	return y
}
