package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestCommittedFileIsCurrent(t *testing.T) {
	committed, err := os.ReadFile("../kernels_amd64.s")
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
