package cpu

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/device"
)

// event points at its latest record.
type event struct{ latest atomic.Pointer[record] }

// record is one place in one stream. A closed channel orders what comes before it and what waits for it, and nothing
// else: the race detector sees exactly the order that the engine asked for.
type record struct {
	reached chan struct{}
	err     error // of the stream at this place; set before reached is closed
	at      time.Time
}

func (r *record) reach(err error) {
	r.err, r.at = err, time.Now()
	close(r.reached)
}

func (r *record) wait() error {
	<-r.reached
	return r.err
}

func (e *event) Wait() error {
	if r := e.latest.Load(); r != nil {
		return r.wait()
	}
	return nil
}

func (e *event) Since(earlier device.Event) time.Duration {
	a, b := earlier.(*event).latest.Load(), e.latest.Load()
	if a == nil || b == nil {
		panic("cpu device: the time between events of which one was not recorded")
	}
	a.wait()
	b.wait()
	return b.at.Sub(a.at)
}

func (e *event) Close() error { return nil }
