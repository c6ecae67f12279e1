package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Output is a file that a user has named for a result. A plain file appears, or is replaced, as a whole with Commit,
// where the links of its name lead, and keeps its permissions; a device such as /dev/null is written as it is. What
// else a name can stand for is refused.
type Output struct {
	File        // a temporary file in the directory of path, or the device
	path string // empty for a device
}

// CreateOutput begins an output. End it with Commit or Abort.
func CreateOutput(name string) (*Output, error) {
	info, err := os.Stat(name)
	path, mode := name, fs.FileMode(0o664)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(name); err == nil {
			return nil, fmt.Errorf("%s is a link to nothing: make what it means, or remove it", name)
		}
		if dir := filepath.Dir(name); !isDir(dir) {
			return nil, fmt.Errorf("there is no directory %s: make it, or name another place", dir)
		}
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case info.Mode()&fs.ModeCharDevice != 0:
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // where links lead, as for any other output
		if err != nil {
			return nil, err
		}
		return &Output{File: osFile{f}}, nil
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is neither a plain file nor a device: name another", name)
	default:
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // one that must not be written must not be replaced
		if err != nil {
			return nil, err
		}
		f.Close()
		if path, err = filepath.EvalSymlinks(name); err != nil {
			return nil, err
		}
		mode = info.Mode().Perm()
	}
	f, err := createTemp(path, mode)
	var inDir *fs.PathError
	if errors.As(err, &inDir) {
		return nil, &fs.PathError{Op: "write", Path: name, Err: inDir.Err}
	}
	return &Output{osFile{f}, path}, err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Write appends, and WriteAt writes at an offset. Their errors have the name that the user knows.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	return n, o.named(err)
}

func (o *Output) WriteAt(p []byte, off int64) (int, error) {
	n, err := o.File.WriteAt(p, off)
	return n, o.named(err)
}

func (o *Output) named(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) && !o.IsDevice() {
		return &fs.PathError{Op: e.Op, Path: o.path, Err: e.Err}
	}
	return err
}

// IsDevice reports whether what is written cannot be read again.
func (o *Output) IsDevice() bool { return o.path == "" }

// Commit makes the file durable and visible. If it fails, what was written is removed.
func (o *Output) Commit() error { return o.commit(os.Rename) }

// CommitNew is Commit for a result that replaces no file. It fails with fs.ErrExist if the name has one by now.
func (o *Output) CommitNew() error { return o.commit(renameNew) }

func (o *Output) commit(move func(from, to string) error) error {
	if o.IsDevice() {
		return o.Close()
	}
	err := firstOf(o.Sync(), o.Close())
	if err == nil {
		err = move(o.Name(), o.path)
	}
	if err != nil {
		os.Remove(o.Name())
		return err
	}
	return OS{}.SyncDir(filepath.Dir(o.path))
}

// renameNew renames a file to a name that has none.
func renameNew(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return os.Remove(from)
	}
	if _, there := os.Lstat(to); there == nil {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to) // a file system without hard links; here a file can still come in between
}

// Abort removes what was written. After Commit it does nothing, so it can be deferred.
func (o *Output) Abort() {
	if o.Close() == nil && !o.IsDevice() {
		os.Remove(o.Name())
	}
}

// WriteOutput writes an output at once.
func WriteOutput(name string, write func(io.Writer) error) error {
	o, err := CreateOutput(name)
	if err != nil {
		return err
	}
	defer o.Abort()
	if err := write(o); err != nil {
		return err
	}
	return o.Commit()
}
