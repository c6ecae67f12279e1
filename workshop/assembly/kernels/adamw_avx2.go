package main

import (
	"fmt"
	"strings"
)

// AdamW with AVX2 takes 16 elements at a time, in a loop that is right as long as all new weights are finite. Where
// one is not, nothing of these elements has been stored yet, and the loop of 8 elements, which is written as for
// AVX-512, computes them again: it finds out which are not finite, counts them, and makes NaNs one and the same.
//
// The divider is the limit: on recent Intel cores a root and two quotients of 8 elements take it about 16 cycles, as
// long as all other instructions take the three vector ports. So there are few others, and the quotient by SqrtBC2, a
// constant, is computed by multiplications (quotient.go). Where any of it is infinite, the weight becomes a NaN, and
// the other loop divides.

// Where the loop keeps things on the stack, below the inverse.
const (
	endAt, leftAt      = "end-24(SP)", "left-32(SP)"
	longestAt, movesAt = "longest-64(SP)", "moves-96(SP)"
	frameBytes         = 96
)

// adamwAVX2 is AdamW for weights in a form, with gradients of type d.
type adamwAVX2 struct {
	master
	d dtype
}

func adamwsAVX2() []adamwAVX2 {
	return []adamwAVX2{{split16, f32}, {split16, bf16}, {split24, f32}, {split24, bf16}, {unsplit, f32}}
}

// begin clears the results, and inverts the divisor.
func (a *asm) begin() {
	a.f("MOVQ $0, ret+%d(FP)", a.offset["ret"])
	a.f("VPXOR X0, X0, X0")
	a.f("VMOVDQU Y0, %s", longestAt)
	a.invert()
}

// end writes the second result.
func (a *asm) end() {
	r := a.take()
	a.f("VMOVDQU %s, %s", longestAt, a.v(r))
	a.longest(r)
	a.free(r)
}

// broadcast is a float32 in memory, in every element.
func (a *asm) broadcast(from string) reg {
	r := a.take()
	a.f("VBROADCASTSS %s, %s", from, a.v(r))
	return r
}

// with applies an operation to x and a float32 in memory.
func (a *asm) with(f func(x, y reg), x reg, from string) {
	y := a.broadcast(from)
	f(x, y)
	a.free(y)
}

// scalarField is a field of AdamWScalars in memory.
func (a *asm) scalarField(offset int) string { return fmt.Sprintf("%d(%s)", offset, a.address["s"]) }

// halves reads 16 16-bit elements so that unpacking puts them in order.
func (a *asm) halves(name string) reg {
	r := a.take()
	a.f("VPERMQ $0xd8, %s, %s", a.mem(name, 2), a.v(r))
	return r
}

// unpackWords makes 32-bit elements of 16-bit halves, and frees low and high.
func (a *asm) unpackWords(low, high reg) [2]reg {
	x, y := a.take(), low
	a.f("VPUNPCKLWD %s, %s, %s", a.v(high), a.v(low), a.v(x))
	a.f("VPUNPCKHWD %s, %s, %s", a.v(high), a.v(low), a.v(y))
	a.free(high)
	return [2]reg{x, y}
}

// loadPair reads 16 fp32 or bf16 elements as fp32.
func (a *asm) loadPair(d dtype, name string) (r [2]reg) {
	if d == bf16 {
		high, zero := a.halves(name), a.take()
		a.zero(zero)
		return a.unpackWords(zero, high)
	}
	for i := range r {
		r[i] = a.take()
		a.f("VMOVUPS %s, %s", a.memAt(name, 4, 8*i), a.v(r[i]))
	}
	return r
}

// joinPair reads 16 weights as tensor.JoinF32 does.
func (a *asm) joinPair(hi, lo string) [2]reg {
	low, high, t := a.halves(lo), a.halves(hi), a.take()
	a.f("VPSRAW $15, %s, %s", a.v(low), a.v(t))
	a.op("VPADDW", high, t)
	a.free(t)
	return a.unpackWords(low, high)
}

