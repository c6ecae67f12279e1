package main

import (
	"fmt"
	"slices"
)

// The fields of kernels.AdamWScalars, in bytes.
const (
	clipScale = 4 * iota
	decay
	oneMinusBeta1
	beta2
	oneMinusBeta2
	stepSize
	sqrtBC2
	eps
)

var both = []dtype{f32, bf16}

// loops are all functions that there are for a width. The plain twin of each, in package kernels, says what it computes.
func loops(w width) []loop {
	var all []loop
	all = append(all, toBF16(), toF32(), split(), join())
	if w == ymm {
		// AVX2 has what a host with a GPU needs: optimizer, sums, rounding. And the exponential, which costs most of all.
		all = append(all, exps())
		for _, d := range both {
			all = append(all, sumLanes("sumSquares", d, true), addTo(d), addScaled(d))
		}
		return append(all, sumLanes("sum", f32, false), sumExpLanes())
	}
	all = append(all, adamw(unsplit, f32))
	for _, d := range both {
		all = append(all, adamw(split16, d), adamw(split24, d), sum64("sumSquares", d, true), add(d), addTo(d),
			scale(d), addScaled(d),
			normSquares(d), normApply(d), normDot(d), normGrad(d, false), normGrad(d, true), normWeight(d),
			rotate(d), swiglu(d), swigluGrad(d), geglu(d), gegluGrad(d), limited(d), limitedGrad(d), gate(d),
			gateGrad(d), expMul(d), expSum(d), dot(d), scoreGrad(d))
	}
	return append(all, sum64("sum", f32, false), maximum(), sumExp())
}

// update is the arithmetic of kernels.adamw. It takes p and the gradient, and frees the gradient.
func update(a *asm, p, g reg) {
	apply := func(f func(x, y reg), x reg, offset int) {
		y, done := a.field("s", offset)
		f(x, y)
		done()
	}
	apply(a.mul, g, clipScale)
	apply(a.mul, p, decay)
	m := a.loadMoment("m")
	t := a.copy(g)
	a.sub(t, m)
	apply(a.mul, t, oneMinusBeta1)
	a.add(m, t)
	a.free(t)
	a.flush(m)
	a.see(m, 0)
	v := a.loadMoment("v")
	apply(a.mul, v, beta2)
	t = a.copy(g)
	apply(a.mul, t, oneMinusBeta2)
	a.mul(t, g)
	a.add(v, t)
	a.free(t, g)
	a.flush(v)
	a.see(v, 1)
	root := a.take()
	a.f("VSQRTPS %s, %s", a.v(v), a.v(root))
	a.store(f32, v, "v")
	root = a.bySqrtBC2(root)
	apply(a.add, root, eps)
	t = a.copy(m)
	a.store(f32, m, "m")
	apply(a.mul, t, stepSize)
	a.div(t, root)
	a.sub(p, t)
	if a.move != nil {
		a.move(t)
	}
	a.free(t, root)
}

// see tells of a new moment.
func (a *asm) see(r reg, i int) {
	if a.moment != nil {
		a.moment(r, i)
	}
}

// counting is a loop that counts what is not finite and returns the number.
func counting(l loop, body func(a *asm, counter reg)) loop {
	var counter reg
	l.result = "int"
	l.start = func(a *asm) {
		counter = a.keep()
		a.zero(counter)
	}
	l.body = func(a *asm) { body(a, counter) }
	l.finish = func(a *asm) { a.total(counter) }
	return l
}

// tally is the result of an update. Twice the bits of a float, as a word without a sign, are in the order of
// magnitudes: loops keep the greatest of them, and the result is half of it.
const (
	tally      = "(ret int, longest uint32)"
	tallyBytes = 12
)

// double makes twice its bits of a float.
func (a *asm) double(r reg) { a.op("VPADDD", r, r) }

// longer puts the greater word of two into x.
func (a *asm) longer(x, y reg) {
	k := ""
	if a.masked {
		k = "K1, " // elements that do not exist may well be 0/0
	}
	a.f("VPMAXUD %s, %s, %s%s", a.v(y), a.v(x), k, a.v(x))
}

