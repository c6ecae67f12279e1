package main

import (
	"fmt"
	"strings"
)

// AdamW with 8-bit moments and AVX2 goes by blocks as well. Decoding looks up one code at a time, by loads that leave
// the vector ports to the rest. Encoding computes 8 codes at a time; see kernels.narrow8 for the arithmetic.

// Where things are in kernels.narrow8, in bytes.
const (
	narrowValue  = 0
	narrowAbove  = 1024
	narrowCell   = 2048
	narrowEdge   = 2080
	narrowSlope  = 2112
	narrowOffset = 2144
	narrowLimit  = 2176
	narrowZero   = 2208
	narrowOrder  = 2240
	narrowBytes  = 2272
	narrowAt     = transposedAt + 64 // in kernels.tables8
)

// Where things are in kernels.ladder8, in bytes of kernels.tables8.
const (
	ladderAt        = narrowAt + 2*narrowBytes
	ladderCell      = ladderAt
	ladderCellBytes = ladderAt + 64
	ladderEdge      = ladderAt + 128
	ladderSlope     = ladderAt + 192
	ladderOffset    = ladderAt + 256
	ladderGapSlope  = ladderAt + 320
	ladderGapOffset = ladderAt + 384
	ladderLeast     = ladderAt + 448
)

// What decodes the next block.
const (
	nextCodes, nextScratch = "R10", "R14"
	scratchBytes           = 2048
	narrowWords            = 2 * scratchBytes // in kernels.narrowScratch8
)

// narrow8 writes the parts of a block loop that concern one moment.
type narrow8 struct {
	*asm
	moment8
	book  int     // offset in kernels.tables8
	fetch []array // of which the next block is fetched meanwhile
	alone bool    // no next block is decoded meanwhile
}

// at is a label, unique to the moment.
func (n narrow8) at(label string) string { return label + "_" + n.name }

// table is the address of something in the codebook.
func (n narrow8) table(offset int) string { return fmt.Sprintf("%d(%s)", n.book+offset, tablesReg) }

// elements is the address in scratch of 8 elements, part i of the 32 from R12 on.
func (n narrow8) elements(i int) string {
	return fmt.Sprintf("%d(%s)(R12*4)", n.scratch+32*i, scratchReg)
}

// decode writes the values of codes [from, to), counted from R12, to scratch, without their scale.
func (n narrow8) decode(codes, scratch string, from, to int) {
	for i := from; i < to; i++ {
		n.f("MOVBLZX %d(%s)(R12*1), R11", i, codes)
		n.f("MOVL %d(%s)(R11*4), R11", n.book+narrowValue, tablesReg)
		n.f("MOVL R11, %d(%s)(R12*4)", n.scratch+4*i, scratch)
	}
}

// decodeBlock writes the values of a block to scratch.
func (n narrow8) decodeBlock(label, codes, scratch string) {
	n.f("XORQ R12, R12")
	n.label(n.at(label))
	n.decode(codes, scratch, 0, 16)
	n.f("ADDQ $16, R12")
	n.f("CMPQ R12, $256")
	n.f("JLT %s", n.at(label))
}

// encode codes a block, which is in scratch, and writes its scale. In between it decodes the next block, which takes
// the ports that encoding leaves free.
func (n narrow8) encode() {
	magnitude, inverse := n.bits(0x7fffffff), n.keep()
	n.text.WriteString(n.ahead.String())
	if !n.alone {
		n.f("MOVQ %s, %s", n.codes, nextCodes)
		n.f("CMPQ %s, $256", leftAt)
		n.f("JLE %s", n.at("none"))
		n.f("ADDQ $256, %s", nextCodes)
		n.label(n.at("none"))
	}
	n.findScale(magnitude, inverse)
	if n.signed {
		n.nearest(magnitude, inverse)
	} else {
		n.free(magnitude)
		n.rounded(inverse)
	}
	n.label(n.at("zero"))
	if !n.alone {
		n.decodeBlock("skipped", nextCodes, nextScratch)
	}
	zero := n.take()
	n.zero(zero)
	for i := range 8 {
		n.f("VMOVDQU %s, %d(%s)", n.v(zero), 32*i, n.codes)
	}
	n.label(n.at("encoded"))
}

// prefetch fetches the next block of what fetch lists.
func (n narrow8) prefetch() {
	for _, x := range n.fetch {
		for i := 0; i < 32; i += 64 / x.bytes {
			n.f("PREFETCHT0 %s", n.memAt(x.name, x.bytes, 256+i))
		}
	}
}

