package main

import (
	"bytes"
	"os"
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
		offset, src, dst int
		want             string
	}{
		{4, 0, 8, "BYTE $0x62; BYTE $0x72; BYTE $0x7E; BYTE $0x58; BYTE $0x52; BYTE $0x40; BYTE $0x01"},
		{188, 1, 31, "BYTE $0x62; BYTE $0x62; BYTE $0x76; BYTE $0x58; BYTE $0x52; BYTE $0x78; BYTE $0x2F"},
		{44, 3, 17, "BYTE $0x62; BYTE $0xE2; BYTE $0x66; BYTE $0x58; BYTE $0x52; BYTE $0x48; BYTE $0x0B"},
		{508, 20, 24, "BYTE $0x62; BYTE $0x62; BYTE $0x5E; BYTE $0x50; BYTE $0x52; BYTE $0x40; BYTE $0x7F"},
	} {
		got, _, _ := bytes.Cut([]byte(vdpbf16ps(c.offset, c.src, c.dst)), []byte(" //"))
		if string(got) != c.want {
			t.Errorf("vdpbf16ps(%d, %d, %d) = %s, want %s", c.offset, c.src, c.dst, got, c.want)
		}
	}
}
