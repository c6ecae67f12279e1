package main

// stepBytes has the size of 32 k of a packed panel of 32 rows or columns.
const stepBytes = 32 * 64

// tileAMX writes the product of two panels: tiles 0..3 have the sums, 16 x 16 each, 4 and 5 rows of A, 6 and 7 columns
// of B. Each routine that uses tiles configures them first and releases them last: goroutines change threads between
// routines, and a thread that sleeps with tiles in use makes the system save 8 KiB.
func tileAMX(w *writer) {
	w.text("Up to 32 x 32 sums over steps of 32 bf16. config says how many rows the tiles have.", "tileAMX",
		arg{"steps", "R8"}, arg{"a", "AX"}, arg{"b", "BX"}, arg{"c", "DI"}, arg{"ldc", "CX"}, arg{"config", "SI"})
	w.op("MOVL $64, DX")
	w.op("%s", loadTileConfig(si))
	for tile := range 4 {
		w.op("%s", zeroTile(tile))
	}
	w.label("step")
	w.op("%s", loadTile(0, ax, dx, 1, 4))
	w.op("%s", loadTile(0, bx, dx, 2, 6))
	w.op("%s", multiplyTiles(4, 6, 0))
	w.op("%s", loadTile(64, bx, dx, 2, 7))
	w.op("%s", multiplyTiles(4, 7, 1))
	w.op("%s", loadTile(stepBytes/2, ax, dx, 1, 5))
	w.op("%s", multiplyTiles(5, 6, 2))
	w.op("%s", multiplyTiles(5, 7, 3))
	w.op("ADDQ $%d, AX", stepBytes)
	w.op("ADDQ $%d, BX", stepBytes)
	w.op("DECQ R8")
	w.op("JNZ step")
	w.op("%s", storeTile(0, 0, di, cx, 1))
	w.op("%s", storeTile(1, 64, di, cx, 1))
	w.op("MOVQ CX, R9")
	w.op("SHLQ $4, R9")
	w.op("ADDQ R9, DI")
	w.op("%s", storeTile(2, 0, di, cx, 1))
	w.op("%s", storeTile(3, 64, di, cx, 1))
	w.op("%s", releaseTiles())
	w.op("RET")
}

// add512 writes what is left of a product by tiles: the sums go from a buffer to C.
func add512(w *writer) {
	w.text("Stores rows x 32 fp32 at t to c, or adds them.", "addTile512",
		arg{"c", "DI"}, arg{"ldc", "R8"}, arg{"t", "SI"}, arg{"rows", "CX"}, arg{"mask", "R11"}, arg{"add", "R12"})
	w.op("KMOVW R11, K1")
	w.op("SHRQ $16, R11")
	w.op("KMOVW R11, K2")
	w.label("row")
	for half := range 2 {
		w.op("VMOVUPS %d(SI), Z%d", 64*half, half)
	}
	w.op("TESTQ R12, R12")
	w.op("JZ store")
	for half := range 2 {
		w.op("VADDPS %d(DI), Z%d, K%d, Z%d", 64*half, half, 1+half, half)
	}
	w.label("store")
	for half := range 2 {
		w.op("VMOVUPS Z%d, K%d, %d(DI)", half, 1+half, 64*half)
	}
	w.op("ADDQ R8, DI")
	w.op("ADDQ $128, SI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}

// copyRows512 packs rows of A that run along k for tiles: 64 bytes of each row for every 32 k.
func copyRows512(w *writer) {
	w.text("Packs source rows of bf16 in steps of 32; the last one reads under a mask, and stores zeros past it.",
		"copyRows512",
		arg{"dst", "DI"}, arg{"src", "SI"}, arg{"stride", "DX"}, arg{"rows", "CX"}, arg{"steps", "R8"}, arg{"lastMask", "R9"})
	w.op("KMOVD R9, K1")
	w.label("row")
	w.op("MOVQ SI, R10")
	w.op("MOVQ DI, R11")
	w.op("MOVQ R8, R12")
	w.op("JMP next")
	w.label("whole")
	w.op("VMOVDQU64 (R10), Z0")
	w.op("VMOVDQU64 Z0, (R11)")
	w.op("ADDQ $64, R10")
	w.op("ADDQ $%d, R11", stepBytes)
	w.label("next")
	w.op("DECQ R12")
	w.op("JNZ whole")
	w.op("VMOVDQU16.Z (R10), K1, Z0")
	w.op("VMOVDQU64 Z0, (R11)")
	w.op("ADDQ DX, SI")
	w.op("ADDQ $64, DI")
	w.op("DECQ CX")
	w.op("JNZ row")
	w.ret()
}