// splitPair writes 16 finite weights as tensor.SplitF32 does, and frees them.
func (a *asm) splitPair(p [2]reg, hi, lo string) {
	h, zero := [2]reg{a.take(), a.take()}, a.take()
	a.zero(zero)
	for i := range p {
		a.f("VPSRLD $16, %s, %s", a.v(p[i]), a.v(h[i]))
		a.f("VPBLENDW $0xaa, %s, %s, %s", a.v(zero), a.v(p[i]), a.v(p[i]))
	}
	a.f("VPACKUSDW %s, %s, %s", a.v(h[1]), a.v(h[0]), a.v(h[0]))
	a.f("VPACKUSDW %s, %s, %s", a.v(p[1]), a.v(p[0]), a.v(p[0]))
	a.f("VPSRLW $15, %s, %s", a.v(p[0]), a.v(zero))
	a.op("VPADDW", h[0], zero)
	for i, x := range []string{a.v(h[0]), a.v(p[0])} {
		a.f("VPERMQ $0xd8, %s, %s", x, x)
		a.f("VMOVDQU %s, %s", x, a.mem([]string{hi, lo}[i], 2))
	}
	a.free(h[0], h[1], zero, p[0], p[1])
}

// joinPair24 reads 16 weights as tensor.JoinF24 does.
func (a *asm) joinPair24(hi, lo string) [2]reg {
	low := a.take()
	a.f("VPMOVZXBW %s, %s", a.mem(lo, 1), a.v(low))
	a.f("VPSLLW $8, %s, %s", a.v(low), a.v(low))
	a.f("VPERMQ $0xd8, %s, %s", a.v(low), a.v(low))
	high, t := a.halves(hi), a.take()
	a.f("VPSRAW $15, %s, %s", a.v(low), a.v(t))
	a.op("VPADDW", high, t)
	a.free(t)
	return a.unpackWords(low, high)
}

// splitPair24 writes 16 weights as tensor.SplitF24 does, and frees them. Their high halves are finite.
func (a *asm) splitPair24(p [2]reg, hi, lo string) {
	h, zero := [2]reg{a.take(), a.take()}, a.take()
	a.zero(zero)
	for i := range p {
		x, y := a.v(p[i]), a.v(h[i])
		a.f("VMOVDQU %s, %s", a.wordsAt(8*i), y)
		a.f("VPAND %s, %s, %s", a.words(0xff), y, y)
		a.f("VPADDD %s, %s, %s", y, x, x)
		a.f("VPSRLD $16, %s, %s", x, y)
		a.f("VPBLENDW $0xaa, %s, %s, %s", a.v(zero), x, x)
	}
	x, y := a.v(p[0]), a.v(h[0])
	a.f("VPACKUSDW %s, %s, %s", a.v(h[1]), y, y)
	a.f("VPACKUSDW %s, %s, %s", a.v(p[1]), x, x)
	a.f("VPSRLW $15, %s, %s", x, a.v(zero))
	a.op("VPADDW", h[0], zero)
	a.f("VPERMQ $0xd8, %s, %s", y, y)
	a.f("VMOVDQU %s, %s", y, a.mem(hi, 2))
	a.f("VPERMQ $0xd8, %s, %s", x, x)
	a.f("VPSRLW $8, %s, %s", x, x)
	a.f("VPACKUSWB %s, %s, %s", x, x, x)
	a.f("VPERMQ $8, %s, %s", x, x)
	a.f("VMOVDQU X%d, %s", p[0], a.mem(lo, 1))
	a.free(h[0], h[1], zero, p[0], p[1])
}

// momentsAt reads 8 moments.
func (a *asm) momentsAt(name string, half int) reg {
	r := a.take()
	scale, ok := a.scaledBy[name]
	if !ok {
		a.f("VMOVUPS %s, %s", a.memAt(name, 4, 8*half), a.v(r))
		return r
	}
	a.f("VBROADCASTSS (%s), %s", scale, a.v(r))
	a.f("VMULPS %s, %s, %s", a.memAt(name, 4, 8*half), a.v(r), a.v(r))
	return r
}

// flushBySign is flush in two instructions: a number is multiplied by the sign of its exponent.
func (a *asm) flushBySign(r, exponent reg) {
	t := a.take()
	a.f("VPAND %s, %s, %s", a.v(exponent), a.v(r), a.v(t))
	a.f("VPSIGND %s, %s, %s", a.v(t), a.v(r), a.v(r))
	a.free(t)
}

