package ptx

import (
	"math/bits"
)

type exec = func(*warp, *instr, uint32)

var integers = []string{"s32", "u32", "s64", "u64", "s16", "u16"}

// binary sets an instruction with two sources and a destination of one type.
func (a *assembly) binary(t typ, f exec) {
	if a.count(3) {
		a.src(&a.in.a, a.ops[1], t)
		a.src(&a.in.b, a.ops[2], t)
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = f
	}
}

// unary sets an instruction with one source and a destination of one type.
func (a *assembly) unary(t typ, f exec) {
	if a.count(2) {
		a.src(&a.in.a, a.ops[1], t)
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = f
	}
}

// integer2 runs f32 or f64 by the size of an integer type. 16-bit values are extended before and cut after.
func integer2(t typ, f func(a, b uint32) uint32, g func(a, b uint64) uint64) exec {
	switch {
	case t.bits == 64:
		return map2(g)
	case t.bits == 16:
		return map2(func(a, b uint32) uint32 { return f(extend16(t, a), extend16(t, b)) & 0xffff })
	}
	return map2(f)
}

func extend16(t typ, a uint32) uint32 {
	if t.kind == signed {
		return uint32(int32(int16(a)))
	}
	return a & 0xffff
}

func decodeArithmetic(a *assembly) {
	isSub := a.in.op[:3] == "sub"
	if len(a.mods) > 0 && a.mods[0] == "cc" {
		decodeCarry(a)
		return
	}
	if t, ok := types[a.last()]; !ok || t.isFloat() { // float.go
		decodeFloatArithmetic(a)
		return
	}
	if len(a.mods) == 2 && a.mods[0] == "sat" {
		a.mods = a.mods[1:]
		t := a.typ("s32")
		a.binary(t, map2(func(x, y uint32) uint32 {
			s := int64(int32(x)) + int64(int32(y))
			if isSub {
				s = int64(int32(x)) - int64(int32(y))
			}
			return uint32(max(-1<<31, min(s, 1<<31-1)))
		}))
		return
	}
	t := a.typ(integers...)
	switch {
	case isSub:
		a.binary(t, integer2(t, func(x, y uint32) uint32 { return x - y }, func(x, y uint64) uint64 { return x - y }))
	case t.bits == 32:
		a.binary(t, add32)
	case t.bits == 64:
		a.binary(t, add64)
	default:
		a.binary(t, integer2(t, func(x, y uint32) uint32 { return x + y }, nil))
	}
}

// last is the last modifier, which is the type of most instructions.
func (a *assembly) last() string {
	if len(a.mods) == 0 {
		return ""
	}
	return a.mods[len(a.mods)-1]
}

