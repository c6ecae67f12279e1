//go:build linux || darwin

package checkpoint

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/vfs"
)

// lockFile takes the lock of an open file, which closing it gives up. It is errLocked if somebody else has it; held is
// false where there are no locks.
func lockFile(f vfs.File) (held bool, err error) {
	real, ok := f.(syscall.Conn)
	if !ok {
		return false, nil // in memory
	}
	raw, err := real.SyscallConn()
	if err != nil {
		return false, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for {
			inner = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
			if inner != unix.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return false, err
	case errors.Is(inner, unix.EWOULDBLOCK):
		return false, errLocked
	case errors.Is(inner, unix.ENOLCK), errors.Is(inner, unix.EOPNOTSUPP), errors.Is(inner, unix.ENOSYS), errors.Is(inner, unix.EINVAL):
		return false, nil // some network file systems
	}
	return inner == nil, inner
}
