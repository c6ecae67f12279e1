package main

import "fmt"

// few256Rows are the numbers of rows that few256 has routines for. Nine registers transpose, one broadcasts.
var few256Rows = []int{1, 4}

// few256 is few512 for AVX2: 8 columns of op(B), whole blocks of 8 k, and all rows.
func few256(w *writer, rows int, widen bool) {
	doc, name, bytes := "fp32", "few256F32", 32
	if widen {
		doc, name, bytes = "bf16 that are widened to fp32", "few256Widen", 16
	}
	w.text(fmt.Sprintf("%d x 8 sums over k %s; columns of B begin at offsets.", rows, doc),
		fmt.Sprintf("%sx%d", name, rows), arg{"blocks", "R8"}, arg{"a", "AX"}, arg{"lda", "R13"}, arg{"b", "SI"},
		arg{"offsets", "BX"}, arg{"ahead", "R9"}, arg{"c", "DI"}, arg{"ldc", "DX"}, arg{"add", "R11"})
	w.op("ADDQ SI, R9")
	bases := []string{"AX", "R10"}[:(rows+2)/3]
	for i := 1; i < len(bases); i++ {
		w.op("LEAQ (%s)(R13*2), %s", bases[i-1], bases[i])
		w.op("ADDQ R13, %s", bases[i])
	}
	const firstSum, broadcast = 9, 15
	for i := range rows {
		w.op("VXORPS Y%d, Y%d, Y%d", firstSum+i, firstSum+i, firstSum+i)
	}
	w.label("block")
	for i := range 8 {
		w.op("MOVQ %d(BX), CX", 8*i)
		load256(w, "(SI)(CX*1)", i, widen)
		w.op("PREFETCHT1 (R9)(CX*1)")
	}
	for k, y := range transposed256(w) {
		for i := range rows {
			from := address{offset: 4 * k, base: bases[i/3], index: "R13", scale: i % 3}
			w.op("VBROADCASTSS %v, Y%d", from, broadcast)
			w.op("VFMADD231PS Y%d, Y%d, Y%d", broadcast, y, firstSum+i)
		}
	}
	for _, base := range bases {
		w.op("ADDQ $32, %s", base)
	}
	w.op("ADDQ $%d, SI", bytes)
	w.op("ADDQ $%d, R9", bytes)
	w.op("DECQ R8")
	w.op("JNZ block")
	for _, add := range []bool{true, false} {
		if add {
			w.op("TESTQ R11, R11")
			w.op("JZ store")
		} else {
			w.label("store")
		}
		for i := range rows {
			if add {
				w.op("VADDPS (DI), Y%d, Y%d", firstSum+i, firstSum+i)
			}
			w.op("VMOVUPS Y%d, (DI)", firstSum+i)
			w.op("ADDQ DX, DI")
		}
		if add {
			w.op("JMP done")
		}
	}
	w.label("done")
	w.ret()
}
