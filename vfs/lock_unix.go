//go:build linux || darwin

package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Lock takes flock of the file, which ends with the process however that ends. The holder of a lock may remove its
// file. A file that is no longer at the name when it is locked excludes no process, so Lock takes the next one.
func (OS) Lock(name string) (Lock, error) {
	for {
		f, err := lockFile(name)
		if err != nil {
			return nil, err
		}
		lock := osLock{osFile{f}}
		is, err := lock.InPlace()
		if is {
			return lock, nil
		}
		_ = f.Close() // it is the old file of an earlier holder
		if err != nil {
			return nil, err
		}
	}
}

func lockFile(name string) (*os.File, error) {
	f, err := openOwn(name, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = ErrLocked
	case errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOSYS):
		return f, nil // some network file systems have no locks: nothing better can be done
	}
	_ = f.Close() // the first error is the one to report
	return nil, &os.PathError{Op: "lock", Path: name, Err: err}
}
