//go:build unix

package train

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/millrace/millrace/store"
)

// sameDrive reports whether two directories, of which any may not be there yet, are on one file system.
func sameDrive(a, b string) bool {
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

// leftBytes is what a run that was killed has left in its directory for state on disk, and the next one removes: files that have no other name.
func leftBytes(dir string) (sum int64) {
	entries, _ := os.ReadDir(dir) // none, if it is not there
	for _, e := range entries {
		if filepath.Ext(e.Name()) != store.FileSuffix {
			continue
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 1 {
				sum += st.Blocks * 512
			}
		}
	}
	return sum
}
