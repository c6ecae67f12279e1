//go:build !linux

package below

// ofKernel reports whether the kernel makes a file up, as this system does not.
func ofKernel(string) bool { return false }
