package kernels

import (
	"math"
	"unsafe"
)

// tables8 are the codebooks as the assembly reads them. Its generator knows the layout.
type tables8 struct {
	books [2]book8 // signed, unsigned
	// transposed are the dwords of a 4x4 matrix, rows for columns.
	transposed [16]int32
}

// book8 is one codebook. A number that is to be coded is guessed by a line: the magnitude of |x|, in units of which there are
// as many in a decade as steps. The exponent of x, but for its last bit, is the index of what follows; between two powers
// of 4 there is at most one end of a decade, edge, and the lines are those of the decades above and below it. What a line
// gives, rounded down, is the magnitude or one above it, which a comparison settles.
type book8 struct {
	value, above          [4][256]uint8 // byte p of the fp32 number for each code or magnitude
	edge                  [16]float32
	slopeHigh, slopeLow   [16]float32
	offsetHigh, offsetLow [16]float32
}

// scratch8 is what the assembly works in: a block of both moments, and which first moments are negative.
type scratch8 struct {
	m, v     [256]float32
	negative [4]uint64
}

// aligned returns the first T in memory that begins a cache line; memory is 64 bytes longer than T.
func aligned[T any](memory *byte) *T {
	p := unsafe.Pointer(memory)
	return (*T)(unsafe.Add(p, -uintptr(p)&63))
}

// encode is codebook.encode by lines instead of a search.
func (b *book8) encode(c *codebook, codes *[256]uint8, x *[256]float32) (scale float32) {
	for _, x := range x {
		if a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31)); a > scale {
			scale = a
		}
	}
	if scale == 0 {
		*codes = [256]uint8{}
		return 0
	}
	inverse, zero := 1/scale, uint8(c.zero)
	for i, x := range x {
		y := math.Float32frombits(math.Float32bits(float32(x*inverse)) &^ (1 << 31))
		k := uint8(0)
		if y >= least {
			at := math.Float32bits(y) >> 24 & 15
			slope, offset := b.slopeLow[at], b.offsetLow[at]
			if y > b.edge[at] {
				slope, offset = b.slopeHigh[at], b.offsetHigh[at]
			}
			k = uint8(int32(float32(y*slope) + offset))
			if y <= c.above[k] {
				k--
			}
		}
		if zero > 0 && x < 0 {
			codes[i] = zero - min(max(k, 1), zero)
		} else {
			codes[i] = zero + k
		}
	}
	return scale
}

// least is less than half of the smallest code, and what the lines begin at.
const least = 0x1p-26

var theTables8 = newTables8()

func newTables8() *tables8 {
	t := aligned[tables8](&make([]byte, unsafe.Sizeof(tables8{})+64)[0])
	for i, c := range []*codebook{signed8, unsigned8} {
		t.books[i].fill(c)
	}
	for i := range t.transposed {
		t.transposed[i] = int32(4*(i%4) + i/4)
	}
	return t
}

// slack is added to the guess of a magnitude, so that no rounding takes it below.
const slack = 1.0 / 64

func (b *book8) fill(c *codebook) {
	for k := range 256 {
		for p := range 4 {
			b.value[p][k] = uint8(math.Float32bits(c.value[k]) >> (8 * p))
			b.above[p][k] = uint8(math.Float32bits(c.above[k]) >> (8 * p))
		}
	}
	top := 255 - c.zero
	// line is the one for decade d, from 10^(d-7) to 10^(d-6); below the lowest one all is 0, and what is close to 1 is the
	// greatest magnitude or the one below.
	const below, close = -1, 7
	line := func(d int) (slope, offset float32) {
		switch d {
		case below:
			return 0, slack
		case close:
			return 0, float32(top) + slack
		}
		steps := (top + 1) >> (7 - d)
		first := 0 // magnitude of the decade's first code
		for e := range d {
			first += (top + 1) >> (7 - e)
		}
		perUnit := float64(steps) / (0.9 * math.Pow10(d-6))
		return float32(perUnit), float32(float64(first+1) - float64(steps)/9 + slack)
	}
	// ends[d+1] is where decade d ends; the last code before 1 begins well below the last of them.
	ends := []float64{1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.995, math.Inf(1)}
	for i := range b.edge {
		// The index is the low half of exponent>>1 in biased form; 50 (2^-27) to 63 (below 2) occur.
		low, high := math.Ldexp(1, 2*(48+i)-127), math.Ldexp(1, 2*(48+i)-125)
		d := below
		for low >= ends[d+1] {
			d++
		}
		end := ends[d+1]
		b.slopeLow[i], b.offsetLow[i] = line(d)
		if b.edge[i] = float32(math.Inf(1)); end < high {
			b.edge[i] = float32(end)
			d++
		}
		b.slopeHigh[i], b.offsetHigh[i] = line(d)
	}
}