// longest writes half of a register's greatest word to the second result.
func (a *asm) longest(r reg) {
	fold := func(x, y string) { a.f("VPMAXUD %s, %s, %s", y, x, x) }
	if a.w == zmm {
		a.reduce(r, fold)
	} else {
		a.reduceHalf(r, fold)
	}
	a.f("VMOVD X%d, R13", r)
	a.f("SHRL $1, R13")
	a.f("MOVL R13, longest+%d(FP)", a.offset["ret"]+8)
}

// telling is a loop that counts what is not finite, and finds the longest move. AVX-512 only.
func telling(l loop, body func(a *asm, counter reg)) loop {
	l = counting(l, body)
	l.result, l.frame = tally, inverseBytes
	var longest reg
	start, finish := l.start, l.finish
	l.start = func(a *asm) {
		a.invert()
		start(a)
		longest = a.keep()
		a.zero(longest)
		a.move = func(r reg) {
			a.double(r)
			a.longer(longest, r)
		}
	}
	l.finish = func(a *asm) {
		finish(a)
		a.longest(longest)
	}
	return l
}

// passed are the arrays that an update with fp32 moments gets, in order.
func (m master) passed(d dtype) []string {
	names := append(namesOf(m.arrays), "m", "v", "grad")
	if m.name == split24.name {
		names = append(names, "words")
	}
	return names
}

func adamw(m master, d dtype) loop {
	l := loop{name: "adamw" + m.function(d), arrays: m.passed(d), params: "s *AdamWScalars"}
	fetched := append(slices.Clone(m.arrays), array{"m", 4}, array{"v", 4}, array{"grad", d.bytes()})
	return telling(l, fetching(m.body(d), fetched...))
}

// function is the end of names of updates: gradients of fp32 weights are in fp32.
func (m master) function(d dtype) string {
	if m.name == unsplit.name {
		return m.name
	}
	return m.name + string(d)
}

// body is the update of one vector.
func (m master) body(d dtype) func(a *asm, bad reg) {
	switch m.name {
	case unsplit.name:
		return adamwF32Body
	case split24.name:
		return func(a *asm, bad reg) {
			p, g := a.joinMaster24("hi", "lo"), a.load(d, "grad")
			update(a, p, g)
			a.splitMaster24(p, bad, "hi", "lo")
		}
	}
	return func(a *asm, bad reg) {
		p, g := a.joinMaster("hi", "lo"), a.load(d, "grad")
		update(a, p, g)
		a.splitMaster(p, bad, "hi", "lo")
	}
}

// fetching is a body that also fetches ahead.
func fetching(body func(a *asm, counter reg), arrays ...array) func(a *asm, counter reg) {
	return func(a *asm, counter reg) {
		body(a, counter)
		if !a.masked {
			a.fetch(arrays...)
		}
	}
}

func adamwF32Body(a *asm, bad reg) {
	p, g := a.load(f32, "p"), a.load(f32, "grad")
	update(a, p, g)
	a.countNotFinite(p, bad)
	a.store(f32, p, "p")
}

func toBF16() loop {
	return loop{name: "toBF16", arrays: []string{"dst", "src"}, body: func(a *asm) { a.store(bf16, a.load(f32, "src"), "dst") }}
}

func toF32() loop {
	return loop{name: "toF32", arrays: []string{"dst", "src"}, body: func(a *asm) { a.store(f32, a.load(bf16, "src"), "dst") }}
}

func split() loop {
	return counting(loop{name: "split", arrays: []string{"hi", "lo", "src"}}, func(a *asm, bad reg) {
		a.splitMaster(a.load(f32, "src"), bad, "hi", "lo")
	})
}

func join() loop {
	return loop{name: "join", arrays: []string{"dst", "hi", "lo"},
		body: func(a *asm) { a.store(f32, a.joinMaster("hi", "lo"), "dst") }}
}

