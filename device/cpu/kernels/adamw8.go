package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Moments8 are the two moments of a run of parameters as codes, with a scale for each block: of 8 bits in blocks of
// tensor.MomentBlock, or of 4 bits, two to a byte, in blocks of tensor.MomentBlock4. Second moments have 4 bits
// wherever first ones have.
type Moments8 struct {
	M, V           []uint8
	MScale, VScale []float32
}

// first4 and second4 report whether the moments have 4 bits: there is a scale for 64 bytes of codes then.
func (m Moments8) first4() bool  { return len(m.M) == len(m.MScale)*tensor.MomentBlock4/2 }
func (m Moments8) second4() bool { return len(m.V) == len(m.VScale)*tensor.MomentBlock4/2 }

// Slice is the moments of elements [lo, hi), both multiples of tensor.MomentBlock.
func (m Moments8) Slice(lo, hi int) Moments8 {
	check(lo%tensor.MomentBlock == 0 && hi%tensor.MomentBlock == 0, "Moments8: cut inside of a block")
	of := func(codes []uint8, scales []float32, narrow bool) ([]uint8, []float32) {
		if narrow {
			return codes[lo/2 : hi/2], scales[lo/tensor.MomentBlock4 : hi/tensor.MomentBlock4]
		}
		return codes[lo:hi], scales[lo/tensor.MomentBlock : hi/tensor.MomentBlock]
	}
	var s Moments8
	s.M, s.MScale = of(m.M, m.MScale, m.first4())
	s.V, s.VScale = of(m.V, m.VScale, m.second4())
	return s
}

// moments8 has the addresses of the moments for a loop, where the assembly knows the order, and the names of its random
// words.
type moments8 struct {
	m, v, mScale, vScale unsafe.Pointer
	draw                 device.Draw
}

func (m Moments8) at(i int, d device.Draw) moments8 {
	b := i / tensor.MomentBlock
	return moments8{unsafe.Pointer(&m.M[i]), unsafe.Pointer(&m.V[i]), unsafe.Pointer(&m.MScale[b]), unsafe.Pointer(&m.VScale[b]), d.At(i)}
}

func (m Moments8) has(n int) bool {
	fit := func(codes []uint8, scales []float32) bool {
		return len(codes) == n && len(scales) == n/tensor.MomentBlock || len(codes) == n/2 &&
			len(scales) == n/tensor.MomentBlock4
	}
	return n%tensor.MomentBlock == 0 && fit(m.M, m.MScale) && fit(m.V, m.VScale) && (m.second4() || !m.first4())
}

// AdamW8Split is AdamWSplit for moments in codes. It decodes the moments (code's value times scale, rounded once),
// updates them with the parameters, and encodes them again: second moments, and first ones of 4 bits, rounded by the
// random words of d. The number of elements must be a multiple of tensor.MomentBlock, and work must be cut at such
// multiples.
//
// Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022), with the codes of bitsandbytes, in
// blocks of 256 as its optimizers have them; see codebook and ladder for what differs. For codes of 4 bits see code4.
func (t *Table) AdamW8Split(hi []uint16, lo []int16, m Moments8, grad Vec, d device.Draw, s *AdamWScalars) Tally {
	n := len(hi)
	check(len(lo) == n && grad.Len == n && m.has(n), "AdamW8Split: lengths differ or are no whole blocks")
	if m.second4() {
		return t.adamw4Split(hi, lo, m, grad, d, s)
	}
	f := t.adamw8Split[kind(grad.DType)]
	var told tally
	for i := 0; i < n; i += piece {
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Add(grad.Data, i*size(grad.DType)), min(piece, n-i), s, m.at(i, d)))
	}
	return told.of(s)
}

// AdamW8Split24 is AdamW8Split for a master of 24 bits: see AdamWSplit24. The random words of d round the weights, too.
func (t *Table) AdamW8Split24(hi []uint16, lo []int8, m Moments8, grad Vec, d device.Draw, s *AdamWScalars) Tally {
	n := len(hi)
	check(len(lo) == n && grad.Len == n && m.has(n), "AdamW8Split24: lengths differ or are no whole blocks")
	if m.second4() {
		return t.adamw4Split24(hi, lo, m, grad, d, s)
	}
	f := t.adamw8Split24[kind(grad.DType)]
	var told tally
	for i := 0; i < n; i += piece {
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Add(grad.Data, i*size(grad.DType)),
			min(piece, n-i), s, m.at(i, d)))
	}
	return told.of(s)
}

