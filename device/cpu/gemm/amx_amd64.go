package gemm

import "unsafe"

// kernelAMX multiplies bf16 by tiles: 32 x 32 sums in four of them. Its panels of B are those of kernel512, pairs of k.
// A panel of A has, for every 32 k, 64 bytes of each of its 32 rows.
type kernelAMX struct{}

// pairs512 packs panels of pairs.
var pairs512 = kernel512{pairs: true}

const tileK = 32 // elements of k that an instruction takes

func (kernelAMX) size() tileSize { return tileSize{mr: 32, nr: 32, pairs: true, depth: tileK} }

func (kernelAMX) pack(e *edgeTable, dst unsafe.Pointer, s *source, width, first, n, k0, k int) {
	units := ceilDiv(k, 2)
	switch {
	case s.left && !s.kRows:
		steps := ceilDiv(k, tileK)
		copyRows512(dst, s.at(first, k0), s.stride, uintptr(n), uintptr(steps), mask(k-tileK*(steps-1)))
	case s.left:
		// At most 32 rows of k: pairs of k first, and then these are transposed. A unit past the end is zero.
		clear(e.units[units*width:])
		pairs512.pack(e, unsafe.Pointer(&e.units[0]), s, width, first, n, k0, k)
		e.rows(uintptr(4*width), 16, 16)
		from, offsets := unsafe.Pointer(&e.units[0]), unsafe.Pointer(&e.offsets[0])
		transpose512(dst, 64, from, offsets, uintptr(width/16), mask(32), mask(16), 0)
	default:
		pairs512.pack(e, dst, s, width, first, n, k0, k)
		if s.kRows { // transpose512 writes the zeros past the end itself
			clear(unsafe.Slice((*uint32)(dst), width*ceilTo(units, 16))[width*units:])
		}
	}
}

func (kernelAMX) tile(w *worker, _ bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool) {
	steps, config := uintptr(ceilDiv(units, tileK/2)), unsafe.Pointer(&tileConfigs[rows-1])
	if rows > 16 && cols == 32 && !add {
		tileAMX(steps, a, b, c, ldc, config)
		return
	}
	sum := uintptr(0)
	if add {
		sum = 1
	}
	t := unsafe.Pointer(&w.spare[0])
	tileAMX(steps, a, b, t, 128, config)
	addTile512(c, ldc, t, uintptr(rows), mask(cols), sum)
}

func (kernelAMX) widen(t, c unsafe.Pointer, ldc uintptr, rows, cols int) {
	pairs512.widen(t, c, ldc, rows, cols)
}

func (kernelAMX) round(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows, cols int) {
	pairs512.round(c, ldc, t, rows, cols)
}

// tileConfig is the operand of LDTILECFG (Intel SDM, volume 1, section 18.2).
type tileConfig struct {
	palette, startRow uint8
	_                 [14]uint8
	rowBytes          [16]uint16
	rows              [16]uint8
}

// tileConfigs are for 1 to 32 rows of A and of the sums. A tile must have a row: up to 16 rows of A, the lower tiles
// have one whose sums go to a buffer and no further.
var tileConfigs = func() (all [32]tileConfig) {
	for i := range all {
		upper, lower := uint8(min(i+1, 16)), uint8(max(i+1-16, 1))
		all[i] = tileConfig{palette: 1, rows: [16]uint8{upper, upper, lower, lower, upper, lower, 16, 16}}
		for tile := range 8 {
			all[i].rowBytes[tile] = 64
		}
	}
	return all
}()

//go:noescape
func tileAMX(steps uintptr, a, b, c unsafe.Pointer, ldc uintptr, config unsafe.Pointer)

//go:noescape
func addTile512(c unsafe.Pointer, ldc uintptr, t unsafe.Pointer, rows uintptr, mask uint64, add uintptr)

//go:noescape
func copyRows512(dst, src unsafe.Pointer, stride, rows, steps uintptr, lastMask uint64)
