package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// Cluster is a process among those that share a run, its hosts: each has a store, devices and an engine of its own, and
// computes a part of each step. All of them call Train with the same configuration. Host 0 leads: it decides what the
// others take over, it has the output directory, and it alone tells of the run.
//
// A nil Cluster is a process that is alone. Its methods then return what they are given.
type Cluster struct {
	Host, Hosts int      // this one, from 0, and how many there are
	Names       []string // of the hosts' machines, by host, for people
	Local       []int    // the hosts on the same machine, with this one, ascending: they share its memory
	Peers       Peers    // nil: the cluster is planned for, and not there
	// NetworkBytesPerSec is plan.Machine.NetworkBytesPerSec for predictions; 0: the machine's.
	NetworkBytesPerSec float64
	// WaitUpTo lets Peers wait for so long, where that is longer than distributed.timeout. Nil: they know no limit.
	WaitUpTo func(time.Duration)
	// TellBy has the others hear by a function what this host is at, and the host whose message it needs for that (see
	// stream.Engine.Standing): the errors of hosts that wait for too long name the one that keeps them waiting. Nil:
	// they are not told.
	TellBy func(standing func() (at string, host int))

	waits time.Duration // how long they do; 0: distributed.timeout
}

// Peers are the other hosts as this one reaches them.
type Peers = stream.Peers

// Leads reports whether the process is host 0, or alone.
func (c *Cluster) Leads() bool { return c == nil || c.Host == 0 }

// planned is the cluster as a plan has it.
func (c *Cluster) planned() plan.Cluster {
	if c == nil {
		return plan.Cluster{}
	}
	return plan.Cluster{Host: c.Host, Hosts: c.Hosts}
}

// count is the number of hosts.
func (c *Cluster) count() int { return c.planned().Count() }

// sharers is the number of hosts that share this machine's memory.
func (c *Cluster) sharers() int {
	if c == nil {
		return 1
	}
	return max(len(c.Local), 1)
}

// Name is a host for people: its rank, as launchers number them, and the machine.
func (c *Cluster) Name(host int) string {
	if host < len(c.Names) {
		return fmt.Sprintf("rank %d (host %s)", host, c.Names[host])
	}
	return fmt.Sprintf("rank %d", host)
}

// HostsError is an error that the hosts of a run have told each other, so that all of them end with it, in good order.
// Any other error of a run on several hosts is known to one host alone, and the others wait for it: its process has to
// end theirs.
type HostsError struct {
	// Reports is true of one host: the error is its own, and the others need not repeat it.
	Reports bool
	err     error
}

func (e *HostsError) Error() string { return e.err.Error() }
func (e *HostsError) Unwrap() error { return e.err }

// told is an error as hosts tell it.
type told struct {
	Text  string `json:"text,omitempty"` // empty: no error
	Kinds uint   `json:"kinds,omitempty"`
}

// toldKinds are the errors that a told one may be, by the bit of told.Kinds.
var toldKinds = []error{blame.ErrRequest, ErrInterrupted, context.Canceled, ErrStop, context.DeadlineExceeded}

func toldOf(err error) (t told) {
	if err == nil {
		return t
	}
	t.Text = console.OneLine(err)
	for i, kind := range toldKinds {
		if errors.Is(err, kind) {
			t.Kinds |= 1 << i
		}
	}
	return t
}

// toldError is an error of another host.
type toldError struct {
	host string
	told
}

func (e *toldError) Error() string { return e.host + ": " + e.Text }

func (e *toldError) Is(target error) bool {
	i := slices.Index(toldKinds, target)
	return i >= 0 && e.Kinds&(1<<i) != 0
}

// aloneError is an error of one host in the middle of what all do together: the others wait for it, and cannot be told.
type aloneError struct{ error }

func (e aloneError) Unwrap() error { return e.error }

// isAlone reports whether an error is known to this host alone.
func isAlone(err error) bool {
	_, is := errors.AsType[aloneError](err)
	return is
}

// alone marks an error that the other hosts do not have and cannot be told, unless all have it by what it is.
func (c *Cluster) alone(err error) error {
	if c == nil || err == nil || isKnown(err) {
		return err
	}
	return aloneError{err}
}

// isKnown reports whether all hosts have an error: it was told, or follows from what is the same everywhere, such as
// the results of a step.
func isKnown(err error) bool {
	hosts, ill := (*HostsError)(nil), (*divergedError)(nil)
	return errors.As(err, &hosts) || errors.As(err, &ill) || errors.Is(err, ErrInterrupted)
}

