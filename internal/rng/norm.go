package rng

import "math"

// NormFloat32 is normally distributed with mean 0 and standard deviation 1. One 32-bit value is spent per number, so the
// tails end at 6.3 standard deviations.
//
// Method: the inverse of the normal distribution at the middle of one of 2^32 equal intervals.
func (s *Source) NormFloat32() float32 {
	const scale = 1.0 / (1 << 32)
	return float32(quantile((float64(s.Uint32()) + 0.5) * scale))
}

// quantile is the inverse of the normal distribution function, for 0 < p < 1, to about seven digits.
//
// Source: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988),
// routine PPND7.
func quantile(p float64) float64 {
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return q * horner(r, 3.3871327179, 50.434271938, 159.29113202, 59.109374720) /
			horner(r, 1, 17.895169469, 78.757757664, 67.187563600)
	}
	tail := p
	if q > 0 {
		tail = 1 - p
	}
	r := math.Sqrt(-log(tail))
	var x float64
	if r <= 5 {
		r -= 1.6
		x = horner(r, 1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103) /
			horner(r, 1, 0.73700164250, 0.12021132975, 0)
	} else {
		r -= 5
		x = horner(r, 6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997) /
			horner(r, 1, 0.24197894225, 0.012258202635, 0)
	}
	return math.Copysign(x, q)
}

// horner is a + bx + cx^2 + dx^3 with a rounding after every product and every sum.
func horner(x, a, b, c, d float64) float64 {
	y := float64(d*x) + c
	y = float64(y*x) + b
	return float64(y*x) + a
}

// log is the natural logarithm of a positive normal number. math.Log is not used: it is assembly on some platforms and
// fused differently on others, so its last bit is no promise.
//
// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(z) with z = (m-1)/(m+1), |z| <= 0.1716, by its series.
func log(x float64) float64 {
	m, e := math.Frexp(x) // exact
	if m < math.Sqrt2/2 {
		m, e = m*2, e-1
	}
	z := (m - 1) / (m + 1)
	zz := float64(z * z)
	sum := 0.0
	for k := 19; k >= 1; k -= 2 { // 0.1716^21 is below the last bit
		sum = float64(sum*zz) + 1/float64(k)
	}
	return float64(float64(e)*math.Ln2) + float64(2*float64(z*sum))
}
