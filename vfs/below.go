package vfs

import (
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/below"
)

// The names in a directory that may have come from elsewhere, as those of runs and checkpoints do, are read by the rule
// of package below: links are followed as far as they stay inside of the directory, or the user allows them. dir itself
// may be a link.

// CheckBelow refuses a name that leads out of a directory through a link. A name that is not there is no error.
func CheckBelow(fsys FS, dir, name string) error {
	for at := range parents(name) {
		if isLink(fsys, filepath.Join(dir, at)) {
			return below.Check(dir, name)
		}
	}
	return nil
}

// parents yields a path of a directory from its first name on: "a" and "a/b" of "a/b".
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range name {
			if c == filepath.Separator && i > 0 && !yield(name[:i]) {
				return
			}
		}
		yield(strings.TrimRight(name, string(filepath.Separator)))
	}
}

// StatBelow is Stat of a name in a directory.
func StatBelow(fsys FS, dir, name string) (fs.FileInfo, error) {
	if err := CheckBelow(fsys, dir, name); err != nil {
		return nil, err
	}
	return fsys.Stat(filepath.Join(dir, name))
}

// OpenBelow is Open of a name in a directory.
func OpenBelow(fsys FS, dir, name string) (File, error) {
	if err := CheckBelow(fsys, dir, name); err != nil {
		return nil, err
	}
	return fsys.Open(filepath.Join(dir, name))
}

// ReadBelow is ReadFile of a name in a directory.
func ReadBelow(fsys FS, dir, name string, maxBytes int64) ([]byte, error) {
	if err := CheckBelow(fsys, dir, name); err != nil {
		return nil, err
	}
	return ReadFile(fsys, filepath.Join(dir, name), maxBytes)
}
