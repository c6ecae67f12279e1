// Package plain is a device driver that is not in Millrace's tree. It wraps devicetest.Reference, which carries out
// every operation in plain Go and in float64, and overrides three operations: products are counted, and attention and
// its gradient can have a window. Other drivers are wrapped in the same way.
package plain

import (
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
)

// Device is a reference whose matrix products are counted. Its methods may be called from any goroutine.
type Device struct {
	*devicetest.Reference
	window int
	flops  atomic.Int64
}

// New makes a device with memory of a size in bytes. In its attentions a query sees the latest window keys, itself
// included; 0: the keys that the model asks for.
func New(memoryBytes int64, window int) *Device {
	return &Device{Reference: devicetest.NewReference(memoryBytes), window: window}
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	info := d.Reference.Info()
	info.Name = "plain Go"
	info.Numerics += fmt.Sprintf(", window %d", d.window)
	return info
}

// FLOPs returns the floating-point operations of all matrix products so far.
func (d *Device) FLOPs() int64 { return d.flops.Load() }

// NewStream implements device.Device.
func (d *Device) NewStream(name string) (device.Stream, error) {
	s, err := d.Reference.NewStream(name)
	return &stream{s, d}, err
}

// stream has the operations of a reference's stream, except those that it overrides.
type stream struct {
	device.Stream
	device *Device
}

// MatMul counts a product and a sum for each element of c and of the inner dimension.
func (s *stream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	inner := a.Cols
	if f.TransA {
		inner = a.Rows
	}
	s.device.flops.Add(2 * int64(c.Rows) * int64(c.Cols) * int64(inner))
	s.Stream.MatMul(c, a, b, f)
}

func (s *stream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.Stream.Attention(out, lse, q, k, v, s.windowed(spec))
}

func (s *stream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.Stream.AttendCache(out, q, k, v, s.windowed(spec))
}

func (s *stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.Stream.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, s.windowed(spec))
}

func (s *stream) windowed(spec device.AttentionSpec) device.AttentionSpec {
	if s.device.window > 0 {
		spec.Window = s.device.window
	}
	return spec
}
