//go:build !linux

package cores

import "errors"

// Pin does nothing on systems where a thread cannot be bound to a core.
func Pin(Core) error { return nil }

// Allowed is for Linux.
func Allowed(int) ([]int, error) { return nil, errors.New("this needs Linux") }
