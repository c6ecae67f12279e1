package kernels

import (
	"sync"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// adamw4Split is AdamW8Split for moments of which second ones have 4 bits.
func (t *Table) adamw4Split(hi []uint16, lo []int16, m Moments8, grad Vec, d device.Draw, s *AdamWScalars) Tally {
	f := t.adamwSplit[kind(grad.DType)]
	var told tally
	t.recode(len(hi), m, d, func(i, n int, m, v, _ unsafe.Pointer) {
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), m, v,
			unsafe.Add(grad.Data, i*size(grad.DType)), n, s))
	})
	return told.of(s)
}

// adamw4Split24 is adamw4Split for a master of 24 bits.
func (t *Table) adamw4Split24(hi []uint16, lo []int8, m Moments8, grad Vec, d device.Draw, s *AdamWScalars) Tally {
	f := t.adamwSplit24[kind(grad.DType)]
	var told tally
	t.recode(len(hi), m, d, func(i, n int, m, v, words unsafe.Pointer) {
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), m, v,
			unsafe.Add(grad.Data, i*size(grad.DType)), words, n, s))
	})
	return told.of(s)
}

// adamw4F32 is adamw4Split for weights that are kept in fp32.
func (t *Table) adamw4F32(p []float32, m Moments8, grad []float32, d device.Draw, s *AdamWScalars) Tally {
	var told tally
	t.recode(len(p), m, d, func(i, n int, m, v, _ unsafe.Pointer) {
		told.add(t.adamwF32(unsafe.Pointer(&p[i]), m, v, unsafe.Pointer(&grad[i]), n, s))
	})
	return told.of(s)
}

// scratch4 has moments in fp32 while they are updated, and random words.
type scratch4 struct {
	m, v  [recoded]float32
	words [wordsPiece]uint32
}

// recoded bounds the elements that are decoded at a time, so that they stay in the first cache. It divides wordsPiece.
const recoded = 4 * tensor.MomentBlock

var scratches4 = sync.Pool{New: func() any { return new(scratch4) }}

// recode calls update with the moments in fp32 of elements [i, i+n) and their random words, for all of them in turn.
func (t *Table) recode(n int, m Moments8, d device.Draw, update func(i, n int, m, v, words unsafe.Pointer)) {
	w := scratches4.Get().(*scratch4)
	defer scratches4.Put(w)
	first, second := unsafe.Pointer(&w.m), unsafe.Pointer(&w.v)
	for i := 0; i < n; i += recoded {
		if i%wordsPiece == 0 {
			t.words(&w.words, min(wordsPiece, n-i), d.At(i))
		}
		words := unsafe.Pointer(&w.words[i%wordsPiece])
		n := min(recoded, n-i)
		of := m.Slice(i, i+n)
		codes, scales := unsafe.Pointer(&of.M[0]), unsafe.Pointer(&of.MScale[0])
		if of.first4() {
			t.decodeFirst4(first, codes, scales, n)
		} else {
			t.decodeFirst8(first, codes, scales, n)
		}
		t.decodeSecond4(second, unsafe.Pointer(&of.V[0]), unsafe.Pointer(&of.VScale[0]), n)
		update(i, n, first, second, words)
		if of.first4() {
			t.encodeFirst4(codes, scales, first, words, n)
		} else {
			t.encodeFirst8(codes, scales, first, n)
		}
		t.encodeSecond4(unsafe.Pointer(&of.V[0]), unsafe.Pointer(&of.VScale[0]), second, words, n)
	}
}

// codeLoops are the inner loops between moments in fp32 and their codes, over n elements, whole blocks of
// tensor.MomentBlock. Encoding may overwrite x.
type codeLoops struct {
	decodeFirst8, decodeFirst4, decodeSecond4 func(x, codes, scales unsafe.Pointer, n int)

	encodeFirst8                func(codes, scales, x unsafe.Pointer, n int)
	encodeFirst4, encodeSecond4 func(codes, scales, x, words unsafe.Pointer, n int)
}

var plainCodeLoops = codeLoops{
	decodeFirst8: func(x, codes, scales unsafe.Pointer, n int) {
		Dequantize8(of[float32](x, n), of[uint8](codes, n), of[float32](scales, n/tensor.MomentBlock), true)
	},
	decodeFirst4: func(x, codes, scales unsafe.Pointer, n int) {
		Dequantize4(of[float32](x, n), of[uint8](codes, n/2), of[float32](scales, n/tensor.MomentBlock4), true)
	},
	decodeSecond4: func(x, codes, scales unsafe.Pointer, n int) {
		Dequantize4(of[float32](x, n), of[uint8](codes, n/2), of[float32](scales, n/tensor.MomentBlock4), false)
	},
	encodeFirst8: func(codes, scales, x unsafe.Pointer, n int) {
		QuantizeFirst8(of[uint8](codes, n), of[float32](scales, n/tensor.MomentBlock), of[float32](x, n))
	},
	encodeFirst4: func(codes, scales, x, words unsafe.Pointer, n int) {
		encodeBlocks(of[uint8](codes, n/2), of[float32](scales, n/tensor.MomentBlock4), of[float32](x, n), of[uint32](words,
			n), encodeFirst4)
	},
	encodeSecond4: func(codes, scales, x, words unsafe.Pointer, n int) {
		encodeBlocks(of[uint8](codes, n/2), of[float32](scales, n/tensor.MomentBlock4), of[float32](x, n), of[uint32](words,
			n), encodeSecond4)
	},
}
