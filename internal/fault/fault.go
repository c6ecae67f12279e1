// Package fault ends the program when it finds itself to be wrong.
//
// A panic that nobody expects is a fault of the program. Go ends with status 2 when a goroutine panics, which our users
// read as "the request is wrong". So every goroutine of the product is started here: by [Go], by a [Group] in the place
// of sync.WaitGroup, by [AfterFunc] in the place of time.AfterFunc, or many at once by [Share]. A panic on one of them
// prints itself with its stack and ends the program with [Status], at once: what the other goroutines hold may be half
// done, and files are safe, as after a kill. internal/archtest refuses goroutines that are started otherwise.
//
// What Go's runtime calls fatal cannot be caught, and ends with status 2: memory that the system does not give to the Go heap, a
// map that two goroutines write at once, a crash inside of a GPU's driver, SIGQUIT.
//
// Every package may import this one, and it imports none of ours.
package fault

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// Status is what a program ends with that found itself to be wrong.
const Status = 1

// Go runs f on a goroutine of its own.
func Go(f func()) { go guarded(f) }

// Group is a sync.WaitGroup whose goroutines end the program when they panic.
type Group struct{ sync.WaitGroup }

// Go runs f on a goroutine of its own, for which Wait waits.
func (g *Group) Go(f func()) { g.WaitGroup.Go(func() { guarded(f) }) }

// AfterFunc runs f on a goroutine of its own after a while, as time.AfterFunc does.
func AfterFunc(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { guarded(f) })
}

// guarded runs f, and ends the program when it panics.
func guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			ending.Lock() // for ever: the first panic is the one to read
			Report(os.Stderr, p)
			os.Exit(Status)
		}
	}()
	Watch()
	f()
}

var ending sync.Mutex

// Watch makes memory that cannot be read a panic of the calling goroutine, where Go would end the program with status 2: a file that
// is mapped may be cut by somebody, or lie on a drive that fails.
func Watch() { debug.SetPanicOnFault(true) }

// Report writes what recover returned, and the stack. It is called by the deferred function that recovers, where the stack still has
// the calls that led to the panic.
func Report(w io.Writer, p any) {
	what := "a fault of the program, and not of what it was asked to do"
	if _, ok := p.(interface{ Addr() uintptr }); ok { // memory that Watch watches
		what = "memory cannot be read: the drive of a mapped file fails, the file was cut, or there is a fault in the program"
	}
	fmt.Fprintf(w, "millrace: %s; please report it with the lines that follow\npanic: %v\n\n%s", what, p, debug.Stack())
}
