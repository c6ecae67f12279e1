//go:build !linux

package vfs

// DropCache does nothing where the system has no way to.
func DropCache(File, int64, int64) {}
