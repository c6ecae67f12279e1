package cublaslt

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

// api is the part of the library that is used. A field's name is the symbol's without cublasLt.
type api struct {
	GetVersion func() uint64
	Create     func(handle *uintptr) status
	Destroy    func(handle uintptr) status

	MatmulDescCreate       func(desc *uintptr, compute, scale int32) status
	MatmulDescSetAttribute func(desc uintptr, attribute int32, value unsafe.Pointer, bytes uint64) status
	MatmulDescDestroy      func(desc uintptr) status

	MatrixLayoutCreate  func(layout *uintptr, elements Type, rows, cols uint64, stride int64) status
	MatrixLayoutDestroy func(layout uintptr) status

	MatmulPreferenceCreate       func(preference *uintptr) status
	MatmulPreferenceSetAttribute func(preference uintptr, attribute int32, value unsafe.Pointer, bytes uint64) status
	MatmulPreferenceDestroy      func(preference uintptr) status

	MatmulAlgoGetHeuristic func(handle, desc, a, b, c, d, preference uintptr, want int32, results *heuristicResult, got *int32) status

	Matmul func(handle, desc uintptr, alpha *float32, a driver.DevicePtr, aLayout uintptr, b driver.DevicePtr, bLayout uintptr,
		beta *float32, c driver.DevicePtr, cLayout uintptr, d driver.DevicePtr, dLayout uintptr,
		algo *algorithm, workspace driver.DevicePtr, workspaceBytes uint64, s driver.Stream) status
}

// algorithm is cublasLtMatmulAlgo_t.
type algorithm [8]uint64

// heuristicResult is cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algo           algorithm
	workspaceBytes uint64
	state          status
	waves          float32
	_              [4]int32
}

// Enumerators of cublasLt.h and cublas_api.h.
const (
	compute32F = 68

	descTransA = 3
	descTransB = 4
	transpose  = 1

	preferWorkspaceBytes  = 1
	preferReductionScheme = 3
	preferAlignmentA      = 5 // and B, C and D with the next three
	// reduceInComputeType lets parts of a long inner dimension be added in fp32, in a fixed order, by a kernel of its own.
	// The other schemes round parts to C's type, or count on the order in which blocks arrive.
	reduceInComputeType = 2
)

// status is cublasStatus_t.
type status int32

const (
	statusSuccess         status = 0
	statusNotSupported    status = 15
	statusExecutionFailed status = 13
)

var statusText = map[status]string{
	1:                     "the library could not be initialized (CUBLAS_STATUS_NOT_INITIALIZED",
	3:                     "out of memory (CUBLAS_STATUS_ALLOC_FAILED",
	7:                     "an argument is not valid (CUBLAS_STATUS_INVALID_VALUE",
	8:                     "the library does not support this GPU (CUBLAS_STATUS_ARCH_MISMATCH",
	11:                    "device memory could not be reached (CUBLAS_STATUS_MAPPING_ERROR",
	statusExecutionFailed: "a kernel failed (CUBLAS_STATUS_EXECUTION_FAILED",
	14:                    "an internal error (CUBLAS_STATUS_INTERNAL_ERROR",
	statusNotSupported:    "not supported (CUBLAS_STATUS_NOT_SUPPORTED",
}

// err is nil for success.
func (s status) err(call string) error {
	if s == statusSuccess {
		return nil
	}
	if text, ok := statusText[s]; ok {
		return fmt.Errorf("cublasLt%s: %s, %d)", call, text, int32(s))
	}
	return fmt.Errorf("cublasLt%s: status %d", call, int32(s))
}
