package vfs

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// DropCache gives the clean pages of a range of a file back to the system, so that who reads it next asks the drive.
// It is a hint.
func DropCache(f File, off, n int64) {
	_ = Control(f, func(fd int) error { return unix.Fadvise(fd, off, n, unix.FADV_DONTNEED) })
}

// Control calls a system call on a real file. That the file system does not know the call is no error.
func Control(f File, call func(fd int) error) error {
	real, ok := f.(syscall.Conn)
	if !ok {
		return nil // in memory
	}
	raw, err := real.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for {
			inner = call(int(fd))
			if inner != unix.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errors.Is(inner, unix.ENOSYS), errors.Is(inner, unix.EOPNOTSUPP), errors.Is(inner, unix.EINVAL),
		errors.Is(inner, unix.ESPIPE):
		return nil
	}
	return inner
}