// float64Part converts 4 (AVX2) or 8 (AVX-512) elements, number part of an iteration of 16, to float64.
func float64Part(a *asm, d dtype, part int) reg {
	r := a.take()
	n := int(a.w) / 2
	mem := fmt.Sprintf("%d(%s)(R12*%d)", part*n*d.bytes(), a.address["x"], d.bytes())
	z, k := "", ""
	if a.masked {
		z, k = ".Z", "K1, "
		if part == 1 {
			k = "K3, "
		}
	}
	narrow := "Y"
	if a.w == ymm {
		narrow = "X"
	}
	if d == f32 {
		a.f("VCVTPS2PD%s %s, %s%s", z, mem, k, a.v(r))
		return r
	}
	a.f("VPMOVZXWD%s %s, %s%s%d", z, mem, k, narrow, r)
	a.f("VPSLLD $16, %s%d, %s%d", narrow, r, narrow, r)
	a.f("VCVTPS2PD %s%d, %s", narrow, r, a.v(r))
	return r
}

// sumParts adds 16 elements, or their squares, to float64 lanes that are spread over the accumulators.
func sumParts(a *asm, d dtype, square bool, lanes []reg) {
	if a.masked {
		a.f("KSHIFTRW $8, K1, K3")
	}
	for i, lane := range lanes {
		x := float64Part(a, d, i)
		if square {
			a.op("VMULPD", x, x)
		}
		a.op("VADDPD", lane, x) // what does not exist is +0, which changes no lane: none is ever -0
		a.free(x)
	}
}

func sum64(name string, d dtype, square bool) loop {
	if square {
		name += string(d)
	}
	var lanes []reg
	return loop{name: name, arrays: []string{"x"}, result: "float64",
		start: func(a *asm) {
			lanes = []reg{a.keep(), a.keep()}
			for _, r := range lanes {
				a.zero(r)
			}
		},
		body: func(a *asm) { sumParts(a, d, square, lanes) },
		finish: func(a *asm) {
			r, t := lanes[0], lanes[1]
			a.f("VADDPD Z%d, Z%d, Z%d", t, r, r)
			a.f("VEXTRACTF64X4 $1, Z%d, Y%d", r, t)
			a.f("VADDPD Y%d, Y%d, Y%d", t, r, r)
			a.f("VEXTRACTF64X2 $1, Y%d, X%d", r, t)
			a.f("VADDPD X%d, X%d, X%d", t, r, r)
			a.f("VPERMILPD $1, X%d, X%d", r, t)
			a.f("VADDSD X%d, X%d, X%d", t, r, r)
			a.f("VMOVSD X%d, ret+%d(FP)", r, a.offset["ret"])
		}}
}

// sumLanes leaves the 16 lanes in memory: the Go side adds the elements that fill no iteration, and the lanes.
func sumLanes(name string, d dtype, square bool) loop {
	if square {
		name += string(d)
	}
	var lanes []reg
	return loop{name: name, arrays: []string{"x"}, params: "l *lanes[float64]", step: 16,
		start: func(a *asm) {
			lanes = []reg{a.keep(), a.keep(), a.keep(), a.keep()}
			for _, r := range lanes {
				a.zero(r)
			}
		},
		body: func(a *asm) { sumParts(a, d, square, lanes) },
		finish: func(a *asm) {
			for i, r := range lanes {
				a.f("VMOVUPD %s, %d(%s)", a.v(r), 32*i, a.address["l"])
			}
		}}
}

func add(d dtype) loop {
	return loop{name: "add" + string(d), arrays: []string{"dst", "a", "b"}, body: func(a *asm) {
		x, y := a.load(d, "a"), a.load(d, "b")
		a.add(x, y)
		a.free(y)
		a.store(d, x, "dst")
	}}
}

func addTo(d dtype) loop {
	return loop{name: "addTo" + string(d), arrays: []string{"dst", "a"}, body: func(a *asm) {
		x, y := a.load(f32, "dst"), a.load(d, "a")
		a.add(x, y)
		a.free(y)
		a.store(f32, x, "dst")
	}}
}

func scale(d dtype) loop {
	return loop{name: "scale" + string(d), arrays: []string{"dst", "a"}, scalars: []string{"s"}, body: func(a *asm) {
		x := a.load(d, "a")
		a.mul(x, a.scalar("s"))
		a.store(d, x, "dst")
	}}
}

func addScaled(d dtype) loop {
	return loop{name: "addScaled" + string(d), arrays: []string{"dst", "a"}, scalars: []string{"s"},
		body: func(a *asm) {
			x, y := a.load(d, "a"), a.load(f32, "dst")
			a.mul(x, a.scalar("s"))
			a.add(y, x)
			a.free(x)
			a.store(f32, y, "dst")
		}}
}

