package ptx

var comparisons = []string{"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
	"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}

// A comparison gives a bit per lane.
type comparison func(w *warp, in *instr) uint32

func compare[U word](f func(x, y U) bool) comparison {
	return func(w *warp, in *instr) uint32 {
		a, b := row[U](w, in.a), row[U](w, in.b)
		var v uint32
		for i := range a {
			if f(a[i], b[i]) {
				v |= 1 << i
			}
		}
		return v
	}
}

// ordered is a comparison of numbers by its name; u and n say what it is of NaN and of numbers.
func order(op string, less, equal bool) bool {
	switch op[:2] {
	case "eq":
		return equal
	case "ne":
		return !equal
	case "lt", "lo":
		return less
	case "le", "ls":
		return less || equal
	case "gt", "hi":
		return !less && !equal
	}
	return !less // ge, hs
}

// integerComparison is for integers and untyped bits, of which only eq and ne make sense.
func integerComparison[U word, S int32 | int64](op string, t typ, narrow func(U) U) func(x, y U) bool {
	// Comparisons that kernels spend time in
	switch {
	case op == "eq" && t.bits >= 32:
		return func(x, y U) bool { return x == y }
	case op == "lt" && t.kind == signed && t.bits >= 32:
		return func(x, y U) bool { return S(x) < S(y) }
	}
	isSigned := t.kind == signed && op[0] != 'h' && op != "lo" && op != "ls"
	return func(x, y U) bool {
		x, y = narrow(x), narrow(y)
		if isSigned {
			return order(op, S(x) < S(y), x == y)
		}
		return order(op, x < y, x == y)
	}
}

func floatComparison(op string) func(x, y float64) bool {
	return func(x, y float64) bool {
		isNaN := x != x || y != y
		switch {
		case op == "num":
			return !isNaN
		case op == "nan":
			return isNaN
		case isNaN:
			return len(op) == 3
		}
		return order(op, x < y, x == y)
	}
}

// comparison takes an instruction's comparison, boolean operator, .ftz and type. boolean is "" if the instruction has
// no boolean operator.
func (a *assembly) comparison(before func()) (c comparison, boolean string, t typ) {
	op := a.must(comparisons...)
	boolean = a.mod("and", "or", "xor")
	ftz := a.mod("ftz") != ""
	before()
	t = a.typ("s32", "u32", "s64", "u64", "s16", "u16", "b16", "b32", "b64", "f32", "f64", "f16", "bf16")
	switch {
	case t.isFloat() && len(op) == 2 && (op[0] == 'h' || op == "lo" || op == "ls"),
		!t.isFloat() && len(op) == 3,
		t.kind == bitsKind && op != "eq" && op != "ne",
		t.kind == signed && (op[0] == 'h' || op == "lo" || op == "ls"),
		ftz && t.name != "f32" && t.name != "f16":
		a.fail("a comparison .%s of .%s is not supported", op, t.name)
	}
	switch {
	case t.name == "f32":
		f := floatComparison(op)
		p := polish{ftz: ftz}
		c = compare(func(x, y uint32) bool { return f(float64(f32(p.in(x))), float64(f32(p.in(y)))) })
	case t.name == "f64":
		f := floatComparison(op)
		c = compare(func(x, y uint64) bool { return f(f64(x), f64(y)) })
	case t.isFloat():
		f := floatComparison(op)
		h := half{t, polish{ftz: ftz}}
		c = compare(func(x, y uint32) bool { return f(h.value(x), h.value(y)) })
	case op == "lt" && t.name == "s32": // the end of most loops and masks
		c = func(w *warp, in *instr) uint32 {
			a, b := w.narrow(in.a), w.narrow(in.b)
			var v uint32
			for i := range a {
				v |= uint32((int64(int32(a[i]))-int64(int32(b[i])))>>63) & (1 << i)
			}
			return v
		}
	case t.bits == 64:
		c = compare(integerComparison[uint64, int64](op, t, func(x uint64) uint64 { return x }))
	case t.bits == 16:
		c = compare(integerComparison[uint32, int32](op, t, func(x uint32) uint32 { return extend16(t, x) }))
	default:
		c = compare(integerComparison[uint32, int32](op, t, func(x uint32) uint32 { return x }))
	}
	return c, boolean, t
}

// combine applies a boolean operator to masks.
func combine(op string, x, y uint32) uint32 {
	switch op {
	case "and":
		return x & y
	case "or":
		return x | y
	case "xor":
		return x ^ y
	}
	return x
}

// decodeSetp: p = (a op b) bool c, and q = !(a op b) bool c.
func decodeSetp(a *assembly) {
	c, boolean, t := a.comparison(func() {})
	n := 3
	if boolean != "" {
		n = 4
	}
	if !a.count(n) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	if boolean != "" {
		a.predicate(&a.in.c, a.ops[3])
	}
	p, q := a.ops[0], a.ops[0]
	p.second, q.name, q.second = "", p.second, ""
	a.in.d, a.in.e = sink, sink
	if p.name != "_" {
		a.dst(&a.in.d, p, types["pred"])
	}
	if q.name != "" && q.name != "_" {
		a.dst(&a.in.e, q, types["pred"])
	}
	a.in.exec = func(w *warp, in *instr, m uint32) {
		v := c(w, in)
		third := uint32(0)
		if boolean != "" {
			third = w.predicate(in.c)
		}
		if in.d != sink {
			w.setPredicate(in.d, m, combine(boolean, v, third))
		}
		if in.e != sink {
			w.setPredicate(in.e, m, combine(boolean, ^v, third))
		}
	}
}

// decodeSet: a word with all bits set, or 1.0, where the comparison holds.
func decodeSet(a *assembly) {
	var d typ
	c, boolean, t := a.comparison(func() { d = a.typ("u32", "s32", "f32") })
	n := 3
	if boolean != "" {
		n = 4
	}
	if !a.count(n) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	if boolean != "" {
		a.predicate(&a.in.c, a.ops[3])
	}
	a.dst(&a.in.d, a.ops[0], d)
	yes := ^uint32(0)
	if d.kind == float {
		yes = 0x3f800000
	}
	a.in.exec = func(w *warp, in *instr, m uint32) {
		v := c(w, in)
		if boolean != "" {
			v = combine(boolean, v, w.predicate(in.c))
		}
		d := w.narrow(in.d)
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			d[i] = yes & -(v >> i & 1)
		}
	}
}

func decodeSelp(a *assembly) {
	t := a.typ("b32", "b64", "b16", "u32", "u64", "u16", "s32", "s64", "s16", "f32", "f64")
	if !a.count(4) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.predicate(&a.in.c, a.ops[3])
	a.dst(&a.in.d, a.ops[0], t)
	a.in.exec = selp[uint32]
	if t.bits == 64 {
		a.in.exec = selp[uint64]
	}
}

func selp[U word](w *warp, in *instr, m uint32) {
	d, a, b := row[U](w, in.d), row[U](w, in.a), row[U](w, in.b)
	p := w.predicate(in.c)
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		if p>>i&1 != 0 {
			d[i] = a[i]
		} else {
			d[i] = b[i]
		}
	}
}
