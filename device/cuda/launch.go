package cuda

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/cuda/kernels"
)

// function is a kernel that the driver has loaded.
type function struct {
	*kernels.Kernel
	handle driver.Function
}

// maxArgs is the most arguments that a kernel has, Triton's trailing pointers included.
const maxArgs = 32

// plainSharedBytes is the dynamic shared memory that every function may have; for more it must ask.
const plainSharedBytes = 48 << 10

// arg is an argument of a launch: its type is compared with the manifest's.
type arg struct {
	kind  kernels.Type
	value uint64 // as kernels.Kernel.Takes wants it
}

// ptr is the address of a matrix or vector, 0 for none.
func ptr(m device.Mem) arg {
	if m.Buf == nil {
		return arg{kind: kernels.Ptr}
	}
	return at(address(m))
}

func at(p driver.DevicePtr) arg { return arg{kernels.Ptr, uint64(p)} }

// i32 is a number of things, which kernels count in 32 bits.
func i32(n int) arg {
	if n > math.MaxInt32 || n < math.MinInt32 {
		panic(fmt.Sprintf("cuda device: %d does not fit in 32 bits", n))
	}
	return arg{kernels.I32, uint64(int64(n))}
}

func i64(n int) arg { return arg{kernels.I64, uint64(int64(n))} }

func f32(x float32) arg { return arg{kernels.F32, uint64(math.Float32bits(x))} }

func flag(b bool) arg {
	if b {
		return i32(1)
	}
	return i32(0)
}

// stride is from row to row of m. A single row has no next one: its stride is made one that every kernel likes.
func stride(m device.Mat) arg {
	if m.Rows <= 1 {
		return i32((m.Stride + 15) / 16 * 16)
	}
	return i32(m.Stride)
}

// launch enqueues a kernel of an operation: the first variant that takes the operands. It allocates nothing, given arguments that
// were appended to s.args. The context is current.
func (s *Stream) launch(o operation, args ...arg) error {
	done, err := s.launchIf(o, args...)
	if err == nil && !done {
		err = fmt.Errorf("no kernel of %v takes these operands", o)
	}
	return err
}

// launchIf is launch where there may be no kernel for the operands: then it reports false.
func (s *Stream) launchIf(o operation, args ...arg) (bool, error) {
	for _, f := range s.device.kernels[o] {
		if done, err := s.launchKernel(f, args); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// launchKernel enqueues a kernel if the arguments are as it wants them.
func (s *Stream) launchKernel(f *function, args []arg) (bool, error) {
	if len(args) != len(f.Args) {
		panic(fmt.Sprintf("cuda device: kernel %s takes %d arguments, not %d", f.Name, len(f.Args), len(args)))
	}
	values := s.values[:len(args)]
	for i, a := range args {
		if a.kind != f.Args[i].Type {
			panic(fmt.Sprintf("cuda device: kernel %s: argument %s is %v, not %v", f.Name, f.Args[i].Name, f.Args[i].Type, a.kind))
		}
		values[i] = a.value
	}
	if !f.Takes(values) {
		return false, nil
	}
	grid, err := f.Programs(values)
	if err != nil || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return err == nil, err
	}
	clear(s.values[len(args) : len(args)+kernels.TrailingPointers])
	r := s.device.api.LaunchKernel(f.handle, grid[0], grid[1], grid[2], uint32(f.Threads), 1, 1, uint32(f.SharedBytes),
		s.handle, &s.params[0], nil)
	return true, s.device.check("cuLaunchKernel", r)
}
