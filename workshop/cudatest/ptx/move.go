package ptx

// decodeMov reads copies, and the packing {a, b} of parts of a register.
func decodeMov(a *assembly) {
	t := a.typ("b32", "b64", "b16", "pred", "u32", "u64", "u16", "s32", "s64", "s16", "f32", "f64")
	if !a.count(2) {
		return
	}
	switch {
	case t.bits == 1:
		a.predicate(&a.in.a, a.ops[1])
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = func(w *warp, in *instr, m uint32) { w.setPredicate(in.d, m, w.predicate(in.a)) }
	case a.ops[0].what == vectorOperand && a.ops[1].what == vectorOperand:
		a.fail("a vector to a vector")
	case a.ops[0].what == vectorOperand:
		part, ok := a.part(t, a.ops[0])
		if !ok {
			return
		}
		a.src(&a.in.a, a.ops[1], t)
		a.in.v = a.written(a.ops[0], len(a.ops[0].elems), part)
		a.in.exec = unpack(t, part)
	case a.ops[1].what == vectorOperand:
		part, ok := a.part(t, a.ops[1])
		if !ok {
			return
		}
		a.in.v = a.read(a.ops[1], len(a.ops[1].elems), part)
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = pack(t, part)
	case t.bits == 64:
		a.unary(t, mov[uint64])
	default:
		a.unary(t, mov[uint32])
	}
}

// part is the type of a vector's elements that make up a t.
func (a *assembly) part(t typ, o operand) (typ, bool) {
	name := map[int]string{8: "b8", 16: "b16", 32: "b32"}[t.bits/len(o.elems)]
	part, ok := types[name]
	if !ok || part.bits*len(o.elems) != t.bits || part.bits == 8 {
		a.fail("%d elements of .%s are not supported", len(o.elems), t.name)
		return typ{}, false
	}
	return part, true
}

func mov[U word](w *warp, in *instr, m uint32) {
	d, a := row[U](w, in.d), row[U](w, in.a)
	if m == all {
		*d = *a
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = a[i]
	}
}

func unpack(t, part typ) exec {
	if t.bits == 32 {
		return func(w *warp, in *instr, m uint32) {
			a := w.narrow(in.a)
			for e, r := range in.v {
				if r == sink {
					continue
				}
				d := w.narrow(r)
				if m == all {
					for i, x := range a {
						d[i] = x >> (16 * e & 31) & 0xffff
					}
					continue
				}
				for rest := m; rest != 0; rest &= rest - 1 {
					i := lowest(rest)
					d[i] = a[i] >> (16 * e) & 0xffff
				}
			}
		}
	}
	if t.bits == 64 && part.bits == 32 {
		return func(w *warp, in *instr, m uint32) {
			a := w.wide(in.a)
			for e, r := range in.v {
				if r == sink {
					continue
				}
				d := w.narrow(r)
				if m == all {
					for i, x := range a {
						d[i] = uint32(x >> (32 * e & 63))
					}
					continue
				}
				for rest := m; rest != 0; rest &= rest - 1 {
					i := lowest(rest)
					d[i] = uint32(a[i] >> (32 * e))
				}
			}
		}
	}
	return func(w *warp, in *instr, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			var x uint64
			if t.bits == 64 {
				x = w.wide(in.a)[i]
			} else {
				x = uint64(w.narrow(in.a)[i])
			}
			for e, r := range in.v {
				if r != sink {
					w.narrow(r)[i] = uint32(x>>(e*part.bits)) & uint32(1<<part.bits-1)
				}
			}
		}
	}
}

func pack(t, part typ) exec {
	if n := t.bits / part.bits; n == 2 && t.bits == 32 {
		return func(w *warp, in *instr, m uint32) {
			d, low, high := w.narrow(in.d), w.narrow(in.v[0]), w.narrow(in.v[1])
			for ; m != 0; m &= m - 1 {
				i := lowest(m)
				d[i] = low[i]&0xffff | high[i]<<16
			}
		}
	} else if n == 2 {
		return func(w *warp, in *instr, m uint32) {
			d, low, high := w.wide(in.d), w.narrow(in.v[0]), w.narrow(in.v[1])
			for ; m != 0; m &= m - 1 {
				i := lowest(m)
				d[i] = uint64(low[i]) | uint64(high[i])<<32
			}
		}
	}
	return func(w *warp, in *instr, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			var x uint64
			for e, r := range in.v {
				x |= uint64(w.narrow(r)[i]) & (1<<part.bits - 1) << (e * part.bits)
			}
			if t.bits == 64 {
				w.wide(in.d)[i] = x
			} else {
				w.narrow(in.d)[i] = uint32(x)
			}
		}
	}
}

// decodeConvertAddress reads cvta and cvta.to, which turn addresses of a space into generic ones and back.
func decodeConvertAddress(a *assembly) {
	isTo := a.mod("to") != ""
	where := spaces[a.must("global", "shared", "local", "const")]
	t := a.typ("u64")
	window := where.window()
	if isTo {
		window = -window
	}
	a.unary(t, map1(func(x uint64) uint64 { return x + window }))
}
