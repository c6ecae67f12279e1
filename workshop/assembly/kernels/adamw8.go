package main

import (
	"fmt"
	"strings"
)

// AdamW with moments of 8 bits works on blocks of 256 elements: it decodes the moments into scratch, updates with them,
// and encodes them. There are too few registers to hold a block, so each phase reuses all of them, except the counter
// of values that are not finite. The number of vector instructions limits the loop: of some 155 for 16 elements, 22
// decode, 43 update, 37 make random words and 52 encode. (Doing decoding, updating and encoding in turn for groups of 64
// elements, so that look-ups fill the time of divisions, was slower: it loads the tables four times as often.)
//
// A look-up by byte is done for the four bytes of an fp32 number apart: VPERMI2B finds 64 bytes in 128, so two of
// them and a blend find them in 256; unpacking then puts the bytes of each number together. Within 128-bit lanes, as
// unpacking (and packing) goes, elements come out in order if the bytes are put in first as a 4x4 matrix of dwords,
// transposed.

// Where things are in kernels.tables8, in bytes.
const (
	valuePlanes  = 0
	abovePlanes  = 1024
	edges        = 2048 // below and above which the two sets of lines hold
	slopesHigh   = 2112
	slopesLow    = 2176
	offsetsHigh  = 2240
	offsetsLow   = 2304
	bookBytes    = 2368
	transposedAt = 2 * bookBytes
)

// And in kernels.scratch8.
const (
	scratchM     = 0
	scratchV     = 1024
	scratchSign  = 2048
	scratchWords = 2112
)

// Where the longest moves are while other phases have the registers, below the inverse.
const (
	wideLongestAt  = "longest-80(SP)"
	wideFrameBytes = inverseBytes + 64
)

// The general registers of the block loops.
const (
	mCodes, vCodes, mScales, vScales = "DI", "SI", "R8", "R9"
	scratchReg, tablesReg            = "R15", "R13"
)

// moment8 locates one moment, and says how it is coded.
type moment8 struct {
	name          string
	codes, scales string // registers
	book, scratch int    // offsets
	signed        bool
}

var moments8 = []moment8{
	{"m", mCodes, mScales, 0, scratchM, true},
	{"v", vCodes, vScales, bookBytes, scratchV, false},
}

// lookUp finds the four planes of numbers by the bytes in Z0-Z3: plane p of those in Zg comes to Z(4+4p+g).
func (a *asm) lookUp(planes int) {
	for g := range 4 {
		a.f("VPMOVB2M Z%d, K%d", g, g+1) // bytes above 127
	}
	for p := range 4 {
		for t := range 4 {
			a.f("VMOVDQU64 %d(%s), Z%d", planes+256*p+64*t, tablesReg, 20+t)
		}
		for g := range 4 {
			d := 4 + 4*p + g
			a.f("VMOVDQA64 Z%d, Z%d", g, d)
			a.f("VPERMI2B Z21, Z20, Z%d", d)
			a.f("VMOVDQA64 Z%d, Z%d", g, 24+g)
			a.f("VPERMI2B Z23, Z22, Z%d", 24+g)
			a.f("VMOVDQU8 Z%d, K%d, Z%d", 24+g, g+1, d)
		}
	}
}

// unpack puts the bytes of the 64 numbers that lookUp found for Zg together, in Z24-Z27, in order.
func (a *asm) unpack(g int) {
	for _, half := range []int{0, 2} {
		lo, hi := 4+4*half+g, 4+4*(half+1)+g
		a.f("VPUNPCKLBW Z%d, Z%d, Z%d", hi, lo, 20+half)
		a.f("VPUNPCKHBW Z%d, Z%d, Z%d", hi, lo, 21+half)
	}
	for half := range 2 {
		a.f("VPUNPCKLWD Z%d, Z%d, Z%d", 22+half, 20+half, 24+2*half)
		a.f("VPUNPCKHWD Z%d, Z%d, Z%d", 22+half, 20+half, 25+2*half)
	}
}

