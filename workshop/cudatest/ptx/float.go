package ptx

import (
	"math"
)

var directions = []string{"rn", "rz", "rm", "rp"}

// rounding takes a rounding modifier; stated is false if the instruction has no modifier, which means to nearest even.
func (a *assembly) rounding() (r rounding, stated bool) {
	if m := a.mod(directions...); m != "" {
		return rounding(m[1]), true
	}
	return 'n', false
}

// A polish applies modifiers to the operands and the result of an operation on f32.
type polish struct{ ftz, sat, relu bool }

func (a *assembly) polish() polish {
	var p polish
	p.ftz = a.mod("ftz") != ""
	p.sat = a.mod("sat") != ""
	p.relu = !p.sat && a.mod("relu") != ""
	return p
}

func (p polish) in(b uint32) uint32 {
	if p.ftz {
		return flush(b)
	}
	return b
}

func (p polish) out(b uint32) uint32 {
	if p.ftz {
		b = flush(b)
	}
	if p.sat {
		b = saturate(b)
	}
	return b
}

func (p polish) none() bool { return !p.ftz && !p.sat && !p.relu }

func (p polish) unary(f func(x uint32) uint32) exec {
	if p.none() {
		return map1(f)
	}
	return map1(func(x uint32) uint32 { return p.out(f(p.in(x))) })
}

func (p polish) binary(f func(x, y uint32) uint32) exec {
	if p.none() {
		return map2(f)
	}
	return map2(func(x, y uint32) uint32 { return p.out(f(p.in(x), p.in(y))) })
}

// decodeFloatArithmetic reads add, sub and mul.
func decodeFloatArithmetic(a *assembly) {
	op := a.in.op[:3]
	r, stated := a.rounding()
	p := a.polish()
	t := a.typ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
	if p.relu || p.sat && t.kind == brain || (p.ftz || p.sat) && t.bits == 64 || r != 'n' && t.name != "f32" {
		a.fail("this combination of modifiers is not supported")
		return
	}
	if !stated {
		a.noteProduct(op, t)
	}
	switch {
	case t.bits == 64:
		a.binary(t, map2(map[string]func(x, y uint64) uint64{
			"add": func(x, y uint64) uint64 { return bits64(f64(x) + f64(y)) },
			"sub": func(x, y uint64) uint64 { return bits64(f64(x) - f64(y)) },
			"mul": func(x, y uint64) uint64 { return bits64(f64(x) * f64(y)) },
		}[op]))
	case t.name == "f32" && r != 'n':
		a.binary(t, p.binary(map[string]func(x, y uint32) uint32{
			"add": func(x, y uint32) uint32 { return formatF32.round(directed(float64(f32(x)), float64(f32(y)), r), r) },
			"sub": func(x, y uint32) uint32 { return formatF32.round(directed(float64(f32(x)), -float64(f32(y)), r), r) },
			"mul": func(x, y uint32) uint32 { return formatF32.round(float64(f32(x))*float64(f32(y)), r) },
		}[op]))
	case t.name == "f32" && p.none():
		a.binary(t, map[string]exec{"add": addF32, "sub": subF32, "mul": mulF32}[op])
	case t.name == "f32":
		a.binary(t, p.binary(map[string]func(x, y uint32) uint32{
			"add": func(x, y uint32) uint32 { return bits32(f32(x) + f32(y)) },
			"sub": func(x, y uint32) uint32 { return bits32(f32(x) - f32(y)) },
			"mul": func(x, y uint32) uint32 { return bits32(f32(x) * f32(y)) },
		}[op]))
	default:
		h := half{t, p}
		f := map[string]func(x, y, z float64) float64{
			"add": func(x, y, _ float64) float64 { return sum(x, y) },
			"sub": func(x, y, _ float64) float64 { return sum(x, -y) },
			"mul": func(x, y, _ float64) float64 { return x * y }, // of 11 bits each: exact
		}[op]
		a.binary(t, map2(func(x, y uint32) uint32 { return h.apply(f, x, y, 0) }))
	}
}