// AdamW8F32 is AdamW8Split for weights that are kept in fp32.
func (t *Table) AdamW8F32(p []float32, m Moments8, grad []float32, d device.Draw, s *AdamWScalars) Tally {
	n := len(p)
	check(len(grad) == n && m.has(n), "AdamW8F32: lengths differ or are no whole blocks")
	if m.second4() {
		return t.adamw4F32(p, m, grad, d, s)
	}
	var told tally
	for i := 0; i < n; i += piece {
		told.add(t.adamw8F32(unsafe.Pointer(&p[i]), unsafe.Pointer(&grad[i]), min(piece, n-i), s, m.at(i, d)))
	}
	return told.of(s)
}

// blockLoops are the inner loops over whole blocks, and the one that makes the words of n parameters, or of some more.
type blockLoops struct {
	words         func(to *[wordsPiece]uint32, n int, d device.Draw)
	adamw8Split   [2]func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int, longest uint32)
	adamw8Split24 [2]func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int, longest uint32)
	adamw8F32     func(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int, longest uint32)
}

var plainBlockLoops = blockLoops{
	words: func(to *[wordsPiece]uint32, n int, d device.Draw) { words(to[:n], d) },
	adamw8Split: [2]func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32){
		plainAdamW8Split[float32], plainAdamW8Split[uint16]},
	adamw8Split24: [2]func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32){
		plainAdamW8Split24[float32], plainAdamW8Split24[uint16]},
	adamw8F32: plainAdamW8F32,
}

// decode reads block b of both moments.
func (a moments8) decode(b int, m, v *[tensor.MomentBlock]float32) {
	signed8.decode(m[:], codes8(a.m, b), *scale8(a.mScale, b))
	unsigned8.decode(v[:], codes8(a.v, b), *scale8(a.vScale, b))
}

// words are the random words of block b.
func (a moments8) words(b int) [tensor.MomentBlock]uint32 {
	return wordsOf(a.draw.At(b * tensor.MomentBlock))
}

// encode writes block b of both moments, by its random words.
func (a moments8) encode(b int, m, v *[tensor.MomentBlock]float32, words *[tensor.MomentBlock]uint32) {
	*scale8(a.mScale, b) = signed8.encode(codes8(a.m, b), m[:])
	*scale8(a.vScale, b) = theLadder.encode(codes8(a.v, b), v[:], words)
}

func codes8(p unsafe.Pointer, b int) []uint8 {
	return of[uint8](unsafe.Add(p, b*tensor.MomentBlock), tensor.MomentBlock)
}

func scale8(p unsafe.Pointer, b int) *float32 { return (*float32)(unsafe.Add(p, 4*b)) }

func plainAdamW8Split[E element](hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int, longest uint32) {
	his, los, gs := of[uint16](hi, n), of[int16](lo, n), of[E](g, n)
	var m, v [tensor.MomentBlock]float32
	var t tally
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		for j := range m {
			i := b*tensor.MomentBlock + j
			var p float32
			p, m[j], v[j] = adamw(tensor.JoinF32(his[i], los[i]), m[j], v[j], load(gs[i]), s, &t)
			his[i], los[i] = tensor.SplitF32(p)
		}
		words := at.words(b)
		at.encode(b, &m, &v, &words)
	}
	return t.bad, t.longest
}

func plainAdamW8Split24[E element](hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int,
	longest uint32) {
	his, los, gs := of[uint16](hi, n), of[int8](lo, n), of[E](g, n)
	var m, v [tensor.MomentBlock]float32
	var t tally
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		words := at.words(b)
		for j := range m {
			i := b*tensor.MomentBlock + j
			his[i], los[i], m[j], v[j] = adamwSplit24(his[i], los[i], m[j], v[j], load(gs[i]), words[j], s, &t)
		}
		at.encode(b, &m, &v, &words)
	}
	return t.bad, t.longest
}

func plainAdamW8F32(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int, longest uint32) {
	ps, gs := of[float32](p, n), of[float32](g, n)
	var m, v [tensor.MomentBlock]float32
	var t tally
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		for j := range m {
			i := b*tensor.MomentBlock + j
			ps[i], m[j], v[j] = adamw(ps[i], m[j], v[j], gs[i], s, &t)
		}
		words := at.words(b)
		at.encode(b, &m, &v, &words)
	}
	return t.bad, t.longest
}
