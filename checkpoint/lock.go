package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/millrace/millrace/vfs"
)

// takeLock holds a lock file until it is closed. The lock goes with the process, however that ends; the file stays, and
// says who has held it last.
func takeLock(fsys vfs.FS, name string) (vfs.Lock, error) {
	held, err := fsys.Lock(name)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, &heldError{fmt.Sprintf("%s is held by another run (%s): wait until it has ended, or set another "+
			"output_dir", name, holder(fsys, name))}
	}
	if err != nil {
		return nil, err
	}
	// For the message above only: a holder that has not said its name is no reason to fail.
	if held.Truncate(0) == nil {
		host, _ := os.Hostname()
		_, _ = fmt.Fprintf(held, "process %d on %s\n", os.Getpid(), host)
	}
	return held, nil
}

// heldError is a vfs.ErrLocked for people.
type heldError struct{ text string }

func (e *heldError) Error() string        { return e.text }
func (e *heldError) Is(target error) bool { return target == vfs.ErrLocked }

// holder returns the line of a lock file that names its holder.
func holder(fsys vfs.FS, name string) string {
	text, err := vfs.ReadFile(fsys, name, 300)
	line, _, _ := bytes.Cut(text, []byte("\n"))
	who := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(line), ""))
	if err != nil || who == "" {
		return "which has not said its name"
	}
	return who
}
