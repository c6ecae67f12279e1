//go:build !linux

package drive

import "errors"

// numberOf is known on Linux alone.
func numberOf(string) (string, error) { return "", errors.ErrUnsupported }
