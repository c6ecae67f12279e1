package devicetest_test

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/tensor"
)

// twoRoundings names the device of openRounding, for mustNotice.
const twoRoundings = "rounds a product before it is added"

// roundingDevice rounds a product to BF16 before it is added to a matrix in BF16, as cuBLASLt does.
type roundingDevice struct {
	device.Device
	product device.Buffer // room for a product
}

type roundingStream struct {
	device.Stream
	product device.Mem
}

func openRounding(t testing.TB) device.Device {
	d := openCPU(t)
	product, err := d.Alloc("product", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return roundingDevice{d, product}
}

func (d roundingDevice) NewStream(name string) (device.Stream, error) {
	s, err := d.Device.NewStream(name)
	return roundingStream{s, device.Whole(d.product)}, err
}

func (d roundingDevice) Close() error { return errors.Join(d.product.Close(), d.Device.Close()) }

func (s roundingStream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	base, adds := f.Base(c)
	if !adds || c.DType != tensor.BF16 {
		s.Stream.MatMul(c, a, b, f)
		return
	}
	product := device.Mat{Mem: s.product.Slice(0, int64(c.Rows*c.Cols)*c.DType.Bytes()), DType: c.DType,
		Rows: c.Rows, Cols: c.Cols, Stride: c.Cols}
	s.Stream.MatMul(product, a, b, device.MatMulFlags{TransA: f.TransA, TransB: f.TransB})
	s.Stream.Add(c, base, product)
}

// A product may be rounded before it is added where the suite allows that, and nowhere else.
func TestTwoRoundings(t *testing.T) {
	devicetest.Suite{Open: func() device.Device { return openRounding(t) }, Only: []string{"MatMul"},
		TwoRoundings: true}.Run(t)
	mustNotice(t, twoRoundings, "MatMul")
}
