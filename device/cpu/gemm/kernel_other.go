//go:build !amd64

package gemm

import "github.com/millrace/millrace/device/cpu/isa"

func assemblyKernels(isa.Level) (kernels, bool) { return kernels{}, false }
