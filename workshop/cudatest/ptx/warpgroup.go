package ptx

import "fmt"

// Instructions of sm_90a on warpgroups: four warps, which multiply 64 rows of A, each warp 16 of them.

// decodeWarpgroup reads wgmma. A product is done when it is issued, so commit and wait have nothing to do: a kernel
// that reads its accumulators too early does not show.
func decodeWarpgroup(a *assembly) {
	switch a.must("mma_async", "fence", "commit_group", "wait_group") {
	case "mma_async":
		decodeWarpgroupMultiply(a)
		return
	case "wait_group":
		a.immediate(0, 1, 7)
	default:
		a.count(0)
	}
	a.must("sync")
	a.must("aligned")
	a.in.flow = flowCheck
	a.in.exec = full(func(*warp, *instr, uint32) {})
}

// A descriptor is the layout of a matrix of 16-bit elements in shared memory (PTX ISA, "Matrix Descriptor Format" of
// wgmma).
type descriptor struct {
	start uint64
	// Distances in bytes. The unit is a core matrix, 8 rows of 16 bytes, or with swizzling a row of its pattern, 8 rows
	// of width bytes.
	leading, stride uint64
	width           uint64 // bytes of a row of the swizzling pattern; 16: none
}

func describe(bits uint64) (descriptor, error) {
	d := descriptor{
		start: bits & 0x3fff << 4, leading: bits >> 16 & 0x3fff << 4, stride: bits >> 32 & 0x3fff << 4,
		width: [4]uint64{16, 128, 64, 32}[bits>>62],
	}
	if bits>>49&7 != 0 {
		return d, fmt.Errorf("%w: a matrix descriptor with a base offset", ErrUnsupported)
	}
	return d, nil
}

// address returns the beginning of the 16 bytes with element k of row i, if the elements of a row are side by side
// (transposed: of a column). i counts along M or N. The formulas are those of the canonical layouts in the ISA, "Shared
// Memory Matrix Layout".
func (d descriptor) address(i, k uint64, transposed bool) uint64 {
	var at uint64
	switch {
	case !transposed && d.width == 16:
		at = i%8*16 + i/8*d.stride + k/8*d.leading
	case !transposed:
		at = i%8*d.width + i/8*d.stride + k/8*16
	case d.width == 16:
		at = i/8*d.stride + k%8*16 + k/8*d.leading
	default:
		perRow := d.width / 16
		at = i/8%perRow*16 + i/8/perRow*d.leading + k%8*d.width + k/8*d.stride
	}
	at += d.start
	// Of each 128 bytes, the pattern exchanges pieces of 16 by the number of these 128 bytes.
	return at ^ at>>3&(d.width-16)
}

