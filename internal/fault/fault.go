// Package fault ends the program after a fault of its own.
//
// A panic that no caller expects is a fault of the program. Go ends with status 2 when a goroutine panics, which our
// users read as "the request is wrong". So this package starts every goroutine of the product: [Go] starts one, [Group]
// replaces sync.WaitGroup, [AfterFunc] replaces time.AfterFunc, and [Share] starts many at once. A panic on one of them
// prints itself with its stack and ends the program with [Status], at once: data of other goroutines may be half done,
// and files are safe, as after a kill. internal/archtest refuses goroutines that are started in another way.
//
// Errors that Go's runtime calls fatal cannot be caught, and end with status 2: memory that the system does not give to
// the Go heap, a map that two goroutines write at once, a crash inside of a GPU's driver, SIGQUIT.
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

// Status ends a program that found itself to be wrong.
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
			ending.Lock() // never unlocked: the first panic is the one to read
			Report(os.Stderr, p)
			os.Exit(Status)
		}
	}()
	Watch()
	f()
}

var ending sync.Mutex

// Watch turns an access to memory that cannot be read into a panic of the calling goroutine; Go would end the program
// with status 2. Another process may cut a file that is mapped, or the file's drive may fail.
func Watch() { debug.SetPanicOnFault(true) }

// Report writes what recover returned, and the stack. It is called by the deferred function that recovers, where the
// stack still has the calls that led to the panic.
func Report(w io.Writer, p any) {
	what := "a fault of the program, and not of what it was asked to do"
	if _, ok := p.(interface{ Addr() uintptr }); ok { // memory that Watch watches
		what = "memory cannot be read: the drive of a mapped file fails, the file was cut, or there is a fault in the program"
	}
	fmt.Fprintf(w, "millrace: %s; please report it with the lines that follow\npanic: %v\n\n%s", what, p, debug.Stack())
}
