//go:build unix

package store

import (
	"os"
	"path/filepath"
	"syscall"
)

// LeftBytes counts the bytes that a killed run left in its directory for state on disk, and that the next one removes:
// files that have no other name.
func LeftBytes(dir string) (sum int64) {
	entries, _ := os.ReadDir(dir) // none, if it is not there
	for _, e := range entries {
		if filepath.Ext(e.Name()) != FileSuffix {
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
