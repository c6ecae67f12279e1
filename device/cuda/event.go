package cuda

import (
	"sync"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
)

// event is a CUDA event, and what CUDA does not know of its latest record: the error that stuck to the stream.
type event struct {
	device *Device
	handle driver.Event

	mu     sync.Mutex // makes the two one
	latest *record
	closed bool
}

// record is the outcome of one Record.
type record struct {
	err  error // of the stream at this place
	made bool  // CUDA has it too
}

// NewEvent implements device.Device.
func (d *Device) NewEvent() (device.Event, error) {
	e := &event{device: d}
	err := d.with(func() error {
		return d.check("cuEventCreate", d.api.EventCreate(&e.handle, driver.EventBlockingSync))
	})
	if err != nil {
		return nil, d.named(err)
	}
	return e, nil
}

// Record implements device.Stream.
func (s *Stream) Record(ev device.Event) {
	e := ev.(*event)
	s.mustBeOpen()
	e.mu.Lock()
	defer e.mu.Unlock()
	// Record also after an error: the event fires when the work before it is done.
	err := s.with("Record", func() error {
		return s.device.check("cuEventRecord", s.device.api.EventRecord(e.handle, s.handle))
	})
	if s.err == nil {
		s.err = err
	}
	e.latest = &record{err: s.err, made: err == nil}
}

// Wait implements device.Stream.
func (s *Stream) Wait(ev device.Event) {
	e := ev.(*event)
	s.mustBeOpen()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.latest == nil || s.err != nil:
	case e.latest.err != nil:
		s.err = e.latest.err
	default:
		s.err = s.with("Wait", func() error {
			return s.device.check("cuStreamWaitEvent", s.device.api.StreamWaitEvent(s.handle, e.handle, 0))
		})
	}
}

// Wait implements device.Event.
func (e *event) Wait() error {
	e.mu.Lock()
	r := e.latest
	e.mu.Unlock()
	if r == nil {
		return nil
	}
	if r.made {
		err := e.device.with(func() error {
			return e.device.check("cuEventSynchronize", e.device.api.EventSynchronize(e.handle))
		})
		if r.err == nil {
			return e.device.named(err)
		}
	}
	return r.err
}

// Since implements device.Event. It is 0 when one of the places was not reached for an error.
func (e *event) Since(earlier device.Event) time.Duration {
	a := earlier.(*event)
	for _, e := range []*event{a, e} {
		e.mu.Lock()
		recorded := e.latest != nil
		e.mu.Unlock()
		if !recorded {
			panic("cuda device: the time between events of which one was not recorded")
		}
		if e.Wait() != nil {
			return 0
		}
	}
	var ms float32
	err := e.device.with(func() error {
		return e.device.check("cuEventElapsedTime", e.device.api.EventElapsedTime(&ms, a.handle, e.handle))
	})
	if err != nil {
		return 0
	}
	return time.Duration(float64(ms) * float64(time.Millisecond))
}

// Close implements device.Event.
func (e *event) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	d := e.device
	return d.release(func() error { return d.check("cuEventDestroy", d.api.EventDestroy(e.handle)) })
}
