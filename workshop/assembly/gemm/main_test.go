package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestCommittedFileIsCurrent(t *testing.T) {
	committed, err := os.ReadFile("../../../device/cpu/gemm/kernels_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, generate()) {
		t.Error("kernels_amd64.s is not what gen writes; run: go generate ./device/cpu/gemm")
	}
}

// The expected bytes are those of GNU as 2.40.
func TestVDPBF16PS(t *testing.T) {
	for _, c := range []struct {
		from     address
		src, dst int
		want     string
	}{
		{address{offset: 4, base: "AX"}, 0, 8, "62 72 7E 58 52 40 01"},
		{address{offset: 188, base: "AX"}, 1, 31, "62 62 76 58 52 78 2F"},
		{address{offset: 44, base: "AX"}, 3, 17, "62 E2 66 58 52 48 0B"},
		{address{offset: 508, base: "AX"}, 20, 24, "62 62 5E 50 52 40 7F"},
		{address{offset: 8, base: "R12"}, 0, 17, "62 C2 7E 58 52 4C 24 02"},
		{address{offset: 4, base: "R11"}, 1, 24, "62 42 76 58 52 43 01"},
		{address{4, "AX", "R13", 1}, 2, 8, "62 32 6E 58 52 44 28 01"},
		{address{12, "R10", "R13", 2}, 3, 31, "62 02 66 58 52 7C 6A 03"},
		{address{508, "R12", "R13", 1}, 1, 24, "62 02 76 58 52 44 2C 7F"},
	} {
		got, _, _ := strings.Cut(vdpbf16ps(c.from, c.src, c.dst), " //")
		got = strings.NewReplacer("BYTE $0x", "", ";", "").Replace(got)
		if got != c.want {
			t.Errorf("vdpbf16ps(%v, %d, %d) = %s, want %s", c.from, c.src, c.dst, got, c.want)
		}
	}
}

// The expected bytes are those of GNU as 2.40.
func TestTileInstructions(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{loadTileConfig(si), "C4 E2 78 49 06"},                          // ldtilecfg (%rsi)
		{releaseTiles(), "C4 E2 78 49 C0"},                              // tilerelease
		{zeroTile(0), "C4 E2 7B 49 C0"},                                 // tilezero %tmm0
		{zeroTile(3), "C4 E2 7B 49 D8"},                                 // tilezero %tmm3
		{loadTile(0, ax, dx, 1, 4), "C4 E2 7B 4B 24 10"},                // tileloadd (%rax,%rdx,1),%tmm4
		{loadTile(1024, ax, dx, 1, 5), "C4 E2 7B 4B AC 10 00 04 00 00"}, // tileloadd 0x400(%rax,%rdx,1),%tmm5
		{loadTile(0, bx, dx, 2, 6), "C4 E2 7B 4B 34 53"},                // tileloadd (%rbx,%rdx,2),%tmm6
		{loadTile(64, bx, dx, 2, 7), "C4 E2 7B 4B 7C 53 40"},            // tileloadd 0x40(%rbx,%rdx,2),%tmm7
		{storeTile(0, 0, di, cx, 1), "C4 E2 7A 4B 04 0F"},               // tilestored %tmm0,(%rdi,%rcx,1)
		{storeTile(3, 64, di, cx, 1), "C4 E2 7A 4B 5C 0F 40"},           // tilestored %tmm3,0x40(%rdi,%rcx,1)
		{multiplyTiles(4, 6, 0), "C4 E2 4A 5C C4"},                      // tdpbf16ps %tmm6,%tmm4,%tmm0
		{multiplyTiles(4, 7, 1), "C4 E2 42 5C CC"},                      // tdpbf16ps %tmm7,%tmm4,%tmm1
		{multiplyTiles(5, 6, 2), "C4 E2 4A 5C D5"},                      // tdpbf16ps %tmm6,%tmm5,%tmm2
		{multiplyTiles(5, 7, 3), "C4 E2 42 5C DD"},                      // tdpbf16ps %tmm7,%tmm5,%tmm3
	} {
		code, comment, _ := strings.Cut(c.got, " // ")
		if got := strings.NewReplacer("BYTE $0x", "", ";", "").Replace(code); got != c.want {
			t.Errorf("%s = %s, want %s", comment, got, c.want)
		}
	}
}