// updateHalf is update without its stores: it frees the gradient and returns the new moments.
func (a *asm) updateHalf(p, g reg, half int) (m, v reg) {
	kept := func(offset int) reg { r, _ := a.field("s", offset); return r }
	a.mul(g, kept(clipScale))
	a.mul(p, kept(decay))
	m = a.momentsAt("m", half)
	t := a.take()
	a.f("VSUBPS %s, %s, %s", a.v(m), a.v(g), a.v(t))
	a.mul(t, kept(oneMinusBeta1))
	a.add(m, t)
	a.flushBySign(m, a.bits(0x7f800000))
	v = a.momentsAt("v", half)
	a.mul(v, kept(beta2))
	a.f("VMULPS %s, %s, %s", a.v(kept(oneMinusBeta2)), a.v(g), a.v(t))
	a.mul(t, g)
	a.add(v, t)
	a.free(g)
	a.flushBySign(v, a.bits(0x7f800000))
	root := a.take()
	a.f("VSQRTPS %s, %s", a.v(v), a.v(root))
	rest, z := a.broadcast(inverseRestAt), a.broadcast(inverseAt)
	a.quotient(root, t, z, rest, func() reg {
		a.f("VBROADCASTSS %s, %s", a.scalarField(sqrtBC2), a.v(rest))
		return rest
	})
	a.free(rest, z)
	a.with(a.add, t, a.scalarField(eps))
	a.f("VBROADCASTSS %s, %s", a.scalarField(stepSize), a.v(root))
	a.mul(root, m)
	a.div(root, t)
	a.sub(p, root)
	a.double(root)
	if half > 0 {
		a.f("VPMAXUD %s, %s, %s", movesAt, a.v(root), a.v(root))
	}
	a.f("VMOVDQU %s, %s", a.v(root), movesAt)
	a.free(t, root)
	return m, v
}

// seeMoves takes moves into the longest ones.
func (a *asm) seeMoves(r reg) {
	a.f("VPMAXUD %s, %s, %s", longestAt, a.v(r), a.v(r))
	a.f("VMOVDQU %s, %s", a.v(r), longestAt)
}

// pair is the body of the loop of 16 elements; it jumps to odd before it stores if a weight is not finite.
func (l adamwAVX2) pair(a *asm) {
	var p [2]reg
	switch l.name {
	case split16.name:
		p = a.joinPair("hi", "lo")
	case split24.name:
		p = a.joinPair24("hi", "lo")
	default:
		p = a.loadPair(f32, "p")
	}
	g := a.loadPair(l.d, "grad")
	var m, v [2]reg
	for i := range p {
		m[i], v[i] = a.updateHalf(p[i], g[i], i)
	}
	if a.scaledBy == nil { // blocks of 8-bit moments are fetched while the one before is encoded
		a.fetch(append(l.updated(l.d), array{"m", 4}, array{"v", 4})...)
	}
	x, y := a.take(), a.take()
	if l.name == split24.name { // the high halves of finite numbers may be infinite: twice these numbers are, too
		a.f("VADDPS %s, %s, %s", a.v(p[0]), a.v(p[0]), a.v(x))
		a.f("VADDPS %s, %s, %s", a.v(p[1]), a.v(p[1]), a.v(y))
		a.sub(x, x) // 0, or else a NaN
		a.sub(y, y)
	} else {
		a.f("VSUBPS %s, %s, %s", a.v(p[0]), a.v(p[0]), a.v(x))
		a.f("VSUBPS %s, %s, %s", a.v(p[1]), a.v(p[1]), a.v(y))
	}
	a.f("VCMPPS $3, %s, %s, %s", a.v(x), a.v(y), a.v(x)) // unordered
	a.f("VMOVMSKPS %s, R11", a.v(x))
	a.free(x, y)
	a.f("TESTL R11, R11")
	a.f("JNZ odd")
	x = a.take()
	a.f("VMOVDQU %s, %s", movesAt, a.v(x))
	a.seeMoves(x)
	a.free(x)
	for i := range p {
		a.f("VMOVUPS %s, %s", a.v(m[i]), a.memAt("m", 4, 8*i))
		a.f("VMOVUPS %s, %s", a.v(v[i]), a.memAt("v", 4, 8*i))
		a.free(m[i], v[i])
	}
	switch l.name {
	case split16.name:
		a.splitPair(p, "hi", "lo")
	case split24.name:
		a.splitPair24(p, "hi", "lo")
	default:
		for i := range p {
			a.f("VMOVUPS %s, %s", a.v(p[i]), a.memAt("p", 4, 8*i))
			a.free(p[i])
		}
	}
}

