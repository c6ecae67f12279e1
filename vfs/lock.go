package vfs

import (
	"errors"
	"io/fs"
	"os"
)

// osLock is a lock of the system, which ends when its file is closed. While the file is open no other one gets its
// number, so that the two can be told apart.
type osLock struct{ osFile }

// InPlace implements Lock.
func (l osLock) InPlace() (bool, error) {
	held, err := l.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(l.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return os.SameFile(held, there), nil
}
