package train

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

// What the machine or the program cannot do is no fault of the request, wherever it is found out; what the request names is.
func TestRequest(t *testing.T) {
	for errno, of := range map[syscall.Errno]string{
		syscall.ENOSPC: "machine", syscall.EDQUOT: "machine", syscall.EIO: "machine", syscall.EROFS: "machine", syscall.ENOMEM: "machine",
		syscall.EMFILE: "machine", syscall.ESTALE: "machine",
		syscall.ENOENT: "request", syscall.EACCES: "request", syscall.EISDIR: "request", syscall.ENOTDIR: "request", syscall.ENAMETOOLONG: "request",
	} {
		err := Request(fmt.Errorf("output_dir: %w", &fs.PathError{Op: "write", Path: "run.yaml", Err: errno}))
		if errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
		if err := errors.Join(errors.New("first"), err); errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
	}
	func() {
		defer func() {
			if err := Request(fmt.Errorf("a.jsonl:3: %w", recover().(error))); errors.Is(err, ErrRequest) {
				t.Errorf("%v is one of the request", err)
			}
		}()
		var table []int
		_ = table[len(table)]
	}()
	if Request(nil) != nil {
		t.Error("nothing is an error")
	}
}