// decode writes a block of a moment to scratch.
func (a *asm) decode(m moment8) {
	a.f("VMOVDQU64 %d(%s), Z30", transposedAt, tablesReg)
	a.f("VBROADCASTSS (%s), Z28", m.scales)
	for g := range 4 {
		a.f("VPERMD %d(%s), Z30, Z%d", 64*g, m.codes, g)
	}
	a.lookUp(m.book + valuePlanes)
	for g := range 4 {
		a.unpack(g)
		for j := range 4 {
			a.f("VMULPS Z28, Z%d, Z%d", 24+j, 24+j)
			a.f("VMOVUPS Z%d, %d(%s)", 24+j, m.scratch+64*(4*g+j), scratchReg)
		}
	}
}

// join64 makes one mask of K1-K4, in K1.
func (a *asm) join64() {
	a.f("KUNPCKWD K1, K2, K1")
	a.f("KUNPCKWD K3, K4, K3")
	a.f("KUNPCKDQ K1, K3, K1")
}

// encode codes a block of a moment, which is in scratch and whose scale is in memory.
func (a *asm) encode(m moment8) {
	zero, done := "zero_"+m.name, "done_"+m.name
	a.f("VMOVSS (%s), X0", m.scales)
	a.f("VMOVD X0, R11")
	a.f("TESTL R11, R11")
	a.f("JEQ %s", zero)
	a.fillDwords(0x3f800000, 29)
	a.f("VDIVSS X0, X29, X0")
	a.f("VBROADCASTSS X0, Z29")
	if m.signed {
		a.nearest(m)
	} else {
		a.rounded(m)
	}
	a.f("JMP %s", done)
	a.label(zero)
	a.f("VPXORD Z0, Z0, Z0")
	for g := range 4 {
		a.f("VMOVDQU64 Z0, %d(%s)", 64*g, m.codes)
	}
	a.label(done)
}

// fillDwords fills Zr with a dword.
func (a *asm) fillDwords(bits uint32, r int) {
	a.f("MOVL $%#x, R11", bits)
	a.f("VPBROADCASTD R11, Z%d", r)
}

// pack64 makes bytes of 64 dwords in Z8-Z11, in Zto, in an order that the transposition undoes.
func (a *asm) pack64(to int) {
	a.f("VPACKUSDW Z9, Z8, Z8")
	a.f("VPACKUSDW Z11, Z10, Z10")
	a.f("VPACKUSWB Z10, Z8, Z%d", to)
}

// rounded writes the codes of second moments, rounded by the block's random words; the inverse of the scale is in Z29.
// See kernels.ladder. Numbers whose exponents agree in all but the last bit are on at most two rungs, with an edge
// between them.
func (a *asm) rounded(m moment8) {
	a.f("VMOVUPS %d(%s), Z28", ladderLeast, tablesReg)
	for i, at := range []int{ladderCell, ladderEdge, ladderSlope, ladderOffset, ladderGapSlope, ladderGapOffset} {
		a.f("VMOVUPS %d(%s), Z%d", at, tablesReg, 22+i)
	}
	a.fillDwords(1, 21)
	a.f("VMOVDQU64 %d(%s), Z20", transposedAt, tablesReg)
	for g := range 4 {
		for j := range 4 {
			at := 64 * (4*g + j)
			y, x, rung, t := 4+j, 8+j, 12+j, 16+j
			a.f("VMULPS %d(%s), Z29, Z%d", m.scratch+at, scratchReg, y)
			a.f("VMAXPS Z28, Z%d, Z%d", y, y) // of a NaN: the least
			a.f("VPSRLD $24, Z%d, Z%d", y, rung)
			a.f("VPERMD Z22, Z%d, Z%d", rung, rung)
			a.f("VPERMPS Z23, Z%d, Z%d", rung, t)
			a.f("VCMPPS $14, Z%d, Z%d, K%d", t, y, j+1) // y > edge
			a.f("VPADDD Z21, Z%d, K%d, Z%d", rung, j+1, rung)
			a.f("VPERMPS Z24, Z%d, Z%d", rung, x)
			a.f("VMULPS Z%d, Z%d, Z%d", y, x, x)
			a.f("VPERMPS Z25, Z%d, Z%d", rung, t)
			a.f("VADDPS Z%d, Z%d, Z%d", t, x, x)
			a.f("VPERMPS Z26, Z%d, Z%d", rung, t)
			a.f("VMULPS Z%d, Z%d, Z%d", t, y, y)
			a.f("VPERMPS Z27, Z%d, Z%d", rung, t)
			a.f("VADDPS Z%d, Z%d, Z%d", t, y, y)
			a.f("VMINPS Z%d, Z%d, Z%d", y, x, x)
			a.f("VCVTTPS2DQ Z%d, Z%d", x, x)
			a.f("VPSRLD $16, %d(%s), Z%d", scratchWords+at, scratchReg, t)
			a.f("VPADDD Z%d, Z%d, Z%d", t, x, x)
			a.f("VPSRLD $16, Z%d, Z%d", x, x)
		}
		a.pack64(0)
		a.f("VPERMD Z0, Z20, Z0")
		a.f("VMOVDQU64 Z0, %d(%s)", 64*g, m.codes)
	}
}

