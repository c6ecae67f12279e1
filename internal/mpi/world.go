package mpi

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// World is this process among the ranks of a job. Its methods may be called by several goroutines at once, except those
// that every rank calls in the same order: Barrier, Exchange and Leave.
type World struct {
	Rank, Size int
	Library    string   // such as "Open MPI v5.0.11"
	Local      []int    // the ranks that share this host's memory, ascending, with this one
	Hosts      []string // the host's name of each rank
	timeout    time.Duration
	thread     *thread
}

// Start loads the launcher's MPI library and joins the ranks; all ranks call it. No wait in it or of the World is
// longer than the timeout. The error is one line; the process then ends by os.Exit, and the launcher ends the others.
func Start(l Launch, timeout time.Duration) (*World, error) {
	if l.Launcher == None {
		return nil, fmt.Errorf("no MPI launcher started this process: start it with mpiexec -n RANKS")
	}
	return start(func() (joined, error) { return join(l) }, timeout)
}

func start(join func() (joined, error), timeout time.Duration) (*World, error) {
	t := &thread{timeout: timeout, piece: maxPiece, tasks: make(chan func())}
	w := &World{timeout: timeout, thread: t}
	up := make(chan error, 1)
	fault.Go(func() {
		runtime.LockOSThread() // and never unlocked: the library's thread ends with the process
		j, err := join()
		t.library, w.Library, w.Rank, w.Size, w.Local = j.library, j.version, j.rank, j.size, j.local
		up <- err
		if err == nil {
			t.run()
		}
	})
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case err := <-up:
		if err != nil {
			return nil, err
		}
	case <-late.C:
		return nil, &Error{fmt.Errorf("the ranks have not found each other for %v: a rank was not started or hangs, or the "+
			"network between the hosts fails; see the launcher's output, or raise distributed.timeout", timeout)}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	hosts, err := w.exchange(tagHosts, greeting(host))
	if err == nil {
		w.Hosts, err = greeted(hosts)
	}
	if err != nil {
		return nil, err
	}
	t.do(func() {
		t.hosts = w.Hosts
		t.beginSigns(w.Rank, w.Size)
	})
	return w, nil
}

// word begins the first message of each rank, before any other: another one is of another program, or of a version whose
// messages differ. Change its number with the messages of this package.
const word = "mill\x00\x00\x00\x01"

// maxHostName is more than a host's name has.
const maxHostName = 1 << 10

// greeting is a rank's first message.
func greeting(host string) []byte { return []byte(word + host[:min(len(host), maxHostName)]) }

// greeted are the hosts' names in the first messages of all ranks.
func greeted(messages [][]byte) (hosts []string, err error) {
	for r, m := range messages {
		host, ok := strings.CutPrefix(string(m), word)
		if !ok || len(host) > maxHostName {
			return nil, otherProgram(who([]int{r}, nil))
		}
		hosts = append(hosts, strings.ToValidUTF8(host, "?"))
	}
	return hosts, nil
}

// otherProgram is the error of a rank whose messages are not this program's.
func otherProgram(who string) error {
	return fmt.Errorf("%s runs another program, or another version of this one: install the same one on all hosts", who)
}

// TellBy has the other ranks hear by a function where this one stands, for the errors of those that wait for it. The
// thread of the library calls it, so it must not wait.
func (w *World) TellBy(standing Standing) { w.thread.do(func() { w.thread.signs.standing = standing }) }

// Send sends b to a rank, which receives it with the same tag and as many bytes. Messages of one sender with one tag
// arrive in their order. b must not change before the request has ended. Tags are 0 to MaxTag.
func (w *World) Send(to, tag int, b []byte) *Request {
	w.check(to, tag)
	return w.thread.submit(&Request{peer: to, tag: tag, bytes: b})
}

// Receive fills b with the next message of a rank that has this tag, and fails if that has another number of bytes. b
// must not be used before the request has ended.
func (w *World) Receive(from, tag int, b []byte) *Request {
	w.check(from, tag)
	return w.thread.submit(&Request{peer: from, tag: tag, bytes: b, arrives: true})
}

// MaxTag is the largest tag: every MPI has at least 32767, and this package keeps some for itself.
const MaxTag = 32000

func (w *World) check(peer, tag int) {
	if peer < 0 || peer >= w.Size || peer == w.Rank || tag < 0 || tag > MaxTag {
		panic(fmt.Sprintf("mpi: a message between ranks %d and %d of %d with tag %d", w.Rank, peer, w.Size, tag))
	}
}

// WaitUpTo lets waits that end after it take so long, where that is longer than the timeout.
func (w *World) WaitUpTo(d time.Duration) {
	w.thread.do(func() { w.thread.timeout = max(w.thread.timeout, d) })
}

// Leave ends the process with a status, after all ranks have called it, and does not return. After a failure of the
// World it aborts.
func (w *World) Leave(status int) {
	if err := w.Barrier(); err != nil { // MPI_Finalize waits without end for a rank that is missing
		fmt.Fprintf(os.Stderr, "millrace: %v\n", err)
		w.Abort(max(status, 1))
	}
	w.thread.end(w.timeout, status, func(status int) {
		w.thread.takeLeave(w.timeout / 2)
		w.thread.leave(status)
	})
}

// Abort ends this process with a status that is not 0, at once, and does not return. The launcher ends the other ranks.
func (w *World) Abort(status int) {
	time.Sleep(outputPause)
	w.thread.end(min(w.timeout, abortPatience), status, w.thread.abort)
}

// outputPause lets the launcher read what a process has said before it hears of its abort: MPICH's drops what it has
// not read by then, as in one of three runs with a rank that was stopped.
const outputPause = 500 * time.Millisecond

// abortPatience bounds the wait for the library to end the other ranks: its thread may be in a call that hangs.
const abortPatience = 10 * time.Second
