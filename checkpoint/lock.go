package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/millrace/millrace/internal/vfs"
)

// lock is a lock file that this process holds. The lock is on the open file, not in its contents, so that it goes with the
// process, however that ends; the contents say who holds it. The file stays.
type lock struct {
	f    vfs.File
	held bool
}

// errLocked is that somebody else holds a lock.
var errLocked = errors.New("locked")

func takeLock(fsys vfs.FS, name string) (*lock, error) {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	held, err := lockFile(f)
	if errors.Is(err, errLocked) {
		err = fmt.Errorf("%s is held by another run (%s): wait until it has ended, or set another output_dir", name, holder(f))
	}
	if err != nil {
		_ = f.Close() // the error at hand is the one to report
		return nil, err
	}
	if held {
		// For the message above only; a holder that is not named is no reason to fail.
		host, _ := os.Hostname()
		if f.Truncate(0) == nil {
			_, _ = fmt.Fprintf(f, "process %d on %s\n", os.Getpid(), host)
		}
	}
	return &lock{f, held}, nil
}

// holder is what a lock file says of who holds it.
func holder(f vfs.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 200))
	line, _, _ := bytes.Cut(text, []byte("\n"))
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(line), ""))
	if err != nil || name == "" {
		return "which did not say its name"
	}
	return name
}

func (l *lock) release() error { return l.f.Close() }
