package main

import (
	"fmt"
	"strings"
)

// Moments with second ones of 4 bits are decoded, updated and encoded by loops of their own, some blocks at a time,
// which stay in the first cache: so the loops of updates are those for fp32 moments. These are for AVX2.

// Where things are in kernels.tables4, in bytes. Tables are of 16 numbers.
const (
	firstValues4  = 0
	firstGaps4    = 64
	secondValues4 = 128
	secondGaps4   = 192
	secondNext4   = 256 // the value after each
	shifts4       = 320 // of the codes in a word
	pairs4        = 384 // what two codes count in a byte
)

// block4 is the number of elements that share a scale.
const block4 = 128

// codeLoop begins a function with pointers and a length, in the registers that it returns by name.
func codeLoop(names ...string) (a *asm, args string, size int) {
	a = &asm{w: ymm, address: map[string]string{}, offset: map[string]int{}, consts: map[string]reg{}}
	registers := map[string]string{"x": scratchReg, "codes": mCodes, "scales": mScales, "words": "CX", "n": "R14",
		"t": tablesReg}
	types := map[string]string{"n": "int", "t": "*tables4", "t8": "*tables8"}
	registers["t8"] = tablesReg
	var params []string
	for i, name := range names {
		a.f("MOVQ %s+%d(FP), %s", name, 8*i, registers[name])
		t := types[name]
		if t == "" {
			t = "unsafe.Pointer"
		}
		params = append(params, name+" "+t)
	}
	return a, strings.Join(params, ", "), 8 * len(names)
}

// void wraps text in a function without results.
func (a *asm) void(name, params string, size int) (source, declaration string) {
	a.f("VZEROUPPER")
	a.f("RET")
	head := fmt.Sprintf("func %s%s(%s)", name, a.w.suffix(), params)
	source = fmt.Sprintf("// %s\nTEXT ·%s%s(SB), NOSPLIT, $0-%d\n%s\n", head, name, a.w.suffix(), size, a.text.String())
	return source, "//go:noescape\n" + head + "\n\n"
}

// part4 loads 8 numbers of a table, from the first or from the eighth.
func (a *asm) part4(at, i int) reg {
	r := a.keep()
	a.f("VMOVUPS %d(%s), %s", at+32*i, tablesReg, a.v(r))
	return r
}

// look16 finds numbers by codes of 4 bits in two registers; isHigh has bit 3 of the codes as signs.
func (a *asm) look16(table [2]reg, codes, isHigh, to reg) {
	t := a.take()
	a.f("VPERMPS %s, %s, %s", a.v(table[0]), a.v(codes), a.v(to))
	a.f("VPERMPS %s, %s, %s", a.v(table[1]), a.v(codes), a.v(t))
	a.f("VBLENDVPS %s, %s, %s, %s", a.v(isHigh), a.v(t), a.v(to), a.v(to))
	a.free(t)
}

// decode4 writes the loop that decodes first or second moments.
func decode4(name string, signed bool) (source, declaration string) {
	a, params, size := codeLoop("x", "codes", "scales", "n", "t")
	shifts, sign := a.part4(shifts4, 0), a.bits(0x80000000)
	exponent := a.bits(0x7f800000)
	a.text.WriteString(a.ahead.String())
	var table [2]reg
	if signed {
		table[0] = a.part4(firstValues4, 0)
	} else {
		table = [2]reg{a.part4(secondValues4, 0), a.part4(secondValues4, 1)}
	}
	scale := a.keep()
	a.label("block")
	a.f("VBROADCASTSS (%s), %s", mScales, a.v(scale))
	a.f("XORQ R12, R12")
	a.label("decode")
	for i := range 4 {
		k, high, x := a.take(), a.take(), a.take()
		a.f("VPBROADCASTD %d(%s)(R12*1), %s", 4*i, mCodes, a.v(k))
		a.f("VPSRLVD %s, %s, %s", a.v(shifts), a.v(k), a.v(k))
		a.f("VPSLLD $28, %s, %s", a.v(k), a.v(high))
		if signed {
			a.op("VANDPS", high, sign)
			a.f("VPERMPS %s, %s, %s", a.v(table[0]), a.v(k), a.v(x))
			a.mul(x, scale)
			a.op("VXORPS", x, high)
		} else {
			a.look16(table, k, high, x)
			a.mul(x, scale)
			a.mul(x, x)
			a.flushBySign(x, exponent)
		}
		a.f("VMOVUPS %s, %d(%s)(R12*8)", a.v(x), 32*i, scratchReg)
		a.free(k, high, x)
	}
	a.f("ADDQ $16, R12")
	a.f("CMPQ R12, $%d", block4/2)
	a.f("JLT decode")
	a.f("ADDQ $%d, %s", 4*block4, scratchReg)
	a.f("ADDQ $%d, %s", block4/2, mCodes)
	a.f("ADDQ $4, %s", mScales)
	a.f("SUBQ $%d, R14", block4)
	a.f("JGT block")
	return a.void(name, params, size)
}

