package cuda_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

func TestMain(m *testing.M) {
	cuda.KeepCode()
	goleak.VerifyTestMain(m)
}

// rig is a device on a stand-in of the driver. Closing it checks that the driver was used well and that nothing is
// left.
type rig struct {
	*cuda.Device
	gpu *standin.Driver
}

func (r *rig) Close() error { return errors.Join(r.Device.Close(), r.gpu.Check()) }

// CopiesFrom is of the devices that rigs have.
func (r *rig) CopiesFrom(other device.Device) bool {
	if o, ok := other.(kept); ok {
		other = o.rig
	}
	if o, ok := other.(*rig); ok {
		other = o.Device
	}
	return r.Device.CopiesFrom(other)
}

// kept is a rig that stays open.
type kept struct{ *rig }

func (kept) Close() error { return nil }

// products says what multiplies.
type products int

const (
	ownProducts products = iota
	library
)

// open makes a device on a stand-in.
func open(t testing.TB, o standin.Options, p products) *rig {
	t.Helper()
	r, err := tryOpen(o, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryOpen(o standin.Options, p products) (*rig, error) {
	o.Load = loadOnce
	gpu := standin.New(o)
	d, err := cuda.Open(options(gpu, p, 0))
	if err != nil {
		return nil, errors.Join(err, gpu.Check())
	}
	return &rig{d, gpu}, nil
}

// openCards makes a device on each card of a stand-in, until the end of the test, which checks the driver.
func openCards(t testing.TB, o standin.Options, p products) (all []*rig) {
	t.Helper()
	return openCardsWith(t, o, p, func(*cuda.Options) {})
}

// openCardsWith is openCards with other options.
func openCardsWith(t testing.TB, o standin.Options, p products, change func(*cuda.Options)) (all []*rig) {
	t.Helper()
	o.Load = loadOnce
	gpu := standin.New(o)
	for ordinal := range o.Cards {
		with := options(gpu, p, ordinal)
		change(&with)
		d, err := cuda.Open(with)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &rig{d, gpu})
	}
	t.Cleanup(func() {
		for _, r := range all {
			if err := r.Device.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := all[0].gpu.Check(); err != nil {
			t.Error(err)
		}
	})
	return all
}

func options(gpu *standin.Driver, p products, ordinal int) cuda.Options {
	api := gpu.API()
	return cuda.Options{API: api, Ordinal: ordinal, OwnProducts: p == ownProducts,
		OpenBLAS: func() (cublaslt.BLAS, error) { return newBLAS(api) }}
}

// images are the modules that were read so far: each device loads all kernels, and most run none of them.
var images sync.Map // of *standin.Image by text

// loadOnce is standin.LazyPTX, once for each text.
func loadOnce(text []byte) (*standin.Image, error) {
	if string(text) == blasModule {
		return &standin.Image{Kernel: func(string) *standin.Kernel { return blasKernel() }}, nil
	}
	if known, ok := images.Load(string(text)); ok {
		return known.(*standin.Image), nil
	}
	image, err := standin.LazyPTX(text, 2)
	if err == nil {
		images.Store(string(text), image)
	}
	return image, err
}

// blas is a matrix library of the stand-in: a kernel in Go that knows row-major products.
type blas struct {
	api      *driver.API
	module   driver.Module
	function driver.Function
	reversed map[string]bool // products by their shape, whose inner dimension is summed from its end
}

const blasModule = "a matrix library"

func newBLAS(api *driver.API) (cublaslt.BLAS, error) {
	b := &blas{api: api, reversed: map[string]bool{}}
	text, entry := append([]byte(blasModule), 0), []byte("product\x00")
	if r := api.ModuleLoadData(&b.module, &text[0]); r != driver.Success {
		return nil, r.Err("cuModuleLoadData")
	}
	if r := api.ModuleGetFunction(&b.function, b.module, &entry[0]); r != driver.Success {
		api.ModuleUnload(b.module)
		return nil, r.Err("cuModuleGetFunction")
	}
	return b, nil
}

func (b *blas) Name() string { return "stand-in for cuBLASLt" }

func (b *blas) Close() error { return b.api.ModuleUnload(b.module).Err("cuModuleUnload") }

// blasParams holds the parameters with which the kernel is launched.
type blasParams struct {
	cublaslt.Product
	workspace driver.DevicePtr
	reversed  bool
}

func shapeOf(p *cublaslt.Product) string {
	return fmt.Sprint(p.A.Rows, p.A.Cols, p.B.Rows, p.B.Cols, p.TransA, p.TransB)
}

// Tune runs both algorithms, and takes the second one.
func (b *blas) Tune(p *cublaslt.Product, w cublaslt.Workspace, s driver.Stream, timer cublaslt.Timer) error {
	if p.C.Cols%16 == 1 || b.reversed[shapeOf(p)] {
		return nil
	}
	var timed []cublaslt.Timed
	for _, reversed := range []bool{false, true} {
		took, err := timer.Seconds(2, func() error { return b.launch(&blasParams{*p, w, reversed}, s) })
		if err != nil {
			return err
		}
		if took < 0 {
			return fmt.Errorf("a product took %g s", took)
		}
		timed = append(timed, cublaslt.Timed{Algorithm: fmt.Sprint(shapeOf(p), ": ", reversed), FirstSeconds: took,
			SteadySeconds: took, Chosen: reversed})
	}
	if timer.Tell != nil {
		timer.Tell(timed)
	}
	b.reversed[shapeOf(p)] = true
	return nil
}

func (b *blas) Algorithms() []string { return slices.Sorted(maps.Keys(b.reversed)) }

func (b *blas) UseAlgorithms(lines []string) error {
	for _, l := range lines {
		b.reversed[l] = true
	}
	return nil
}

func (b *blas) launch(params *blasParams, s driver.Stream) error {
	pointers := []unsafe.Pointer{unsafe.Pointer(params)}
	return b.api.LaunchKernel(b.function, 1, 1, 1, 1, 1, 1, 0, s, &pointers[0], nil).Err("cuLaunchKernel")
}

func (b *blas) MatMul(p *cublaslt.Product, w cublaslt.Workspace, s driver.Stream) (bool, error) {
	if p.C.Cols%16 == 1 { // a library that lacks some algorithms
		return false, nil
	}
	return true, b.launch(&blasParams{*p, w, b.reversed[shapeOf(p)]}, s)
}

func blasKernel() *standin.Kernel {
	bytes := int(unsafe.Sizeof(blasParams{}))
	return &standin.Kernel{Params: []standin.Param{{Bytes: bytes}},
		Run: func(mem ptx.Memory, _, _ [3]uint32, _ uint32, params []byte) error {
			p := new(blasParams)
			copy(unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)), params)
			return multiply(mem, p)
		}}
}

