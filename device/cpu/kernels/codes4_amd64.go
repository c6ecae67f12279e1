package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
)

// accelerateCodes replaces the loops between moments and their codes. Machines with AVX-512 get what there is for AVX2.
func accelerateCodes(l *codeLoops, level isa.Level) {
	if level < isa.AVX2 {
		return
	}
	l.decodeFirst8 = func(x, codes, scales unsafe.Pointer, n int) { decodeFirst8AVX2(x, codes, scales, n, theTables8) }
	l.decodeFirst4 = func(x, codes, scales unsafe.Pointer, n int) { decodeFirst4AVX2(x, codes, scales, n, theTables4) }
	l.decodeSecond4 = func(x, codes, scales unsafe.Pointer, n int) { decodeSecond4AVX2(x, codes, scales, n, theTables4) }
	l.encodeFirst8 = func(codes, scales, x unsafe.Pointer, n int) { encodeFirst8AVX2(codes, scales, x, n, theTables8) }
	l.encodeFirst4 = func(codes, scales, x, words unsafe.Pointer, n int) {
		encodeFirst4AVX2(codes, scales, x, words, n, theTables4)
	}
	l.encodeSecond4 = func(codes, scales, x, words unsafe.Pointer, n int) {
		encodeSecond4AVX2(codes, scales, x, words, n, theTables4)
	}
}

// tables4 are the codes of 4 bits as the assembly reads them. Its generator knows the layout.
//
//lint:ignore U1000 the assembly uses the fields
type tables4 struct {
	first, firstGap             [16]float32
	second, secondGap, nextRoot [16]float32 // nextRoot has the value after each
	shift                       [16]uint32  // of the codes in a word
	pair                        [16][2]int8 // what two codes count in a byte
	order                       [8]int32    // of the dwords that packing leaves
}

var theTables4 = newTables4()

func newTables4() *tables4 {
	t := &tables4{first: first4.value, firstGap: first4.gap, second: second4.value, secondGap: second4.gap}
	for i := range 16 {
		t.nextRoot[i] = second4.value[min(i+1, 15)]
		t.shift[i] = uint32(i % 8 * 4)
		t.pair[i] = [2]int8{1, 16}
	}
	for i := range t.order {
		t.order[i] = int32(i/2 + i%2*4)
	}
	return t
}
