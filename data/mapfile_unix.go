//go:build unix

package data

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile makes a file's first bytes readable as memory.
func mapFile(f *os.File, size int64) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
}

func unmapFile(b []byte) { unix.Munmap(b) } // of a mapping that was made: it cannot fail