// scale4 writes the scale of a block, the greatest magnitude of what read gives, 8 elements at a time, NaNs left aside,
// and fills a register with its inverse. It jumps to zero where the scale is 0.
func (a *asm) scale4(inverse reg, read func(i int, to reg)) {
	largest := []reg{a.take(), a.take(), a.take(), a.take()}
	for _, r := range largest {
		a.zero(r)
	}
	a.f("XORQ R12, R12")
	a.label("largest")
	for i, r := range largest {
		x := a.take()
		read(i, x)
		a.f("VMAXPS %s, %s, %s", a.v(r), a.v(x), a.v(r)) // of a NaN: the second source, as the CPU counts them
		a.free(x)
	}
	a.f("ADDQ $32, R12")
	a.f("CMPQ R12, $%d", block4)
	a.f("JLT largest")
	a.op("VMAXPS", largest[0], largest[1])
	a.op("VMAXPS", largest[2], largest[3])
	a.op("VMAXPS", largest[0], largest[2])
	a.reduceHalf(largest[0], func(x, y string) { a.f("VMAXPS %s, %s, %s", y, x, x) })
	a.f("VMOVSS X%d, (%s)", largest[0], mScales)
	a.f("VMOVD X%d, R11", largest[0])
	a.f("TESTL R11, R11")
	a.f("JEQ zero")
	a.f("MOVL $0x3f800000, R11")
	a.f("VMOVD R11, X%d", largest[1])
	a.f("VDIVSS X%d, X%d, X%d", largest[0], largest[1], largest[0])
	a.f("VBROADCASTSS X%d, %s", largest[0], a.v(inverse))
	a.free(largest...)
}

// share4 makes shares of a gap of words' bits, from one on.
func (a *asm) share4(i, from, bits int) reg {
	r := a.take()
	a.f("VMOVDQU %d(CX)(R12*4), %s", 32*i, a.v(r))
	a.f("VPSRLD $%d, %s, %s", from, a.v(r), a.v(r))
	if from+bits < 32 {
		a.f("VPAND %s, %s, %s", a.words(1<<bits-1), a.v(r), a.v(r))
	}
	a.f("VCVTDQ2PS %s, %s", a.v(r), a.v(r))
	a.f("VADDPS %s, %s, %s", a.table(0.5), a.v(r), a.v(r))
	a.f("VMULPS %s, %s, %s", a.table(1/float32(int(1)<<bits)), a.v(r), a.v(r))
	return r
}

// step4 adds 1 to the codes k of y where the rest of the way is more than a share of the gap; it frees all but k.
func (a *asm) step4(k, y, value, gap, share reg) {
	a.sub(y, value)
	a.mul(share, gap)
	a.f("VCMPPS $14, %s, %s, %s", a.v(share), a.v(y), a.v(y)) // y > share
	a.op("VPSUBD", k, y)
	a.free(y, value, gap, share)
}

