package ptx

import "math"

// Bits of the NaN that arithmetic on each format gives (PTX ISA, "floating-point instructions": canonical NaN).
const (
	nan32 = 0x7fffffff
	nan16 = 0x7fff // of f16 and of bf16
	nan64 = 0x7ff8000000000000
)

// A format is a binary floating-point format of up to 32 bits.
type format struct {
	mantissa int // bits that are stored
	exponent int // bits
}

var (
	formatF16  = format{10, 5}
	formatBF16 = format{7, 8}
	formatF32  = format{23, 8}
	formatTF32 = format{10, 8} // stored in the upper 19 bits of 32
)

// A rounding is a direction: to nearest even (n), to nearest with ties away (a), toward zero (z), down (m), up (p).
type rounding byte

// round gives x in a format. x has to be exact or rounded to odd, so that rounding it again is right.
func (f format) round(x float64, r rounding) uint32 {
	sign := uint64(0)
	if math.Signbit(x) {
		sign = 1 << (f.mantissa + f.exponent)
	}
	infinity := (uint64(1)<<f.exponent - 1) << f.mantissa
	a := math.Abs(x)
	switch {
	case x != x:
		return uint32(infinity | (1<<f.mantissa - 1))
	case a == 0:
		return uint32(sign)
	case math.IsInf(a, 0):
		return uint32(sign | infinity)
	}
	bias := 1<<(f.exponent-1) - 1
	_, e := math.Frexp(a) // a = fraction * 2^e, fraction in [1/2, 1)
	e = max(e-1, 1-bias)
	scaled := math.Ldexp(a, f.mantissa-e) // in units of the last place, below 2^(mantissa+1)
	floor := math.Floor(scaled)
	rest := scaled - floor
	n := uint64(floor)
	var up bool
	switch r {
	case 'n':
		up = rest > 0.5 || rest == 0.5 && n&1 == 1
	case 'a':
		up = rest >= 0.5
	case 'm':
		up = rest > 0 && sign != 0
	case 'p':
		up = rest > 0 && sign == 0
	}
	if up {
		n++
	}
	// A carry out of the mantissa continues into the exponent, as it should.
	if n >= 1<<f.mantissa {
		n += uint64(e+bias-1) << f.mantissa
	}
	if n >= infinity {
		n = infinity
		if r == 'z' || r == 'm' && sign == 0 || r == 'p' && sign != 0 {
			n--
		}
	}
	return uint32(sign | n)
}

// value is the number that bits of a format stand for.
func (f format) value(b uint32) float64 {
	bias := 1<<(f.exponent-1) - 1
	n := int64(b & (1<<f.mantissa - 1))
	e := int(b>>f.mantissa) & (1<<f.exponent - 1)
	var x float64
	switch {
	case e == 1<<f.exponent-1 && n != 0:
		return math.NaN()
	case e == 1<<f.exponent-1:
		x = math.Inf(1)
	case e == 0:
		x = math.Ldexp(float64(n), 1-bias-f.mantissa)
	default:
		x = math.Ldexp(float64(n|1<<f.mantissa), e-bias-f.mantissa)
	}
	if b>>(f.mantissa+f.exponent)&1 != 0 {
		x = math.Copysign(x, -1)
	}
	return x
}

// sum is a + b rounded to odd: if the sum is not exact, the neighbour whose last bit is 1. Rounding that to a format
// of at most 51 bits in any direction is rounding the sum itself (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", 2008).
func sum(a, b float64) float64 {
	s := a + b
	if math.IsInf(s, 0) || s != s {
		return s
	}
	t := s - a
	rest := (a - (s - t)) + (b - t) // exact: Knuth's two-sum
	bits := math.Float64bits(s)
	if rest == 0 || bits&1 == 1 {
		return s
	}
	if (rest > 0) == (s > 0) {
		return math.Float64frombits(bits + 1)
	}
	return math.Float64frombits(bits - 1)
}

// directed is the sum rounded to odd, with the zero that rounding down makes of x - x.
func directed(a, b float64, r rounding) float64 {
	s := sum(a, b)
	if s == 0 && r == 'm' && (a != 0 || math.Signbit(a) != math.Signbit(b)) {
		return math.Copysign(0, -1)
	}
	return s
}

// fma32 is a*b + c, rounded once to nearest even. The product of two float32 is exact in float64. Rounding the
// float64 sum again goes wrong only if it is a tie of float32 or if the result is subnormal.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	if s := p + float64(c); settles(s) {
		return float32(s)
	}
	return math.Float32frombits(formatF32.round(sum(p, float64(c)), 'n'))
}

// settles reports whether rounding a sum in float64 to float32 is rounding the exact sum.
func settles(s float64) bool {
	u := math.Float64bits(s)
	return u&(1<<29-1) != 1<<28 && u<<1 >= 0x3810000000000000<<1 || s == 0
}

func f32(b uint32) float32 { return math.Float32frombits(b) }

// bits32 is the bits of an arithmetic result.
func bits32(x float32) uint32 {
	if x != x {
		return nan32
	}
	return math.Float32bits(x)
}

func f64(b uint64) float64 { return math.Float64frombits(b) }

func bits64(x float64) uint64 {
	if x != x {
		return nan64
	}
	return math.Float64bits(x)
}

// flush makes a subnormal a zero of its sign (.ftz).
func flush(b uint32) uint32 {
	if b&0x7f800000 == 0 {
		return b & 0x80000000
	}
	return b
}

// saturate clamps to [0, 1]; NaN becomes 0 (.sat).
func saturate(b uint32) uint32 {
	switch x := f32(b); {
	case x >= 1:
		return 0x3f800000
	case x > 0:
		return b
	}
	return 0
}

// f16 is the value of the low 16 bits.
func f16(b uint32) float64 { return formatF16.value(b & 0xffff) }
