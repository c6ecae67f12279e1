package devicetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace/millrace/device"
)

// Faulty wraps dev: operations of its streams can be made to fail or be late. Before each operation, in its order and
// on the stream's goroutine, failAt is called with the stream's name, the operation's ("MatMul", "Copy"), and how
// many operations the stream had before it. When it returns an error the operation does not happen and the error
// sticks to the stream. It may sleep, see [Jitter].
//
// Buffers are dev's own. The queue of a stream holds 65536 entries; a caller that enqueues more waits.
func Faulty(dev device.Device, failAt func(stream, op string, n int) error) device.Device {
	return &faulty{Device: dev, failAt: failAt}
}

// Jitter, given to Faulty, fails nothing and delays every operation at random, by up to longest, so that streams which
// do not wait for each other as they should meet in many orders.
func Jitter(longest time.Duration, seed uint64) func(stream, op string, n int) error {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(string, string, int) error {
		mu.Lock()
		d := time.Duration(rng.Int64N(int64(longest)))
		mu.Unlock()
		time.Sleep(d)
		return nil
	}
}

type faulty struct {
	device.Device
	failAt func(stream, op string, n int) error
}

// CopiesFrom implements device.PeerCopier.
func (d *faulty) CopiesFrom(other device.Device) bool {
	if o, wrapped := other.(*faulty); wrapped {
		other = o.Device
	}
	inner, ok := d.Device.(device.PeerCopier)
	return ok && inner.CopiesFrom(other)
}

// faultyEvent is recorded by the wrapper, which knows of errors that dev does not.
type faultyEvent struct {
	mu     sync.Mutex
	latest *place
}

// place marks the position of a record in a stream.
type place struct {
	reached chan struct{}
	err     error
	at      time.Time
}

func (e *faultyEvent) place() *place {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest
}

func (e *faultyEvent) Wait() error {
	p := e.place()
	if p == nil {
		return nil
	}
	<-p.reached
	return p.err
}

func (e *faultyEvent) Since(earlier device.Event) time.Duration {
	a, b := earlier.(*faultyEvent).place(), e.place()
	<-a.reached
	<-b.reached
	return b.at.Sub(a.at)
}

func (e *faultyEvent) Close() error { return nil }

func (d *faulty) NewEvent() (device.Event, error) { return &faultyEvent{}, nil }

func (d *faulty) NewStream(name string) (device.Stream, error) {
	inner, err := d.Device.NewStream(name)
	if err != nil {
		return nil, err
	}
	s := &faultyStream{inner: inner, name: name, failAt: d.failAt, tasks: make(chan func(), 1<<16), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for f := range s.tasks {
			f()
		}
	}()
	return s, nil
}

// faultyStream runs one operation of the inner stream at a time.
type faultyStream struct {
	inner    device.Stream
	name     string
	failAt   func(stream, op string, n int) error
	operands device.Operands
	tasks    chan func()
	ended    chan struct{}
	once     sync.Once
	n        int   // operations so far; the goroutine's
	err      error // the first; the goroutine's
}

func (s *faultyStream) op(f func()) {
	name := s.operands.Op
	s.tasks <- func() {
		if s.err != nil {
			return
		}
		if err := s.failAt(s.name, name, s.n); err != nil {
			s.err = fmt.Errorf("stream %s: %s: %w", s.name, name, err)
			return
		}
		s.n++
		f()
		s.err = s.inner.Sync()
	}
}

func (s *faultyStream) Record(e device.Event) {
	p := &place{reached: make(chan struct{})}
	event := e.(*faultyEvent)
	event.mu.Lock()
	event.latest = p
	event.mu.Unlock()
	s.tasks <- func() {
		p.err, p.at = s.err, time.Now()
		close(p.reached)
	}
}

func (s *faultyStream) Wait(e device.Event) {
	p := e.(*faultyEvent).place()
	if p == nil {
		return
	}
	s.tasks <- func() {
		if s.err == nil {
			<-p.reached
			s.err = p.err
		}
	}
}

func (s *faultyStream) Sync() error {
	var e faultyEvent
	s.Record(&e)
	return e.Wait()
}

func (s *faultyStream) Close() error {
	s.once.Do(func() { close(s.tasks) })
	<-s.ended
	if err := s.inner.Close(); err != nil && s.err == nil {
		return err
	}
	return s.err
}
