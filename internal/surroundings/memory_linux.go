package surroundings

import (
	"errors"

	"golang.org/x/sys/unix"
)

const shared = "/dev/shm"

// IsInMemory reports whether a directory is in a file system in memory: the kernel counts none of its bytes as read or
// written.
func IsInMemory(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.TMPFS_MAGIC
}

// inMemory says why a directory is not one of a file system in memory with room.
func inMemory(dir string) error {
	var s unix.Statfs_t
	switch err := unix.Statfs(dir, &s); {
	case err != nil:
		return err
	case !IsInMemory(dir):
		return errors.New(dir + " is not in memory")
	case int64(s.Bavail)*s.Bsize < leastFreeBytes:
		return errors.New(dir + " has too little room")
	}
	return nil
}

// lives reports whether there is such a process, perhaps of another user.
func lives(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
