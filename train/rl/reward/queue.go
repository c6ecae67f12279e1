package reward

import (
	"context"
	"sync"
	"time"
)

// queue has the questions that wait for a worker of a judge, in order.
type queue struct {
	mu      sync.Mutex
	waiting []*question
	arrived chan struct{}  // has an entry when questions wait
	next    chan *question // the workers take from it, each in its turn
}

func newQueue() *queue {
	return &queue{arrived: make(chan struct{}, 1), next: make(chan *question)}
}

func (q *queue) add(x *question) {
	q.mu.Lock()
	q.waiting = append(q.waiting, x)
	q.mu.Unlock()
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// more takes up to n questions that wait.
func (q *queue) more(n int) []*question {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.waiting))
	some := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return some
}

// feed offers the questions to the workers until ctx ends.
func (q *queue) feed(ctx context.Context) {
	for {
		for some := q.more(1); some != nil && len(some) > 0; some = q.more(1) {
			select {
			case q.next <- some[0]:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-q.arrived:
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
