package hosts

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// Beat is the time in which a host that works alone tells the others that it does: a wait of theirs is not to last as
// long as they bear.
const Beat = 2 * time.Second

// Beat returns the part of a wait after which a host hears of the others: all of it where the process is alone.
func (c *Cluster) Beat(wait time.Duration) time.Duration {
	if c == nil {
		return wait
	}
	return Beat
}

// longWork is after how long the others say for whom they wait.
const longWork = 10 * time.Minute

// Clock tells the time to what a run does at times.
type Clock interface {
	Now() time.Time
	// After returns a channel that gets the time when so much of it has passed, and a function that frees it before
	// that.
	After(time.Duration) (<-chan time.Time, func())
}

// MachineClock is the machine's.
type MachineClock struct{}

// Now is the time.
func (MachineClock) Now() time.Time { return time.Now() }

// After is a timer.
func (MachineClock) After(d time.Duration) (<-chan time.Time, func()) {
	timer := time.NewTimer(d)
	return timer.C, func() { timer.Stop() }
}

// Work is done by each host, whose time for it may differ from host to host by more than a wait lasts.
type Work struct {
	Cluster *Cluster
	Clock   Clock
	Warn    func(format string, args ...any) // says for whom a host has waited long
}

// Together has each host do f, and agrees on the error. When one fails, the others' contexts end. f may send and
// receive. All hosts call it. A process that is alone does f.
func (w Work) Together(ctx context.Context, f func(context.Context) error) error {
	if w.Cluster == nil {
		return f(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group fault.Group
	ended := make(chan error, 1)
	var agreed error
	group.Go(func() { agreed = w.awaitAll(ended, cancel) })
	err := f(ctx)
	ended <- err
	group.Wait()
	return agreed
}

// working tells the other hosts whether this one still works, and how its work has ended.
type working struct {
	Ended bool `json:"ended"`
	told
}

// awaitAll tells the other hosts every beat how this one's work is, until all have ended theirs, and cancels the work
// when that of any host has failed. It returns what they agree on: the first failure.
func (w Work) awaitAll(ended <-chan error, cancel func()) (agreed error) {
	c := w.Cluster
	var own error
	var now working
	var since time.Time // of the end of this host's work
	warned := false
	for {
		if !now.Ended {
			due, free := w.Clock.After(Beat)
			select {
			case own = <-ended:
				now, since = working{true, toldOf(own)}, w.Clock.Now()
			case <-due:
			}
			free()
		}
		all, err := exchange(c, now)
		if err != nil {
			cancel()
			if !now.Ended {
				own = <-ended
			}
			return errors.Join(own, err)
		}
		tells := make([]told, len(all))
		var work []string // of hosts that have not ended
		first := -1       // that has
		for host, of := range all {
			switch tells[host] = of.told; {
			case !of.Ended:
				work = append(work, c.Name(host))
			case first < 0:
				first = host
			}
		}
		if agreed == nil {
			if agreed = c.first(own, tells); agreed != nil {
				cancel() // what others then have is no failure of theirs
			}
		}
		if len(work) == 0 {
			return agreed
		}
		if first == c.Host && !warned && w.Clock.Now().Sub(since) >= longWork {
			warned = true
			w.Warn("this host has waited for %v for %s, which may read or write a model for as long: if that cannot "+
				"be, see whether a disk hangs there", longWork, strings.Join(work, ", "))
		}
	}
}
