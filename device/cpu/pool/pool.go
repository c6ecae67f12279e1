// Package pool runs the tasks of a loop on a fixed set of goroutines.
//
// A kernel forks and joins hundreds of times a second, and waking a sleeping thread costs as much as a small kernel. So
// the goroutines of a Pool persist; after a loop they spin for some microseconds in case another one follows, and only
// then park. Tasks are handed out one at a time from a counter, so that workers which are slow, or not scheduled at
// all, do not hold up the others.
package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// Pool is a set of workers. The goroutine that calls Run is worker 0; the pool owns the others.
type Pool struct {
	running sync.Mutex // held during Run and Close
	current atomic.Pointer[loop]
	helpers []*helper
	exited  fault.Group
}

// loop is one call of Run. A worker that comes late finds its counter used up; that is why it is not reused.
type loop struct {
	f        func(worker, task int)
	tasks    int64
	next     atomic.Int64 // the next task to hand out
	left     atomic.Int64 // tasks that are not done
	waiting  atomic.Bool  // the caller has parked
	finished chan struct{}
}

// helper is a worker that the pool owns.
type helper struct {
	parked atomic.Bool
	wake   chan struct{}
}

// spin bounds the time that a worker looks for work before it parks.
const spin = 50 * time.Microsecond

// New starts a pool of workers, at least one. Close stops it. Each worker that the pool owns, from 1 on, calls begin
// with its number when it begins, unless that is nil.
func New(workers int, begin func(worker int)) *Pool {
	p := &Pool{}
	for w := 1; w < workers; w++ {
		h := &helper{wake: make(chan struct{}, 1)}
		p.helpers = append(p.helpers, h)
		p.exited.Go(func() { p.work(w, h, begin) })
	}
	return p
}

// Workers is the number of workers, the caller of Run included.
func (p *Pool) Workers() int { return len(p.helpers) + 1 }

// Run calls f(worker, task) once for each task in 0..tasks-1 and returns when all calls have. A worker, 0..Workers()-1,
// runs one task at a time. Calls of Run from several goroutines wait for each other; f must not call Run.
func (p *Pool) Run(tasks int, f func(worker, task int)) {
	p.running.Lock()
	defer p.running.Unlock()
	if tasks <= 0 {
		return
	}
	if tasks == 1 || len(p.helpers) == 0 {
		for t := range tasks {
			f(0, t)
		}
		return
	}
	l := &loop{f: f, tasks: int64(tasks), finished: make(chan struct{}, 1)}
	l.left.Store(l.tasks)
	p.publish(l, tasks-1)
	l.run(0)
	if spinUntil(func() bool { return l.left.Load() == 0 }) {
		return
	}
	l.waiting.Store(true)
	if l.left.Load() > 0 {
		<-l.finished
	}
}

// Close stops the workers and returns when they are gone. Run must not be called any more.
func (p *Pool) Close() {
	p.running.Lock()
	defer p.running.Unlock()
	p.publish(&loop{f: nil}, len(p.helpers))
	p.exited.Wait()
}

// publish shows the loop to all workers and wakes up to n of those that are parked.
func (p *Pool) publish(l *loop, n int) {
	p.current.Store(l)
	for _, h := range p.helpers[:min(n, len(p.helpers))] {
		if h.parked.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
}

// work is the life of a helper.
func (p *Pool) work(worker int, h *helper, begin func(worker int)) {
	if begin != nil {
		begin(worker)
	}
	var last *loop
	for {
		p.await(h, last)
		last = p.current.Load()
		if last.f == nil {
			return
		}
		last.run(worker)
	}
}

// await returns when there is a loop other than last.
func (p *Pool) await(h *helper, last *loop) {
	news := func() bool { return p.current.Load() != last }
	for !spinUntil(news) {
		h.parked.Store(true)
		// A loop published before this point may have missed that we are parked.
		if news() && h.parked.CompareAndSwap(true, false) {
			return
		}
		<-h.wake
	}
}

// spinUntil polls for a while. It does not yield: that would cost a goroutine which is locked to its thread two
// switches of threads.
func spinUntil(done func() bool) bool {
	if runtime.GOMAXPROCS(0) == 1 {
		return done() // no other goroutine runs while we spin
	}
	for start := time.Now(); ; {
		for range 100 {
			if done() {
				return true
			}
		}
		if time.Since(start) > spin {
			return false
		}
	}
}

// run takes tasks until none is left.
func (l *loop) run(worker int) {
	for {
		t := l.next.Add(1) - 1
		if t >= l.tasks {
			return
		}
		l.f(worker, int(t))
		if l.left.Add(-1) == 0 {
			if l.waiting.Load() {
				l.finished <- struct{}{}
			}
			return
		}
	}
}
