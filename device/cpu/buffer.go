package cpu

import (
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/hostmem"
)

// buffer is memory that the device owns, or memory of another owner that is registered with it.
type buffer struct {
	device *Device
	region *hostmem.Region
	owned  bool
	closed bool
}

func (b *buffer) Bytes() int64 { return b.region.Len() }

func (b *buffer) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.device.open.Add(-1)
	if b.owned {
		return b.region.Close()
	}
	return nil
}

// bytes is the memory that m names.
func bytes(m device.Mem) []byte {
	return m.Buf.(*buffer).region.Bytes()[m.Off : m.Off+m.Len : m.Off+m.Len]
}

func start(m device.Mem) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(bytes(m))) }

// mat is m as the kernels see it.
func mat(m device.Mat) kernels.Mat {
	return kernels.Mat{Data: start(m.Mem), DType: m.DType, Rows: m.Rows, Cols: m.Cols, Stride: m.Stride}
}

// gemmMat is m as the matrix product sees it.
func gemmMat(m device.Mat) gemm.Mat { return gemm.Mat(mat(m)) }

// vec is a matrix of one row as a vector.
func vec(m device.Mat) kernels.Vec {
	return kernels.Vec{Data: start(m.Mem), DType: m.DType, Len: m.Cols}
}

// floats is a dense F32 matrix as a slice.
func floats(m device.Mat) []float32 {
	return unsafe.Slice((*float32)(start(m.Mem)), m.Rows*m.Cols)
}

// ints is the first n numbers of an I32 vector.
func ints(m device.Mem, n int) []int32 { return unsafe.Slice((*int32)(start(m)), n) }

// halves is a dense BF16 matrix as a slice of bits.
func halves(m device.Mat) []uint16 {
	return unsafe.Slice((*uint16)(start(m.Mem)), m.Rows*m.Cols)
}

// lowHalves are low halves of a split master as a slice.
func lowHalves[T int16 | int8](m device.Mat) []T { return unsafe.Slice((*T)(start(m.Mem)), m.Cols) }
