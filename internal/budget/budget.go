// Package budget bounds the memory that a process takes at once to read what comes from other people: renders of chat
// templates, metadata of GGUF files, manifests of checkpoints and tokenizers. Each reader has limits of its own, for
// one file or one render; several may work at the same time, and this is the bound of all of them together.
//
// A reader begins a [Use], takes bytes before it makes them, and ends the use when it has its result. Bytes that it
// frees meanwhile count until then, so the sum is an upper bound.
//
// A use has SmallBytes in a slot of its own. One that needs more waits for the rest of the budget, which one use has at
// a time. So no circle of waits closes: that use waits for nothing, and those that wait for it hold no more than their
// slots. A goroutine has one use at a time.
//
// Every package may import this one, and it imports none of ours.
package budget

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	// SmallBytes is what a use may take while others have the rest: more than a render of a long conversation makes.
	SmallBytes = 4 << 20
	// DefaultBytes is the budget of a process that says nothing else.
	DefaultBytes = 2 << 30
	// MinBytes is the smallest budget: the vocabulary of a small model must still be read.
	MinBytes = 32 << 20
)

// ErrTooMuch is in the error of a use that needs more than all of the budget.
var ErrTooMuch = errors.New("raise memory.host if you trust the file")

// Budget is memory that uses share.
type Budget struct {
	slots      chan struct{}
	large      chan struct{} // taken by the use that has the rest
	largeBytes int64
	bytes      int64
	inUse      atomic.Int64
	peak       atomic.Int64
}

// New makes a budget of a number of bytes, of which a quarter is for slots.
func New(bytes int64) *Budget {
	bytes = max(bytes, MinBytes)
	slots := bytes / 4 / SmallBytes
	return &Budget{slots: make(chan struct{}, slots), large: make(chan struct{}, 1), bytes: bytes,
		largeBytes: bytes - slots*SmallBytes}
}

// Bytes is the size of the budget.
func (b *Budget) Bytes() int64 { return b.bytes }

// Peak is the most that uses had room for at once.
func (b *Budget) Peak() int64 { return b.peak.Load() }

// shared is the budget of the process.
var shared atomic.Pointer[Budget]

// Shared is the budget of the process.
func Shared() *Budget {
	if b := shared.Load(); b != nil {
		return b
	}
	shared.CompareAndSwap(nil, New(DefaultBytes))
	return shared.Load()
}

// Set gives the process a budget of that many bytes, for all uses that begin from now on; no less than MinBytes and no
// more than DefaultBytes, which 0 stands for.
func Set(bytes int64) {
	if bytes <= 0 {
		bytes = DefaultBytes
	}
	if bytes = max(min(bytes, DefaultBytes), MinBytes); Shared().Bytes() != bytes {
		shared.Store(New(bytes))
	}
}

// Use counts what one reader takes of a budget. One goroutine has it. The zero value has taken nothing, of the budget of
// the process.
type Use struct {
	b           *Budget
	taken, room int64
}

// Begin begins a use of a budget.
func (b *Budget) Begin() *Use { return &Use{b: b} }

// Take counts bytes that are about to be made. It waits while other uses have what is missing, until ctx ends. A use
// that needs more than the budget has gets an error that matches ErrTooMuch.
func (u *Use) Take(ctx context.Context, bytes int64) error {
	if bytes >= 0 && bytes <= u.room-u.taken {
		u.taken += bytes
		return nil
	}
	return u.grow(ctx, bytes)
}

// grow is Take of more than there is room for.
func (u *Use) grow(ctx context.Context, bytes int64) error {
	if u.b == nil {
		u.b = Shared()
	}
	if bytes < 0 || bytes > u.b.largeBytes-u.taken {
		return fmt.Errorf("it needs more than %d MiB of memory, which is what files of others may take: %w", u.b.largeBytes>>20,
			ErrTooMuch)
	}
	if u.room == 0 {
		if err := wait(ctx, u.b.slots); err != nil {
			return err
		}
		u.hasRoom(SmallBytes)
	}
	if u.taken+bytes > u.room {
		if err := wait(ctx, u.b.large); err != nil {
			return err
		}
		u.hasRoom(u.b.largeBytes)
	}
	u.taken += bytes
	return nil
}

// hasRoom notes what the use may take from now on. All of it counts as in use.
func (u *Use) hasRoom(bytes int64) {
	now := u.b.inUse.Add(bytes - u.room)
	u.room = bytes
	for {
		was := u.b.peak.Load()
		if now <= was || u.b.peak.CompareAndSwap(was, now) {
			return
		}
	}
}

// End gives back what the use has taken. The use may begin again.
func (u *Use) End() {
	if u.room == 0 {
		return
	}
	u.b.inUse.Add(-u.room)
	if u.room > SmallBytes {
		<-u.b.large
	}
	<-u.b.slots
	u.taken, u.room = 0, 0
}

// wait takes a place.
func wait(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
