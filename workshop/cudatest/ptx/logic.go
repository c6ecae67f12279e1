package ptx

import (
	"math/bits"
)

func decodeLogic(a *assembly) {
	op := a.in.op[:len(a.in.op)-len(joined(a.mods))]
	t := a.typ("pred", "b16", "b32", "b64")
	if t.bits == 1 {
		if !a.count(3) {
			return
		}
		a.predicate(&a.in.a, a.ops[1])
		a.predicate(&a.in.b, a.ops[2])
		a.dst(&a.in.d, a.ops[0], t)
		f := map[string]func(x, y uint32) uint32{
			"and": func(x, y uint32) uint32 { return x & y },
			"or":  func(x, y uint32) uint32 { return x | y },
			"xor": func(x, y uint32) uint32 { return x ^ y },
		}[op]
		a.in.exec = func(w *warp, in *instr, m uint32) {
			w.setPredicate(in.d, m, f(w.predicate(in.a), w.predicate(in.b)))
		}
		return
	}
	switch op {
	case "and":
		a.binary(t, bitwise(t, func(x, y uint32) uint32 { return x & y }, func(x, y uint64) uint64 { return x & y }))
	case "or":
		a.binary(t, bitwise(t, func(x, y uint32) uint32 { return x | y }, func(x, y uint64) uint64 { return x | y }))
	case "xor":
		a.binary(t, bitwise(t, func(x, y uint32) uint32 { return x ^ y }, func(x, y uint64) uint64 { return x ^ y }))
	}
}

func bitwise(t typ, f func(x, y uint32) uint32, g func(x, y uint64) uint64) exec {
	if t.bits == 64 {
		return map2(g)
	}
	return map2(f)
}

func decodeNot(a *assembly) {
	t := a.typ("pred", "b16", "b32", "b64")
	switch t.bits {
	case 1:
		if a.count(2) {
			a.predicate(&a.in.a, a.ops[1])
			a.dst(&a.in.d, a.ops[0], t)
			a.in.exec = func(w *warp, in *instr, m uint32) { w.setPredicate(in.d, m, ^w.predicate(in.a)) }
		}
	case 64:
		a.unary(t, map1(func(x uint64) uint64 { return ^x }))
	default:
		mask := uint32(1<<t.bits - 1)
		a.unary(t, map1(func(x uint32) uint32 { return ^x & mask }))
	}
}

func decodeCnot(a *assembly) {
	t := a.typ("b16", "b32", "b64")
	if t.bits == 64 {
		a.unary(t, map1(isZero[uint64]))
		return
	}
	a.unary(t, map1(isZero[uint32]))
}

func isZero[U word](x U) U {
	if x == 0 {
		return 1
	}
	return 0
}

// decodeLop3: bit i of the table, where i has a bit each of a, b and c.
func decodeLop3(a *assembly) {
	t := a.typ("b32")
	table, ok := a.immediate(4, 5, 0xff)
	if !ok {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], t)
	a.dst(&a.in.d, a.ops[0], t)
	a.in.exec = map3(func(x, y, z uint32) uint32 {
		var d uint32
		for i := range uint32(8) {
			if table>>i&1 == 1 {
				d |= ^(x ^ -(i >> 2)) & ^(y ^ -(i >> 1 & 1)) & ^(z ^ -(i & 1))
			}
		}
		return d
	})
}

// immediate is operand i, which has to be a number up to limit, of count operands.
func (a *assembly) immediate(i, count int, limit uint64) (uint64, bool) {
	if !a.count(count) {
		return 0, false
	}
	o := a.ops[i]
	if o.what != numberOperand || o.size != 0 || o.bits > limit {
		a.fail("operand %d has to be a number up to %d", i+1, limit)
		return 0, false
	}
	return o.bits, true
}

// decodeShift: amounts of the width or more shift everything out.
func decodeShift(a *assembly) {
	isLeft := a.in.op[:3] == "shl"
	var t typ
	if isLeft {
		t = a.typ("b32", "b64", "b16")
	} else {
		t = a.typ("b32", "b64", "b16", "u32", "u64", "u16", "s32", "s64", "s16")
	}
	if !a.count(3) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], types["u32"])
	a.dst(&a.in.d, a.ops[0], t)
	switch {
	case isLeft && t.bits == 64:
		a.in.exec = map2(func(x uint64, n uint32) uint64 { return x << n })
	case isLeft && t.bits == 32:
		a.in.exec = map2(func(x, n uint32) uint32 { return x << n })
	case isLeft:
		a.in.exec = map2(func(x, n uint32) uint32 { return x << n & 0xffff })
	case t.bits == 64 && t.kind == signed:
		a.in.exec = map2(func(x uint64, n uint32) uint64 { return uint64(int64(x) >> n) })
	case t.bits == 64:
		a.in.exec = map2(func(x uint64, n uint32) uint64 { return x >> n })
	case t.bits == 32 && t.kind == signed:
		a.in.exec = map2(func(x, n uint32) uint32 { return uint32(int32(x) >> n) })
	case t.kind == signed:
		a.in.exec = map2(func(x, n uint32) uint32 { return uint32(int32(int16(x))>>n) & 0xffff })
	case t.bits == 16:
		a.in.exec = map2(func(x, n uint32) uint32 { return x & 0xffff >> n })
	default:
		a.in.exec = map2(func(x, n uint32) uint32 { return x >> n })
	}
}

// decodeFunnel: shf shifts the 64 bits b:a and keeps the upper (.l) or lower (.r) half.
func decodeFunnel(a *assembly) {
	isLeft := a.must("l", "r") == "l"
	clamps := a.must("clamp", "wrap") == "clamp"
	t := a.typ("b32")
	if !a.count(4) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], types["u32"])
	a.dst(&a.in.d, a.ops[0], t)
	a.in.exec = map3(func(x, y, n uint32) uint32 {
		if clamps {
			n = min(n, 32)
		} else {
			n &= 31
		}
		both := uint64(y)<<32 | uint64(x)
		if isLeft {
			return uint32(both << n >> 32)
		}
		return uint32(both >> n)
	})
}

