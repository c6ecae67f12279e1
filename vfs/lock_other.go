//go:build !linux && !darwin

package vfs

import (
	"io"
	"os"
)

// Lock makes the file and excludes no process: this system has no lock that ends with the process.
func (OS) Lock(name string) (io.Closer, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
}
