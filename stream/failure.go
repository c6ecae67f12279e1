package stream

import (
	"errors"
	"fmt"
)

// firstError is the error of the first operation in schedule order that has one: the same line each time, whichever
// lane failed first by the clock. Errors that the device found late are in the events.
func (r *execution) firstError() error {
	failed := false
	for _, err := range r.errs {
		failed = failed || err != nil
	}
	for i := range r.workers {
		failed = r.workers[i].stream.Sync() != nil || failed
	}
	if !failed {
		return nil
	}
	for i, op := range r.ops {
		err := r.errs[i]
		if err == nil {
			err = r.end[i].Wait()
		}
		if of, isPeers := err.(ofPeers); isPeers {
			return of.error
		}
		if err != nil && !isCarried(err) {
			return fmt.Errorf("%v lane: %s: %w", op.Lane, r.names[i], err)
		}
	}
	return errAfterLast
}

// errAfterLast is of lanes that have no error of their own, such as those that gave up their messages.
var errAfterLast = errors.New("a lane failed after its last operation")

// carried marks the error of an operation that was skipped because of another one's.
type carried struct{ error }

// ofPeers marks an error of Peers, which begins with the host that is lost, since a reader looks for that.
type ofPeers struct{ error }

func isCarried(err error) bool {
	_, ok := err.(carried)
	return ok
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
