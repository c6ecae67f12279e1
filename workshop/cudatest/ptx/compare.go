package ptx

import "math/bits"

var comparisons = []string{"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
	"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}

// A comparison gives a bit per lane.
type comparison func(w *warp, in *instr) uint32

// A relation gives the lanes where a is less than b, where they are equal, and where one of them is NaN.
type relation func(w *warp, in *instr) (less, equal, nan uint32)

// is is the comparison of a name: u and n say what it is of NaN and of numbers.
func (r relation) is(op string) comparison {
	switch op {
	case "num", "nan":
		return func(w *warp, in *instr) uint32 {
			_, _, nan := r(w, in)
			if op == "num" {
				return ^nan
			}
			return nan
		}
	}
	order, unordered := op[:2], len(op) == 3
	return func(w *warp, in *instr) (v uint32) {
		less, equal, nan := r(w, in)
		switch order {
		case "eq":
			v = equal
		case "ne":
			v = ^equal
		case "lt", "lo":
			v = less
		case "le", "ls":
			v = less | equal
		case "gt", "hi":
			v = ^(less | equal)
		default: // ge, hs
			v = ^less
		}
		if unordered {
			return v | nan
		}
		return v &^ nan
	}
}

// related32 is for integers of 32 bits, and of 16 once they are extended; flip is the sign bit if they are signed.
func related32(flip uint32, extend func(uint32) uint32) relation {
	return func(w *warp, in *instr) (less, equal, nan uint32) {
		a, b := w.narrow(in.a), w.narrow(in.b)
		for i := range a {
			x, y := a[i], b[i]
			if extend != nil {
				x, y = extend(x), extend(y)
			}
			less |= uint32((uint64(x^flip)-uint64(y^flip))>>63) << i
			equal |= uint32((uint64(x^y)-1)>>63) << i
		}
		return less, equal, 0
	}
}

func related64(flip uint64) relation {
	return func(w *warp, in *instr) (less, equal, nan uint32) {
		a, b := w.wide(in.a), w.wide(in.b)
		for i := range a {
			_, below := bits.Sub64(a[i]^flip, b[i]^flip, 0)
			_, same := bits.Sub64(a[i]^b[i], 1, 0)
			less, equal = less|uint32(below)<<i, equal|uint32(same)<<i
		}
		return less, equal, 0
	}
}

// relatedFloats is for floats, of whose bits value makes the number.
func relatedFloats[U word, F float32 | float64](value func(U) F) relation {
	return func(w *warp, in *instr) (less, equal, nan uint32) {
		a, b := row[U](w, in.a), row[U](w, in.b)
		for i := range a {
			switch x, y := value(a[i]), value(b[i]); {
			case x < y:
				less |= 1 << i
			case x == y:
				equal |= 1 << i
			case x != x || y != y:
				nan |= 1 << i
			}
		}
		return less, equal, nan
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
	var r relation
	switch sign := uint64(1) << (max(t.bits, 32) - 1); {
	case t.name == "f32" && ftz:
		r = relatedFloats(func(x uint32) float32 { return f32(flush(x)) })
	case t.name == "f32":
		r = relatedFloats(f32)
	case t.name == "f64":
		r = relatedFloats(f64)
	case t.isFloat():
		r = relatedFloats(half{t, polish{ftz: ftz}}.value)
	case t.bits == 64 && t.kind == signed:
		r = related64(sign)
	case t.bits == 64:
		r = related64(0)
	case t.bits == 16:
		r = related32(uint32(sign), func(x uint32) uint32 { return extend16(t, x) })
	case t.kind == signed:
		r = related32(uint32(sign), nil)
	default:
		r = related32(0, nil)
	}
	if a.err != nil {
		return nil, boolean, t
	}
	return r.is(op), boolean, t
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
	if m == all {
		for i := range d {
			yes := -(U(p) >> i & 1)
			d[i] = a[i]&yes | b[i]&^yes
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		if p>>i&1 != 0 {
			d[i] = a[i]
		} else {
			d[i] = b[i]
		}
	}
}
