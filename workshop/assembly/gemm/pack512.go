package main

import "fmt"

// tables512 writes the indices that interleave two rows of 32 bf16: lanes 0..31 pick from the first, 32..63 from the
// second.
func tables512(w *writer) {
	for half, name := range []string{"pairsLow", "pairsHigh"} {
		for i := 0; i < 8; i++ {
			a := uint64(16*half + 2*i)
			q := a | (a+32)<<16 | (a+1)<<32 | (a+33)<<48
			w.raw(fmt.Sprintf("DATA %s<>+%d(SB)/8, $0x%016x\n", name, 8*i, q))
		}
		w.raw(fmt.Sprintf("GLOBL %s<>(SB), RODATA|NOPTR, $64\n", name))
	}
}

// transpose512 packs a panel whose source rows run along k: 16 rows at a time, 16 units of k at a time. The addresses
// of the rows come from a table, so that rows past the edge can repeat the last one (their sums are never written). The
// last block reads under a mask and stores zeros past k. Each read of a row is followed by a fetch to L2 of what is
// `ahead` bytes after it, as few512 has it.
func transpose512(w *writer, widen bool) {
	name, doc, bytes := "transpose512", "Packs up to 16 source rows of 32-bit units.", 64
	if widen {
		name, doc, bytes = "transposeWiden512", "Packs up to 16 source rows of bf16, widened to fp32.", 32
	}
	w.text(doc, name, arg{"dst", "DI"}, arg{"dstStep", "DX"}, arg{"src", "SI"}, arg{"offsets", "BX"},
		arg{"blocks", "CX"}, arg{"lastMask", "R8"}, arg{"lanes", "R9"}, arg{"ahead", "R10"})
	w.op("ADDQ SI, R10")
	w.op("MOVQ $-1, AX")
	w.op("KMOVD AX, K1")
	w.op("KMOVW R9, K2")
	w.label("block")
	w.op("CMPQ CX, $1")
	w.op("JNE full")
	w.op("KMOVD R8, K1")
	w.label("full")
	for i := 0; i < 16; i++ {
		w.op("MOVQ %d(BX), AX", 8*i)
		load512(w, "(SI)(AX*1)", i, widen)
		w.op("PREFETCHT1 (R10)(AX*1)")
	}
	for _, z := range transposed512(w) {
		w.op("VMOVUPS Z%d, K2, (DI)", z)
		w.op("ADDQ DX, DI")
	}
	w.op("ADDQ $%d, SI", bytes)
	w.op("ADDQ $%d, R10", bytes)
	w.op("DECQ CX")
	w.op("JNZ block")
	w.ret()
}

// load512 loads 16 units of a row of op(B) or op(A) under the mask K1, widened or not, into Z<z>.
func load512(w *writer, address string, z int, widen bool) {
	if widen {
		w.op("VPMOVZXWD.Z %s, K1, Z%d", address, z)
		w.op("VPSLLD $16, Z%d, Z%d", z, z)
		return
	}
	w.op("VMOVDQU16.Z %s, K1, Z%d", address, z)
}

// store512 writes one unit of k of a panel from Z<z> (and Z<z+1>).
func store512(w *writer, width, z int) {
	if width == 12 {
		w.op("VMOVUPS Z%d, K3, (DI)", z)
	} else {
		w.op("VMOVUPS Z%d, (DI)", z)
		w.op("VMOVUPS Z%d, 64(DI)", z+1)
	}
	w.op("ADDQ $%d, DI", 4*width)
}

// open512 starts a routine that packs source rows, one for every k.
func open512(w *writer, doc, name string, width int) (vectors int) {
	w.text(doc, fmt.Sprintf("%s512x%d", name, width), arg{"dst", "DI"}, arg{"src", "SI"}, arg{"stride", "DX"},
		arg{"k", "CX"}, arg{"mask", "R8"})
	if width == 12 {
		w.op("MOVL $0xfff, AX")
		w.op("KMOVW AX, K3")
		return 1
	}
	return 2
}

// fetchAhead leads, in a source row, the reads of a routine that reads some bytes of each row: what it is to read
// when it comes back for the next panel. The rows are too far apart for the hardware to see the pattern.
func fetchAhead(bytes int) int { return max(bytes, 64) }

func fetchNext(w *writer, bytes int) {
	for at := fetchAhead(bytes); at < fetchAhead(bytes)+bytes; at += 64 {
		w.op("PREFETCHT0 %d(SI)", at)
	}
}

// copy512 packs fp32 whose source rows run along the panel.
func copy512(w *writer, width int) {
	v := open512(w, "Packs k source rows of fp32.", "copy", width)
	w.op("KMOVW R8, K1")
	w.op("SHRQ $16, R8")
	w.op("KMOVW R8, K2")
	w.label("row")
	fetchNext(w, 4*width)
	for i := 0; i < v; i++ {
		w.op("VMOVUPS.Z %d(SI), K%d, Z%d", 64*i, 1+i, i)
	}
	store512(w, width, 0)
	w.op("ADDQ DX, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// copyWiden512 packs bf16 as fp32.
func copyWiden512(w *writer, width int) {
	v := open512(w, "Packs k source rows of bf16, widened to fp32.", "copyWiden", width)
	w.op("KMOVW R8, K1")
	w.op("SHRQ $16, R8")
	w.op("KMOVW R8, K2")
	w.label("row")
	fetchNext(w, 2*width)
	for i := 0; i < v; i++ {
		w.op("VPMOVZXWD.Z %d(SI), K%d, Z%d", 32*i, 1+i, i)
		w.op("VPSLLD $16, Z%d, Z%d", i, i)
	}
	store512(w, width, 0)
	w.op("ADDQ DX, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// copyPairs512 packs bf16 as pairs: each 32-bit unit holds the same column of two rows.
func copyPairs512(w *writer, width int) {
	v := open512(w, "Packs 2k source rows of bf16 as k rows of pairs.", "copyPairs", width)
	w.op("KMOVD R8, K1")
	w.op("VMOVDQU64 pairsLow<>(SB), Z30")
	w.op("VMOVDQU64 pairsHigh<>(SB), Z31")
	w.label("row")
	fetchNext(w, 2*width)
	w.op("PREFETCHT0 %d(SI)(DX*1)", fetchAhead(2*width))
	w.op("VMOVDQU16.Z (SI), K1, Z0")
	w.op("VMOVDQU16.Z (SI)(DX*1), K1, Z2")
	if v == 2 {
		w.op("VMOVDQA64 Z0, Z1")
		w.op("VPERMT2W Z2, Z31, Z1")
	}
	w.op("VPERMT2W Z2, Z30, Z0")
	store512(w, width, 0)
	w.op("LEAQ (SI)(DX*2), SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}