// pack writes the codes of 32 elements, which are in the dwords of k.
func (n narrow8) pack(k [4]reg, change func(codes reg)) {
	for _, i := range []int{0, 2} {
		n.f("VPACKUSDW %s, %s, %s", n.v(k[i+1]), n.v(k[i]), n.v(k[i]))
	}
	n.f("VPACKUSWB %s, %s, %s", n.v(k[2]), n.v(k[0]), n.v(k[0]))
	n.free(k[1:]...)
	change(k[0])
	t := n.take()
	n.f("VMOVDQU %s, %s", n.table(narrowOrder), n.v(t))
	n.f("VPERMD %s, %s, %s", n.v(k[0]), n.v(t), n.v(k[0]))
	n.f("VMOVDQU %s, (%s)(R12*1)", n.v(k[0]), n.codes)
	n.free(t)
	n.f("ADDQ $32, R12")
	n.f("CMPQ R12, $256")
	n.f("JLT %s", n.at("encode"))
	n.f("JMP %s", n.at("encoded"))
}

// rounded writes the codes of second moments, rounded by the block's random words: see kernels.ladder. A rung's number
// is found as nearest finds that of a decade.
func (n narrow8) rounded(inverse reg) {
	least := n.keep()
	n.f("VMOVUPS %d(%s), %s", ladderLeast, tablesReg, n.v(least))
	n.f("XORQ R12, R12")
	fmt.Fprintf(&n.text, "\tPCALIGN $32\n")
	n.label(n.at("encode"))
	var k [4]reg
	for i := range k {
		y, d, t, x := n.take(), n.take(), n.take(), n.take()
		n.f("VMULPS %s, %s, %s", n.elements(i), n.v(inverse), n.v(y))
		n.f("VMAXPS %s, %s, %s", n.v(least), n.v(y), n.v(y)) // of a NaN: least
		n.f("VPSRLD $24, %s, %s", n.v(y), n.v(d))
		n.f("VMOVDQU %d(%s), %s", ladderCellBytes, tablesReg, n.v(t))
		n.f("VPSHUFB %s, %s, %s", n.v(d), n.v(t), n.v(d))
		look := func(table int, to reg) { n.f("VPERMPS %d(%s), %s, %s", table, tablesReg, n.v(d), n.v(to)) }
		look(ladderEdge, t)
		n.f("VCMPPS $14, %s, %s, %s", n.v(t), n.v(y), n.v(t)) // y > edge
		n.op("VPSUBD", d, t)
		look(ladderSlope, t)
		n.mul(t, y)
		look(ladderOffset, x)
		n.add(t, x)
		look(ladderGapSlope, x)
		n.mul(y, x)
		look(ladderGapOffset, x)
		n.add(y, x)
		n.op("VMINPS", t, y)
		n.f("VCVTTPS2DQ %s, %s", n.v(t), n.v(t))
		n.f("MOVQ w+%d(FP), R11", n.offset["w"])
		n.f("VMOVDQU %d(R11)(R12*4), %s", narrowWords+32*i, n.v(x))
		n.f("VPSRLD $16, %s, %s", n.v(x), n.v(x))
		n.op("VPADDD", t, x)
		n.f("VPSRLD $16, %s, %s", n.v(t), n.v(t))
		n.free(y, d, x)
		k[i] = t
		n.decode(nextCodes, nextScratch, 8*i, 8*i+8)
	}
	n.prefetch()
	n.pack(k, func(reg) {})
}

// nearest writes the codes of first moments: the nearest ones.
func (n narrow8) nearest(magnitude, inverse reg) {
	least := n.keep()
	n.f("MOVL $0x32800000, R11") // 2^-26
	n.f("VMOVD R11, X%d", least)
	n.f("VPBROADCASTD X%d, %s", least, n.v(least))
	var tables [4]reg
	for i, offset := range []int{narrowEdge, narrowSlope, narrowOffset, narrowLimit} {
		tables[i] = n.keep()
		n.f("VMOVUPS %s, %s", n.table(offset), n.v(tables[i]))
	}
	n.f("XORQ R12, R12")
	fmt.Fprintf(&n.text, "\tPCALIGN $32\n")
	n.label(n.at("encode"))
	near := n.take()
	var k [4]reg
	for i := range k {
		k[i] = n.magnitudes(i, tables, magnitude, inverse, least, near)
		if !n.alone {
			n.decode(nextCodes, nextScratch, 8*i, 8*i+8)
		}
	}
	n.prefetch()
	// Is any closer to a line's step than the line is exact?
	t := n.take()
	n.zero(t)
	n.f("VPSRLD $%d, %s, %s", 16+3, n.v(near), n.v(near)) // 8 is twice slack8
	n.op("VPCMPEQD", near, t)
	n.f("VMOVMSKPS %s, R11", n.v(near))
	n.f("TESTL R11, R11")
	n.f("JNZ %s", n.at("settle"))
	n.free(near, t)
	n.label(n.at("settled"))
	n.pack(k, n.sign)

	n.label(n.at("settle"))
	n.f("LEAQ %s, R11", n.table(narrowAbove))
	n.restore(k[1:])
	for i := range k {
		y, all, above := n.normalized(i, magnitude, inverse, least), n.take(), n.take()
		n.f("VPCMPEQD %s, %s, %s", n.v(all), n.v(all), n.v(all))
		n.f("VGATHERDPS %s, (R11)(%s*4), %s", n.v(all), n.v(k[i]), n.v(above))
		n.f("VCMPPS $2, %s, %s, %s", n.v(above), n.v(y), n.v(above)) // y <= above
		n.op("VPADDD", k[i], above)
		n.free(y, all, above)
	}
	n.f("JMP %s", n.at("settled"))
	n.free(k[:]...)
}