// reduction is a loop that adds what term gives to 16 fp32 lanes.
func reduction(l loop, term func(a *asm) reg) loop {
	var acc reg
	l.result = "float32"
	l.start = func(a *asm) {
		acc = a.keep()
		a.zero(acc)
	}
	l.body = func(a *asm) {
		x := term(a)
		a.accumulate(acc, x)
		a.free(x)
	}
	l.finish = func(a *asm) {
		a.reduce(acc, func(x, y string) { a.f("VADDPS %s, %s, %s", y, x, x) })
		a.f("VMOVSS X%d, ret+%d(FP)", acc, a.offset["ret"])
	}
	return l
}

func normSquares(d dtype) loop {
	return reduction(loop{name: "normSquares" + string(d), arrays: []string{"x"}}, func(a *asm) reg {
		x := a.load(d, "x")
		a.mul(x, x)
		return x
	})
}

// xhat is x*rstd.
func xhat(a *asm, d dtype) reg {
	x := a.load(d, "x")
	a.mul(x, a.scalar("rstd"))
	return x
}

// product is x*y of two arrays.
func product(a *asm, d dtype, x, y string) reg {
	p, q := a.load(d, x), a.load(d, y)
	a.mul(p, q)
	a.free(q)
	return p
}

// weighted is w*dy.
func weighted(a *asm, d dtype) reg {
	w, dy := a.load(f32, "w"), a.load(d, "dy")
	a.mul(w, dy)
	a.free(dy)
	return w
}

func normApply(d dtype) loop {
	return loop{name: "normApply" + string(d), arrays: []string{"y", "x", "w"}, scalars: []string{"rstd"}, body: func(a *asm) {
		x, w := xhat(a, d), a.load(f32, "w")
		a.mul(x, w)
		a.free(w)
		a.store(d, x, "y")
	}}
}

func normDot(d dtype) loop {
	return reduction(loop{name: "normDot" + string(d), arrays: []string{"x", "w", "dy"}, scalars: []string{"rstd"}}, func(a *asm) reg {
		p, x := weighted(a, d), xhat(a, d)
		a.mul(p, x)
		a.free(x)
		return p
	})
}

func normGrad(d dtype, residual bool) loop {
	l := loop{name: "normGrad" + string(d), arrays: []string{"dx", "x", "w", "dy"}, scalars: []string{"rstd", "mean"}}
	if residual {
		l.name, l.arrays = "normGradAdd"+string(d), []string{"dx", "residual", "x", "w", "dy"}
	}
	l.body = func(a *asm) {
		p, x := weighted(a, d), xhat(a, d)
		a.mul(x, a.scalar("mean"))
		a.sub(p, x)
		a.free(x)
		a.mul(p, a.scalar("rstd"))
		if residual {
			r := a.load(d, "residual")
			a.add(p, r)
			a.free(r)
		}
		a.store(d, p, "dx")
	}
	return l
}

func normWeight(d dtype) loop {
	return loop{name: "normWeight" + string(d), arrays: []string{"dw", "x", "dy"}, scalars: []string{"rstd"}, body: func(a *asm) {
		x, dy := xhat(a, d), a.load(d, "dy")
		a.mul(x, dy)
		a.free(dy)
		dw := a.load(f32, "dw")
		a.add(dw, x)
		a.free(x)
		a.store(f32, dw, "dw")
	}}
}

func rotate(d dtype) loop {
	return loop{name: "rotate" + string(d), arrays: []string{"y0", "y1", "x0", "x1", "cos", "sin"}, scalars: []string{"sign"}, body: func(a *asm) {
		x0, x1, cos, sin := a.load(d, "x0"), a.load(d, "x1"), a.load(f32, "cos"), a.load(f32, "sin")
		a.mul(sin, a.scalar("sign"))
		y0, y1 := a.copy(x0), a.copy(x1)
		a.mul(y0, cos)
		a.mul(y1, cos)
		a.mul(x0, sin)
		a.mul(x1, sin)
		a.sub(y0, x1)
		a.add(y1, x0)
		a.free(x0, x1, cos, sin)
		a.store(d, y0, "y0")
		a.store(d, y1, "y1")
	}}
}

