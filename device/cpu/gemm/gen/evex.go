package main

import "fmt"

// vdpbf16ps is `VDPBF16PS zmm<dst>, zmm<src>, dword ptr [RAX+offset]{1to16}` as a BYTE directive: for every 32-bit lane,
// dst += the dot product of the two bf16 of src and the two at the address.
//
// EVEX.512.F3.0F38.W0 52 /r (Intel SDM, volume 2). The prefix stores R, X, B, R', vvvv and V' inverted; the
// displacement is a byte that counts units of the broadcast element, 4 bytes.
func vdpbf16ps(offset, src, dst int) string {
	if offset%4 != 0 || offset < 0 || offset/4 > 127 {
		panic(fmt.Sprintf("vdpbf16ps: offset %d has no compressed displacement", offset))
	}
	bit := func(n, i int) int { return ^n >> i & 1 }
	p0 := bit(dst, 3)<<7 | 1<<6 | 1<<5 | bit(dst, 4)<<4 | 2 // map 0F38
	p1 := (^src&15)<<3 | 1<<2 | 2                           // W0, prefix F3
	p2 := 2<<5 | 1<<4 | bit(src, 4)<<3                      // 512 bits, broadcast, no mask
	modrm := 1<<6 | dst&7<<3                                // [RAX+disp8]
	code := []int{0x62, p0, p1, p2, 0x52, modrm, offset / 4}
	s := ""
	for i, b := range code {
		if i > 0 {
			s += "; "
		}
		s += fmt.Sprintf("BYTE $0x%02X", b)
	}
	return fmt.Sprintf("%s // VDPBF16PS.BCST %d(AX), Z%d, Z%d", s, offset, src, dst)
}