// findScale writes the scale of a block, which is its greatest magnitude without the NaNs, and fills a register with
// the scale's inverse.
func (n narrow8) findScale(magnitude, inverse reg) {
	largest := []reg{n.take(), n.take(), n.take(), n.take()}
	for _, r := range largest {
		n.zero(r)
	}
	n.f("XORQ R12, R12")
	n.label(n.at("largest"))
	for i, r := range largest {
		x := n.take()
		n.f("VANDPS %s, %s, %s", n.elements(i), n.v(magnitude), n.v(x))
		n.f("VMAXPS %s, %s, %s", n.v(r), n.v(x), n.v(r)) // of a NaN: the second source, as the CPU counts them
		n.free(x)
	}
	n.f("ADDQ $32, R12")
	n.f("CMPQ R12, $256")
	n.f("JLT %s", n.at("largest"))
	n.op("VMAXPS", largest[0], largest[1])
	n.op("VMAXPS", largest[2], largest[3])
	n.op("VMAXPS", largest[0], largest[2])
	n.reduceHalf(largest[0], func(x, y string) { n.f("VMAXPS %s, %s, %s", y, x, x) })
	n.f("VMOVSS X%d, (%s)", largest[0], n.scales)
	n.f("VMOVD X%d, R11", largest[0])
	n.f("TESTL R11, R11")
	n.f("JEQ %s", n.at("zero"))
	n.f("MOVL $0x3f800000, R11")
	n.f("VMOVD R11, X%d", largest[1])
	n.f("VDIVSS X%d, X%d, X%d", largest[0], largest[1], largest[0])
	n.f("VBROADCASTSS X%d, %s", largest[0], n.v(inverse))
	n.free(largest...)
}

// normalized is 8 elements' magnitudes in units of the scale, a NaN's and those below least being least,
// which is less than half of the smallest code.
func (n narrow8) normalized(i int, magnitude, inverse, least reg) reg {
	y := n.take()
	n.f("VMULPS %s, %s, %s", n.elements(i), n.v(inverse), n.v(y))
	n.f("VANDPS %s, %s, %s", n.v(magnitude), n.v(y), n.v(y))
	n.f("VMAXPS %s, %s, %s", n.v(least), n.v(y), n.v(y))
	return y
}

// magnitudes is the codes' magnitudes of 8 elements, of which some may be one too high: of those near is less than
// 2*slack8 in the upper half.
func (n narrow8) magnitudes(i int, tables [4]reg, magnitude, inverse, least, near reg) reg {
	y, d, t := n.normalized(i, magnitude, inverse, least), n.take(), n.take()
	n.f("VPSRLD $24, %s, %s", n.v(y), n.v(d))
	n.f("VMOVDQU %s, %s", n.table(narrowCell), n.v(t))
	n.f("VPSHUFB %s, %s, %s", n.v(d), n.v(t), n.v(d))
	look := func(table int, to reg) { n.f("VPERMPS %s, %s, %s", n.v(tables[table]), n.v(d), n.v(to)) }
	look(0, t)
	n.f("VCMPPS $14, %s, %s, %s", n.v(t), n.v(y), n.v(t)) // y > edge
	n.op("VPSUBD", d, t)
	x := n.take()
	look(1, t)
	look(2, x)
	look(3, d)
	n.f("VFMADD231PS %s, %s, %s", n.v(t), n.v(y), n.v(x))
	n.f("VMINPS %s, %s, %s", n.v(d), n.v(x), n.v(x))
	n.f("VCVTTPS2DQ %s, %s", n.v(x), n.v(x))
	if i == 0 {
		n.f("VPSLLD $16, %s, %s", n.v(x), n.v(near))
	} else {
		n.f("VPSLLD $16, %s, %s", n.v(x), n.v(t))
		n.op("VPMINUD", near, t)
	}
	n.f("VPSRLD $16, %s, %s", n.v(x), n.v(x))
	n.free(y, d, t)
	return x
}

