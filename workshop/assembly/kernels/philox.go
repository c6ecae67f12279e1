package main

import "fmt"

// Random words come from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011); internal/rng is the reference. A vector has a counter in each lane of 64 bits, of which the low half
// counts: VPMULUDQ multiplies the low halves, and the high halves of its products are the other inputs of the next
// round. Two vectors take turns, as a round waits for its products.

// Where things are in kernels.words8, in bytes.
const (
	wordsKeys    = 1024
	wordsNext    = 2304
	wordsPart    = 2432
	wordsAdvance = 2496
)

// The general registers of the loop; R12 counts words.
const philoxMul0, philoxMul1 = 0xD2511F53, 0xCD9E8D57

// wordsLoop writes the function that makes the random words of n parameters, or of some more, and its declaration.
func wordsLoop(w width) (source, declaration string) {
	a := &asm{w: w}
	a.f("MOVQ to+0(FP), AX")
	a.f("MOVQ n+8(FP), R10")
	a.f("MOVQ w+16(FP), BX")
	a.philox("BX", "R11", 0, "AX", "R10")
	a.f("VZEROUPPER")
	a.f("RET")
	head := fmt.Sprintf("func words%s(to *[wordsPiece]uint32, n int, w *words8)", w.suffix())
	source = fmt.Sprintf("// %s\nTEXT ·words%s(SB), NOSPLIT, $0-24\n%s\n", head, w.suffix(), a.text.String())
	return source, "//go:noescape\n" + head + "\n\n"
}

// blockWords writes a block's random words to words8. base is the register with its address, less at.
func (a *asm) blockWords(base, temp string, at int) { a.philox(base, temp, at, base, "$256") }

// philox writes random words, until there are end of them. base is the register with the address of words8, and to the
// one with that of the words, both less at. It takes R12, the register temp and vector registers below 16.
func (a *asm) philox(base, temp string, at int, to, end string) {
	width := 32 // bytes
	if a.w == zmm {
		width = 64
	}
	const mul0, mul1, low = reg(12), reg(13), reg(14)
	broadcast := func(bits uint32, r reg) {
		a.f("MOVL $%#x, %s", bits, temp)
		a.f("VMOVD %s, X%d", temp, r)
		a.f("VPBROADCASTD X%d, %s", r, a.v(r))
	}
	broadcast(philoxMul0, mul0)
	broadcast(philoxMul1, mul1)
	if a.w == zmm { // ones in the low halves
		a.f("VPTERNLOGD $0xff, Z%d, Z%d, Z%d", low, low, low)
		a.f("VPSRLQ $32, Z%d, Z%d", low, low)
	}
	a.f("XORQ R12, R12")
	a.label("words")
	type state struct {
		c    [4]reg
		free [2]reg
	}
	vectors := [2]state{{[4]reg{0, 1, 2, 3}, [2]reg{4, 5}}, {[4]reg{6, 7, 8, 9}, [2]reg{10, 11}}}
	for i := range vectors {
		c, t := vectors[i].c, vectors[i].free[0]
		a.f("VMOVDQU%s %d(%s), %s", a.quads(), at+wordsNext+64*i, base, a.v(c[0]))
		a.f("VPADDQ %d(%s), %s, %s", at+wordsAdvance, base, a.v(c[0]), a.v(t))
		a.f("VMOVDQU%s %s, %d(%s)", a.quads(), a.v(t), at+wordsNext+64*i, base)
		a.f("VPSRLQ $32, %s, %s", a.v(c[0]), a.v(c[1]))
		a.f("VMOVDQU%s %d(%s), %s", a.quads(), at+wordsPart, base, a.v(c[2]))
		a.f("VPSRLQ $32, %s, %s", a.v(c[2]), a.v(c[3]))
	}
	for round := range 10 {
		for i := range vectors {
			c, next := vectors[i].c, vectors[i].free
			a.f("VPMULUDQ %s, %s, %s", a.v(mul0), a.v(c[0]), a.v(c[0]))
			a.f("VPMULUDQ %s, %s, %s", a.v(mul1), a.v(c[2]), a.v(c[2]))
			for j, from := range [2]reg{c[2], c[0]} { // c[1] and c[3] are used up
				key := at + wordsKeys + 64*(2*round+j)
				a.f("VPSRLQ $32, %s, %s", a.v(from), a.v(next[j]))
				if a.w == zmm {
					a.f("VPTERNLOGD $0x96, %d(%s), Z%d, Z%d", key, base, c[1+2*j], next[j])
					continue
				}
				a.f("VPXOR %s, %s, %s", a.v(c[1+2*j]), a.v(next[j]), a.v(next[j]))
				a.f("VPXOR %d(%s), %s, %s", key, base, a.v(next[j]), a.v(next[j]))
			}
			vectors[i] = state{[4]reg{next[0], c[2], next[1], c[0]}, [2]reg{c[1], c[3]}}
		}
	}
	for i := range vectors {
		c, t := vectors[i].c, vectors[i].free[0]
		for _, j := range []int{0, 2} {
			a.f("VPSLLQ $32, %s, %s", a.v(c[j+1]), a.v(c[j+1]))
			if a.w == zmm { // the low halves of c[j], the high ones of c[j+1]
				a.f("VPTERNLOGQ $0xe4, Z%d, Z%d, Z%d", low, c[j+1], c[j])
			} else {
				a.f("VPBLENDD $0xaa, %s, %s, %s", a.v(c[j+1]), a.v(c[j]), a.v(c[j]))
			}
		}
		for half, name := range []string{"VPUNPCKLQDQ", "VPUNPCKHQDQ"} {
			a.f("%s %s, %s, %s", name, a.v(c[2]), a.v(c[0]), a.v(t))
			a.f("VMOVDQU%s %s, %d(%s)(R12*4)", a.quads(), a.v(t), at+width*(2*i+half), to)
		}
	}
	a.f("ADDQ $%d, R12", width)
	a.f("CMPQ R12, %s", end)
	a.f("JLT words")
}

// wordPlace says where an update finds the words that round weights.
type wordPlace struct {
	from string // of an address, which is loaded into base; "" if base has it
	base string // a register
	at   int    // from that address on
}

// wordsAt is the address of the random words of elements, from R12+i on.
func (a *asm) wordsAt(i int) string {
	w := a.random
	if w == (wordPlace{}) {
		return a.memAt("words", 4, i)
	}
	if w.from != "" {
		a.f("MOVQ %s, %s", w.from, w.base)
	}
	return fmt.Sprintf("%d(%s)(R12*4)", w.at+4*i, w.base)
}

// quads returns the end of the names of moves of whole vectors.
func (a *asm) quads() string {
	if a.w == zmm {
		return "64"
	}
	return ""
}
