package ptx

// members guards an instruction of the lanes that row in.e names: exactly these run it together. On a GPU, others
// make it hang, or its result undefined.
func members(f exec) exec {
	return func(w *warp, in *instr, m uint32) {
		named, alive := w.narrow(in.e), w.alive
		for r := m; r != 0; r &= r - 1 {
			if missing := named[lowest(r)]&alive ^ m; missing != 0 {
				w.fail(lowest(missing), ErrDivergence)
				return
			}
		}
		f(w, in, m)
	}
}

// alike is true of a row with the same number in all lanes.
func alike(x *[lanes]uint32) bool {
	var other uint32
	for _, y := range x {
		other |= y ^ x[0]
	}
	return other == 0
}

// decodeShuffle reads shfl.sync. c holds a clamp in bits 0-4 and a mask of what divides the warp in bits 8-12 (PTX
// ISA, "shfl.sync").
func decodeShuffle(a *assembly) {
	a.must("sync")
	mode := a.must("up", "down", "bfly", "idx")[0]
	t := a.typ("b32")
	if !a.count(5) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], types["u32"])
	a.src(&a.in.c, a.ops[3], types["u32"])
	a.src(&a.in.e, a.ops[4], types["u32"])
	d, p := a.ops[0], a.ops[0]
	d.second, p.name, p.second = "", d.second, ""
	p.name = a.ops[0].second
	inRange := int32(sink)
	if p.name != "" && p.name != "_" {
		a.dst(&inRange, p, types["pred"])
	}
	a.dst(&a.in.d, d, t)
	a.in.flow = flowCheck
	a.in.exec = members(func(w *warp, in *instr, m uint32) {
		d, src := w.narrow(in.d), *w.narrow(in.a)
		b, c := w.narrow(in.b), w.narrow(in.c)
		if mode == 'b' && m == all && alike(b) && alike(c) && c[0] == lanes-1 { // most are: a sum over a warp
			by := int(b[0])
			for i := range d {
				d[i] = src[(i^by)&(lanes-1)]
			}
			if inRange != sink {
				w.setPredicate(inRange, m, all)
			}
			return
		}
		var valid uint32
		for r := m; r != 0; r &= r - 1 {
			lane := int32(lowest(r))
			by, clamp, segment := int32(b[lane]&31), int32(c[lane]&31), int32(c[lane]>>8&31)
			last := lane&segment | clamp&^segment
			first := lane & segment
			var from int32
			var ok bool
			switch mode {
			case 'u':
				from = lane - by
				ok = from >= last
			case 'd':
				from = lane + by
				ok = from <= last
			case 'b':
				from = lane ^ by
				ok = from <= last
			case 'i':
				from = first | by&^segment
				ok = from <= last
			}
			if !ok {
				from = lane
			} else {
				valid |= 1 << lane
			}
			if !hasBit(m, int(from)) { // the value of a lane that does not take part is undefined
				w.fail(int(from), ErrDivergence)
				return
			}
			d[lane] = src[from&(lanes-1)]
		}
		if inRange != sink {
			w.setPredicate(inRange, m, valid)
		}
	})
}

// decodeVote reads vote.sync: what the lanes say together about a predicate.
func decodeVote(a *assembly) {
	a.must("sync")
	mode := a.must("ballot", "any", "all", "uni")
	result := types["pred"]
	if mode == "ballot" {
		result = a.typ("b32")
	} else {
		a.must("pred")
	}
	if !a.count(3) {
		return
	}
	a.predicate(&a.in.a, a.ops[1])
	a.src(&a.in.e, a.ops[2], types["u32"])
	a.dst(&a.in.d, a.ops[0], result)
	a.in.flow = flowCheck
	a.in.exec = members(func(w *warp, in *instr, m uint32) {
		v := w.predicate(in.a) & m
		var holds bool
		switch mode {
		case "ballot":
			for d := w.narrow(in.d); m != 0; m &= m - 1 {
				d[lowest(m)] = v
			}
			return
		case "any":
			holds = v != 0
		case "all":
			holds = v == m
		case "uni":
			holds = v == m || v == 0
		}
		mask := uint32(0)
		if holds {
			mask = all
		}
		w.setPredicate(in.d, m, mask)
	})
}

// decodeRedux reads redux.sync: one reduction over the lanes, given to each.
func decodeRedux(a *assembly) {
	a.must("sync")
	op := a.must("add", "min", "max", "and", "or", "xor")
	var t typ
	switch op {
	case "add", "min", "max":
		t = a.typ("u32", "s32")
	default:
		t = a.typ("b32")
	}
	if !a.count(3) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.e, a.ops[2], types["u32"])
	a.dst(&a.in.d, a.ops[0], t)
	a.in.flow = flowCheck
	f := atomically(op, t, sharedSpace)
	a.in.exec = members(func(w *warp, in *instr, m uint32) {
		src := w.narrow(in.a)
		v := uint64(src[lowest(m)])
		for r := m & (m - 1); r != 0; r &= r - 1 {
			v = f(v, uint64(src[lowest(r)]), 0)
		}
		for d := w.narrow(in.d); m != 0; m &= m - 1 {
			d[lowest(m)] = uint32(v)
		}
	})
}

// decodeMatch reads match.any.sync: the lanes that have the same value.
func decodeMatch(a *assembly) {
	a.must("any")
	a.must("sync")
	t := a.typ("b32", "b64")
	if !a.count(3) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.e, a.ops[2], types["u32"])
	a.dst(&a.in.d, a.ops[0], types["b32"])
	a.in.flow = flowCheck
	value := func(w *warp, in *instr, i int) uint64 {
		if t.bits == 64 {
			return w.wide(in.a)[i]
		}
		return uint64(w.narrow(in.a)[i])
	}
	a.in.exec = members(func(w *warp, in *instr, m uint32) {
		var same [lanes]uint32
		for r := m; r != 0; r &= r - 1 {
			for s := m; s != 0; s &= s - 1 {
				if value(w, in, lowest(r)) == value(w, in, lowest(s)) {
					same[lowest(r)] |= 1 << lowest(s)
				}
			}
		}
		for d := w.narrow(in.d); m != 0; m &= m - 1 {
			d[lowest(m)] = same[lowest(m)]
		}
	})
}

func decodeActiveMask(a *assembly) {
	t := a.typ("b32")
	if a.count(1) {
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = func(w *warp, in *instr, m uint32) {
			d := w.narrow(in.d)
			for r := m; r != 0; r &= r - 1 {
				d[lowest(r)] = m
			}
		}
	}
}
