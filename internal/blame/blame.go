// Package blame says who is to blame for an error, which decides the exit status: the request, or else the machine, the
// network or the program.
//
//   - [BadRequest] marks an error with [ErrRequest], unless one of the others is to blame for it. It is the one rule.
//   - [BadName] and [NotRequest] are for the few errors whose kind does not show who is to blame.
//   - [Asking] applies it to a verb: an error before the verb begins its work is a bad request, unless the verb was asked
//     to end: then [OfStart] has it interrupted, whatever else it met.
//
// Invariants: a mark changes no text, and it is never taken away. Each type of error below has a side: blame_test.go
// lists them.
package blame

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"syscall"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
)

// ErrRequest marks an error in what was asked for: exit status 2.
var ErrRequest = errors.New("bad request")

// requestError is an ErrRequest that reads as its cause.
type requestError struct{ error }

func (requestError) Is(target error) bool { return target == ErrRequest }
func (e requestError) Unwrap() error      { return e.error }

// otherError is not an ErrRequest, and reads as its cause.
type otherError struct{ error }

func (e otherError) Unwrap() error { return e.error }

// NotRequest marks an error that is not the request's fault, although BadRequest does not know its kind.
func NotRequest(err error) error {
	if err == nil {
		return nil
	}
	return otherError{err}
}

// BadRequest marks an error as one in what was asked for, unless the machine, the network or the program is at fault,
// or a checkpoint that is damaged: then the same request may do next time, or in the next version. It is the one rule:
// an error before a verb begins its work is a bad request.
func BadRequest(err error) error {
	var damage *checkpoint.DamageError
	if errors.As(err, &damage) {
		return err
	}
	return BadName(err)
}

// BadName is BadRequest for what the user has named, even where that is a checkpoint that is damaged: another name
// helps.
func BadName(err error) error {
	var fault runtime.Error // which the renderer of templates catches, to name the row
	var other otherError
	if err == nil || errors.As(err, &other) || hub.IsPassing(err) || IsOfMachine(err) || errors.As(err, &fault) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return requestError{err}
}

// OfStart is BadRequest for an error before the work has begun, and the context's where that has ended: what was being
// read or made then is not finished, and an error of it says nothing of the request.
func OfStart(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return BadRequest(err)
}

// Asking is the part of a verb that comes before its work.
type Asking struct{ IsOver bool }

// Judge makes a verb's error one of its start if the verb has not begun its work.
func (a *Asking) Judge(ctx context.Context, err *error) {
	if !a.IsOver {
		*err = OfStart(ctx, *err)
	}
}

// machineErrors come from a system that cannot do what it could do before: its disks are full or fail, or it
// has run out of something.
var machineErrors = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, // full, for everybody or for this user or process
	syscall.EIO, syscall.EROFS, // a drive that fails, or that the system has made read-only for that
	syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EHOSTDOWN, // the same, over a network
	syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN,
}

// IsOfMachine reports whether an error is the machine's or the network's. Packages that this one cannot import, or
// need not, have errors that say so themselves.
func IsOfMachine(err error) bool {
	if of, ok := errors.AsType[interface {
		error
		OfMachine() bool
	}](err); ok && of.OfMachine() {
		return true
	}
	if errors.Is(err, hostmem.ErrUnknown) || errors.Is(err, store.ErrChecksum) {
		return true
	}
	var said syscall.Errno
	return errors.As(err, &said) && slices.Contains(machineErrors, said)
}
