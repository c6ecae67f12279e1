package train

import (
	"errors"
	"runtime"
	"slices"
	"syscall"

	"github.com/millrace/millrace/hf/hub"
)

// ErrRequest marks an error in what was asked for: exit status 2.
var ErrRequest = errors.New("bad request")

// requestError is an ErrRequest that reads as its cause.
type requestError struct{ error }

func (requestError) Is(target error) bool { return target == ErrRequest }
func (e requestError) Unwrap() error      { return e.error }

// Request marks an error as one in what was asked for, unless the machine, the network or the program is at fault: then the same request
// may do next time, or in the next version.
func Request(err error) error {
	var fault runtime.Error // which the renderer of templates catches, to name the row
	if err == nil || hub.IsPassing(err) || isOfMachine(err) || errors.As(err, &fault) {
		return err
	}
	return requestError{err}
}

// machineErrors are what a system says when it cannot do what it could do before: its disks are full or fail, or it has run out of
// something.
var machineErrors = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, // full, for everybody or for this user or process
	syscall.EIO, syscall.EROFS, // a drive that fails, or that the system has made read-only for that
	syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EHOSTDOWN, // the same, over a network
	syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN,
}

// isOfMachine reports whether an error is the machine's.
func isOfMachine(err error) bool {
	var said syscall.Errno
	return errors.As(err, &said) && slices.Contains(machineErrors, said)
}
