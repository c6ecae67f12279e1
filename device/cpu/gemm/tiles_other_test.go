//go:build !amd64

package gemm

import "github.com/millrace/millrace/device/cpu/isa"

func kernelsAt(level isa.Level) kernels { return kernelsFor(level) }

func levelsHere() []isa.Level { return isa.Available() }
