//go:build !linux && !darwin

package vfs

import (
	"errors"
	"os"
)

// FreeBytes cannot be told on this system.
func (OS) FreeBytes(name string) (int64, error) {
	return 0, &os.PathError{Op: "statfs", Path: name, Err: errors.ErrUnsupported}
}