// first4 makes codes of 8 first moments, part i of the 32 from R12 on.
func (a *asm) first4(i int, inverse reg, values, gaps reg) reg {
	x, y, k := a.take(), a.take(), a.take()
	a.f("VMOVUPS %d(%s)(R12*4), %s", 32*i, scratchReg, a.v(x))
	a.f("VMULPS %s, %s, %s", a.v(inverse), a.v(x), a.v(y))
	a.f("VANDPS %s, %s, %s", a.words(0x7fffffff), a.v(y), a.v(y))
	a.zero(k)
	for _, bits := range []uint32{0x3bfcc209, 0x3d32ba14, 0x3df641b5, 0x3e7cc209, 0x3edcc666, 0x3f2e2138, 0x3f800000} {
		t := a.take()
		a.f("VCMPPS $13, %s, %s, %s", a.words(bits), a.v(y), a.v(t)) // y >= the value; of a NaN: no
		a.op("VPSUBD", k, t)
		a.free(t)
	}
	value, gap := a.take(), a.take()
	a.f("VPERMPS %s, %s, %s", a.v(values), a.v(k), a.v(value))
	a.f("VPERMPS %s, %s, %s", a.v(gaps), a.v(k), a.v(gap))
	a.step4(k, y, value, gap, a.share4(i, 8, 8))
	// Bit 3 is the sign, of codes that are not 0.
	t := a.take()
	a.zero(t)
	a.f("VPCMPGTD %s, %s, %s", a.v(t), a.v(k), a.v(t)) // k > 0
	a.op("VPAND", x, t)
	a.f("VPSRLD $31, %s, %s", a.v(x), a.v(x))
	a.f("VPSLLD $3, %s, %s", a.v(x), a.v(x))
	a.op("VPOR", k, x)
	a.free(x, t)
	return k
}

// second4 makes codes of 8 roots of second moments. Their logarithm, by a line between powers of two, is up to 0.23
// codes too low, so that the code is that of the logarithm or the next one.
func (a *asm) second4(i int, inverse reg, values, gaps, next [2]reg) reg {
	y, k, high, value := a.take(), a.take(), a.take(), a.take()
	a.f("VMULPS %d(%s)(R12*4), %s, %s", 32*i, scratchReg, a.v(inverse), a.v(y))
	a.zero(high)
	a.f("VMAXPS %s, %s, %s", a.v(high), a.v(y), a.v(y)) // of a NaN: 0
	a.f("VPSUBD %s, %s, %s", a.words(0x3f800000), a.v(y), a.v(k))
	a.f("VCVTDQ2PS %s, %s", a.v(k), a.v(k))
	a.f("VMULPS %s, %s, %s", a.table(2.6419/(1<<23)), a.v(k), a.v(k)) // 1.3 is 2^(1/2.642)
	a.f("VADDPS %s, %s, %s", a.table(14.99), a.v(k), a.v(k))
	a.f("VCVTTPS2DQ %s, %s", a.v(k), a.v(k))
	a.op("VPMAXSD", k, high)
	a.f("VPSLLD $28, %s, %s", a.v(k), a.v(high))
	a.look16(next, k, high, value)
	a.f("VCMPPS $13, %s, %s, %s", a.v(value), a.v(y), a.v(value)) // y >= the next value
	a.op("VPSUBD", k, value)
	a.f("VPSLLD $28, %s, %s", a.v(k), a.v(high))
	gap := a.take()
	a.look16(values, k, high, value)
	a.look16(gaps, k, high, gap)
	a.free(high)
	a.step4(k, y, value, gap, a.share4(i, 16, 16))
	return k
}

