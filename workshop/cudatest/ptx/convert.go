package ptx

import "math"

// decodeConvert reads cvt. A destination wider than its type is filled with zeros, or with the sign of a signed type.
func decodeConvert(a *assembly) {
	r := byte(0)     // of a result that is a float
	whole := byte(0) // to a whole number
	switch m := a.mod("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"); {
	case m == "rna":
		r = 'a'
	case len(m) == 3:
		whole = m[1]
	case m != "":
		r = m[1]
	}
	p := polish{ftz: a.mod("ftz") != ""}
	p.sat = a.mod("sat") != ""
	p.relu = !p.sat && a.mod("relu") != ""
	names := []string{"s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f32", "f64", "f16", "bf16", "tf32", "f16x2",
		"bf16x2"}
	d := a.typ(names...)
	s := a.typ(names...)
	isFloat := d.isFloat()
	illegal := false
	switch {
	case d.lanes == 2 || d.name == "tf32":
		illegal = s.name != "f32" || r == 0 || d.name == "tf32" && (r != 'a' && r != 'n') || d.lanes == 2 && r == 'a'
	case s.lanes == 2 || s.name == "tf32" || r == 'a':
		illegal = true
	case d.isFloat() && s.isFloat() && d.bits < s.bits, d.isFloat() && s.isInteger():
		illegal = r == 0 || whole != 0
	case d.isInteger() && s.isFloat():
		illegal = whole == 0
	case d.isInteger():
		illegal = r != 0 || whole != 0
	case d.name == s.name:
		illegal = r != 0
	default: // to a wider float, or between f16 and bf16
		illegal = whole != 0 || (d.bits == s.bits) != (r != 0)
	}
	if illegal || p.relu && (!isFloat || d.bits == 64) || p.ftz && s.name != "f32" && d.name != "f32" ||
		r != 0 && r != 'n' && d.bits == 64 && isFloat {
		a.fail("this combination of modifiers is not supported")
		return
	}
	if d.lanes == 2 {
		if !a.count(3) {
			return
		}
		a.src(&a.in.a, a.ops[1], s)
		a.src(&a.in.b, a.ops[2], s)
		a.dst(&a.in.d, a.ops[0], types["b32"])
		if d.name == "bf16x2" && r == 'n' && p.none() {
			a.in.exec = map2(func(x, y uint32) uint32 { return brainBits(x)<<16 | brainBits(y) })
			return
		}
		to := toFloat(d, rounding(r), p)
		a.in.exec = map2(func(x, y uint32) uint32 {
			return uint32(to(float64(f32(p.in(x))))<<16 | to(float64(f32(p.in(y)))))
		})
		return
	}
	if !a.count(2) {
		return
	}
	from := a.srcWider(&a.in.a, a.ops[1], s)
	to := a.dstWider(&a.in.d, a.ops[0], d)
	if s.isFloat() && from != s.bits || isFloat && to != d.bits {
		a.fail("a float in a register of another size")
	}
	if a.err != nil {
		return
	}
	var f func(x uint64) uint64
	switch {
	case s.isInteger() && d.isInteger():
		f = integerToInteger(s, d, p.sat, to)
	case s.isInteger():
		f = integerToFloat(s, d, rounding(r), p)
	case d.isInteger():
		f = floatToInteger(s, d, whole, p, to)
	default:
		f = floatToFloat(s, d, rounding(r), whole, p)
	}
	switch { // what kernels spend time in
	case s.name == "bf16" && d.name == "f32" && p.none() && whole == 0:
		a.in.exec = map1(func(x uint32) uint32 { return bits32(f32(x << 16)) })
		return
	case s.name == "f32" && d.name == "bf16" && r == 'n' && p.none():
		a.in.exec = map1(brainBits)
		return
	case s.name == "s32" && d.name == "f32" && r == 'n' && p.none() && from == 32:
		a.in.exec = map1(func(x uint32) uint32 { return bits32(float32(int32(x))) })
		return
	}
	switch {
	case s.bits == 32 && from == 32 && d.bits == 64 && s.isInteger() && d.isInteger() && !p.sat: // addresses, mostly
		a.in.exec = map1(func(x uint32) uint64 { return widen(s, x) })
	case from == 64 && d.bits == 32 && to == 32 && s.isInteger() && d.isInteger() && !p.sat:
		a.in.exec = map1(func(x uint64) uint32 { return uint32(x) })
	case from == 64 && to == 64:
		a.in.exec = map1(f)
	case from == 64:
		a.in.exec = map1(func(x uint64) uint32 { return uint32(f(x)) })
	case to == 64:
		a.in.exec = map1(func(x uint32) uint64 { return f(uint64(x)) })
	default:
		a.in.exec = map1(func(x uint32) uint32 { return uint32(f(uint64(x))) })
	}
}

// brainBits rounds the bits of a float32 to those of a bf16, to nearest even: the sum carries where half of the last
// bit or more is cut off. formatBF16.round does the same, slowly.
func brainBits(x uint32) uint32 {
	if x<<1 > 0xff000000 {
		return nan16
	}
	return (x + 0x7fff + x>>16&1) >> 16
}

