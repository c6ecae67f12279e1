//go:build !linux && !darwin

package vfs

import "os"

// Lock makes the file and excludes no process: this system has no lock that ends with the process.
func (OS) Lock(name string) (Lock, error) {
	f, err := openOwn(name, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	return osLock{osFile{f}}, nil
}