// loop writes both loops, over R10 elements, a multiple of 8. The number of values that are not finite is added to the
// result.
func (l adamwAVX2) loop(a *asm) {
	fast, slow := a.fork(), a.fork()
	slow.move = func(r reg) {
		slow.double(r)
		slow.seeMoves(r)
	}
	l.pair(fast)
	counter, body := slow.keep(), l.body(l.d)
	body(slow, counter)

	a.f("XORQ R12, R12")
	a.label("again")
	a.text.WriteString(fast.ahead.String())
	a.f("LEAQ 16(R12), R11")
	a.f("CMPQ R11, R10")
	a.f("JGT rest")
	fmt.Fprintf(&a.text, "\tPCALIGN $32\n")
	a.label("pair")
	a.text.WriteString(fast.text.String())
	a.f("ADDQ $16, R12")
	a.f("LEAQ 16(R12), R11")
	a.f("CMPQ R11, R10")
	a.f("JLE pair")
	a.label("rest")
	a.f("MOVQ R10, %s", endAt)
	a.f("CMPQ R12, R10")
	a.f("JLT single")
	a.f("JMP updated")
	a.label("odd")
	a.f("LEAQ 16(R12), R11")
	a.f("MOVQ R11, %s", endAt)
	a.label("single")
	a.text.WriteString(slow.ahead.String())
	slow.text.Reset()
	slow.zero(counter)
	slow.label("eight")
	body(slow, counter)
	slow.f("ADDQ $8, R12")
	slow.f("CMPQ R12, %s", endAt)
	slow.f("JLT eight")
	slow.reduceHalf(counter, func(x, y string) { slow.f("VPADDD %s, %s, %s", y, x, x) })
	slow.f("VMOVD X%d, R11", counter)
	slow.f("ADDQ R11, ret+%d(FP)", a.offset["ret"])
	slow.f("JMP again")
	a.text.WriteString(slow.text.String())
	a.label("updated")
}

// fork is an asm for the same arguments, with all registers free.
func (a *asm) fork() *asm {
	return &asm{w: a.w, address: a.address, offset: a.offset, shift: a.shift, scaledBy: a.scaledBy, random: a.random,
		consts: map[string]reg{}}
}

// function wraps text in a function; sig are its parameters.
func (a *asm) function(name, sig string, frame, args int) (source, declaration string) {
	head := fmt.Sprintf("func %s(%s) %s", name, sig, tally)
	source = fmt.Sprintf("// %s\nTEXT ·%s(SB), NOSPLIT, $%d-%d\n%s\n", head, name, frame, args, a.text.String())
	return source, "//go:noescape\n" + head + "\n\n"
}

// write writes the function for fp32 moments, and its declaration.
func (l adamwAVX2) write() (source, declaration string) {
	a := &asm{w: ymm, address: map[string]string{}, offset: map[string]int{}}
	arrays := l.passed(l.d)
	off := 0
	for i, name := range append(arrays, "n", "s") {
		register := "R10"
		if name != "n" {
			register = general[min(i, len(arrays))]
			a.address[name] = register
		}
		a.f("MOVQ %s+%d(FP), %s", name, off, register)
		off += 8
	}
	a.offset["ret"] = off
	a.begin()
	l.loop(a)
	a.end()
	a.f("VZEROUPPER")
	a.f("RET")
	return a.function("adamw"+l.function(l.d)+ymm.suffix(), strings.Join(arrays, ", ")+
		" unsafe.Pointer, n int, s *AdamWScalars",
		frameBytes, off+tallyBytes)
}
