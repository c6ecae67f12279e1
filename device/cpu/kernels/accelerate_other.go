//go:build !amd64

package kernels

import "github.com/millrace/millrace/device/cpu/isa"

// accelerate leaves the plain loops: there is assembly for amd64 only.
func accelerate(*loops, isa.Level) {}

func accelerateBlocks(*blockLoops, isa.Level) {}

func accelerateCodes(*codeLoops, isa.Level) {}
