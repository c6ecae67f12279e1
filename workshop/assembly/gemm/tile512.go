package main

import "fmt"

const (
	rows512 = 12 // rows of op(A) in a packed panel
	cols512 = 32 // columns of op(B) in a packed panel
)

// tile512 writes the register tile: `rows` x 32 sums in Z8..Z31, two vectors a row. One unit of k is 4 bytes of each
// row and column: one fp32, or two bf16.
//
// A is a packed panel. With inPlace, it is rows of a matrix that run along k, lda bytes from one to the next: a
// register holds the address of every third row, and lda and 2*lda lead to the two that follow.
//
// Every four units of k it fetches 128 bytes at fetch, which is some memory that the caller packs next, and then adds
// step to that.
//
// C is prefetched when about 100 units are left: earlier, the panels would push it out of L1 again; later, it would not
// have arrived.
func tile512(w *writer, rows int, bf16, inPlace bool) {
	name, unit := "F32", "fp32"
	if bf16 {
		name, unit = "BF16", "pairs of bf16"
	}
	doc, args := "", []arg{{"k", "R8"}, {"a", "AX"}, {"b", "BX"}, {"c", "DI"}, {"ldc", "SI"}}
	late := []arg{{"rows", "R10"}, {"mask", "R11"}, {"add", "R12"}} // not read before the sums are complete
	bases := []string{"AX", "R10", "R11", "R12"}
	if inPlace {
		name += "InPlace"
		doc = ", and rows of A, lda bytes from one to the next"
		late = append(late, arg{"lda", "R13"})
	}
	ahead := []arg{{"fetch", "R14"}, {"step", "R15"}}
	w.open(fmt.Sprintf("%d x 32 sums over k %s%s.", rows, unit, doc), fmt.Sprintf("tile512%sx%d", name, rows),
		len(args)+len(late)+len(ahead))
	w.load(0, args...)
	w.load(len(args)+len(late), ahead...)
	if inPlace {
		w.load(len(args)+len(late)-1, late[len(late)-1])
		w.op("LEAQ (R13)(R13*2), R9")
		for i := 1; i < (rows+2)/3; i++ {
			w.op("LEAQ (%s)(R9*1), %s", bases[i-1], bases[i])
		}
	}
	acc := func(row, half int) int { return 8 + 2*row + half }
	for i := 0; i < rows; i++ {
		w.op("VPXORQ Z%d, Z%d, Z%d", acc(i, 0), acc(i, 0), acc(i, 0))
		w.op("VPXORQ Z%d, Z%d, Z%d", acc(i, 1), acc(i, 1), acc(i, 1))
	}
	step := func(units int) {
		for u := 0; u < units; u++ {
			b := 2 * (u % 2)
			w.op("VMOVUPS %d(BX), Z%d", 128*u, b)
			w.op("VMOVUPS %d(BX), Z%d", 128*u+64, b+1)
			w.op("PREFETCHT0 %d(BX)", 128*u+prefetchB512)
			w.op("PREFETCHT0 %d(BX)", 128*u+prefetchB512+64)
			if u < 3 && !inPlace { // four units of A are three cache lines
				w.op("PREFETCHT0 %d(AX)", 64*u+prefetchA512)
			}
			for i := 0; i < rows; i++ {
				from := address{offset: 4 * (rows512*u + i), base: "AX"}
				if inPlace {
					from = address{offset: 4 * u, base: bases[i/3], index: "R13", scale: i % 3}
				}
				for half := 0; half < 2; half++ {
					if bf16 {
						w.op("%s", vdpbf16ps(from, b+half, acc(i, half)))
					} else {
						w.op("VFMADD231PS.BCST %v, Z%d, Z%d", from, b+half, acc(i, half))
					}
				}
			}
		}
		if units == 4 {
			w.op("PREFETCHT1 (R14)")
			w.op("PREFETCHT1 64(R14)")
			w.op("ADDQ R15, R14")
		}
		if inPlace {
			for i := 0; i < (rows+2)/3; i++ {
				w.op("ADDQ $%d, %s", 4*units, bases[i])
			}
		} else {
			w.op("ADDQ $%d, AX", 4*rows512*units)
		}
		w.op("ADDQ $%d, BX", 4*cols512*units)
	}
	w.op("MOVQ R8, CX")
	w.op("SHRQ $2, CX")
	w.op("ANDQ $3, R8")
	w.op("MOVQ CX, DX")
	w.op("SUBQ $24, CX")
	w.op("JLE fetch")
	w.op("MOVQ $24, DX")
	w.label("far")
	step(4)
	w.op("DECQ CX")
	w.op("JNZ far")
	w.label("fetch")
	w.op("MOVQ DI, R9")
	for i := 0; i < rows; i++ {
		w.op("PREFETCHT0 (R9)")
		w.op("PREFETCHT0 64(R9)")
		w.op("PREFETCHT0 124(R9)")
		if i < rows-1 {
			w.op("ADDQ SI, R9")
		}
	}
	w.op("TESTQ DX, DX")
	w.op("JZ rest")
	w.label("near")
	step(4)
	w.op("DECQ DX")
	w.op("JNZ near")
	w.label("rest")
	w.op("TESTQ R8, R8")
	w.op("JZ write")
	w.label("single")
	step(1)
	w.op("DECQ R8")
	w.op("JNZ single")
	w.label("write")
	w.load(len(args), late[:3]...)
	w.op("KMOVW R11, K1")
	w.op("SHRQ $16, R11")
	w.op("KMOVW R11, K2")
	w.op("TESTQ R12, R12")
	w.op("JZ store")
	for _, add := range []bool{true, false} {
		if !add {
			w.label("store")
		}
		for i := 0; i < rows; i++ {
			for half := 0; half < 2; half++ {
				z, off, k := acc(i, half), 64*half, 1+half
				if add {
					// Only lanes under the mask are touched in memory, faults included.
					w.op("VADDPS %d(DI), Z%d, K%d, Z%d", off, z, k, z)
				}
				w.op("VMOVUPS Z%d, K%d, %d(DI)", z, k, off)
			}
			if i < rows-1 {
				w.op("DECQ R10")
				w.op("JZ done")
				w.op("ADDQ SI, DI")
			}
		}
		if add {
			w.op("JMP done")
		}
	}
	w.label("done")
	w.ret()
}

