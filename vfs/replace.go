package vfs

import (
	"fmt"
	"os"
	"path/filepath"
)

// ReplaceFile writes a small file of the operating system's, whole or not at all, and makes its directory. A reader
// sees the old contents or the new ones.
func ReplaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	err := os.WriteFile(tmp, data, 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // err is the one to report
	}
	return err
}
