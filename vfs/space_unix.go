//go:build linux || darwin

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// FreeBytes asks the file system, and counts what it lets everyone use.
func (OS) FreeBytes(name string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(name, &s)
		if err == nil {
			return int64(s.Bavail) * int64(s.Bsize), nil
		}
		if err != unix.EINTR {
			return 0, &os.PathError{Op: "statfs", Path: name, Err: err}
		}
	}
}
