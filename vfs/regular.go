package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// OpenRegular opens a regular file for reading. Any other file is refused before it is opened, since opening a named
// pipe or reading from a terminal may wait forever. So is a file that the kernel makes up, such as /proc/self/environ:
// the target of a link in a downloaded directory must not become data.
func OpenRegular(name string) (*os.File, error) {
	if err := checkRegular(name); err != nil {
		return nil, err
	}
	return os.Open(name)
}

// ReadRegular reads a whole regular file, and refuses what OpenRegular refuses.
func ReadRegular(name string) ([]byte, error) {
	if err := checkRegular(name); err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

func checkRegular(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		if ofKernel(name) {
			return &fs.PathError{Op: "open", Path: name, Err: errors.New("it leads to a file of the kernel's (/proc or /sys), which holds no data of yours; remove it, or name another")}
		}
		return nil
	}
	return &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("it is %s, where a regular file is needed; put one there, or name another",
		kindOf(info.Mode()))}
}

// kindOf names what is not a regular file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}
