package vfs

import (
	"io/fs"
	"os"

	"github.com/millrace/millrace/internal/below"
)

// OpenRegular opens a regular file for reading. Any other file is refused before it is opened, since opening a named
// pipe or reading from a terminal may wait forever. So is a file that the kernel makes up, such as /proc/self/environ:
// the target of a link in a downloaded directory must not become data.
func OpenRegular(name string) (*os.File, error) {
	if err := below.CheckKernel(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return below.OpenFile(name)
}