// encode4 writes the loop that encodes first or second moments; it overwrites second ones by their roots.
func encode4(name string, signed bool) (source, declaration string) {
	a, params, size := codeLoop("codes", "scales", "x", "words", "n", "t")
	inverse := a.keep()
	var code func(i int) reg
	if signed {
		values, gaps := a.part4(firstValues4, 0), a.part4(firstGaps4, 0)
		code = func(i int) reg { return a.first4(i, inverse, values, gaps) }
	} else {
		var values, gaps, next [2]reg
		for i := range 2 {
			values[i], gaps[i], next[i] = a.part4(secondValues4, i), a.part4(secondGaps4, i), a.part4(secondNext4, i)
		}
		code = func(i int) reg { return a.second4(i, inverse, values, gaps, next) }
	}
	a.label("block")
	a.scale4(inverse, func(i int, to reg) {
		at := fmt.Sprintf("%d(%s)(R12*4)", 32*i, scratchReg)
		if signed {
			a.f("VMOVUPS %s, %s", at, a.v(to))
			a.f("VANDPS %s, %s, %s", a.words(0x7fffffff), a.v(to), a.v(to))
			return
		}
		a.f("VSQRTPS %s, %s", at, a.v(to))
		a.f("VMOVUPS %s, %s", a.v(to), at)
	})
	a.f("XORQ R12, R12")
	a.label("encode")
	var k [4]reg
	for i := range k {
		k[i] = code(i)
		if i%2 == 1 {
			a.f("VPACKUSDW %s, %s, %s", a.v(k[i]), a.v(k[i-1]), a.v(k[i-1]))
			a.free(k[i])
		}
	}
	a.f("VPACKUSWB %s, %s, %s", a.v(k[2]), a.v(k[0]), a.v(k[0]))
	a.f("VMOVDQU %d(%s), %s", order4, tablesReg, a.v(k[2]))
	a.f("VPERMD %s, %s, %s", a.v(k[0]), a.v(k[2]), a.v(k[0]))
	a.f("VPMADDUBSW %d(%s), %s, %s", pairs4, tablesReg, a.v(k[0]), a.v(k[0])) // the second code of a byte counts 16
	a.f("VPACKUSWB %s, %s, %s", a.v(k[0]), a.v(k[0]), a.v(k[0]))
	a.f("VPERMQ $8, %s, %s", a.v(k[0]), a.v(k[0]))
	a.f("MOVQ R12, R11")
	a.f("SHRQ $1, R11")
	a.f("VMOVDQU X%d, (%s)(R11*1)", k[0], mCodes)
	a.free(k[0], k[2])
	a.f("ADDQ $32, R12")
	a.f("CMPQ R12, $%d", block4)
	a.f("JLT encode")
	a.f("JMP encoded")
	a.label("zero")
	r := a.take()
	a.zero(r)
	a.f("VMOVDQU %s, (%s)", a.v(r), mCodes)
	a.f("VMOVDQU %s, 32(%s)", a.v(r), mCodes)
	a.free(r)
	a.label("encoded")
	a.f("ADDQ $%d, %s", block4/2, mCodes)
	a.f("ADDQ $4, %s", mScales)
	a.f("ADDQ $%d, %s", 4*block4, scratchReg)
	a.f("ADDQ $%d, CX", 4*block4)
	a.f("SUBQ $%d, R14", block4)
	a.f("JGT block")
	return a.void(name, params, size)
}

// order4 is where kernels.tables4 has the order of the dwords that packing leaves.
const order4 = pairs4 + 32

// decodeFirst8 writes the loop that decodes first moments of 8 bits.
func decodeFirst8() (source, declaration string) {
	a, params, size := codeLoop("x", "codes", "scales", "n", "t8")
	n := narrow8{asm: a, moment8: moment8{name: "m", codes: mCodes, scales: mScales, signed: true}, book: narrowAt}
	a.label("block")
	n.decodeBlock("decode", mCodes, scratchReg)
	scale := a.keep()
	a.f("VBROADCASTSS (%s), %s", mScales, a.v(scale))
	a.f("XORQ R12, R12")
	a.label("scale")
	for i := range 4 {
		r := a.take()
		a.f("VMULPS %s, %s, %s", n.elements(i), a.v(scale), a.v(r))
		a.f("VMOVUPS %s, %s", a.v(r), n.elements(i))
		a.free(r)
	}
	a.f("ADDQ $32, R12")
	a.f("CMPQ R12, $256")
	a.f("JLT scale")
	a.next8()
	return a.void("decodeFirst8", params, size)
}

// encodeFirst8 writes the loop that encodes them.
func encodeFirst8() (source, declaration string) {
	a, params, size := codeLoop("codes", "scales", "x", "n", "t8")
	a.label("block")
	n := narrow8{asm: a.fork(), moment8: moment8{name: "m", codes: mCodes, scales: mScales, signed: true}, book: narrowAt,
		alone: true}
	n.encode()
	a.text.WriteString(n.text.String())
	a.next8()
	return a.void("encodeFirst8", params, size)
}

// next8 ends a loop over blocks of 8 bits.
func (a *asm) next8() {
	a.f("ADDQ $1024, %s", scratchReg)
	a.f("ADDQ $256, %s", mCodes)
	a.f("ADDQ $4, %s", mScales)
	a.f("SUBQ $256, R14")
	a.f("JGT block")
}

// codeLoops are all of them.
func codeLoops() (sources, declarations []string) {
	add := func(source, declaration string) {
		sources, declarations = append(sources, source), append(declarations, declaration)
	}
	add(decode4("decodeFirst4", true))
	add(decode4("decodeSecond4", false))
	add(encode4("encodeFirst4", true))
	add(encode4("encodeSecond4", false))
	add(decodeFirst8())
	add(encodeFirst8())
	return sources, declarations
}
