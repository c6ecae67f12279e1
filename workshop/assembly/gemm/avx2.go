package main

import "fmt"

const (
	rows256 = 6
	cols256 = 16
)

// tile256 writes the AVX2 register tile: 6 x 16 sums in Y4..Y15.
func tile256(w *writer) {
	w.text("6 x 16 sums over k fp32.", "tile256",
		arg{"k", "R8"}, arg{"a", "AX"}, arg{"b", "BX"}, arg{"c", "DI"}, arg{"ldc", "SI"}, arg{"add", "R12"})
	acc := func(row, half int) int { return 4 + 2*row + half }
	for i := 4; i < 16; i++ {
		w.op("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	step := func(units int) {
		for u := 0; u < units; u++ {
			w.op("VMOVUPS %d(BX), Y0", 64*u)
			w.op("VMOVUPS %d(BX), Y1", 64*u+32)
			w.op("PREFETCHT0 %d(BX)", 64*u+1024)
			for i := 0; i < rows256; i++ {
				w.op("VBROADCASTSS %d(AX), Y%d", 4*(rows256*u+i), 2+i%2)
				w.op("VFMADD231PS Y%d, Y0, Y%d", 2+i%2, acc(i, 0))
				w.op("VFMADD231PS Y%d, Y1, Y%d", 2+i%2, acc(i, 1))
			}
		}
		w.op("ADDQ $%d, AX", 4*rows256*units)
		w.op("ADDQ $%d, BX", 4*cols256*units)
	}
	w.op("MOVQ DI, R9")
	for i := 0; i < rows256; i++ {
		w.op("PREFETCHT0 (R9)")
		w.op("PREFETCHT0 60(R9)")
		if i < rows256-1 {
			w.op("ADDQ SI, R9")
		}
	}
	w.op("MOVQ R8, CX")
	w.op("ANDQ $3, R8")
	w.op("SHRQ $2, CX")
	w.op("JZ rest")
	w.label("four")
	step(4)
	w.op("DECQ CX")
	w.op("JNZ four")
	w.label("rest")
	w.op("TESTQ R8, R8")
	w.op("JZ write")
	w.label("single")
	step(1)
	w.op("DECQ R8")
	w.op("JNZ single")
	w.label("write")
	w.op("TESTQ R12, R12")
	w.op("JZ store")
	w.op("MOVQ DI, R9")
	for i := 0; i < rows256; i++ {
		w.op("VADDPS (R9), Y%d, Y%d", acc(i, 0), acc(i, 0))
		w.op("VADDPS 32(R9), Y%d, Y%d", acc(i, 1), acc(i, 1))
		if i < rows256-1 {
			w.op("ADDQ SI, R9")
		}
	}
	w.label("store")
	for i := 0; i < rows256; i++ {
		w.op("VMOVUPS Y%d, (DI)", acc(i, 0))
		w.op("VMOVUPS Y%d, 32(DI)", acc(i, 1))
		if i < rows256-1 {
			w.op("ADDQ SI, DI")
		}
	}
	w.ret()
}

// widen256 is widen512 for full tiles of 16 columns.
func widen256(w *writer) {
	w.text("Widens rows x 16 bf16 at c into fp32 at t.", "widenTile256",
		arg{"t", "DI"}, arg{"ldt", "DX"}, arg{"c", "SI"}, arg{"ldc", "R8"}, arg{"rows", "CX"})
	w.label("row")
	for half := 0; half < 2; half++ {
		w.op("VPMOVZXWD %d(SI), Y%d", 16*half, half)
		w.op("VPSLLD $16, Y%d, Y%d", half, half)
		w.op("VMOVUPS Y%d, %d(DI)", half, 32*half)
	}
	w.op("ADDQ R8, SI")
	w.op("ADDQ DX, DI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// round256 is round512 for full tiles of 16 columns.
func round256(w *writer) {
	w.text("Rounds rows x 16 fp32 at t to bf16 at c: nearest, ties to even.", "roundTile256",
		arg{"c", "DI"}, arg{"ldc", "R8"}, arg{"t", "SI"}, arg{"ldt", "DX"}, arg{"rows", "CX"})
	for i, c := range []int{1, 0x7fff, 0x40} {
		w.op("MOVL $0x%x, AX", c)
		w.op("VMOVD AX, X%d", 13+i)
		w.op("VPBROADCASTD X%d, Y%d", 13+i, 13+i)
	}
	w.label("row")
	for half := 0; half < 2; half++ {
		x, up, cut, nan := 4*half, 4*half+1, 4*half+2, 4*half+3
		w.op("VMOVUPS %d(SI), Y%d", 32*half, x)
		w.op("VPSRLD $16, Y%d, Y%d", x, cut)
		w.op("VPAND Y13, Y%d, Y%d", cut, up)
		w.op("VPADDD Y14, Y%d, Y%d", up, up)
		w.op("VPADDD Y%d, Y%d, Y%d", x, up, up)
		w.op("VPSRLD $16, Y%d, Y%d", up, up)
		w.op("VCMPPS $3, Y%d, Y%d, Y%d", x, x, nan)
		w.op("VPOR Y15, Y%d, Y%d", cut, cut)
		w.op("VBLENDVPS Y%d, Y%d, Y%d, Y%d", nan, cut, up, up)
	}
	w.op("VPACKUSDW Y5, Y1, Y1") // packs inside 128-bit lanes; the permutation puts them in order
	w.op("VPERMQ $0xd8, Y1, Y1")
	w.op("VMOVDQU Y1, (DI)")
	w.op("ADDQ R8, DI")
	w.op("ADDQ DX, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// load256 loads 8 fp32, or 8 bf16 widened.
func load256(w *writer, address string, y int, widen bool) {
	if widen {
		w.op("VPMOVZXWD %s, Y%d", address, y)
		w.op("VPSLLD $16, Y%d, Y%d", y, y)
		return
	}
	w.op("VMOVUPS %s, Y%d", address, y)
}

// name256 names a packing routine.
func name256(verb string, width int, widen bool) (doc, name string) {
	if widen {
		return "bf16, widened to fp32.", fmt.Sprintf("%sWiden256x%d", verb, width)
	}
	return "fp32.", fmt.Sprintf("%s256x%d", verb, width)
}

// store256 writes 8 lanes, or the first 6.
func store256(w *writer, y, offset, lanes int) {
	if lanes == 8 {
		w.op("VMOVUPS Y%d, %d(DI)", y, offset)
		return
	}
	w.op("VMOVUPS X%d, %d(DI)", y, offset)
	w.op("VEXTRACTF128 $1, Y%d, X%d", y, y)
	w.op("VMOVQ X%d, %d(DI)", y, offset+16)
}

// transpose256 packs 8 units of k at a time of a whole panel; the address table is that of transpose512.
func transpose256(w *writer, width int, widen bool) {
	doc, name := name256("transpose", width, widen)
	w.text(fmt.Sprintf("Packs %d source rows of %s", width, doc), name, arg{"dst", "DI"}, arg{"src", "SI"},
		arg{"offsets", "BX"}, arg{"blocks", "CX"})
	bytes := 32
	if widen {
		bytes = 16
	}
	w.label("block")
	for first := 0; first < width; first += 8 {
		lanes := min(8, width-first)
		for i := 0; i < lanes; i++ {
			w.op("MOVQ %d(BX), AX", 8*(first+i))
			load256(w, "(SI)(AX*1)", i, widen)
		}
		for k, y := range transposed256(w) {
			store256(w, y, 4*(width*k+first), lanes)
		}
	}
	w.op("ADDQ $%d, DI", 4*8*width)
	w.op("ADDQ $%d, SI", bytes)
	w.op("DECQ CX")
	w.op("JNZ block")
	w.ret()
}

// copy256 packs whole source rows of a panel.
func copy256(w *writer, width int, widen bool) {
	doc, name := name256("copy", width, widen)
	w.text(fmt.Sprintf("Packs k source rows of %d %s", width, doc), name, arg{"dst", "DI"}, arg{"src", "SI"},
		arg{"stride", "DX"}, arg{"k", "CX"})
	w.label("row")
	switch {
	case width == 16:
		bytes := 32
		if widen {
			bytes = 16
		}
		for i := 0; i < 2; i++ {
			load256(w, fmt.Sprintf("%d(SI)", bytes*i), i, widen)
			store256(w, i, 32*i, 8)
		}
	case widen:
		w.op("VMOVQ (SI), X0")
		w.op("VPINSRD $2, 8(SI), X0, X0")
		w.op("VPMOVZXWD X0, Y0")
		w.op("VPSLLD $16, Y0, Y0")
		store256(w, 0, 0, 6)
	default:
		w.op("VMOVUPS (SI), X0")
		w.op("VMOVQ 16(SI), X1")
		w.op("VMOVUPS X0, (DI)")
		w.op("VMOVQ X1, 16(DI)")
	}
	w.op("ADDQ $%d, DI", 4*width)
	w.op("ADDQ DX, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}