// decodePermute: each nibble of the selector picks one of the eight bytes of b:a, or its sign.
func decodePermute(a *assembly) {
	t := a.typ("b32")
	mode := a.mod("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
	if !a.count(4) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], t)
	a.dst(&a.in.d, a.ops[0], t)
	a.in.exec = map3(func(x, y, selector uint32) uint32 {
		both := uint64(y)<<32 | uint64(x)
		s := selector & 3
		var d uint32
		for i := range uint32(4) {
			var pick uint32
			switch mode {
			case "":
				pick = selector >> (4 * i) & 15
			case "f4e":
				pick = s + i
			case "b4e":
				pick = (s - i) & 7
			case "rc8":
				pick = s
			case "ecl":
				pick = max(s, i)
			case "ecr":
				pick = min(s, i)
			case "rc16":
				pick = s&1<<1 + i&1
			}
			byt := uint32(both>>(8*(pick&7))) & 0xff
			if pick&8 != 0 {
				byt = -(byt >> 7) & 0xff
			}
			d |= byt << (8 * i)
		}
		return d
	})
}

// decodeBits reads popc, clz and brev.
func decodeBits(a *assembly) {
	op := a.in.op[:len(a.in.op)-len(joined(a.mods))]
	t := a.typ("b32", "b64")
	if !a.count(2) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	if op == "brev" {
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = map1(bits.Reverse32)
		if t.bits == 64 {
			a.in.exec = map1(bits.Reverse64)
		}
		return
	}
	a.dst(&a.in.d, a.ops[0], types["u32"])
	switch {
	case op == "popc" && t.bits == 64:
		a.in.exec = map1(func(x uint64) uint32 { return uint32(bits.OnesCount64(x)) })
	case op == "popc":
		a.in.exec = map1(func(x uint32) uint32 { return uint32(bits.OnesCount32(x)) })
	case t.bits == 64:
		a.in.exec = map1(func(x uint64) uint32 { return uint32(bits.LeadingZeros64(x)) })
	default:
		a.in.exec = map1(func(x uint32) uint32 { return uint32(bits.LeadingZeros32(x)) })
	}
}

// decodeFind: the place of the highest bit that differs from the sign; all bits set if no bit differs.
func decodeFind(a *assembly) {
	isShift := a.mod("shiftamt") != ""
	t := a.typ("u32", "s32", "u64", "s64")
	if !a.count(2) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.dst(&a.in.d, a.ops[0], types["u32"])
	find := func(x uint64, width int) uint32 {
		n := bits.Len64(x) - 1
		if n < 0 {
			return ^uint32(0)
		}
		if isShift {
			n = width - 1 - n
		}
		return uint32(n)
	}
	if t.bits == 64 {
		a.in.exec = map1(func(x uint64) uint32 {
			if t.kind == signed && int64(x) < 0 {
				x = ^x
			}
			return find(x, 64)
		})
		return
	}
	a.in.exec = map1(func(x uint32) uint32 {
		if t.kind == signed && int32(x) < 0 {
			x = ^x
		}
		return find(uint64(x), 32)
	})
}

// decodeExtract: bfe takes c bits of a from bit b on; a signed field is extended by its highest bit, or that of a
// where it ends beyond.
func decodeExtract(a *assembly) {
	t := a.typ("u32", "s32", "u64", "s64")
	if !a.count(4) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], types["u32"])
	a.src(&a.in.c, a.ops[3], types["u32"])
	a.dst(&a.in.d, a.ops[0], t)
	if t.bits == 64 {
		a.in.exec = map3(func(x uint64, pos, n uint32) uint64 { return extract(t, x, pos&0xff, n&0xff) })
		return
	}
	a.in.exec = map3(func(x, pos, n uint32) uint32 { return uint32(extract(t, uint64(x), pos&0xff, n&0xff)) })
}

func extract(t typ, x uint64, pos, n uint32) uint64 {
	msb := uint32(t.bits - 1)
	var sign uint64
	if t.kind == signed && n > 0 {
		sign = x >> min(pos+n-1, msb) & 1
	}
	field := x >> pos
	if n < 64 {
		field &= 1<<n - 1
	}
	if sign == 1 { // bits of the field beyond the register, and all above the field
		known := min(n, max(msb+1, pos)-pos)
		field |= ^uint64(0) << known
	}
	return field
}

// decodeInsert: bfi puts the low d bits of a into b from bit c on.
func decodeInsert(a *assembly) {
	t := a.typ("b32", "b64")
	if !a.count(5) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], types["u32"])
	a.src(&a.in.e, a.ops[4], types["u32"])
	a.dst(&a.in.d, a.ops[0], t)
	insert := func(x, y uint64, pos, n uint32) uint64 {
		mask := ^uint64(0)
		if n < 64 {
			mask = 1<<n - 1
		}
		return y&^(mask<<pos) | x&mask<<pos
	}
	a.in.exec = func(w *warp, in *instr, m uint32) {
		pos, n := w.narrow(in.c), w.narrow(in.e)
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			if t.bits == 64 {
				w.wide(in.d)[i] = insert(w.wide(in.a)[i], w.wide(in.b)[i], pos[i]&0xff, n[i]&0xff)
			} else {
				w.narrow(in.d)[i] = uint32(insert(uint64(w.narrow(in.a)[i]), uint64(w.narrow(in.b)[i]), pos[i]&0xff, n[i]&0xff))
			}
		}
	}
}