// nearest writes the codes of first moments; the inverse of the scale is in Z29.
//
// A magnitude is first guessed by a line over the number: each decade of the code is linear, and numbers whose
// exponents agree in all but the last bit are in at most two decades, with an edge between them. The guess is the
// magnitude or one above it, and the look-up of what it must exceed settles it. See kernels.newTables8.
func (a *asm) nearest(m moment8) {
	a.fillDwords(0x32800000, 28) // 2^-26, which is less than half of the smallest code
	for i, at := range []int{edges, slopesHigh, slopesLow, offsetsHigh, offsetsLow} {
		a.f("VMOVUPS %d(%s), Z%d", m.book+at, tablesReg, 27-i)
	}
	a.fillDwords(16, 22)
	a.f("VPXORD Z21, Z21, Z21")
	for g := range 4 {
		for j := range 4 {
			x, i, e := fmt.Sprintf("Z%d", 4+j), fmt.Sprintf("Z%d", 8+j), fmt.Sprintf("Z%d", 12+j)
			mem := fmt.Sprintf("%d(%s)", m.scratch+64*(4*g+j), scratchReg)
			a.f("VMOVUPS %s, %s", mem, x)
			a.f("VCMPPS $1, Z21, %s, K%d", x, j+1)
			a.f("VMULPS Z29, %s, %s", x, x)
			a.f("VRANGEPS $0xb, Z28, %s, %s", x, x) // the greater magnitude; NaNs are ignored
			a.f("VMOVUPS %s, %s", x, mem)
			a.f("VPSRLD $24, %s, %s", x, i) // 50 to 63: bit 4 is set, and selects the second of two tables
			a.f("VPERMPS Z27, %s, %s", i, e)
			a.f("VCMPPS $14, %s, %s, K5", e, x)
			a.f("VPSUBD Z22, %s, K5, %s", i, i)
			a.f("VMOVDQA64 %s, %s", i, e)
			a.f("VPERMI2PS Z25, Z26, %s", e)
			a.f("VPERMI2PS Z23, Z24, %s", i)
			a.f("VFMADD231PS %s, %s, %s", x, e, i)
			a.f("VCVTTPS2DQ %s, %s", i, i)
		}
		a.pack64(g)
		a.join64()
		a.f("KMOVQ K1, %d(%s)", scratchSign+8*g, scratchReg)
	}
	a.lookUp(m.book + abovePlanes)
	a.f("VMOVDQU64 %d(%s), Z30", transposedAt, tablesReg)
	a.fillDwords(0x01010101, 29)
	a.fillDwords(0x7f7f7f7f, 28)
	for g := range 4 {
		a.unpack(g)
		for j := range 4 {
			a.f("VCMPPS $13, %d(%s), Z%d, K%d", m.scratch+64*(4*g+j), scratchReg, 24+j, j+1)
		}
		a.join64()
		a.f("VPERMD Z%d, Z30, Z20", g)
		a.f("VPSUBB Z29, Z20, K1, Z20")
		a.f("KMOVQ %d(%s), K2", scratchSign+8*g, scratchReg)
		a.f("VPMINUB Z28, Z20, K2, Z20")
		a.f("VPADDB Z28, Z20, Z21")
		a.f("VPSUBB Z20, Z28, K2, Z21")
		a.f("VMOVDQU64 Z21, %d(%s)", 64*g, m.codes)
	}
}

