package main

import (
	"fmt"
	"slices"
)

// address describes a memory operand: base + offset, or base + offset + scale*index with a scale of 1 or 2.
type address struct {
	offset      int
	base, index string
	scale       int // 0: no index
}

// String is the address in Go's syntax.
func (a address) String() string {
	if a.scale == 0 {
		return fmt.Sprintf("%d(%s)", a.offset, a.base)
	}
	return fmt.Sprintf("%d(%s)(%s*%d)", a.offset, a.base, a.index, a.scale)
}

// registers are the general ones by their numbers in machine code.
var registers = []string{"AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI", "R8", "R9", "R10", "R11", "R12", "R13"}

// vdpbf16ps is `VDPBF16PS zmm<dst>, zmm<src>, dword ptr [from]{1to16}` as a BYTE directive: for every 32-bit lane,
// dst += the dot product of the two bf16 of src and the two at the address.
//
// EVEX.512.F3.0F38.W0 52 /r (Intel SDM, volume 2). The prefix stores R, X, B, R', vvvv and V' inverted; the
// displacement is a byte that counts units of the broadcast element, 4 bytes. An address with an index, and one whose
// base is SP or R12, has a byte (SIB) of its own.
func vdpbf16ps(from address, src, dst int) string {
	base, index := slices.Index(registers, from.base), slices.Index(registers, from.index)
	if from.offset%4 != 0 || from.offset < 0 || from.offset/4 > 127 || base < 0 || from.scale > 0 && index < 0 {
		panic(fmt.Sprintf("vdpbf16ps: %v has no encoding here", from))
	}
	const noIndex = 4
	if from.scale == 0 {
		index = noIndex
	}
	bit := func(n, i int) int { return ^n >> i & 1 }
	p0 := bit(dst, 3)<<7 | bit(index, 3)<<6 | bit(base, 3)<<5 | bit(dst, 4)<<4 | 2 // map 0F38
	p1 := (^src&15)<<3 | 1<<2 | 2                                                  // W0, prefix F3
	p2 := 2<<5 | 1<<4 | bit(src, 4)<<3                                             // 512 bits, broadcast, no mask
	code := []int{0x62, p0, p1, p2, 0x52}
	if from.scale == 0 && base&7 != noIndex {
		code = append(code, 1<<6|dst&7<<3|base&7) // [base+disp8]
	} else {
		code = append(code, 1<<6|dst&7<<3|4, from.scale/2<<6|index&7<<3|base&7) // [base+index*scale+disp8]
	}
	code = append(code, from.offset/4)
	s := ""
	for i, b := range code {
		if i > 0 {
			s += "; "
		}
		s += fmt.Sprintf("BYTE $0x%02X", b)
	}
	return fmt.Sprintf("%s // VDPBF16PS.BCST %v, Z%d, Z%d", s, from, src, dst)
}
