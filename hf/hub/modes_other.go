//go:build unix && !linux

package hub

// hasModes reports whether a directory is on a file system that keeps permissions.
func hasModes(string) bool { return true }
