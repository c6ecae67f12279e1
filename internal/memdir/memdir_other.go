//go:build !linux

package memdir

import "errors"

const shared = ""

func inMemory(string) error { return errors.ErrUnsupported }

func lives(int) bool { return true }
