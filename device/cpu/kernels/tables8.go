package kernels

import (
	"math"
	"unsafe"

	"github.com/millrace/millrace/device"
)

// tables8 are the codebooks as the assembly reads them. Its generator knows the layout.
type tables8 struct {
	books [2]book8 // signed, unsigned
	// transposed are the dwords of a 4x4 matrix, rows for columns.
	transposed [16]int32
	narrow     [2]narrow8 // for AVX2: signed, unsigned
	ladder     ladder8
}

// ladder8 is theLadder: cell is the rung that the exponents 2i and 2i+1 (modulo 32) begin in, a dword each for AVX-512
// and a byte each, twice, for AVX2. Rungs repeat after 8.
type ladder8 struct {
	cell                [16]uint32
	cellBytes           [64]uint8
	edge                [16]float32
	slope, offset       [16]float32
	gapSlope, gapOffset [16]float32
	least               [16]float32
}

func (b *ladder8) fill(l *ladder) {
	for i := range b.cell {
		low := float32(math.Ldexp(1, 2*(48+i)-127))
		r := uint32(0)
		for low > l.edge[r] {
			r++
		}
		b.cell[i] = r
		for j := i; j < len(b.cellBytes); j += 16 {
			b.cellBytes[j] = uint8(r)
		}
		b.edge[i], b.slope[i], b.offset[i] = l.edge[i%8], l.slope[i%8], l.offset[i%8]
		b.gapSlope[i], b.gapOffset[i], b.least[i] = l.gapSlope[i%8], l.gapOffset[i%8], l.least
	}
}

// book8 is one codebook. A line over |x| guesses the magnitude of a number x; each decade has its own line, whose slope
// follows from the decade's number of steps. The exponent of x without its last bit is the index into the tables from
// edge on: between two powers of 4 there is at most one end of a decade, edge, and the lines are those of the decades
// above and below it. The value of a line, rounded down, is the magnitude or one above it; a comparison settles which.
type book8 struct {
	value, above          [4][256]uint8 // byte p of the fp32 number for each code or magnitude
	edge                  [16]float32
	slopeHigh, slopeLow   [16]float32
	offsetHigh, offsetLow [16]float32
}

// narrow8 is one codebook for AVX2, which has no look-up by byte in large tables. There is one region for each decade
// and one for the greatest magnitude. The exponent of a number without its last bit, and one comparison with an edge,
// give the number's region exactly; in a region the magnitude is a line over the number, rounded down. Lines are in
// 1/65536 of a magnitude, and slack8 above: a number whose line is more than 2*slack8 above a whole magnitude has that
// magnitude, and the few others are compared with above.
type narrow8 struct {
	value [256]float32 // for each code
	above [256]float32 // for each magnitude
	cell  [32]uint8    // twice the region that the exponents 2i and 2i+1 (modulo 32) begin in
	// For each region: what a number of the next one exceeds, the line, and half a magnitude above the last one.
	edge, slope, offset, limit [8]float32
	zero                       [32]uint8 // the code of zero
	order                      [8]int32  // of the dwords that packing leaves
}

// slack8 is more than the error of a line, in 1/65536 of a magnitude.
const slack8 = 4

func (b *narrow8) fill(c *codebook) {
	b.value, b.above = c.value, c.above
	top := 255 - c.zero
	first := 1 // magnitude of the region's first code
	for r := range 7 {
		steps := (top + 1) >> (7 - r)
		slope, offset := float64(steps)/(0.9*math.Pow10(r-6)), float64(first)-float64(steps)/9
		if r == 0 { // the line through the ends of zero and of the first code
			slope = 1 / float64(c.above[2]-c.above[1])
			offset = 1 - slope*float64(c.above[1])
		}
		first += steps
		b.edge[r], b.slope[r], b.offset[r] = c.above[first], float32(65536*slope), float32(65536*offset+slack8)
		b.limit[r] = 65536 * (float32(first) - 0.5)
	}
	b.edge[7], b.offset[7], b.limit[7] = float32(math.Inf(1)), 65536*(float32(top)+0.5), 65536*(float32(top)+0.5)
	for i := range 16 {
		low := float32(math.Ldexp(1, 2*(48+i)-127))
		r := uint8(0)
		for low > b.edge[r] {
			r++
		}
		b.cell[i], b.cell[16+i] = r, r
	}
	for i := range b.order {
		b.order[i] = int32(i/2 + i%2*4)
	}
	for i := range b.zero {
		b.zero[i] = uint8(c.zero)
	}
}

// scratch8 holds what the assembly works in: a block of both moments, and which first moments are negative.
//
//lint:ignore U1000 the assembly uses the fields
type scratch8 struct {
	m, v     [256]float32
	negative [4]uint64
	_        [4]uint64
	words    words8
}

// narrowScratch8 holds what the assembly for AVX2 works in: two blocks of both moments, this one and the next.
//
//lint:ignore U1000 the assembly uses the fields
type narrowScratch8 struct {
	blocks [2]struct{ m, v [256]float32 }
	words  words8
}

// words8 holds what random words are made from, and those of a block. A vector has a counter in each of its lanes of 64
// bits; two vectors take turns. See the generator.
//
//lint:ignore U1000 the assembly uses the fields
type words8 struct {
	words   [256]uint32
	keys    [20][16]uint32 // both words of each round's key
	next    [2][8]uint64   // the low halves of the next counters, in each vector
	part    [8]uint64      // the high half of all
	advance [8]uint64      // from one turn to the next
}

// begin prepares words of a draw, from a counter on, for vectors with a number of lanes. Lane 2i is of counter i, lane
// 2i+1 of counter lanes/2+i: so unpacking leaves words in order.
func (w *words8) begin(d device.Draw, lanes int) {
	key := d.Key
	for round := range 10 {
		for i := range 16 {
			w.keys[2*round][i], w.keys[2*round+1][i] = key[0], key[1]
		}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	for lane := range lanes {
		w.next[0][lane] = d.First/4 + uint64(lane/2+lane%2*lanes/2)
		w.next[1][lane] = w.next[0][lane] + uint64(lanes)
		w.part[lane], w.advance[lane] = d.Part, uint64(2*lanes)
	}
}

// aligned returns the first T in memory that begins a cache line; memory is 64 bytes longer than T.
func aligned[T any](memory *byte) *T {
	p := unsafe.Pointer(memory)
	return (*T)(unsafe.Add(p, -uintptr(p)&63))
}

var theTables8 = newTables8()

func newTables8() *tables8 {
	t := aligned[tables8](&make([]byte, unsafe.Sizeof(tables8{})+64)[0])
	for i, c := range []*codebook{signed8, unsigned8} {
		t.books[i].fill(c)
		t.narrow[i].fill(c)
	}
	t.ladder.fill(theLadder)
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
	// line is the one for decade d, from 10^(d-7) to 10^(d-6); below the lowest one all is 0, and what is close to 1
	// is the greatest magnitude or the one below.
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
	// Decade d ends at ends[d+1]; the last code before 1 begins well below the last of them.
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
