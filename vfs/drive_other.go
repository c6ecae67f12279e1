//go:build !unix

package vfs

import (
	"path/filepath"
	"strings"
)

// SameDrive reports whether two directories are on one volume, as far as their names tell.
func SameDrive(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && strings.EqualFold(filepath.VolumeName(a), filepath.VolumeName(b))
}
