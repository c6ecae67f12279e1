package blame

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
)

// Errors of the machine or the program are never the request's fault, whatever operation finds them. Errors of names in
// the request are.
func TestRequest(t *testing.T) {
	for errno, of := range map[syscall.Errno]string{
		syscall.ENOSPC: "machine", syscall.EDQUOT: "machine", syscall.EIO: "machine", syscall.EROFS: "machine", syscall.ENOMEM: "machine",
		syscall.EMFILE: "machine", syscall.ESTALE: "machine",
		syscall.ENOENT: "request", syscall.EACCES: "request", syscall.EISDIR: "request", syscall.ENOTDIR: "request", syscall.ENAMETOOLONG: "request",
	} {
		err := BadRequest(fmt.Errorf("output_dir: %w", &fs.PathError{Op: "write", Path: "run.yaml", Err: errno}))
		if errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
		if err := errors.Join(errors.New("first"), err); errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
	}
	func() {
		defer func() {
			if err := BadRequest(fmt.Errorf("a.jsonl:3: %w", recover().(error))); errors.Is(err, ErrRequest) {
				t.Errorf("%v is one of the request", err)
			}
		}()
		var table []int
		_ = table[len(table)]
	}()
	if BadRequest(nil) != nil {
		t.Error("nothing is an error")
	}
	for err, of := range map[error]string{
		context.Canceled: "user", context.DeadlineExceeded: "user",
		hostmem.ErrUnknown: "machine", store.ErrChecksum: "machine",
		&checkpoint.DamageError{}: "machine",
	} {
		if err := BadRequest(fmt.Errorf("resume: %w", err)); errors.Is(err, ErrRequest) {
			t.Errorf("%v is one of the %s", err, of)
		}
	}
	if err := BadRequest(fmt.Errorf("resume: %w", NotRequest(errors.New("odd")))); errors.Is(err, ErrRequest) || err.Error() != "resume: odd" {
		t.Errorf("%v is not a bad request", err)
	}
	if NotRequest(nil) != nil {
		t.Error("nothing is an error")
	}
	if err := BadName(&checkpoint.DamageError{}); !errors.Is(err, ErrRequest) {
		t.Error("a damaged checkpoint that the user has named is not a bad request")
	}
}

// An error before a verb begins its work is a bad request; a later error is not.
func TestAsking(t *testing.T) {
	for _, isOver := range []bool{false, true} {
		verb := func() (err error) {
			ask := Asking{isOver}
			defer ask.Judge(&err)
			return errors.New("it fails")
		}
		if err := verb(); errors.Is(err, ErrRequest) == isOver || err.Error() != "it fails" {
			t.Errorf("isOver %v: %v", isOver, err)
		}
	}
}
