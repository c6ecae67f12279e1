package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
)

// Report tells how a host has come to a boundary of a run.
type Report[T any] struct {
	Err  error // that it ends with here; nil: none
	Stop bool  // it is to end, and asks the others to
	Own  T     // for the decision
}

// Decision tells all hosts how to continue after a boundary. If Err is of this host alone, All has only its own value.
type Decision[T any] struct {
	Err  error // an [Error], that of the first host that has one; or one that this host has alone
	Stop bool  // any of the hosts asks to end
	All  []T   // of all reports, by host
}

// Lead is the value of host 0.
func (d Decision[T]) Lead() T { return d.All[0] }

// Decide makes one decision of the reports of all hosts. All of them call it at the same boundary, unless the error of
// the report is known to all or to this host alone. A process that is alone decides by its own report.
func Decide[T any](c *Cluster, own Report[T]) Decision[T] {
	alone := Decision[T]{own.Err, own.Stop, []T{own.Own}}
	if _, told := errors.AsType[*Error](own.Err); c == nil || told || IsAlone(own.Err) {
		return alone
	}
	all, err := exchange(c, passed[T]{own.Own, own.Stop, toldOf(own.Err)})
	if err != nil {
		alone.Err = err
		if own.Err != nil {
			alone.Err = errors.Join(own.Err, err)
		}
		return alone
	}
	d, tells := Decision[T]{}, make([]told, len(all))
	for host, of := range all {
		d.Stop, d.All, tells[host] = d.Stop || of.Stop, append(d.All, of.Own), of.told
	}
	d.Err = c.first(own.Err, tells)
	return d
}

// Agree returns the error that all hosts end with, an [*Error]: that of the first host that has one; nil if none has.
// All hosts call it.
func (c *Cluster) Agree(err error) error { return Decide(c, Report[struct{}]{Err: err}).Err }

// passed is a report as hosts tell it.
type passed[T any] struct {
	Own  T    `json:"own"`
	Stop bool `json:"stop,omitempty"`
	told
}

// Error is an error that the hosts of a run have told each other, so that all of them end with it, in good order.
// Any other error of a run on several hosts is known to one host alone, and the others wait for it: its process has to
// end theirs.
type Error struct {
	// Reports is true of one host: the error is its own, and the others need not repeat it.
	Reports bool
	err     error
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Over returns an error that stands for this one, and that the same host reports.
func (e *Error) Over(err error) *Error { return &Error{e.Reports, err} }

// Errors that a run may end with on purpose, and that all hosts know for what they are: it was asked to stop and has
// lost nothing, or the program ends it early and well.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrStop        = errors.New("stop after this step")
)

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

// IsAlone reports whether an error is known to this host alone.
func IsAlone(err error) bool {
	_, is := errors.AsType[aloneError](err)
	return is
}

// Alone marks an error that the other hosts do not have and cannot be told, unless all have it by what it is.
func (c *Cluster) Alone(err error) error {
	if c == nil || err == nil || isKnown(err) {
		return err
	}
	return aloneError{err}
}

// isKnown reports whether all hosts have an error: it was told, or follows from what is the same everywhere, such as
// the results of a step.
func isKnown(err error) bool {
	_, told := errors.AsType[*Error](err)
	_, same := errors.AsType[interface {
		error
		SameOnAll()
	}](err)
	return told || same || errors.Is(err, ErrInterrupted)
}

// Everywhere is an error that all hosts have found, each by itself.
func (c *Cluster) Everywhere(err error) error {
	if c == nil || err == nil {
		return err
	}
	return &Error{Reports: c.Leads(), err: err}
}

// budgetsError is an error that one host's budgets, or its machine, may have, and others not: it is told with the name
// of its host, also where that is host 0.
type budgetsError struct{ error }

func (e budgetsError) Unwrap() error { return e.error }

// OfBudgets marks an error that this host's budgets, or its machine, may have, and others not.
func OfBudgets(err error) error {
	if err == nil {
		return nil
	}
	return budgetsError{err}
}

// first is the error that hosts end with, of what all have told; nil if none has told any.
func (c *Cluster) first(own error, all []told) error {
	if _, told := errors.AsType[*Error](own); told {
		return own
	}
	host := slices.IndexFunc(all, func(t told) bool { return t.Text != "" })
	if host < 0 {
		return nil
	}
	e := &Error{Reports: host == c.Host, err: own}
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

// message carries a value from a host to all others. Kind is that of its value: hosts that are not at the same point of
// the run find out by it.
type message[T any] struct {
	Kind  string `json:"kind"`
	Value T      `json:"value"`
}

// exchange returns what all hosts give, by host. All hosts call it. The error is known to this host alone.
func exchange[T any](c *Cluster, own T) ([]T, error) {
	text, err := json.Marshal(message[T]{fmt.Sprintf("%T", own), own})
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
	all := make([]T, c.Count())
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
