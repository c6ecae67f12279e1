package kernels

import "math"

// The exponential's constants: clamp, ln 2 in two parts, and the coefficients of
//
//	exp(r) = 1 + r + r*r*(c2 + c3*r + c4*r^2 + c5*r^3 + c6*r^4)      |r| <= ln(2)/2
//
// fitted for the least relative error (3e-9, a twentieth of an ulp).
const (
	expClamp = 200
	log2E    = 1.442695
	ln2High  = 0.69140625
	ln2Low   = 0.0017409306
	expC2    = 0.49999994
	expC3    = 0.16666521
	expC4    = 0.04166839
	expC5    = 0.008368745
	expC6    = 0.0013814538
)

// Exp is e^x, off by less than one unit in the last place; overflow is +Inf, underflow is gradual, a NaN stays one.
//
//	n = roundToEven(x*log2(e)); r = x - n*ln(2), in two fused steps; the polynomial by Horner with fused steps; times 2^n
func Exp(x float32) float32 {
	x = clamped(x)
	n := float32(math.RoundToEven(float64(float32(x * log2E))))
	r := fma(n, -ln2High, x)
	r = fma(n, -ln2Low, r)
	p := fma(expC6, r, expC5)
	p = fma(p, r, expC4)
	p = fma(p, r, expC3)
	p = fma(p, r, expC2)
	p = fma(p, r, 1)
	p = fma(p, r, 1)
	if n != n {
		return n
	}
	// 2^n is a normal float64, so that the only rounding is the last one.
	return float32(float64(p) * math.Float64frombits(uint64(1023+int(n))<<52))
}

// clamped is x between the clamps; a NaN stays one.
func clamped(x float32) float32 {
	if x < -expClamp {
		return -expClamp
	} else if x > expClamp {
		return expClamp
	}
	return x
}

// fma is a*b + c rounded once to fp32, which needs care: the product is exact in float64, but rounding the sum to 53
// bits and then to 24 can differ from rounding it once. Where the 53 bits look like a tie, the sum is rounded to odd
// first (Boldo and Melquiond 2008), after which the second rounding is right.
func fma(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	bits := math.Float64bits(s)
	if bits&0x0fffffff != 0 {
		return float32(s)
	}
	t := s - p
	err := (p - (s - t)) + (z - t)
	switch {
	case err == 0 || err != err:
	case err > 0 == (s > 0):
		bits |= 1
	default:
		bits--
	}
	return float32(math.Float64frombits(bits))
}
