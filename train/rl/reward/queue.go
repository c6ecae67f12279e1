package reward

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/runfile"
)

// queue deals questions to the workers of a judge, in order, each to the one that has the fewest.
type queue struct {
	mu      sync.Mutex
	waiting []*question
	loads   []int            // questions of each worker
	window  int              // the most that it can have
	changed chan struct{}    // has an entry when there is something to deal, or a worker has one question less
	next    []chan *question // what each worker takes from
}

// LinesAtOnce bounds the lines of answers that judges have at the same time: those of a server are in its request, too.
func LinesAtOnce(specs []runfile.Reward) (n int) {
	for i := range specs {
		switch of := &specs[i]; {
		case len(of.Command) > 0:
			n += of.Instances() * window
		case of.URL != "":
			n += 2 * of.Instances() * mostInRequest
		}
	}
	return n
}

func newQueue(workers, window int) *queue {
	q := &queue{loads: make([]int, workers), window: window, changed: make(chan struct{}, 1)}
	for range workers {
		q.next = append(q.next, make(chan *question, window))
	}
	return q
}

// add has a question dealt.
func (q *queue) add(x *question) {
	q.mu.Lock()
	q.waiting = append(q.waiting, x)
	q.mu.Unlock()
	q.look()
}

// done notes that a worker has answered a question.
func (q *queue) done(worker int) {
	q.mu.Lock()
	q.loads[worker]--
	q.mu.Unlock()
	q.look()
}

func (q *queue) look() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// deal deals until ctx ends.
func (q *queue) deal(ctx context.Context) {
	for {
		q.mu.Lock()
		for len(q.waiting) > 0 {
			least := slices.Index(q.loads, slices.Min(q.loads))
			if q.loads[least] == q.window {
				break
			}
			q.loads[least]++
			q.next[least] <- q.waiting[0] // which has room for as many as its worker can have
			q.waiting[0] = nil
			q.waiting = q.waiting[1:]
		}
		q.mu.Unlock()
		select {
		case <-q.changed:
		case <-ctx.Done():
			return
		}
	}
}

// alarm is a timer. It is not running at first.
type alarm interface {
	rings() <-chan time.Time
	start()
	stop()
}

// realAlarm is an alarm by the clock.
type realAlarm struct {
	after time.Duration
	timer *time.Timer
}

func newAlarm(after time.Duration) alarm {
	a := &realAlarm{after, time.NewTimer(after)}
	a.timer.Stop()
	return a
}

func (a *realAlarm) rings() <-chan time.Time { return a.timer.C }
func (a *realAlarm) start()                  { a.timer.Reset(a.after) }
func (a *realAlarm) stop()                   { a.timer.Stop() }
