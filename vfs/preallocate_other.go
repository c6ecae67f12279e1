//go:build !linux

package vfs

import "os"

func preallocate(f *os.File, bytes int64) error { return zeroFill(f, bytes) }
