package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// accelerateBlocks replaces the loops over blocks. The assembly looks up bytes (VBMI), which the first CPUs with AVX-512 do not;
// these, and those with AVX2, get the assembly of AdamW with fp32 moments between decoding and encoding in Go.
func accelerateBlocks(l *blockLoops, level isa.Level) {
	if level < isa.AVX2 {
		return
	}
	if level < isa.AVX512 || !cpu.X86.HasAVX512VBMI {
		l.adamw8Split[0], l.adamw8Split[1], l.adamw8F32 = adamw8SplitF32AVX2, adamw8SplitBF16AVX2, adamw8F32AVX2
		return
	}
	// Each calls its function by name, so that the compiler knows that the scratch stays on the stack.
	l.adamw8Split[0] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) int {
		var w [scratch8Bytes]byte
		return adamw8SplitF32AVX512(hi, lo, g, n, s, &at, aligned[scratch8](&w[0]), theTables8)
	}
	l.adamw8Split[1] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) int {
		var w [scratch8Bytes]byte
		return adamw8SplitBF16AVX512(hi, lo, g, n, s, &at, aligned[scratch8](&w[0]), theTables8)
	}
	l.adamw8F32 = func(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) int {
		var w [scratch8Bytes]byte
		return adamw8F32AVX512(p, g, n, s, &at, aligned[scratch8](&w[0]), theTables8)
	}
}

// scratch8Bytes is room for a scratch8 that begins a cache line.
const scratch8Bytes = unsafe.Sizeof(scratch8{}) + 64

func adamw8SplitF32AVX2(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int) {
	var m, v [tensor.MomentBlock]float32
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		i := b * tensor.MomentBlock
		bad += adamwSplitF32AVX2(unsafe.Add(hi, 2*i), unsafe.Add(lo, 2*i), unsafe.Pointer(&m), unsafe.Pointer(&v), unsafe.Add(g, 4*i), len(m), s)
		at.encodeByLines(b, &m, &v)
	}
	return bad
}

func adamw8SplitBF16AVX2(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int) {
	var m, v [tensor.MomentBlock]float32
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		i := b * tensor.MomentBlock
		bad += adamwSplitBF16AVX2(unsafe.Add(hi, 2*i), unsafe.Add(lo, 2*i), unsafe.Pointer(&m), unsafe.Pointer(&v), unsafe.Add(g, 2*i), len(m), s)
		at.encodeByLines(b, &m, &v)
	}
	return bad
}

func adamw8F32AVX2(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (bad int) {
	var m, v [tensor.MomentBlock]float32
	for b := range n / tensor.MomentBlock {
		at.decode(b, &m, &v)
		i := b * tensor.MomentBlock
		bad += adamwF32AVX2(unsafe.Add(p, 4*i), unsafe.Pointer(&m), unsafe.Pointer(&v), unsafe.Add(g, 4*i), len(m), s)
		at.encodeByLines(b, &m, &v)
	}
	return bad
}

// encodeByLines is encode, quicker.
func (a moments8) encodeByLines(b int, m, v *[tensor.MomentBlock]float32) {
	*scale8(a.mScale, b) = theTables8.books[0].encode(signed8, (*[tensor.MomentBlock]uint8)(codes8(a.m, b)), m)
	*scale8(a.vScale, b) = theTables8.books[1].encode(unsigned8, (*[tensor.MomentBlock]uint8)(codes8(a.v, b)), v)
}
