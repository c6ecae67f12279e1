//go:build !linux && !darwin

package vfs

import "os"

// Lock makes the file and excludes no process: this system has no lock that ends with the process.
func (OS) Lock(name string) (File, error) {
	return OS{}.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
}