// sigmoid is 1/(1 + exp(-g)) in a new register.
func sigmoid(a *asm, g reg) reg {
	sign, one := a.bits(0x80000000), a.float(1)
	e, s := a.copy(g), a.take()
	a.f("VPXORD %s, %s, %s", a.v(sign), a.v(e), a.v(e))
	a.exponential(e)
	a.add(e, one)
	a.f("VDIVPS %s, %s, %s", a.v(e), a.v(one), a.v(s))
	a.free(e)
	return s
}

func swiglu(d dtype) loop {
	return loop{name: "swiglu" + string(d), arrays: []string{"h", "gate", "up"}, body: func(a *asm) {
		g := a.load(d, "gate")
		s := sigmoid(a, g)
		a.mul(g, s)
		u := a.load(d, "up")
		a.mul(g, u)
		a.free(s, u)
		a.store(d, g, "h")
	}}
}

func swigluGrad(d dtype) loop {
	return gatedGrad("swigluGrad", d, func(a *asm, g reg) (s, slope reg) { return sigmoid(a, g), a.copy(g) })
}

// gatedGrad is the gradient of gate*s*up, where f gives s and slope, and the derivative of gate*s is
// s*(1 + slope*(1-s)).
func gatedGrad(name string, d dtype, f func(a *asm, gate reg) (s, slope reg)) loop {
	return loop{name: name + string(d), arrays: []string{"dgate", "dup", "h", "dh", "gate", "up"}, body: func(a *asm) {
		one := a.float(1)
		g := a.load(d, "gate")
		s, slope := f(a, g)
		u, dh := a.load(d, "up"), a.load(d, "dh")
		h := a.copy(g)
		a.mul(h, s)
		a.mul(h, u)
		a.mul(u, dh)
		t := a.copy(one)
		a.sub(t, s)
		a.mul(t, slope)
		a.add(t, one)
		a.mul(t, s)
		a.mul(u, t)
		a.mul(g, s)
		a.mul(g, dh)
		a.free(s, slope, dh, t)
		a.store(d, u, "dgate")
		a.store(d, g, "dup")
		a.store(d, h, "h")
	}}
}

func gate(d dtype) loop {
	return loop{name: "gate" + string(d), arrays: []string{"y", "x", "gate"}, body: func(a *asm) {
		g := a.load(d, "gate")
		s, x := sigmoid(a, g), a.load(d, "x")
		a.mul(x, s)
		a.free(g, s)
		a.store(d, x, "y")
	}}
}

func gateGrad(d dtype) loop {
	return loop{name: "gateGrad" + string(d), arrays: []string{"dx", "dgate", "dy", "x", "gate"}, body: func(a *asm) {
		g, t := a.load(d, "gate"), a.copy(a.float(1))
		s, x, dy := sigmoid(a, g), a.load(d, "x"), a.load(d, "dy")
		a.mul(x, dy)
		a.sub(t, s)
		a.mul(t, s)
		a.mul(x, t)
		a.mul(dy, s)
		a.free(g, s, t)
		a.store(d, dy, "dx")
		a.store(d, x, "dgate")
	}}
}

// The constants of kernels.geluTanh.
const (
	gelu1    = 1.5957691216057308
	gelu3    = gelu1 * 0.044715
	geluMost = 16
)

// geluTanh is kernels.geluTanh. A comparison with a NaN gives the second source.
func geluTanh(a *asm, gate reg) (s, slope reg) {
	x, cubic, t := a.take(), a.take(), a.take()
	a.f("VMINPS %s, %s, %s", a.v(gate), a.v(a.float(geluMost)), a.v(x))
	a.f("VMAXPS %s, %s, %s", a.v(x), a.v(a.float(-geluMost)), a.v(x))
	a.f("VMULPS %s, %s, %s", a.v(x), a.v(x), a.v(cubic))
	a.mul(cubic, a.float(gelu3))
	a.f("VADDPS %s, %s, %s", a.v(cubic), a.v(a.float(gelu1)), a.v(t))
	a.mul(t, x)
	s = sigmoid(a, t)
	a.mul(cubic, a.float(3))
	a.add(cubic, a.float(gelu1))
	a.mul(cubic, x)
	a.free(x, t)
	return s, cubic
}