// decodeWarpgroupMultiply reads wgmma.mma_async: D = A*B, plus D if scale-d holds.
func decodeWarpgroupMultiply(a *assembly) {
	a.must("sync")
	a.must("aligned")
	n := 0
	if len(a.mods) > 0 {
		shape := a.mods[0]
		a.mods = a.mods[1:]
		if _, err := fmt.Sscanf(shape, "m64n%dk16", &n); err != nil || shape != fmt.Sprintf("m64n%dk16", n) || n < 8 ||
			n > 256 || n%8 != 0 {
			a.fail("shape .%s is not supported", shape)
			return
		}
	}
	a.must("f32")
	element := a.must("bf16", "f16")
	if a.must("bf16", "f16") != element {
		a.fail("matrices of different types are not supported")
	}
	count := 8
	inRegisters := len(a.ops) > 1 && a.ops[1].what == vectorOperand
	if inRegisters {
		count = 7 // A in registers is never transposed
	}
	if !a.count(count) {
		return
	}
	rd := a.written(a.ops[0], n/2, types["f32"])
	sums := a.read(a.ops[0], n/2, types["f32"])
	var ra []int32
	if inRegisters {
		ra = a.read(a.ops[1], 4, types["b32"])
	} else {
		a.src(&a.in.a, a.ops[1], types["b64"])
	}
	a.src(&a.in.b, a.ops[2], types["b64"])
	a.predicate(&a.in.c, a.ops[3])
	flags := make([]int64, 0, 4)
	for _, o := range a.ops[4:] {
		if o.what != numberOperand || o.size != 0 {
			a.fail("a scale or transposition is no number")
			return
		}
		flags = append(flags, int64(o.bits))
	}
	if flags[0] != 1 || flags[1] != 1 {
		a.fail("scales other than 1 are not supported")
	}
	aT, bT := !inRegisters && flags[2] == 1, flags[len(flags)-1] == 1
	left := halves(16).a.places(16)
	a.in.flow = flowCheck
	a.in.exec = full(func(w *warp, in *instr, m uint32) {
		var rows [16 * 16]float32
		if inRegisters {
			for r, places := range left {
				gather(rows[:], w.narrow(ra[r]), places, element)
			}
		} else {
			first := uint64(w.first/lanes%4) * 16
			if !w.matrix(rows[:], w.wide(in.a)[0], first, 16, aT, element) {
				return
			}
		}
		var cols [256 * 16]float32 // B, column after column of 16
		if !w.matrix(cols[:], w.wide(in.b)[0], 0, uint64(n), bT, element) {
			return
		}
		accumulate := w.predicate(in.c)&1 != 0
		for j := range n / 8 {
			var tile [16 * 8]float32
			for c := range 8 {
				for k := range 16 {
					tile[8*k+c] = cols[(8*j+c)*16+k]
				}
			}
			var d [16][8]float32
			if accumulate {
				for i, r := range sums[4*j : 4*j+4] {
					for l, x := range w.narrow(r) {
						d[l/4+8*(i>>1)][l%4*2+i&1] = f32(x)
					}
				}
			}
			for i := range d {
				d[i] = multiplyRow(d[i], rows[16*i:16*i+16], &tile)
			}
			for i, r := range rd[4*j : 4*j+4] {
				x := w.narrow(r)
				for l := range x {
					x[l] = bits32(d[l/4+8*(i>>1)][l%4*2+i&1])
				}
			}
		}
	})
}

// matrix reads rows of 16 elements from shared memory, from first on. It fails the warp and returns false if they are
// not there.
func (w *warp) matrix(dst []float32, bits, first, rows uint64, transposed bool, element string) bool {
	d, err := describe(bits)
	if err != nil {
		w.fail(0, err)
		return false
	}
	value := func(x uint64) float32 { return f32(uint32(x) << 16) }
	if element == "f16" {
		value = func(x uint64) float32 { return float32(f16(uint32(x))) }
	}
	for i := uint64(0); i < rows; i++ {
		for k := uint64(0); k < 16; k++ {
			if (!transposed && k%8 != 0) || (transposed && i%8 != 0) {
				continue // part of 16 bytes that are read already
			}
			b := w.at(sharedSpace, d.address(first+i, k, transposed), 16, 0, false)
			if b == nil {
				return false
			}
			for e := range uint64(8) {
				x := value(read(b[2*e:], 2))
				if transposed {
					dst[(i+e)*16+k] = x
				} else {
					dst[i*16+k+e] = x
				}
			}
		}
	}
	return true
}

// decodeStoreMatrix reads stmatrix, the inverse of ldmatrix: lane 8j+i names where row i of matrix j goes.
func decodeStoreMatrix(a *assembly) {
	a.must("sync")
	a.must("aligned")
	a.must("m8n8")
	n := map[string]int{"x1": 1, "x2": 2, "x4": 4}[a.must("x1", "x2", "x4")]
	isTransposed := a.mod("trans") != ""
	a.must("shared", "shared::cta")
	a.must("b16")
	if !a.count(2) {
		return
	}
	a.in.v = a.read(a.ops[1], n, types["b32"])
	isWide := a.pointer(a.ops[0], sharedSpace)
	a.in.flow = flowCheck
	a.in.exec = full(func(w *warp, in *instr, m uint32) {
		addr := w.addresses(in, isWide)
		for j, r := range in.v {
			var tile [8][8]uint16
			for l, x := range w.narrow(r) {
				i, k := l/4, l%4*2
				if isTransposed {
					tile[k][i], tile[k+1][i] = uint16(x), uint16(x>>16)
				} else {
					tile[i][k], tile[i][k+1] = uint16(x), uint16(x>>16)
				}
			}
			for i := range tile {
				b := w.at(sharedSpace, addr[8*j+i], 16, 8*j+i, true)
				if b == nil {
					return
				}
				for k, x := range tile[i] {
					write(b[2*k:], 2, uint64(x))
				}
			}
		}
	})
}
