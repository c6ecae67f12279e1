package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func preallocate(f *os.File, bytes int64) error {
	info, err := f.Stat()
	if err != nil || info.Size() >= bytes {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for {
			inner = unix.Fallocate(int(fd), 0, 0, bytes)
			if inner != unix.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errors.Is(inner, unix.EOPNOTSUPP) || errors.Is(inner, unix.ENOSYS):
		return zeroFill(f, bytes)
	case inner != nil:
		return &os.PathError{Op: "preallocate", Path: f.Name(), Err: inner}
	}
	return nil
}
