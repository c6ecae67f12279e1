// Package isa names the instruction sets that the CPU kernels are written for, and finds which of them this machine has
// and which one is fastest.
//
// Every kernel has a plain-Go twin. A test forces each level that the machine has; nothing else may choose one.
package isa

import (
	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"
)

// Level is a set of instructions; a higher level includes the lower ones.
type Level uint8

// The levels.
const (
	Plain      Level = iota // portable Go
	AVX2                    // AVX2 and FMA
	AVX512                  // AVX-512 F, BW, DQ, VL
	AVX512BF16              // AVX-512 with VDPBF16PS
	AMX                     // the same, and tiles with TDPBF16PS
)

// String is the name that reports use.
func (l Level) String() string {
	return [...]string{"plain Go", "AVX2", "AVX-512", "AVX-512 BF16", "AMX"}[l]
}

// Highest is the highest level that this CPU and operating system run.
func Highest() Level {
	x := &cpu.X86
	if x.HasAMXTile && x.HasAMXBF16 && withoutTiles() == AVX512BF16 && tilesAllowed() {
		return AMX
	}
	return withoutTiles()
}

// withoutTiles is the highest level below AMX.
func withoutTiles() Level {
	x := &cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512BF16:
		return AVX512BF16
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		return AVX512
	case x.HasAVX2 && x.HasFMA:
		return AVX2
	}
	return Plain
}

// Best is the level that computes fastest here. Levels differ in bits, so a rule chooses and not a timing, which
// would have noise.
func Best() Level { return best(Highest(), cpuid.CPU.VendorID) }

// BestWithoutTiles is the level that computes fastest where AMX fails its check.
func BestWithoutTiles() Level { return best(withoutTiles(), cpuid.CPU.VendorID) }

// best prefers tiles to all else: by Intel's tables TDPBF16PS does 16 times the work of fused multiply-adds in the same
// time. No CPU with it was measured. It leaves VDPBF16PS to AMD's CPUs. There (Zen 4 and 5) it does twice the work of
// fused multiply-adds. On Intel's (Sapphire and Emerald Rapids) it does half: one in two cycles, against two
// VFMADD231PS in one. CPUs of other makers were not measured. Level AVX512 computes the same products with widened
// operands, and keeps denormals.
func best(highest Level, vendor cpuid.Vendor) Level {
	if highest == AVX512BF16 && vendor != cpuid.AMD {
		return AVX512
	}
	return highest
}

// Available lists the levels that this machine can be forced to, lowest first.
func Available() []Level {
	var all []Level
	for l := Plain; l <= Highest(); l++ {
		all = append(all, l)
	}
	return all
}
