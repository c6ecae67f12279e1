package hostmem

import (
	"fmt"
	"unsafe"
)

// F32 views bytes as float32 values, in the machine's byte order. Like its siblings it copies nothing, and panics
// when b does not start on a multiple of the value's size or holds a part of a value: offsets come from layouts, so
// that is a bug.
func F32(b []byte) []float32 { return view[float32](b) }

// F64 views bytes as float64 values.
func F64(b []byte) []float64 { return view[float64](b) }

// U16 views bytes as 16-bit patterns, such as bf16 values.
func U16(b []byte) []uint16 { return view[uint16](b) }

// I16 views bytes as int16 values, such as the low halves of split masters.
func I16(b []byte) []int16 { return view[int16](b) }

// I8 views bytes as int8 values, such as the low halves of masters of 24 bits.
func I8(b []byte) []int8 { return view[int8](b) }

// I32 views bytes as int32 values, such as token ids.
func I32(b []byte) []int32 { return view[int32](b) }

// U32 views bytes as uint32 values, such as lengths.
func U32(b []byte) []uint32 { return view[uint32](b) }

// I64 views bytes as int64 values, such as offsets.
func I64(b []byte) []int64 { return view[int64](b) }

func view[T float32 | float64 | uint16 | int8 | int16 | int32 | uint32 | int64](b []byte) []T {
	size := int(unsafe.Sizeof(*new(T)))
	if len(b)%size != 0 {
		panic(fmt.Sprintf("hostmem: %d bytes are not whole values of %d bytes", len(b), size))
	}
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%uintptr(size) != 0 {
		panic(fmt.Sprintf("hostmem: the address %p is not a multiple of %d bytes", p, size))
	}
	return unsafe.Slice((*T)(p), len(b)/size)
}
