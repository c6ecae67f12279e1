package cuda_test

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Operands of more elements than 32 bits count are handed to the driver in launches that a GPU takes: long contexts,
// embeddings of large models, and vectors longer than any. That the kernels find their elements then is proved in
// package kernels, without all that memory; here it is not there either.
func TestHugeOperands(t *testing.T) {
	gpu := standin.New(standin.Options{Load: loadOnce})
	o := options(gpu, ownProducts, 0)
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{d, gpu}
	defer mustClose(t, r)
	region, pinned, s := streamWithMemory(t, d)
	defer mustClose(t, region)
	defer mustClose(t, pinned)
	defer mustClose(t, s)

	real := *o.API
	idle(o.API)
	defer func() { *o.API = real }()
	launches := 0
	o.API.LaunchKernel = func(_ driver.Function, gx, gy, gz, _, _, _, _ uint32, _ driver.Stream, _, _ *unsafe.Pointer) driver.Result {
		if launches++; gx < 1 || gx > 1<<31-1 || gy < 1 || gy > 1<<16-1 || gz < 1 || gz > 1<<16-1 {
			t.Errorf("a grid of %d x %d x %d", gx, gy, gz)
			return driver.InvalidValue
		}
		return driver.Success
	}
	o.API.MemAlloc = func(p *driver.DevicePtr, _ uint64) driver.Result {
		*p = 1 << 46
		return driver.Success
	}
	o.API.MemFree = func(driver.DevicePtr) driver.Result { return driver.Success }
	b, err := d.Alloc("operands", 1<<45)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, b)
	for _, e := range []extents{
		{rows: 1 << 19, heads: 36, headDim: 128, tableRows: 152064, elements: 3 << 30},
		{rows: 1 << 21, heads: 128, headDim: 64, tableRows: 1 << 20, elements: 1 << 34},
		{rows: 300, heads: 1 << 10, headDim: 256, tableRows: 1 << 14, elements: 1<<32 + 256},
	} {
		for name, f := range everyOperation(s, device.NewArena(device.Whole(b)), device.Whole(pinned), e) {
			f()
			if err := s.Sync(); err != nil {
				t.Fatalf("%s of %+v: %v", name, e, err)
			}
		}
	}
	long := device.NewArena(device.Whole(b)).Mat(tensor.F32, 3, 1<<27)
	s.Add(long, long, long)
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
	many := device.NewArena(device.Whole(b))
	x, rstd, w := many.Mat(tensor.BF16, 1<<24, 128*2), many.Mat(tensor.F32, 1<<24, 128), many.Mat(tensor.BF16, 1, 2)
	s.RMSNormGrad(x, many.Mat(tensor.F32, 1, 2), x, many.Mat(tensor.BF16, 1<<24, 128*2), w, rstd, device.Mat{},
		device.NormSpec{Groups: 128})
	if err := s.Sync(); err != nil {
		t.Errorf("2^31 groups: %v", err)
	}
	fails, err := d.NewStream("too wide")
	if err != nil {
		t.Fatal(err)
	}
	defer fails.Close() // its error is the one that is looked for
	wide := func(t tensor.DType) device.Mat { return many.Mat(t, 1, 1<<24) }
	fails.RMSNormGrad(wide(tensor.BF16), wide(tensor.F32), wide(tensor.BF16), wide(tensor.BF16), wide(tensor.BF16),
		many.Mat(tensor.F32, 1, 1), device.Mat{}, device.NormSpec{Groups: 1})
	if err := fails.Sync(); err == nil || !strings.Contains(err.Error(), "at most 8388608") {
		t.Errorf("wider than the workspace: %v", err)
	}
	if launches < 60 {
		t.Errorf("%d launches", launches)
	}
}
