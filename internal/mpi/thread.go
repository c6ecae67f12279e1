package mpi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// thread is the only one that calls the library. It takes tasks from goroutines, and tests the requests that have not
// ended.
type thread struct {
	library
	timeout time.Duration
	piece   int // the most bytes of a message of the library
	tasks   chan func()
	pending []*Request
	hosts   []string   // by rank; empty until they are known
	failed  error      // the first failure, and that of all that follows
	lost    []*Request // failed, and perhaps still in use by the library, so their bytes stay reachable
	signs   signs
}

// Request is a message that is being sent or received.
type Request struct {
	peer, tag int
	bytes     []byte
	arrives   bool
	since     time.Time
	transfers []transfer // of the pieces that have not ended, in order
	sizes     []int      // the pieces' bytes
	done      chan struct{}
	err       error
}

// Wait returns when the message was sent, or has arrived, or has failed; it takes no longer than the world's timeout.
// All bytes may be used again after it, except those of a failed request, which the library may still write.
func (r *Request) Wait() error {
	<-r.done
	return r.err
}

// maxPiece is the piece of a thread: the library's counts have 32 bits. A longer message is sent as several.
const maxPiece = 1 << 30

// do has the thread call f, and waits for it.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.tasks <- func() { f(); close(done) }
	<-done
}

// submit has the thread start a request.
func (t *thread) submit(r *Request) *Request {
	r.done = make(chan struct{})
	t.tasks <- func() {
		r.since = time.Now()
		if t.failed == nil {
			t.begin(r)
		}
		if t.failed != nil {
			r.end(t.failed)
			return
		}
		t.pending = append(t.pending, r)
	}
	return r
}

func (t *thread) begin(r *Request) {
	start := t.send
	if r.arrives {
		start = t.receive
	}
	for b := r.bytes; ; b = b[t.piece:] {
		piece := b[:min(len(b), t.piece)]
		m, err := start(r.peer, r.tag, piece)
		if err != nil {
			t.lost = append(t.lost, r)
			t.fail(t.broken(r, err))
			return
		}
		r.transfers, r.sizes = append(r.transfers, m), append(r.sizes, len(piece))
		if len(piece) == len(b) {
			return
		}
	}
}

func (r *Request) end(err error) {
	r.err = err
	close(r.done)
}

// Waits of the thread: it tests again at once for a number of rounds, then after a pause that doubles. A pause costs
// bandwidth, since the library moves bytes in its tests only, and no pause costs a core that has other work.
const (
	eager      = 200
	firstPause = 5 * time.Microsecond
	longPause  = 200 * time.Microsecond
	busy       = 20 * time.Microsecond // a round of tests that takes this long has moved bytes
)

// run serves tasks until the process ends, or the tasks.
func (t *thread) run() {
	idle, pause := 0, firstPause
	timer := time.NewTimer(0)
	for {
		var f func()
		if len(t.pending) == 0 {
			var open bool
			if f, open = t.nextTask(timer); !open {
				return // in tests
			}
		} else {
			select {
			case f = <-t.tasks:
			default:
			}
		}
		if f != nil {
			f()
			idle, pause = 0, firstPause
			continue
		}
		if t.progress() {
			idle, pause = 0, firstPause
			continue
		}
		if idle++; idle < eager {
			runtime.Gosched()
			continue
		}
		timer.Reset(pause)
		select {
		case f := <-t.tasks:
			f()
			idle, pause = 0, firstPause
		case <-timer.C:
			pause = min(2*pause, longPause)
		}
	}
}

// nextTask waits for a task, or until a sign is due, without one; false where there will be none.
func (t *thread) nextTask(timer *time.Timer) (f func(), open bool) {
	left, due := t.nextSign(time.Now())
	if !due {
		f, open = <-t.tasks
		return f, open
	}
	timer.Reset(left)
	select {
	case f, open = <-t.tasks:
		return f, open
	case <-timer.C:
		return nil, true
	}
}

// progress tests all requests, ends those that have ended, and says whether bytes have moved.
func (t *thread) progress() (moved bool) {
	begin := time.Now()
	waiting := t.pending[:0]
	for _, r := range t.pending {
		ended, err := t.proceed(r)
		switch {
		case err != nil && t.failed == nil:
			t.failed = messageError(err)
			fallthrough
		case err != nil:
			t.lost = append(t.lost, r)
			r.end(t.failed)
		case ended:
			r.end(nil)
		default:
			waiting = append(waiting, r)
			continue
		}
		moved = true
	}
	clear(t.pending[len(waiting):])
	t.pending = waiting
	now := time.Now()
	t.giveSigns(now)
	if t.failed == nil {
		t.failed = t.overdue(now)
	}
	if t.failed != nil {
		t.fail(t.failed)
		return true
	}
	return moved || now.Sub(begin) >= busy
}

// proceed tests the pieces of a request, in order.
func (t *thread) proceed(r *Request) (ended bool, err error) {
	for len(r.transfers) > 0 {
		ended, n, err := t.test(r.transfers[0])
		if err != nil {
			return false, t.broken(r, err)
		}
		if !ended {
			return false, nil
		}
		if r.arrives && n != r.sizes[0] {
			return false, fmt.Errorf("%s sent %d bytes with tag %d where %d were awaited: the ranks do not run "+
				"the same program on the same run file; give all of them the same",
				who([]int{r.peer}, t.hosts), n, r.tag, r.sizes[0])
		}
		r.transfers, r.sizes = r.transfers[1:], r.sizes[1:]
	}
	return true, nil
}

// overdue is the error of requests that have waited for too long, with every rank that they wait for.
func (t *thread) overdue(now time.Time) error {
	var missing []int
	for _, r := range t.pending {
		if now.Sub(r.since) >= t.timeout && !slices.Contains(missing, r.peer) {
			missing = append(missing, r.peer)
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	if why := t.blame(missing, now); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("a message from or to %s has not ended after %v: it hangs, waits for another rank, cannot be "+
		"reached, or is slow; see its output, or raise distributed.timeout", who(missing, t.hosts), t.timeout)
}

// broken is the error of a request for which the library has one. Its text alone says which of the reasons it was: one
// is a message that is longer than the bytes for it.
func (t *thread) broken(r *Request, err error) error {
	return fmt.Errorf("%s: a message with tag %d has failed: %w; its process has ended, the network between the hosts "+
		"fails, or the ranks do not run the same program on the same run file: see its output",
		who([]int{r.peer}, t.hosts), r.tag, err)
}

// fail ends all requests with the first failure.
func (t *thread) fail(err error) {
	t.failed = messageError(err)
	for _, r := range t.pending {
		t.lost = append(t.lost, r)
		r.end(t.failed)
	}
	clear(t.pending)
	t.pending = t.pending[:0]
}

// end has the thread call f, which ends the process, and ends it without the library if that takes longer than the
// timeout.
func (t *thread) end(timeout time.Duration, status int, f func(status int)) {
	late := time.NewTimer(timeout)
	select {
	case t.tasks <- func() { f(status) }:
		<-late.C
	case <-late.C:
	}
	fmt.Fprintf(os.Stderr, "millrace: the MPI library has not ended this process for %v: ending it without its leave\n",
		timeout)
	os.Exit(max(status, 1))
}
