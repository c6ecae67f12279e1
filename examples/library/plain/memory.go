package plain

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// bytesOf is the memory itself.
func bytesOf(m device.Mem) []byte { return m.Buf.(*buffer).bytes[m.Off:][:m.Len] }

// ints reads n numbers of type I32.
func ints(m device.Mem, n int) []int32 { return hostmem.I32(bytesOf(m))[:n] }

// numbers reads a matrix of type F32 or BF16, row by row.
func numbers(m device.Mat) []float64 {
	x := make([]float64, m.Rows*m.Cols)
	each(m, func(i, at int, f32 []float32, bf16 []uint16) {
		if f32 != nil {
			x[i] = float64(f32[at])
		} else {
			x[i] = float64(tensor.F32FromBF16(bf16[at]))
		}
	})
	return x
}

// put writes a matrix and rounds its numbers.
func put(m device.Mat, x []float64) {
	each(m, func(i, at int, f32 []float32, bf16 []uint16) {
		if f32 != nil {
			f32[at] = float32(x[i])
		} else {
			bf16[at] = tensor.BF16FromF32(float32(x[i]))
		}
	})
}

// each calls visit for each element, row by row: i counts them, and at is the place in the memory.
func each(m device.Mat, visit func(i, at int, f32 []float32, bf16 []uint16)) {
	var f32 []float32
	var bf16 []uint16
	if m.DType == tensor.F32 {
		f32 = hostmem.F32(bytesOf(m.Mem))
	} else {
		bf16 = hostmem.U16(bytesOf(m.Mem))
	}
	for r := range m.Rows {
		for c := range m.Cols {
			visit(r*m.Cols+c, r*m.Stride+c, f32, bf16)
		}
	}
}

func (s *stream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.do(func() { copy(bytesOf(dst), bytesOf(src)) })
}

func (s *stream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.do(func() { clear(bytesOf(dst)) })
}
