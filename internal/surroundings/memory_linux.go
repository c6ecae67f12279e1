package surroundings

import (
	"errors"

	"golang.org/x/sys/unix"
)

const shared = "/dev/shm"

// inMemory says why a directory is not one of a file system in memory with room.
func inMemory(dir string) error {
	var s unix.Statfs_t
	switch err := unix.Statfs(dir, &s); {
	case err != nil:
		return err
	case s.Type != unix.TMPFS_MAGIC:
		return errors.New(dir + " is not in memory")
	case int64(s.Bavail)*s.Bsize < leastFreeBytes:
		return errors.New(dir + " has too little room")
	}
	return nil
}

// lives reports whether there is such a process, perhaps of another user.
func lives(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
