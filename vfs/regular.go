package vfs

import (
	"fmt"
	"io/fs"
	"os"
)

// OpenRegular opens a regular file for reading. Any other file is refused before it is opened, since opening a named
// pipe or reading from a terminal may wait forever.
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
	if err != nil || info.Mode().IsRegular() {
		return err
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
