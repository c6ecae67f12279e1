package cuda

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// TuneProducts implements device.ProductTuner. Operands are normal numbers, since a GPU multiplies zeros faster: its
// clock rises.
func (d *Device) TuneProducts(products []device.Product, scratch device.Mem) (err error) {
	if d.blas == nil || len(products) == 0 {
		return nil
	}
	made, err := d.NewStream("tuning")
	if err != nil {
		return err
	}
	s := made.(*Stream)
	defer func() { err = errors.Join(err, s.Close()) }()
	var begin, end driver.Event
	if err := d.scatterNormals(s, scratch); err != nil {
		return err
	}
	err = d.with(func() error {
		for _, e := range []*driver.Event{&begin, &end} {
			if err := d.check("cuEventCreate", d.api.EventCreate(e, driver.EventBlockingSync)); err != nil {
				return err
			}
			defer func() { _ = d.api.EventDestroy(*e) }() // nothing waits for it any more
		}
		warm := false
		timer := cublaslt.Timer{Tell: d.tellTuned,
			Seconds: func(times int, enqueue func() error) (float64, error) {
				return d.seconds(s, begin, end, times, enqueue)
			},
			Warm: func(enqueue func() error) error {
				if warm {
					return nil
				}
				warm = true
				return d.warm(s, begin, end, enqueue)
			}}
		for _, product := range products {
			p := blasProduct(product.C, product.A, product.B, product.MatMulFlags)
			err := d.workspace.lend(s, func(w driver.DevicePtr) error {
				return d.blas.Tune(&p, w, s.handle, timer)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return d.named(err)
	}
	s.Zero(scratch)
	return s.Sync()
}

// seconds returns the time that the device takes for what enqueue gives it, of as many times as it is enqueued. The
// context is current.
func (d *Device) seconds(s *Stream, begin, end driver.Event, times int, enqueue func() error) (float64, error) {
	if err := d.check("cuEventRecord", d.api.EventRecord(begin, s.handle)); err != nil {
		return 0, err
	}
	for range times {
		if err := enqueue(); err != nil {
			return 0, err
		}
	}
	if err := d.check("cuEventRecord", d.api.EventRecord(end, s.handle)); err != nil {
		return 0, err
	}
	if err := d.check("cuEventSynchronize", d.api.EventSynchronize(end)); err != nil {
		return 0, err
	}
	var ms float32
	err := d.check("cuEventElapsedTime", d.api.EventElapsedTime(&ms, begin, end))
	return float64(ms) / 1e3 / float64(times), err
}

// warmSeconds is the time that a device multiplies before algorithms are compared. A card that has rested runs at a
// higher clock at first: an H100's falls from 1.98 GHz to the 1.1 to 1.4 that its power allows. A second is a guess.
const warmSeconds = 1.0

// warm has the device multiply until its clock is that of a step. The context is current.
func (d *Device) warm(s *Stream, begin, end driver.Event, enqueue func() error) error {
	const times = 8
	for sum := 0.0; sum < warmSeconds; {
		took, err := d.seconds(s, begin, end, times, enqueue)
		if err != nil {
			return err
		}
		if took <= 0 { // a clock that stands would never end this
			return nil
		}
		sum += times * took
	}
	return nil
}

// normalsBytes bounds the random data that the host makes. The device copies it until scratch is full.
const normalsBytes = 8 << 20

// scatterNormals fills memory with normal numbers in bf16. Two of them read as one in fp32 are a number like the
// second.
func (d *Device) scatterNormals(s *Stream, to device.Mem) (err error) {
	seed, err := d.accounts.Reserve("numbers to time matrix products with", min(normalsBytes, to.Len))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, seed.Close()) }()
	host, err := d.Register(seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	rng, numbers := rand.New(rand.NewPCG(1, 2)), hostmem.U16(seed.Bytes())
	for i := range numbers {
		numbers[i] = tensor.BF16FromF32(float32(math.Max(-4, math.Min(4, rng.NormFloat64()))))
	}
	s.Copy(to.Slice(0, seed.Len()), device.Whole(host))
	for done := seed.Len(); done < to.Len; done *= 2 {
		n := min(done, to.Len-done)
		s.Copy(to.Slice(done, n), to.Slice(0, n))
	}
	return s.Sync()
}

// Algorithms implements device.ProductTuner.
func (d *Device) Algorithms() []string {
	if d.blas == nil {
		return nil
	}
	return d.blas.Algorithms()
}

// UseAlgorithms implements device.ProductTuner.
func (d *Device) UseAlgorithms(lines []string) error {
	if d.blas == nil {
		return nil
	}
	return d.named(d.blas.UseAlgorithms(lines))
}
