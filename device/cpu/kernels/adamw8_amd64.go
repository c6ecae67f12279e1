package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
)

// accelerateBlocks replaces the loops over blocks. The assembly for AVX-512 looks up bytes (VBMI), which the first
// CPUs with AVX-512 do not; these get what there is for AVX2.
func accelerateBlocks(l *blockLoops, level isa.Level) {
	if level < isa.AVX2 {
		return
	}
	l.words = func(to *[wordsPiece]uint32, n int, d device.Draw) {
		var w words8
		w.begin(d, 4)
		wordsAVX2(to, n, &w)
	}
	if level >= isa.AVX512 {
		l.words = func(to *[wordsPiece]uint32, n int, d device.Draw) {
			var w words8
			w.begin(d, 8)
			wordsAVX512(to, n, &w)
		}
	}
	// Each calls its function by name, so that the compiler knows that the scratch stays on the stack.
	if level < isa.AVX512 || !cpu.X86.HasAVX512VBMI {
		l.adamw8Split[0] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
			var memory [narrowScratch8Bytes]byte
			w := aligned[narrowScratch8](&memory[0])
			w.words.begin(at.draw, 4)
			return adamw8SplitF32AVX2(hi, lo, g, n, s, &at, w, theTables8)
		}
		l.adamw8Split[1] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
			var memory [narrowScratch8Bytes]byte
			w := aligned[narrowScratch8](&memory[0])
			w.words.begin(at.draw, 4)
			return adamw8SplitBF16AVX2(hi, lo, g, n, s, &at, w, theTables8)
		}
		l.adamw8Split24[0] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
			var memory [narrowScratch8Bytes]byte
			w := aligned[narrowScratch8](&memory[0])
			w.words.begin(at.draw, 4)
			return adamw8Split24F32AVX2(hi, lo, g, n, s, &at, w, theTables8)
		}
		l.adamw8Split24[1] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
			var memory [narrowScratch8Bytes]byte
			w := aligned[narrowScratch8](&memory[0])
			w.words.begin(at.draw, 4)
			return adamw8Split24BF16AVX2(hi, lo, g, n, s, &at, w, theTables8)
		}
		l.adamw8F32 = func(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
			var memory [narrowScratch8Bytes]byte
			w := aligned[narrowScratch8](&memory[0])
			w.words.begin(at.draw, 4)
			return adamw8F32AVX2(p, g, n, s, &at, w, theTables8)
		}
		return
	}
	l.adamw8Split[0] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
		var memory [scratch8Bytes]byte
		w := aligned[scratch8](&memory[0])
		w.words.begin(at.draw, 8)
		return adamw8SplitF32AVX512(hi, lo, g, n, s, &at, w, theTables8)
	}
	l.adamw8Split[1] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
		var memory [scratch8Bytes]byte
		w := aligned[scratch8](&memory[0])
		w.words.begin(at.draw, 8)
		return adamw8SplitBF16AVX512(hi, lo, g, n, s, &at, w, theTables8)
	}
	l.adamw8Split24[0] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
		var memory [scratch8Bytes]byte
		w := aligned[scratch8](&memory[0])
		w.words.begin(at.draw, 8)
		return adamw8Split24F32AVX512(hi, lo, g, n, s, &at, w, theTables8)
	}
	l.adamw8Split24[1] = func(hi, lo, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
		var memory [scratch8Bytes]byte
		w := aligned[scratch8](&memory[0])
		w.words.begin(at.draw, 8)
		return adamw8Split24BF16AVX512(hi, lo, g, n, s, &at, w, theTables8)
	}
	l.adamw8F32 = func(p, g unsafe.Pointer, n int, s *AdamWScalars, at moments8) (int, uint32) {
		var memory [scratch8Bytes]byte
		w := aligned[scratch8](&memory[0])
		w.words.begin(at.draw, 8)
		return adamw8F32AVX512(p, g, n, s, &at, w, theTables8)
	}
}

// Room for scratch that begins a cache line.
const (
	scratch8Bytes       = unsafe.Sizeof(scratch8{}) + 64
	narrowScratch8Bytes = unsafe.Sizeof(narrowScratch8{}) + 64
)