// Bytes by which the tile routine fetches ahead in the packed panels.
const (
	prefetchB512 = 1024
	prefetchA512 = 512
)

// widen512 writes bf16 rows as fp32 rows of a tile.
func widen512(w *writer) {
	w.text("Widens rows x 32 bf16 at c into fp32 at t.", "widenTile512",
		arg{"t", "DI"}, arg{"ldt", "DX"}, arg{"c", "SI"}, arg{"ldc", "R8"}, arg{"rows", "CX"}, arg{"mask", "R11"})
	w.op("KMOVW R11, K1")
	w.op("SHRQ $16, R11")
	w.op("KMOVW R11, K2")
	w.label("row")
	for half := 0; half < 2; half++ {
		w.op("VPMOVZXWD.Z %d(SI), K%d, Z%d", 32*half, 1+half, half)
		w.op("VPSLLD $16, Z%d, Z%d", half, half)
		w.op("VMOVUPS Z%d, %d(DI)", half, 64*half)
	}
	w.op("ADDQ R8, SI")
	w.op("ADDQ DX, DI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// round512 writes fp32 rows of a tile as bf16 rows. VCVTNEPS2BF16 would flush denormals; integer arithmetic does not.
func round512(w *writer) {
	w.text("Rounds rows x 32 fp32 at t to bf16 at c: nearest, ties to even.", "roundTile512",
		arg{"c", "DI"}, arg{"ldc", "R8"}, arg{"t", "SI"}, arg{"ldt", "DX"}, arg{"rows", "CX"}, arg{"mask", "R11"})
	w.op("KMOVW R11, K1")
	w.op("SHRQ $16, R11")
	w.op("KMOVW R11, K2")
	for i, c := range []int{1, 0x7fff, 0x40} {
		w.op("MOVL $0x%x, AX", c)
		w.op("VPBROADCASTD AX, Z%d", 29+i)
	}
	w.label("row")
	for half := 0; half < 2; half++ {
		x, up, cut := 3*half, 3*half+1, 3*half+2
		w.op("VMOVUPS %d(SI), Z%d", 64*half, x)
		w.op("VPSRLD $16, Z%d, Z%d", x, cut)
		w.op("VPANDD Z29, Z%d, Z%d", cut, up)
		w.op("VPADDD Z30, Z%d, Z%d", up, up)
		w.op("VPADDD Z%d, Z%d, Z%d", x, up, up)
		w.op("VPSRLD $16, Z%d, Z%d", up, up)
		w.op("VCMPPS $3, Z%d, Z%d, K3", x, x)
		w.op("VPORD Z31, Z%d, K3, Z%d", cut, up) // a NaN keeps its upper bits and becomes quiet
		w.op("VPMOVDW Z%d, K%d, %d(DI)", up, 1+half, 32*half)
	}
	w.op("ADDQ R8, DI")
	w.op("ADDQ DX, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}
