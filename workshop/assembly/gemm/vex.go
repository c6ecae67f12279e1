package main

import (
	"fmt"
	"strings"
)

// Registers that hold addresses, by their numbers in encodings.
const (
	ax, cx, dx, bx, si, di = 0, 1, 2, 3, 6, 7
)

// Prefixes of the instructions for tiles: the two low bits of the last byte of VEX.
const (
	noPrefix, prefixF3, prefixF2 = 0, 2, 3
)

// tileOp is an instruction of AMX, VEX.128.0F38.W0, as BYTE directives: Go's assembler does not have them. vvvv is a
// second source, or 0.
func tileOp(comment string, prefix, vvvv int, opcode byte, operands ...byte) string {
	code := append([]byte{0xC4, 0xE2, byte(^vvvv&15<<3 | prefix), opcode}, operands...)
	var s []string
	for _, b := range code {
		s = append(s, fmt.Sprintf("BYTE $0x%02X", b))
	}
	return strings.Join(s, "; ") + " // " + comment
}

// loadTileConfig is `LDTILECFG [base]`. It clears all tiles.
func loadTileConfig(base int) string {
	return tileOp(fmt.Sprintf("LDTILECFG (%s)", registers[base]), noPrefix, 0, 0x49, byte(base))
}

// releaseTiles is `TILERELEASE`.
func releaseTiles() string { return tileOp("TILERELEASE", noPrefix, 0, 0x49, 0xC0) }

// zeroTile is `TILEZERO tmm<tile>`.
func zeroTile(tile int) string {
	return tileOp(fmt.Sprintf("TILEZERO T%d", tile), prefixF2, 0, 0x49, byte(0xC0|tile<<3))
}

// loadTile is `TILELOADD tmm<tile>, [base+index*scale+offset]`: row i comes from that address plus i times index*scale.
func loadTile(offset, base, index, scale, tile int) string {
	address, operands := tileAddress(offset, base, index, scale, tile)
	return tileOp(fmt.Sprintf("TILELOADD %s, T%d", address, tile), prefixF2, 0, 0x4B, operands...)
}

// storeTile is `TILESTORED [base+index*scale+offset], tmm<tile>`.
func storeTile(tile, offset, base, index, scale int) string {
	address, operands := tileAddress(offset, base, index, scale, tile)
	return tileOp(fmt.Sprintf("TILESTORED T%d, %s", tile, address), prefixF3, 0, 0x4B, operands...)
}

// multiplyTiles is `TDPBF16PS tmm<c>, tmm<a>, tmm<b>`: c += a b.
func multiplyTiles(a, b, c int) string {
	return tileOp(fmt.Sprintf("TDPBF16PS T%d, T%d, T%d", b, a, c), prefixF3, b, 0x5C, byte(0xC0|c<<3|a))
}

// tileAddress is the text and the bytes (ModRM, SIB, displacement) of a tile's address.
func tileAddress(offset, base, index, scale, tile int) (string, []byte) {
	log := map[int]int{1: 0, 2: 1, 4: 2, 8: 3}[scale]
	mod, displacement := 0, []byte(nil)
	switch {
	case offset < 0:
		panic(fmt.Sprintf("tileAddress: offset %d is negative", offset))
	case offset > 127:
		mod, displacement = 2, []byte{byte(offset), byte(offset >> 8), byte(offset >> 16), byte(offset >> 24)}
	case offset > 0:
		mod, displacement = 1, []byte{byte(offset)}
	}
	text := fmt.Sprintf("%d(%s)(%s*%d)", offset, registers[base], registers[index], scale)
	return text, append([]byte{byte(mod<<6 | tile<<3 | 4), byte(log<<6 | index<<3 | base)}, displacement...)
}