func geglu(d dtype) loop {
	return loop{name: "geglu" + string(d), arrays: []string{"h", "gate", "up"}, body: func(a *asm) {
		g := a.load(d, "gate")
		s, slope := geluTanh(a, g)
		a.mul(g, s)
		u := a.load(d, "up")
		a.mul(g, u)
		a.free(s, slope, u)
		a.store(d, g, "h")
	}}
}

func gegluGrad(d dtype) loop { return gatedGrad("gegluGrad", d, geluTanh) }

// limits are gate and up between their limits, and alpha*gate of that. A comparison with a NaN gives the second source.
func limits(a *asm, gate, up reg) (g, u, x reg) {
	limit := a.scalar("limit")
	below := a.copy(limit)
	a.f("VPXORD %s, %s, %s", a.v(a.bits(0x80000000)), a.v(below), a.v(below))
	g, u, x = a.take(), a.take(), a.take()
	a.f("VMINPS %s, %s, %s", a.v(gate), a.v(limit), a.v(g))
	a.f("VMAXPS %s, %s, %s", a.v(up), a.v(below), a.v(u))
	a.f("VMINPS %s, %s, %s", a.v(u), a.v(limit), a.v(u))
	a.f("VMULPS %s, %s, %s", a.v(a.scalar("alpha")), a.v(g), a.v(x))
	a.free(below)
	return g, u, x
}

func limited(d dtype) loop {
	return loop{name: "limited" + string(d), arrays: []string{"h", "gate", "up"}, scalars: []string{"alpha", "limit"},
		body: func(a *asm) {
			gate, up := a.load(d, "gate"), a.load(d, "up")
			g, u, x := limits(a, gate, up)
			a.free(gate, up)
			s := sigmoid(a, x)
			a.mul(g, s)
			a.add(u, a.float(1))
			a.mul(g, u)
			a.free(u, x, s)
			a.store(d, g, "h")
		}}
}

func limitedGrad(d dtype) loop {
	return loop{name: "limitedGrad" + string(d), arrays: []string{"dgate", "dup", "h", "dh", "gate", "up"},
		scalars: []string{"alpha", "limit"}, body: func(a *asm) {
			one := a.float(1)
			gate, up := a.load(d, "gate"), a.load(d, "up")
			g, u, x := limits(a, gate, up)
			s := sigmoid(a, x)
			dh, t := a.load(d, "dh"), a.copy(one)
			a.sub(t, s)
			a.mul(t, x)
			a.add(t, one)
			a.mul(t, s)
			a.mul(g, s)
			a.free(s, x)
			a.f("VCMPPS $4, %s, %s, K2", a.v(up), a.v(u))                   // not equal
			a.f("VCMPPS $1, %s, %s, K3", a.v(gate), a.v(a.scalar("limit"))) // limit < gate
			a.free(gate, up)
			a.add(u, one)
			h := a.copy(g)
			a.mul(h, u)
			a.mul(u, dh)
			a.mul(u, t)
			a.mul(g, dh)
			a.free(dh, t)
			a.f("VPXORD %s, %s, K3, %s", a.v(u), a.v(u), a.v(u))
			a.f("VPXORD %s, %s, K2, %s", a.v(g), a.v(g), a.v(g))
			a.store(d, u, "dgate")
			a.store(d, g, "dup")
			a.store(d, h, "h")
		}}
}

func maximum() loop {
	var acc reg
	return loop{name: "max", arrays: []string{"x"}, result: "float32",
		start: func(a *asm) {
			a.f("MOVL $0xff800000, R11") // -Inf
			acc = a.keep()
			a.f("VPBROADCASTD R11, Z%d", acc)
		},
		body: func(a *asm) {
			x := a.load(f32, "x")
			k := ""
			if a.masked {
				k = "K1, "
			}
			// A comparison with a NaN gives the second source, here the accumulator.
			a.f("VMAXPS Z%d, Z%d, %sZ%d", acc, x, k, acc)
			a.free(x)
		},
		finish: func(a *asm) {
			a.reduce(acc, func(x, y string) { a.f("VMAXPS %s, %s, %s", x, y, x) })
			a.f("VMOVSS X%d, ret+%d(FP)", acc, a.offset["ret"])
		}}
}