// extend gives the low bits of x as 64 bits.
func extend(t typ, x uint64) uint64 {
	shift := 64 - t.bits
	if t.kind == signed {
		return uint64(int64(x<<shift) >> shift)
	}
	return x << shift >> shift
}

// fill cuts an extended value to a register.
func fill(x uint64, registerBits int) uint64 {
	if registerBits < 64 {
		return x & (1<<registerBits - 1)
	}
	return x
}

func integerToInteger(s, d typ, sat bool, registerBits int) func(uint64) uint64 {
	return func(x uint64) uint64 {
		x = extend(s, x)
		if sat {
			x = clamp(s, d, x)
		}
		return fill(extend(d, x), registerBits)
	}
}

// clamp moves an integer of type s into the range of d.
func clamp(s, d typ, x uint64) uint64 {
	most, least := uint64(1)<<(d.bits-1)-1, -(int64(1) << (d.bits - 1))
	if d.kind == unsigned {
		most, least = most*2+1, 0
	}
	switch {
	case s.kind == signed && int64(x) < least:
		return uint64(least)
	case (s.kind == unsigned || int64(x) > 0) && x > most:
		return most
	}
	return x
}

func integerToFloat(s, d typ, r rounding, p polish) func(uint64) uint64 {
	to := toFloat(d, r, p)
	return func(x uint64) uint64 {
		x = extend(s, x)
		negative := s.kind == signed && int64(x) < 0
		if negative {
			x = -x
		}
		if d.bits != 64 && x >= 1<<53 { // rounded to odd, for the rounding that follows
			if x&0x7ff != 0 {
				x |= 0x800
			}
			x &^= 0x7ff
		}
		v := float64(x)
		if negative {
			v = -v
		}
		return to(v)
	}
}

// toFloat gives a value in a float type. The value is exact or rounded to odd, or a float64 already.
func toFloat(d typ, r rounding, p polish) func(float64) uint64 {
	f := map[string]format{"f16": formatF16, "f16x2": formatF16, "bf16": formatBF16, "bf16x2": formatBF16,
		"f32": formatF32, "tf32": formatTF32}[d.name]
	if r == 0 {
		r = 'n'
	}
	return func(v float64) uint64 {
		if p.sat && !(v > 0) || p.relu && v <= 0 {
			v = 0
		}
		if p.sat && v > 1 {
			v = 1
		}
		switch {
		case d.name == "f64":
			return bits64(v)
		case d.name == "tf32":
			return uint64(f.round(v, r)) << 13
		case d.name == "f32" && r == 'n':
			return uint64(p.out(bits32(float32(v))))
		case d.name == "f32":
			return uint64(p.out(f.round(v, r)))
		}
		return uint64(f.round(v, r))
	}
}

// fromFloat gives the value of a float's bits.
func fromFloat(s typ, p polish) func(uint64) float64 {
	switch s.name {
	case "f64":
		return f64
	case "f32":
		return func(x uint64) float64 { return float64(f32(p.in(uint32(x)))) }
	case "f16":
		return func(x uint64) float64 { return formatF16.value(uint32(x) & 0xffff) }
	}
	return func(x uint64) float64 { return formatBF16.value(uint32(x) & 0xffff) }
}

func wholeNumber(x float64, how byte) float64 {
	switch how {
	case 'n':
		return math.RoundToEven(x)
	case 'z':
		return math.Trunc(x)
	case 'm':
		return math.Floor(x)
	case 'p':
		return math.Ceil(x)
	}
	return x
}

func floatToFloat(s, d typ, r rounding, whole byte, p polish) func(uint64) uint64 {
	from, to := fromFloat(s, p), toFloat(d, r, p)
	return func(x uint64) uint64 { return to(wholeNumber(from(x), whole)) }
}

// floatToInteger clamps. NaN becomes 0, or 2^63 where one of the types has 64 bits (PTX ISA, "cvt").
func floatToInteger(s, d typ, whole byte, p polish, registerBits int) func(uint64) uint64 {
	from := fromFloat(s, p)
	limit := math.Ldexp(1, d.bits-1)
	return func(x uint64) uint64 {
		v := wholeNumber(from(x), whole)
		var n uint64
		switch {
		case v != v:
			if s.bits == 64 || d.bits == 64 {
				n = 1 << (d.bits - 1)
			}
		case d.kind == unsigned && v <= 0:
		case d.kind == unsigned && v >= 2*limit:
			n = ^uint64(0) >> (64 - d.bits)
		case d.kind == unsigned && v >= 1<<63:
			n = uint64(v-1<<63) | 1<<63
		case d.kind == unsigned:
			n = uint64(v)
		case v >= limit:
			n = 1<<(d.bits-1) - 1
		case v < -limit:
			n = 1 << (d.bits - 1)
		default:
			n = uint64(int64(v))
		}
		return fill(extend(d, n), registerBits)
	}
}
