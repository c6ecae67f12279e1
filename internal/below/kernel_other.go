//go:build !linux

package below

// ofKernel reports whether a file is one that the kernel makes up, which this system does not have.
func ofKernel(string) bool { return false }