func add32(w *warp, in *instr, m uint32) {
	d, a, b := w.narrow(in.d), w.narrow(in.a), w.narrow(in.b)
	if m == all {
		for i := range d {
			d[i] = a[i] + b[i]
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = a[i] + b[i]
	}
}

func add64(w *warp, in *instr, m uint32) {
	d, a, b := w.wide(in.d), w.wide(in.a), w.wide(in.b)
	if m == all {
		for i := range d {
			d[i] = a[i] + b[i]
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = a[i] + b[i]
	}
}

// decodeCarry reads add.cc, addc, addc.cc, sub.cc, subc and subc.cc. After a subtraction, CC.CF is the borrow.
func decodeCarry(a *assembly) {
	op := a.in.op[:3]
	takes := a.in.op[3] == 'c'
	gives := a.mod("cc") != ""
	t := a.typ("u32", "s32", "b32", "u64", "s64", "b64")
	step := func(w *warp, i int, x, y uint64) uint64 {
		c := uint64(0)
		if takes {
			c = uint64(w.carry >> i & 1)
		}
		r := x + y + c
		out := r >> 32 & 1
		if t.bits == 64 {
			r, out = bits.Add64(x, y, c)
		}
		if op == "sub" {
			r = x - y - c
			out = r >> 32 & 1
			if t.bits == 64 {
				r, out = bits.Sub64(x, y, c)
			}
		}
		if gives {
			w.carry = w.carry&^(1<<i) | uint32(out)<<i
		}
		return r
	}
	a.binary(t, func(w *warp, in *instr, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			if t.bits == 64 {
				w.wide(in.d)[i] = step(w, i, w.wide(in.a)[i], w.wide(in.b)[i])
			} else {
				w.narrow(in.d)[i] = uint32(step(w, i, uint64(w.narrow(in.a)[i]), uint64(w.narrow(in.b)[i])))
			}
		}
	})
}

// high is the upper half of a product.
func high32(t typ) func(x, y uint32) uint32 {
	if t.kind == signed {
		return func(x, y uint32) uint32 { return uint32(int64(int32(x)) * int64(int32(y)) >> 32) }
	}
	return func(x, y uint32) uint32 { return uint32(uint64(x) * uint64(y) >> 32) }
}

func high64(t typ) func(x, y uint64) uint64 {
	return func(x, y uint64) uint64 {
		h, _ := bits.Mul64(x, y)
		if t.kind == signed { // x = unsigned x - 2^64 where it is negative
			if int64(x) < 0 {
				h -= y
			}
			if int64(y) < 0 {
				h -= x
			}
		}
		return h
	}
}

// double is the type of a full product.
func double(t typ) typ {
	return types[map[string]string{"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}[t.name]]
}

// widen is a 16- or 32-bit source as 64 bits.
func widen(t typ, x uint32) uint64 {
	switch {
	case t.bits == 16:
		return uint64(int64(int32(extend16(t, x))))
	case t.kind == signed:
		return uint64(int64(int32(x)))
	}
	return uint64(x)
}

func decodeMultiply(a *assembly) {
	if t, ok := types[a.last()]; !ok || t.isFloat() {
		decodeFloatArithmetic(a)
		return
	}
	switch a.must("lo", "hi", "wide") {
	case "lo":
		t := a.typ(integers...)
		a.binary(t, integer2(t, func(x, y uint32) uint32 { return x * y }, func(x, y uint64) uint64 { return x * y }))
	case "hi":
		t := a.typ("s32", "u32", "s64", "u64")
		a.binary(t, integer2(t, high32(t), high64(t)))
	case "wide":
		t := a.typ("s32", "u32", "s16", "u16")
		if !a.count(3) {
			return
		}
		a.src(&a.in.a, a.ops[1], t)
		a.src(&a.in.b, a.ops[2], t)
		a.dst(&a.in.d, a.ops[0], double(t))
		a.in.exec = map2(func(x, y uint32) uint64 { return widen(t, x) * widen(t, y) })
		if t.bits == 16 {
			a.in.exec = map2(func(x, y uint32) uint32 { return uint32(widen(t, x) * widen(t, y)) })
		}
	}
}

// decodeMultiplyAdd reads mad and madc of integers, with and without .cc, and mad of floats, which is fma.
func decodeMultiplyAdd(a *assembly) {
	if t, ok := types[a.last()]; ok && t.isFloat() {
		decodeFMA(a)
		return
	}
	takes := a.in.op[3] == 'c'
	half := a.must("lo", "hi", "wide")
	gives := a.mod("cc") != ""
	t := a.typ("s32", "u32", "s64", "u64", "s16", "u16")
	if !a.count(4) {
		return
	}
	sum := t
	if half == "wide" {
		if sum = double(t); sum.bits == 0 {
			a.fail("type .%s has no wide product", t.name)
			return
		}
	}
	if (takes || gives) && (half == "wide" || t.bits == 16) || t.bits == 16 && half == "hi" {
		a.fail("this combination of modifiers is not supported")
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], sum)
	a.dst(&a.in.d, a.ops[0], sum)
	mul32, mul64 := func(x, y uint32) uint32 { return x * y }, func(x, y uint64) uint64 { return x * y }
	if half == "hi" {
		mul32, mul64 = high32(t), high64(t)
	}
	switch {
	case takes || gives:
		a.in.exec = func(w *warp, in *instr, m uint32) {
			for ; m != 0; m &= m - 1 {
				i := lowest(m)
				c := uint64(0)
				if takes {
					c = uint64(w.carry >> i & 1)
				}
				var out uint64
				if t.bits == 64 {
					w.wide(in.d)[i], out = bits.Add64(mul64(w.wide(in.a)[i], w.wide(in.b)[i]), w.wide(in.c)[i], c)
				} else {
					var s, o uint32
					s, o = bits.Add32(mul32(w.narrow(in.a)[i], w.narrow(in.b)[i]), w.narrow(in.c)[i], uint32(c))
					w.narrow(in.d)[i], out = s, uint64(o)
				}
				if gives {
					w.carry = w.carry&^(1<<i) | uint32(out)<<i
				}
			}
		}
	case half == "wide" && t.bits == 32:
		a.in.exec = map3(func(x, y uint32, z uint64) uint64 { return widen(t, x)*widen(t, y) + z })
	case half == "wide":
		a.in.exec = map3(func(x, y, z uint32) uint32 { return uint32(widen(t, x)*widen(t, y)) + z })
	case t.bits == 64:
		a.in.exec = map3(func(x, y, z uint64) uint64 { return mul64(x, y) + z })
	case t.bits == 16:
		a.in.exec = map3(func(x, y, z uint32) uint32 { return (x*y + z) & 0xffff })
	default:
		a.in.exec = map3(func(x, y, z uint32) uint32 { return mul32(x, y) + z })
	}
}

// Division by zero has no defined result; on a GPU all bits of the quotient are set, and the remainder is the dividend.

func divide[U word, S int32 | int64](isSigned bool) func(x, y U) U {
	return func(x, y U) U {
		switch {
		case y == 0:
			return ^U(0)
		case isSigned:
			return U(S(x) / S(y))
		}
		return x / y
	}
}

func remainder[U word, S int32 | int64](isSigned bool) func(x, y U) U {
	return func(x, y U) U {
		switch {
		case y == 0:
			return x
		case isSigned:
			return U(S(x) % S(y))
		}
		return x % y
	}
}

func decodeDivide(a *assembly) {
	if t, ok := types[a.last()]; !ok || t.isFloat() {
		decodeFloatDivide(a)
		return
	}
	t := a.typ(integers...)
	s := t.kind == signed
	a.binary(t, integer2(t, divide[uint32, int32](s), divide[uint64, int64](s)))
}

func decodeRemainder(a *assembly) {
	t := a.typ(integers...)
	s := t.kind == signed
	a.binary(t, integer2(t, remainder[uint32, int32](s), remainder[uint64, int64](s)))
}

// decodeMinMax reads min and max. Of s32, a .relu makes a negative result 0; sm_90 has it.
func decodeMinMax(a *assembly) {
	if t, ok := types[a.last()]; !ok || t.isFloat() {
		decodeFloatMinMax(a)
		return
	}
	isMin := a.in.op[:3] == "min"
	if a.mod("relu") != "" {
		a.binary(a.typ("s32"), integer2(types["s32"], func(x, y uint32) uint32 {
			if isMin {
				return uint32(max(min(int32(x), int32(y)), 0))
			}
			return uint32(max(int32(x), int32(y), 0))
		}, nil))
		return
	}
	t := a.typ(integers...)
	less32, less64 := less[uint32, int32](t.kind == signed), less[uint64, int64](t.kind == signed)
	a.binary(t, integer2(t,
		func(x, y uint32) uint32 {
			if less32(x, y) == isMin {
				return x
			}
			return y
		},
		func(x, y uint64) uint64 {
			if less64(x, y) == isMin {
				return x
			}
			return y
		}))
}

func less[U word, S int32 | int64](isSigned bool) func(x, y U) bool {
	return func(x, y U) bool {
		if isSigned {
			return S(x) < S(y)
		}
		return x < y
	}
}

func decodeNegate(a *assembly) {
	if t, ok := types[a.last()]; !ok || t.isFloat() {
		decodeFloatSign(a)
		return
	}
	t := a.typ("s32", "s64", "s16")
	switch t.bits {
	case 64:
		a.unary(t, map1(func(x uint64) uint64 { return -x }))
	case 32:
		a.unary(t, map1(func(x uint32) uint32 { return -x }))
	default:
		a.unary(t, map1(func(x uint32) uint32 { return -x & 0xffff }))
	}
}

func decodeAbs(a *assembly) {
	if t, ok := types[a.last()]; !ok || t.isFloat() {
		decodeFloatSign(a)
		return
	}
	t := a.typ("s32", "s64", "s16")
	if t.bits == 64 {
		a.unary(t, map1(func(x uint64) uint64 { return uint64(max(int64(x), -int64(x))) }))
		return
	}
	a.unary(t, map1(func(x uint32) uint32 {
		if t.bits == 16 {
			x = extend16(t, x)
		}
		if int32(x) < 0 {
			x = -x
		}
		if t.bits == 16 {
			x &= 0xffff
		}
		return x
	}))
}

func decodeSad(a *assembly) {
	t := a.typ("s32", "u32")
	if a.count(4) {
		a.src(&a.in.a, a.ops[1], t)
		a.src(&a.in.b, a.ops[2], t)
		a.src(&a.in.c, a.ops[3], t)
		a.dst(&a.in.d, a.ops[0], t)
		less := less[uint32, int32](t.kind == signed)
		a.in.exec = map3(func(x, y, z uint32) uint32 {
			if less(x, y) {
				x, y = y, x
			}
			return x - y + z
		})
	}
}