// exps replaces each element by its exponential. AVX2 only.
func exps() loop {
	return loop{name: "exps", arrays: []string{"x"}, body: func(a *asm) {
		x := a.load(f32, "x")
		a.exponentialAVX2(x)
		a.store(f32, x, "x")
	}}
}

// sums are the results of sumExp.
const (
	sums      = "(sum, below float32)"
	sumsBytes = 8
)

func sumExp() loop {
	var sum, below reg
	return loop{name: "sumExp", arrays: []string{"x"}, scalars: []string{"max"}, result: sums,
		start: func(a *asm) {
			sum, below = a.keep(), a.keep()
			a.zero(sum)
			a.zero(below)
		},
		body: func(a *asm) {
			x := a.load(f32, "x")
			a.sub(x, a.scalar("max"))
			a.clamp(x)
			d := a.copy(x)
			a.clampedExponential(x)
			a.accumulate(sum, x)
			a.mul(d, x)
			a.accumulate(below, d)
			a.free(x, d)
		},
		finish: func(a *asm) {
			for i, r := range []reg{sum, below} {
				a.reduce(r, func(x, y string) { a.f("VADDPS %s, %s, %s", y, x, x) })
				a.f("VMOVSS X%d, %s+%d(FP)", r, []string{"sum", "below"}[i], a.offset["ret"]+4*i)
			}
		}}
}

// sumExpLanes leaves the 16 lanes of both sums in memory. AVX2 only.
func sumExpLanes() loop {
	var lanes []reg
	return loop{name: "sumExp", arrays: []string{"x"}, params: "l *[2]lanes[float32]", scalars: []string{"max"}, step: 16,
		start: func(a *asm) {
			lanes = []reg{a.keep(), a.keep(), a.keep(), a.keep()} // two of the sum, then two of the other
			for _, r := range lanes {
				a.zero(r)
			}
		},
		body: func(a *asm) {
			for half := range 2 {
				x := a.take()
				a.f("VMOVUPS %s, %s", a.memAt("x", 4, 8*half), a.v(x))
				a.sub(x, a.scalar("max"))
				a.clampAVX2(x)
				d := a.copy(x)
				a.clampedExponentialAVX2(x)
				a.add(lanes[half], x)
				a.mul(d, x)
				a.add(lanes[2+half], d)
				a.free(x, d)
			}
		},
		finish: func(a *asm) {
			for i, r := range lanes {
				a.f("VMOVUPS %s, %d(%s)", a.v(r), 32*i, a.address["l"])
			}
		}}
}

func expMul(d dtype) loop {
	return loop{name: "expMul" + string(d), arrays: []string{"dst", "x"}, scalars: []string{"max", "factor"}, body: func(a *asm) {
		x := a.load(f32, "x")
		a.sub(x, a.scalar("max"))
		a.exponential(x)
		a.mul(x, a.scalar("factor"))
		a.store(d, x, "dst")
	}}
}

func expSum(d dtype) loop {
	return reduction(loop{name: "expSum" + string(d), arrays: []string{"dst", "x"}, scalars: []string{"scale", "max"}}, func(a *asm) reg {
		x := a.load(f32, "x")
		a.mul(x, a.scalar("scale"))
		a.sub(x, a.scalar("max"))
		a.exponential(x)
		a.store(d, a.copy(x), "dst")
		return x
	})
}

func dot(d dtype) loop {
	return reduction(loop{name: "dot" + string(d), arrays: []string{"a", "b"}}, func(a *asm) reg { return product(a, d, "a", "b") })
}

func scoreGrad(d dtype) loop {
	return loop{name: "scoreGrad" + string(d), arrays: []string{"ds", "p", "s", "dp"}, scalars: []string{"scale", "lse", "delta"}, body: func(a *asm) {
		x := a.load(f32, "s")
		a.mul(x, a.scalar("scale"))
		a.sub(x, a.scalar("lse"))
		a.exponential(x)
		ds := a.load(f32, "dp")
		a.sub(ds, a.scalar("delta"))
		a.mul(ds, x)
		a.mul(ds, a.scalar("scale"))
		a.store(d, ds, "ds")
		a.store(d, x, "p")
	}}
}