// sign makes codes of 32 magnitudes k: the code of zero plus k, or minus k for a negative number. -scale has no code.
func (n narrow8) sign(k reg) {
	negative, zero := [4]reg{}, n.take()
	n.zero(zero)
	for i := range negative {
		negative[i] = n.take()
		n.f("VCMPPS $14, %s, %s, %s", n.elements(i), n.v(zero), n.v(negative[i])) // 0 > x
	}
	for _, i := range []int{0, 2} {
		n.f("VPACKSSDW %s, %s, %s", n.v(negative[i+1]), n.v(negative[i]), n.v(negative[i]))
	}
	n.f("VPACKSSWB %s, %s, %s", n.v(negative[2]), n.v(negative[0]), n.v(negative[0]))
	minus := negative[1]
	n.f("VMOVDQU %s, %s", n.table(narrowZero), n.v(zero))
	n.f("VPSUBUSB %s, %s, %s", n.v(k), n.v(zero), n.v(minus))
	n.op("VPADDB", k, zero)
	n.f("VPBLENDVB %s, %s, %s, %s", n.v(negative[0]), n.v(minus), n.v(k), n.v(k))
	n.free(zero)
	n.free(negative[:]...)
}

// write8 writes the function for 8-bit moments, and its declaration.
func (l adamwAVX2) write8() (source, declaration string) {
	a := &asm{w: ymm, address: map[string]string{}, offset: map[string]int{},
		shift: map[string]int{"m": scratchM, "v": scratchV}, scaledBy: map[string]string{"m": mScales, "v": vScales}}
	arrays := namesOf(l.updated(l.d))
	off := 0
	load := func(name, register string) {
		a.f("MOVQ %s+%d(FP), %s", name, off, register)
		off += 8
	}
	for i, name := range arrays {
		a.address[name] = general[i]
		load(name, general[i])
	}
	load("n", "R10")
	a.f("MOVQ R10, %s", leftAt)
	a.address["s"] = general[len(arrays)]
	load("s", a.address["s"])
	load("at", "R11")
	for i, r := range []string{mCodes, vCodes, mScales, vScales} {
		a.f("MOVQ %d(R11), %s", 8*i, r)
	}
	a.offset["w"] = off
	a.random = wordPlace{fmt.Sprintf("w+%d(FP)", off), "R11", narrowWords}
	load("w", scratchReg)
	load("t", tablesReg)
	a.address["m"], a.address["v"] = scratchReg, scratchReg
	a.offset["ret"] = off
	a.begin()
	all := l.updated(l.d)
	fetch := [2][]array{l.master.arrays, all[len(l.master.arrays):]}
	part := func(i int, write func(n narrow8)) {
		n := narrow8{a.fork(), moments8[i], narrowAt + i*narrowBytes, fetch[i], false}
		write(n)
		a.text.WriteString(n.text.String())
	}
	a.f("LEAQ %d(%s), %s", scratchBytes, scratchReg, nextScratch)
	for i := range moments8 {
		part(i, func(n narrow8) { n.decodeBlock("first", n.codes, scratchReg) })
	}
	a.label("block")
	a.f("MOVQ w+%d(FP), R11", a.offset["w"])
	a.blockWords("R11", "R10", narrowWords)
	a.f("MOVQ $256, R10")
	l.loop(a)
	for i, m := range moments8 {
		part(i, narrow8.encode)
		a.f("ADDQ $256, %s", m.codes)
		a.f("ADDQ $4, %s", m.scales)
	}
	for _, x := range all {
		a.f("ADDQ $%d, %s", 256*x.bytes, a.address[x.name])
	}
	a.f("XCHGQ %s, %s", scratchReg, nextScratch)
	a.f("SUBQ $256, %s", leftAt)
	a.f("JGT block")
	a.end()
	a.f("VZEROUPPER")
	a.f("RET")
	return a.function("adamw8"+l.function(l.d)+ymm.suffix(),
		strings.Join(arrays, ", ")+" unsafe.Pointer, n int, s *AdamWScalars, at *moments8, w *narrowScratch8, t *tables8",
		frameBytes, off+tallyBytes)
}

// restore takes registers that were freed on another path.
func (a *asm) restore(rs []reg) {
	for _, r := range rs {
		a.used[r] = true
	}
}
