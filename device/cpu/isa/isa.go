// Package isa names the instruction sets that the CPU kernels are written for, and finds the best one here.
//
// Every kernel has a plain-Go twin. A test forces each level that the machine has; nothing else may choose one.
package isa

import "golang.org/x/sys/cpu"

// Level is a set of instructions; a higher level includes the lower ones.
type Level uint8

// The levels.
const (
	Plain      Level = iota // portable Go
	AVX2                    // AVX2 and FMA
	AVX512                  // AVX-512 F, BW, DQ, VL
	AVX512BF16              // AVX-512 with VDPBF16PS
)

// String is the name that reports use.
func (l Level) String() string {
	return [...]string{"plain Go", "AVX2", "AVX-512", "AVX-512 BF16"}[l]
}

// Best is the highest level that this CPU and operating system run.
func Best() Level {
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

// Available lists the levels that this machine can be forced to, lowest first.
func Available() []Level {
	var all []Level
	for l := Plain; l <= Best(); l++ {
		all = append(all, l)
	}
	return all
}
