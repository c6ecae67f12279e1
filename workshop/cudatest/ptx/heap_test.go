package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
)

// heap is global memory of a test: allocations that are far from each other, so that an access beyond one hits nothing.
type heap struct{ mem [][]byte }

const heapStep = 1 << 32

func (h *heap) At(addr uint64, n int) ([]byte, error) {
	i, off := addr/heapStep, addr%heapStep
	if i < 1 || i > uint64(len(h.mem)) || off > uint64(len(h.mem[i-1])) || uint64(n) > uint64(len(h.mem[i-1]))-off {
		return nil, fmt.Errorf("no memory there")
	}
	return h.mem[i-1][off : off+uint64(n)], nil
}

// put makes an allocation of some values and gives its address.
func put[T any](h *heap, values []T) uint64 {
	b, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	h.mem = append(h.mem, b)
	return uint64(len(h.mem)) * heapStep
}

// get reads an allocation as values.
func get[T any](h *heap, addr uint64) []T {
	b := h.mem[addr/heapStep-1]
	var one T
	values := make([]T, len(b)/binary.Size(one))
	if _, err := binary.Decode(b, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	return values
}

// block makes a kernel's parameter block. Parameters that are left out, Triton's scratch pointers, are 0.
func paramBlock(t testing.TB, k *Kernel, args ...any) []byte {
	t.Helper()
	b := make([]byte, k.ParamBytes())
	params := k.Params()
	if len(args) > len(params) {
		t.Fatalf("%d arguments for %d parameters", len(args), len(params))
	}
	for i, a := range args {
		switch v := a.(type) {
		case int:
			a = int32(v)
			if params[i].Bytes == 8 {
				a = int64(v)
			}
		}
		if binary.Size(a) != params[i].Bytes {
			t.Fatalf("argument %d, %v, has not the %d bytes of the parameter", i, a, params[i].Bytes)
		}
		if _, err := binary.Encode(b[params[i].Offset:], binary.LittleEndian, a); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func parse(t testing.TB, src []byte) *Kernel {
	t.Helper()
	m, err := Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	return m.Kernels()[0]
}

// toBF16 rounds to nearest even, of numbers that are not NaN.
func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