// multiply is the product in fp32, in the order of the inner dimension or from its end. It also scribbles over the
// workspace, as a library may.
func multiply(mem ptx.Memory, p *blasParams) error {
	scratch, err := mem.At(uint64(p.workspace), 64)
	if err != nil {
		return err
	}
	for i := range scratch {
		scratch[i] = 0xff
	}
	a, err := operand(mem, p.A, p.TransA)
	if err != nil {
		return err
	}
	b, err := operand(mem, p.B, !p.TransB) // by columns
	if err != nil {
		return err
	}
	inner := len(a) / p.C.Rows
	bytes := p.C.Cols * int(p.C.Type.Bytes())
	for i := range p.C.Rows {
		row, err := mem.At(uint64(p.C.At)+uint64(i*p.C.Stride)*uint64(p.C.Type.Bytes()), bytes)
		if err != nil {
			return err
		}
		base, err := mem.At(uint64(p.Base.At)+uint64(i*p.Base.Stride)*uint64(p.C.Type.Bytes()), bytes)
		if err != nil {
			return err
		}
		for j := range p.C.Cols {
			sum := float32(0)
			x, y := a[i*inner:(i+1)*inner], b[j*inner:(j+1)*inner]
			for k := range x {
				if p.reversed {
					k = len(x) - 1 - k
				}
				sum += float32(x[k] * y[k])
			}
			if p.C.Type == cublaslt.F32 {
				if p.Accumulate {
					sum += hostmem.F32(base)[j]
				}
				hostmem.F32(row)[j] = sum
				continue
			}
			if p.Accumulate { // in place, cuBLASLt 13.1 rounds the product first: see cublaslt.Product.Suits
				if p.Base.At == p.C.At {
					sum = tensor.F32FromBF16(tensor.BF16FromF32(sum))
				}
				sum += tensor.F32FromBF16(hostmem.U16(base)[j])
			}
			hostmem.U16(row)[j] = tensor.BF16FromF32(sum)
		}
	}
	return nil
}

// operand reads a matrix, transposed or not, densely.
func operand(mem ptx.Memory, m cublaslt.Matrix, transposed bool) ([]float32, error) {
	dense := make([]float32, m.Rows*m.Cols)
	for i := range m.Rows {
		row, err := mem.At(uint64(m.At)+uint64(i*m.Stride)*uint64(m.Type.Bytes()), m.Cols*int(m.Type.Bytes()))
		if err != nil {
			return nil, err
		}
		for j := range m.Cols {
			to := i*m.Cols + j
			if transposed {
				to = j*m.Rows + i
			}
			if m.Type == cublaslt.F32 {
				dense[to] = hostmem.F32(row)[j]
			} else {
				dense[to] = tensor.F32FromBF16(hostmem.U16(row)[j])
			}
		}
	}
	return dense, nil
}

func fail(s device.Stream, err error) { s.(*cuda.Stream).Fail(err) }
