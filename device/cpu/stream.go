package cpu

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/internal/fault"
)

// Stream is a goroutine that works through a queue.
type Stream struct {
	name     string
	device   *Device
	crew     *crew
	operands device.Operands // the caller's
	queue    *queue
	closed   bool
	done     chan struct{}
	err      error     // the stream's goroutine's: the first error
	sums     []float64 // the stream's goroutine's: chunks of a sum, as many as a run has tasks
	found    []int32   // the stream's goroutine's: tokens of a ScatterAdd, by row,
	rowEnds  []int32   // where those of each row end,
	spans    []span    // its tasks,
	scales   []float32 // and what a norm multiplies by

	ofExperts []stretch // the stream's goroutine's: of an operation on blocks
	products  []gemm.Op // the stream's goroutine's: those of experts
}

var _ device.Stream = (*Stream)(nil)

// task is one entry of the queue: work, a place to mark, or a place to wait for.
type task struct {
	op       string
	operands []device.Operand // under the race detector
	work     func() error

	mark, await *record
	last        bool // ends the stream
}

// NewStream implements device.Device.
func (d *Device) NewStream(name string) (device.Stream, error) {
	s := &Stream{name: name, device: d, crew: d.crew, queue: newQueue(), done: make(chan struct{})}
	if raceEnabled {
		var err error
		if s.crew, err = newCrew(d); err != nil {
			return nil, err
		}
	}
	s.sums = make([]float64, tasksPerRun(s.crew.Workers()))
	d.open.Add(1)
	fault.Go(s.run)
	return s, nil
}

func (s *Stream) run() {
	defer close(s.done)
	s.device.bind(0)
	for {
		t := s.queue.take()
		switch {
		case t.mark != nil:
			t.mark.reach(s.err)
		case t.last:
			return
		case s.err != nil:
		case t.await != nil:
			s.err = t.await.wait()
		default:
			report(t.operands)
			if err := t.work(); err != nil {
				s.err = fmt.Errorf("stream %s: %s: %w", s.name, t.op, err)
			}
		}
	}
}

func (s *Stream) put(t task) {
	if s.closed {
		panic("cpu device: stream " + s.name + " is used after Close")
	}
	s.queue.put(t)
}

// enqueue queues the work of the operation that s.operands describes.
func (s *Stream) enqueue(work func()) {
	s.try(func() error { work(); return nil })
}

// try is enqueue for work that may fail.
func (s *Stream) try(work func() error) {
	t := task{op: s.operands.Op, work: work}
	for _, o := range s.operands.List {
		b, ok := o.Buf.(*buffer)
		if !ok || b.closed || b.device != s.device && !s.operands.FromPeer(o) {
			panic("cpu device: " + t.op + ": " + o.Name + " is closed or belongs to another device")
		}
	}
	if raceEnabled {
		t.operands = append(t.operands, s.operands.List...)
	}
	s.put(t)
}

// Record implements device.Stream.
func (s *Stream) Record(e device.Event) {
	r := &record{reached: make(chan struct{})}
	e.(*event).latest.Store(r)
	s.put(task{mark: r})
}

// Wait implements device.Stream.
func (s *Stream) Wait(e device.Event) {
	if r := e.(*event).latest.Load(); r != nil {
		s.put(task{await: r})
	}
}

// Sync implements device.Stream.
func (s *Stream) Sync() error {
	r := &record{reached: make(chan struct{})}
	s.put(task{mark: r})
	return r.wait()
}

// Close implements device.Stream. It returns what Sync would.
func (s *Stream) Close() error {
	if s.closed {
		return nil
	}
	s.put(task{last: true})
	s.closed = true
	<-s.done
	s.device.open.Add(-1)
	if raceEnabled {
		if err := s.crew.close(); err != nil {
			return err
		}
	}
	return s.err
}

// Copy implements device.Stream.
func (s *Stream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.enqueue(func() {
		to, from := bytes(dst), bytes(src)
		s.crew.split(len(to), 4096, 1, func(lo, hi int) { copy(to[lo:hi], from[lo:hi]) })
	})
}

// Zero implements device.Stream.
func (s *Stream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.enqueue(func() {
		to := bytes(dst)
		s.crew.split(len(to), 4096, 1, func(lo, hi int) { clear(to[lo:hi]) })
	})
}
