//go:build !unix

package train

import (
	"path/filepath"
	"strings"
)

// sameDrive reports whether two directories are on one volume, as far as their names tell.
func sameDrive(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && strings.EqualFold(filepath.VolumeName(a), filepath.VolumeName(b))
}
