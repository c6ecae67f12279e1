package main

import "fmt"

// few512Rows are the numbers of rows that few512 has routines for.
var few512Rows = []int{1, 4, 8}

// few512 writes the sums of few rows of op(A) and 16 columns of op(B) that are rows of a matrix and run along k. It
// transposes 16 of them by 16 times 4 bytes of k in registers, as transpose512 does for a panel, and multiplies what it
// has: nothing is written but the sums. A row of op(A) has its units one after the other, lda bytes after the row
// before.
// bf16 that are widened are transposed in pairs, which then are widened apart: two instructions for 32 numbers, and
// transposing, which one of a core's ports does, takes half of what it takes for fp32.
//
// Such a product takes the time of reading op(B) from memory once. Its rows are short, so that the hardware does not
// see far ahead: each read of a row is followed by two fetches. One goes to L2, for the next 16 columns; those of a
// block of k are step bytes apart, and the next block's begin turn bytes after the last one. A core has few buffers
// for lines on their way to L1, and one is taken for as long as memory takes: fetches of these columns to L1 came to a
// third of this rate. The other one takes the same row two blocks later from L2 to L1.
//
// A row of C has lanes of 16; rows past the last one are computed and not written.
func few512(w *writer, rows int, of operands) {
	name, doc, each := "F32", "fp32", 1 // units in 4 bytes of op(B)
	switch of {
	case pairsOfBF16:
		name, doc = "BF16", "pairs of bf16"
	case widenedBF16:
		name, doc, each = "Widen", "bf16 that are widened to fp32", 2
	}
	args := []arg{{"k", "R8"}, {"a", "AX"}, {"lda", "R13"}, {"b", "SI"}, {"offsets", "BX"}, {"ahead", "R9"},
		{"step", "R12"}}
	turn := arg{"turn", "DX"}
	late := []arg{{"c", "DI"}, {"ldc", "R9"}, {"rows", "R10"}, {"add", "R11"}}
	masks := []arg{{"lanes", "CX"}, {"lastMask", "DX"}}
	w.open(fmt.Sprintf("%d x 16 sums over k %s; columns of B begin at offsets.", rows, doc),
		fmt.Sprintf("few512%sx%d", name, rows), len(args)+1+len(late)+len(masks))
	w.load(0, args...)
	w.load(len(args)+1+len(late), masks...)
	w.op("KMOVW CX, K2")
	w.op("KMOVD DX, K3")
	w.load(len(args), turn)
	w.op("MOVQ $-1, CX")
	w.op("KMOVD CX, K1")
	w.op("ADDQ SI, R9")
	bases := []string{"AX", "R10", "R11"}[:(rows+2)/3]
	for i := 1; i < len(bases); i++ {
		w.op("LEAQ (%s)(R13*2), %s", bases[i-1], bases[i])
		w.op("ADDQ R13, %s", bases[i])
	}
	const firstSum, wide, upper = 17, 25, 31 // after the registers of a transposition: sums, widened numbers, a mask
	for i := range rows {
		w.op("VPXORQ Z%d, Z%d, Z%d", firstSum+i, firstSum+i, firstSum+i)
	}
	if of == widenedBF16 {
		w.op("VPTERNLOGD $0xff, Z%d, Z%d, Z%d", upper, upper, upper)
		w.op("VPSLLD $16, Z%d, Z%d", upper, upper)
	}
	w.label("block")
	w.op("CMPQ R8, $%d", 16*each)
	w.op("JG full")
	w.op("KMOVD K3, K1")
	w.label("full")
	for i := range 16 {
		w.op("MOVQ %d(BX), CX", 8*i)
		load512(w, "(SI)(CX*1)", i, false)
		w.op("PREFETCHT0 128(SI)(CX*1)")
		w.op("PREFETCHT1 (R9)")
		w.op("ADDQ R12, R9")
	}
	multiply := func(unit, z int) {
		for i := range rows {
			from := address{offset: 4 * unit, base: bases[i/3], index: "R13", scale: i % 3}
			if of == pairsOfBF16 {
				w.op("%s", vdpbf16ps(from, z, firstSum+i))
			} else {
				w.op("VFMADD231PS.BCST %v, Z%d, Z%d", from, z, firstSum+i)
			}
		}
		w.op("DECQ R8")
		w.op("JZ write")
	}
	for u, z := range transposed512(w) {
		if of != widenedBF16 {
			multiply(u, z)
			continue
		}
		low := wide + u%2
		w.op("VPSLLD $16, Z%d, Z%d", z, low)
		multiply(2*u, low)
		w.op("VPANDD Z%d, Z%d, Z%d", upper, z, z)
		multiply(2*u+1, z)
	}
	for _, base := range bases {
		w.op("ADDQ $%d, %s", 64*each, base)
	}
	w.op("ADDQ $64, SI")
	w.op("ADDQ DX, R9")
	w.op("JMP block")
	w.label("write")
	w.load(len(args)+1, late...)
	w.op("TESTQ R11, R11")
	w.op("JZ store")
	for _, add := range []bool{true, false} {
		if !add {
			w.label("store")
		}
		for i := range rows {
			if add { // only lanes under the mask are touched in memory, faults included
				w.op("VADDPS (DI), Z%d, K2, Z%d", firstSum+i, firstSum+i)
			}
			w.op("VMOVUPS Z%d, K2, (DI)", firstSum+i)
			if i < rows-1 {
				w.op("DECQ R10")
				w.op("JZ done")
				w.op("ADDQ R9, DI")
			}
		}
		if add {
			w.op("JMP done")
		}
	}
	w.label("done")
	w.ret()
}

// operands take elements of op(A) and op(B) for a routine.
type operands int

const (
	fp32 operands = iota
	pairsOfBF16
	widenedBF16 // op(B) alone: op(A) is fp32
)
