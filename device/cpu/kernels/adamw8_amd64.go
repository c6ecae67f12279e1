package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/millrace/millrace/device/cpu/isa"
)

// accelerateBlocks replaces the loops over blocks where the CPU looks up bytes (VBMI), which the first ones with AVX-512 do not.
func accelerateBlocks(l *blockLoops, level isa.Level) {
	if level < isa.AVX512 || !cpu.X86.HasAVX512VBMI {
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
