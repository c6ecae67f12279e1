package vfs

import (
	"errors"
	"io/fs"
	"os"

	"github.com/millrace/millrace/internal/below"
)

// OpenRegular opens a regular file for reading. Any other file is refused before it is opened, since opening a named
// pipe or reading from a terminal may wait forever. So is a file that the kernel makes up, such as /proc/self/environ:
// the target of a link in a downloaded directory must not become data.
func OpenRegular(name string) (*os.File, error) {
	if ofKernel(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it leads to a file of the kernel's (/proc or " +
			"/sys), which holds no data of yours; remove it, or name another")}
	}
	return below.OpenFile(name)
}