// adamw8 writes AdamW for weights in the given form, with its declaration.
func adamw8(form master, d dtype) (source, declaration string) {
	a := &asm{w: zmm, address: map[string]string{}, offset: map[string]int{}, consts: map[string]reg{}}
	a.random = wordPlace{base: scratchReg, at: scratchWords}
	arrays, body := form.updated(d), form.body(d)
	off := 0
	load := func(name, register string) {
		a.f("MOVQ %s+%d(FP), %s", name, off, register)
		off += 8
	}
	var names []string
	for i, x := range arrays {
		a.address[x.name] = general[i]
		load(x.name, general[i])
		names = append(names, x.name)
	}
	load("n", "R10")
	a.address["s"] = general[len(arrays)]
	load("s", a.address["s"])
	load("at", "R11")
	for i, r := range []string{mCodes, vCodes, mScales, vScales} {
		a.f("MOVQ %d(R11), %s", 8*i, r)
	}
	load("w", scratchReg)
	load("t", tablesReg)
	a.offset["ret"] = off

	a.invert()
	counter := a.keep()
	a.zero(counter)
	a.f("VMOVDQU64 %s, %s", a.v(counter), wideLongestAt)
	a.address["m"], a.address["v"] = scratchReg, "R11"
	before := a.text.String()
	largest := []reg{a.keep(), a.keep()}
	longest := a.keep()
	a.move = func(r reg) {
		a.double(r)
		a.longer(longest, r)
	}
	a.moment = func(r reg, i int) { a.f("VRANGEPS $0xb, Z%d, Z%d, Z%d", largest[i], r, largest[i]) }
	a.text.Reset()
	body(a, counter) // a dry run, which finds the constants
	constants := a.ahead.String()

	a.text.Reset()
	a.text.WriteString(before)
	a.label("block")
	a.blockWords(scratchReg, "R11", scratchWords)
	for _, m := range moments8 {
		a.decode(m)
	}
	a.text.WriteString(constants)
	for _, r := range largest {
		a.zero(r)
	}
	a.f("VMOVDQU64 %s, %s", wideLongestAt, a.v(longest))
	a.f("LEAQ %d(%s), R11", scratchV, scratchReg)
	a.f("XORQ R12, R12")
	fmt.Fprintf(&a.text, "\tPCALIGN $32\n")
	a.label("update")
	body(a, counter)
	a.fetch(arrays...)
	a.f("ADDQ $16, R12")
	a.f("CMPQ R12, $256")
	a.f("JLT update")
	a.f("VMOVDQU64 %s, %s", a.v(longest), wideLongestAt)
	for i, m := range moments8 {
		a.reduce(largest[i], func(x, y string) { a.f("VMAXPS %s, %s, %s", y, x, x) })
		a.f("VMOVSS X%d, (%s)", largest[i], m.scales)
	}
	for _, m := range moments8 {
		a.encode(m)
		for i := 0; i < 256; i += 64 {
			a.f("PREFETCHT0 %d(%s)", fetchAhead+i, m.codes)
		}
		a.f("ADDQ $256, %s", m.codes)
		a.f("ADDQ $4, %s", m.scales)
	}
	for _, x := range arrays {
		a.f("ADDQ $%d, %s", 256*x.bytes, a.address[x.name])
	}
	a.f("SUBQ $256, R10")
	a.f("JGT block")
	a.total(counter)
	a.f("VMOVDQU64 %s, %s", wideLongestAt, a.v(longest))
	a.longest(longest)
	a.f("VZEROUPPER")
	a.f("RET")

	return a.function("adamw8"+form.function(d)+zmm.suffix(),
		strings.Join(names, ", ")+" unsafe.Pointer, n int, s *AdamWScalars, at *moments8, w *scratch8, t *tables8",
		wideFrameBytes, off+tallyBytes)
}

// blockLoops are the loops over whole blocks; they need AVX-512 with VBMI.
func blockLoops() (sources, declarations []string) {
	add := func(source, declaration string) {
		sources, declarations = append(sources, source), append(declarations, declaration)
	}
	for _, form := range inHalves {
		for _, d := range both {
			add(adamw8(form, d))
		}
	}
	add(adamw8(unsplit, f32))
	return sources, declarations
}
