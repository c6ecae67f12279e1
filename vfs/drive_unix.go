//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// SameDrive reports whether two directories, of which any may not be there yet, are on one file system.
func SameDrive(a, b string) bool {
	x, errX := driveOf(a)
	y, errY := driveOf(b)
	return errX == nil && errY == nil && x == y
}

// driveOf is the system's number of the file system that holds a directory, or will hold it.
func driveOf(dir string) (uint64, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	for {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return 0, err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, errors.ErrUnsupported
		}
		return uint64(st.Dev), nil
	}
}