// Agree returns the error that all hosts end with, a *HostsError: that of the first host that has one; nil if none has.
// All hosts call it.
func (c *Cluster) Agree(err error) error {
	if hosts := (*HostsError)(nil); c == nil || errors.As(err, &hosts) || isAlone(err) {
		return err
	}
	all, errPeers := exchange(c, toldOf(err))
	if errPeers != nil {
		return errors.Join(err, errPeers)
	}
	return c.first(err, all)
}

// first is Agree, of what all hosts have told.
func (c *Cluster) first(own error, all []told) error {
	host := slices.IndexFunc(all, func(t told) bool { return t.Text != "" })
	if host < 0 {
		return nil
	}
	e := &HostsError{Reports: host == c.Host, err: own}
	if _, isOfBudgets := errors.AsType[budgetsError](own); isOfBudgets && host == 0 && host == c.Host {
		e.err = fmt.Errorf("%s: %w", c.Name(host), own) // as the launcher's other processes have their names in front
	}
	if own == nil {
		e.err = &toldError{c.Name(host), all[host]}
	}
	if !errors.Is(e.err, blame.ErrRequest) {
		e.err = blame.NotRequest(e.err) // its host has judged it
	}
	return e
}

// everywhere is an error that all hosts have found, each by itself.
func (c *Cluster) everywhere(err error) error {
	if c == nil || err == nil {
		return err
	}
	return &HostsError{Reports: c.Leads(), err: err}
}

// message carries a value from a host to all others. Kind is that of its value: hosts that are not at the same point of
// the run find out by it.
type message[T any] struct {
	Kind  string `json:"kind"`
	Value T      `json:"value"`
}

// exchange returns what all hosts give, by host. All hosts call it. The error is known to this host alone.
func exchange[T any](c *Cluster, own T) ([]T, error) {
	kind := fmt.Sprintf("%T", own)
	text, err := json.Marshal(message[T]{kind, own})
	if err != nil {
		return nil, err
	}
	texts, err := c.Peers.Exchange(text)
	if err != nil {
		return nil, aloneError{err}
	}
	return readMessages[T](c, texts)
}

// readMessages reads what hosts have given, by host.
func readMessages[T any](c *Cluster, texts [][]byte) ([]T, error) {
	all := make([]T, c.count())
	if len(texts) != len(all) {
		return nil, aloneError{fmt.Errorf("%d hosts have answered, of %d: report this", len(texts), len(all))}
	}
	for host, text := range texts {
		of := message[T]{}
		if err := json.Unmarshal(text, &of); err != nil || of.Kind != fmt.Sprintf("%T", of.Value) {
			return nil, aloneError{fmt.Errorf("%s is at another point of the run than %s: give all hosts the same "+
				"program and the same files", c.Name(host), c.Name(c.Host))}
		}
		all[host] = of.Value
	}
	return all, nil
}

// decided returns what host 0 has. All hosts call it.
func decided[T any](c *Cluster, own T) (T, error) {
	if c == nil {
		return own, nil
	}
	all, err := exchange(c, own)
	if err != nil {
		return own, err
	}
	return all[0], nil
}

// beat is the time in which a host that works alone tells the others that it does: a wait of theirs is not to last as
// long as they bear.
const beat = 2 * time.Second

// longWork is after how long the others say for whom they wait.
const longWork = 10 * time.Minute

// together has each host do f, whose time may differ from host to host by more than a wait lasts, and agrees on the
// error. When one fails, the others' contexts end. f may send and receive. All hosts call it.
func (e *Env) together(ctx context.Context, f func(context.Context) error) error {
	c := e.Cluster
	if c == nil {
		return f(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group fault.Group
	ended := make(chan error, 1)
	var agreed error
	group.Go(func() { agreed = e.awaitAll(ended, cancel) })
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
func (e *Env) awaitAll(ended <-chan error, cancel func()) (agreed error) {
	c := e.Cluster
	var own error
	var now working
	var since time.Time // of the end of this host's work
	warned := false
	for {
		if !now.Ended {
			due, free := e.time().after(beat)
			select {
			case own = <-ended:
				now, since = working{true, toldOf(own)}, e.time().now()
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
		if first == c.Host && !warned && e.time().now().Sub(since) >= longWork {
			warned = true
			e.warn("this host has waited for %v for %s, which may read or write a model for as long: if that cannot "+
				"be, see whether a disk hangs there", longWork, strings.Join(work, ", "))
		}
	}
}
