//go:build !amd64

package gemm

import "github.com/millrace/millrace/device/cpu/isa"

func assemblyKernel(isa.Level) kernel { return nil }
