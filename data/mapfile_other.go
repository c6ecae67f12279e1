//go:build !unix

package data

import (
	"io"
	"os"
)

// mapFile reads a file's first bytes.
func mapFile(f *os.File, size int64) ([]byte, error) {
	b := make([]byte, size)
	_, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

func unmapFile([]byte) {}
