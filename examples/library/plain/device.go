// Package plain is a driver that is not in Millrace's tree: a device that computes in plain Go, on the goroutine of its
// caller, in float64, and rounds each result once. It is slow and short. Its test is device/devicetest, which every
// driver passes.
//
// The device has memory of its own: the engine streams weights to it as it does to a GPU. Its events need no waits,
// because a stream has done all that it was given.
package plain

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
)

// Device implements device.Device. Its methods may be called from any goroutine.
type Device struct {
	memoryBytes int64
	accounts    *hostmem.Accounts

	mu   sync.Mutex
	open int // buffers and streams that are not closed
}

var _ device.Device = (*Device)(nil)

// New makes a device of a size in bytes. Its memory is not part of the run's host memory, so it has accounts of its
// own.
func New(memoryBytes int64) *Device {
	return &Device{memoryBytes: memoryBytes, accounts: hostmem.New()}
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	return device.Info{Name: "plain Go", MemoryBytes: d.memoryBytes, Workers: 1, Numerics: "plain Go, sums in float64"}
}

// Alloc implements device.Device.
func (d *Device) Alloc(purpose string, bytes int64) (device.Buffer, error) {
	if used, _ := d.accounts.Total(); bytes > d.memoryBytes-used {
		return nil, fmt.Errorf("plain Go: %d bytes for %s do not fit: %d of %d are in use; lower batch_tokens",
			bytes, purpose, used, d.memoryBytes)
	}
	region, err := d.accounts.Reserve(purpose, bytes)
	if err != nil {
		return nil, err
	}
	d.count(1)
	return &buffer{device: d, bytes: region.Bytes(), region: region}, nil
}

// Register implements device.Device.
func (d *Device) Register(r *hostmem.Region) (device.Buffer, error) {
	d.count(1)
	return &buffer{device: d, bytes: r.Bytes()}, nil
}

// NewStream implements device.Device.
func (d *Device) NewStream(name string) (device.Stream, error) {
	d.count(1)
	return &stream{device: d, name: name}, nil
}

// NewEvent implements device.Device.
func (d *Device) NewEvent() (device.Event, error) { return &event{}, nil }

// PrepareAttention implements device.Device: there is nothing to reserve.
func (d *Device) PrepareAttention(positions, heads, headDim int) error { return nil }

// Close implements device.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != 0 {
		return fmt.Errorf("plain Go: close: %d buffers and streams are still open", d.open)
	}
	return nil
}

func (d *Device) count(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += n
}

// buffer is memory of the device or, without a region, registered host memory.
type buffer struct {
	device *Device
	bytes  []byte
	region *hostmem.Region
	closed bool
}

func (b *buffer) Bytes() int64 { return int64(len(b.bytes)) }

func (b *buffer) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.device.count(-1)
	if b.region == nil {
		return nil
	}
	return b.region.Close()
}

// event is the time and the error of its latest record.
type event struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

func (e *event) record(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err, e.at = err, time.Now()
}

func (e *event) latest() (at time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.err
}

func (e *event) Wait() error {
	_, err := e.latest()
	return err
}

func (e *event) Since(earlier device.Event) time.Duration {
	begin, _ := earlier.(*event).latest()
	end, _ := e.latest()
	return end.Sub(begin)
}

func (e *event) Close() error { return nil }

// stream does each operation at once.
type stream struct {
	device   *Device
	name     string
	operands device.Operands // checks calls
	err      error           // the first one; it sticks
	closed   bool
}

// do carries out an operation whose operands were checked.
func (s *stream) do(operation func()) {
	if s.err == nil {
		operation()
	}
}

// Fail makes the stream fail, as an operation would that a real device refuses.
func (s *stream) Fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("stream %s: %w", s.name, err)
	}
}

func (s *stream) Record(e device.Event) { e.(*event).record(s.err) }

func (s *stream) Wait(e device.Event) {
	if err := e.Wait(); err != nil {
		s.Fail(err)
	}
}

func (s *stream) Sync() error { return s.err }

func (s *stream) Close() error {
	if !s.closed {
		s.closed = true
		s.device.count(-1)
	}
	return s.err
}