func addF32(w *warp, in *instr, m uint32) {
	d, a, b := w.narrow(in.d), w.narrow(in.a), w.narrow(in.b)
	if m == all {
		for i := range d {
			d[i] = bits32(f32(a[i]) + f32(b[i]))
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = bits32(f32(a[i]) + f32(b[i]))
	}
}

func subF32(w *warp, in *instr, m uint32) {
	d, a, b := w.narrow(in.d), w.narrow(in.a), w.narrow(in.b)
	if m == all {
		for i := range d {
			d[i] = bits32(f32(a[i]) - f32(b[i]))
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = bits32(f32(a[i]) - f32(b[i]))
	}
}

func mulF32(w *warp, in *instr, m uint32) {
	d, a, b := w.narrow(in.d), w.narrow(in.a), w.narrow(in.b)
	if m == all {
		for i := range d {
			d[i] = bits32(f32(a[i]) * f32(b[i]))
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = bits32(f32(a[i]) * f32(b[i]))
	}
}

func fmaF32(w *warp, in *instr, m uint32) {
	d, a, b, c := w.narrow(in.d), w.narrow(in.a), w.narrow(in.b), w.narrow(in.c)
	if m == all {
		for i := range d {
			p := float64(f32(a[i])) * float64(f32(b[i]))
			if s := p + float64(f32(c[i])); settles(s) {
				d[i] = bits32(float32(s))
			} else {
				d[i] = formatF32.round(sum(p, float64(f32(c[i]))), 'n')
			}
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		i := lowest(m)
		d[i] = bits32(fma32(f32(a[i]), f32(b[i]), f32(c[i])))
	}
}

// decodeFMA reads fma, and mad of floats, which is the same (PTX ISA, "mad").
func decodeFMA(a *assembly) {
	r := rounding(a.must(directions...)[1])
	p := a.polish()
	t := a.typ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
	if p.relu && t.bits >= 32 && t.lanes == 1 || p.sat && t.kind == brain || (p.ftz || p.sat) && t.bits == 64 ||
		p.ftz && t.kind == brain || r != 'n' && t.name != "f32" {
		a.fail("this combination of modifiers is not supported")
	}
	if !a.count(4) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.src(&a.in.b, a.ops[2], t)
	a.src(&a.in.c, a.ops[3], t)
	a.dst(&a.in.d, a.ops[0], t)
	switch {
	case t.bits == 64:
		a.in.exec = map3(func(x, y, z uint64) uint64 { return bits64(math.FMA(f64(x), f64(y), f64(z))) })
	case t.name == "f32" && r == 'n' && p.none():
		a.in.exec = fmaF32
	case t.name == "f32" && r == 'n':
		a.in.exec = map3(func(x, y, z uint32) uint32 {
			return p.out(bits32(fma32(f32(p.in(x)), f32(p.in(y)), f32(p.in(z)))))
		})
	case t.name == "f32":
		a.in.exec = map3(func(x, y, z uint32) uint32 {
			product := float64(f32(p.in(x))) * float64(f32(p.in(y)))
			return p.out(formatF32.round(directed(product, float64(f32(p.in(z))), r), r))
		})
	default:
		h := half{t, p}
		f := func(x, y, z float64) float64 { return sum(float64(x*y), z) }
		a.in.exec = map3(func(x, y, z uint32) uint32 { return h.apply(f, x, y, z) })
	}
}

// A half is arithmetic on one or two 16-bit floats in a register, each operation rounded once.
type half struct {
	t typ
	p polish
}

func (h half) apply(f func(x, y, z float64) float64, x, y, z uint32) uint32 {
	d := h.one(f, x, y, z)
	if h.t.lanes == 2 {
		d |= h.one(f, x>>16, y>>16, z>>16) << 16
	}
	return d
}

func (h half) format() format {
	if h.t.kind == brain {
		return formatBF16
	}
	return formatF16
}

// flush makes a subnormal a zero of its sign.
func (h half) flush(b uint32) uint32 {
	f := h.format()
	if h.p.ftz && b>>f.mantissa&(1<<f.exponent-1) == 0 {
		return b & 0x8000
	}
	return b & 0xffff
}

func (h half) value(b uint32) float64 { return h.format().value(h.flush(b)) }

func (h half) one(f func(x, y, z float64) float64, x, y, z uint32) uint32 {
	d := h.flush(h.format().round(f(h.value(x), h.value(y), h.value(z)), 'n'))
	v := h.value(d)
	switch {
	case h.p.relu && v < 0, h.p.relu && v == 0, h.p.sat && !(v > 0):
		return 0
	case h.p.sat && v > 1:
		return h.format().round(1, 'n')
	}
	return d
}

// decodeFloatMinMax reads min and max: of a number and NaN they give the number, with .NaN they give NaN; -0 is below
// +0.
func decodeFloatMinMax(a *assembly) {
	isMin := a.in.op[:3] == "min"
	p := polish{ftz: a.mod("ftz") != ""}
	propagates := a.mod("NaN") != ""
	t := a.typ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
	choose := func(x, y float64) float64 {
		switch {
		case propagates && (x != x || y != y):
			return math.NaN()
		case x != x:
			return y
		case y != y:
			return x
		case isMin:
			return math.Min(x, y)
		}
		return math.Max(x, y)
	}
	switch {
	case t.bits == 64:
		if p.ftz || propagates {
			a.fail("this combination of modifiers is not supported")
		}
		a.binary(t, map2(func(x, y uint64) uint64 { return bits64(choose(f64(x), f64(y))) }))
	case t.name == "f32":
		a.binary(t, p.binary(func(x, y uint32) uint32 {
			u, v := f32(x), f32(y)
			switch {
			case u < v == isMin && u != v && u == u && v == v:
				return x
			case u > v == isMin && u != v && u == u && v == v:
				return y
			}
			return bits32(float32(choose(float64(u), float64(v))))
		}))
	default:
		h := half{t, p}
		a.binary(t, map2(func(x, y uint32) uint32 {
			return h.apply(func(x, y, _ float64) float64 { return choose(x, y) }, x, y, 0)
		}))
	}
}

// decodeFloatSign reads neg and abs, which change the sign bit only.
func decodeFloatSign(a *assembly) {
	isNeg := a.in.op[:3] == "neg"
	p := polish{ftz: a.mod("ftz") != ""}
	t := a.typ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
	if t.bits == 64 {
		if p.ftz {
			a.fail("modifier .ftz is not supported")
		}
		a.unary(t, map1(func(x uint64) uint64 {
			if isNeg {
				return x ^ 1<<63
			}
			return x &^ (1 << 63)
		}))
		return
	}
	sign := uint32(1) << (t.bits - 1)
	if t.lanes == 2 {
		sign = 0x80008000
	}
	if p.ftz && t.name != "f32" {
		a.fail("modifier .ftz is not supported")
	}
	a.unary(t, p.unary(func(x uint32) uint32 {
		if isNeg {
			return x ^ sign
		}
		return x &^ sign
	}))
}

func decodeFloatDivide(a *assembly) {
	how := a.must("rn", "full", "approx")
	p := polish{ftz: a.mod("ftz") != ""}
	t := a.typ("f32", "f64")
	if t.bits == 64 {
		if how != "rn" || p.ftz {
			a.fail("this combination of modifiers is not supported")
		}
		a.binary(t, map2(func(x, y uint64) uint64 { return bits64(f64(x) / f64(y)) }))
		return
	}
	a.binary(t, p.binary(func(x, y uint32) uint32 {
		u, v := f32(x), f32(y)
		if size := math.Abs(float64(v)); how == "approx" && size > 0x1p126 && size < 0x1p128 {
			v = float32(math.Copysign(math.Inf(1), float64(v))) // so the ISA has it
		}
		return bits32(u / v)
	}))
}

// decodeFunction reads functions of one float: exact ones (.rn), and approximations, computed in float64 and rounded.
func decodeFunction(a *assembly) {
	op := a.in.op[:len(a.in.op)-len(joined(a.mods))]
	var how string
	switch op {
	case "rcp", "sqrt":
		how = a.must("rn", "approx")
	default:
		how = a.must("approx")
	}
	p := polish{ftz: op != "tanh" && a.mod("ftz") != ""}
	if how == "rn" && a.last() == "f64" && !p.ftz {
		t := a.typ("f64")
		a.unary(t, map1(func(x uint64) uint64 {
			if op == "rcp" {
				return bits64(1 / f64(x))
			}
			return bits64(math.Sqrt(f64(x)))
		}))
		return
	}
	t := a.typ("f32")
	var f func(x float64) float64
	switch op {
	case "rcp":
		a.unary(t, p.unary(func(x uint32) uint32 { return bits32(1 / f32(x)) }))
		return
	case "sqrt":
		a.unary(t, p.unary(func(x uint32) uint32 { return bits32(float32(math.Sqrt(float64(f32(x))))) }))
		return
	case "rsqrt":
		f = func(x float64) float64 { return 1 / math.Sqrt(x) }
	case "sin":
		f = math.Sin
	case "cos":
		f = math.Cos
	case "lg2":
		f = math.Log2
	case "ex2":
		f = math.Exp2
	case "tanh":
		f = math.Tanh
	}
	a.unary(t, p.unary(func(x uint32) uint32 { return bits32(float32(f(float64(f32(x))))) }))
}

// joined is modifiers as they are written.
func joined(mods []string) string {
	s := ""
	for _, m := range mods {
		s += "." + m
	}
	return s
}

// decodeCopysign: the sign of a, the size of b.
func decodeCopysign(a *assembly) {
	t := a.typ("f32", "f64")
	if t.bits == 64 {
		a.binary(t, map2(func(x, y uint64) uint64 { return x&(1<<63) | y&^(1<<63) }))
		return
	}
	a.binary(t, map2(func(x, y uint32) uint32 { return x&(1<<31) | y&^(1<<31) }))
}

func decodeTestp(a *assembly) {
	what := a.must("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	t := a.typ("f32", "f64")
	least := 0x1p-126
	if t.bits == 64 {
		least = 0x1p-1022
	}
	test := func(x float64) bool {
		switch what {
		case "finite":
			return !math.IsInf(x, 0) && x == x
		case "infinite":
			return math.IsInf(x, 0)
		case "number":
			return x == x
		case "notanumber":
			return x != x
		case "normal":
			return math.Abs(x) >= least && !math.IsInf(x, 0)
		}
		return x != 0 && math.Abs(x) < least
	}
	if !a.count(2) {
		return
	}
	a.src(&a.in.a, a.ops[1], t)
	a.dst(&a.in.d, a.ops[0], types["pred"])
	a.in.exec = func(w *warp, in *instr, m uint32) {
		var v uint32
		for i := range lanes {
			x := 0.0
			if t.bits == 64 {
				x = f64(w.wide(in.a)[i])
			} else {
				x = float64(f32(w.narrow(in.a)[i]))
			}
			if test(x) {
				v |= 1 << i
			}
		}
		w.setPredicate(in.d, m, v)
	}
}
