//go:build unix

package hub

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lock waits until no other process has the lock file, and takes it. huggingface_hub takes the same lock. A file that
// an ended process has left locks nothing.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o775); err != nil {
		return nil, err
	}
	f, err := openOwn(path)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
	// A file system without locks (some of the network) is one on which two downloads at once are not safe; a single
	// one still is.
	if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.ENOLCK) {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
