// Package vfs is the file system as far as durable state needs it, with one implementation that is real and one that
// fails on request.
//
// Code that saves what must survive takes an [FS]. [OS] is the operating system's. [Mem] keeps files in memory, makes
// any operation fail or stop half-way, flips bits, and lists the states that a power cut could have left: killing a
// process cannot show a missing fsync, since the kernel keeps what was written.
//
// The rules of durability, which [Mem] applies to the letter:
//
//   - File.Sync makes a file's bytes and length durable, and not its name.
//   - FS.SyncDir makes the names in a directory durable (creations, renames, links, removals), and not what they name.
//   - What is not synced may survive in whole, in part, in any order, or not at all.
//
// [WriteAtomic] is the one way to replace a file: readers and crashes see the old contents or the new.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/below"
)

// FS names files. Paths are the operating system's. Errors are *fs.PathError or *os.LinkError and match fs.ErrNotExist
// and its siblings.
type FS interface {
	// Open opens a regular file for reading; others are refused, as OpenRegular does.
	Open(name string) (File, error)
	// Create makes or empties a file, open for reading and writing.
	Create(name string) (File, error)
	// OpenFile takes the os.O_ flags and [Direct]. For writing it follows no link at the name, as Create and Lock do not,
	// and refuses what is not a regular file of this user's: see [NotOwnError].
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename replaces newName, if it is a file, in one step.
	Rename(oldName, newName string) error
	// Exchange gives each of two files or directories the other's name, in one step where the system can.
	Exchange(a, b string) error
	// Link gives a file a second name, which must be free.
	Link(oldName, newName string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// MkdirAll makes a directory and those above it. The new names are not durable before SyncDir of their parents.
	MkdirAll(name string, perm fs.FileMode) error
	// ReadDir lists a directory by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// Lstat is Stat of the link itself where the name is a symbolic link.
	Lstat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// FreeBytes returns the bytes that may still be written to the file system that holds name.
	FreeBytes(name string) (int64, error)
	// Lock makes the file if need be and holds it until Close or the end of the process. The error matches [ErrLocked]
	// while someone else holds it, in this process or another. Who holds it may write to it, and may remove it before
	// Close.
	Lock(name string) (Lock, error)
}

// Lock is a file that is held.
type Lock interface {
	File
	// InPlace reports whether the file still has its name. Without it, as after the removal of its directory, it keeps
	// no process out.
	InPlace() (bool, error)
}

// ErrLocked is why a file that is held cannot be locked.
var ErrLocked = errors.New("another process uses it")

// DirectAlign is the unit, in bytes, of offsets, lengths and addresses in direct I/O.
const DirectAlign = 4096

// File is an open file.
type File interface {
	io.Reader
	io.Writer
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Name is the path that the file was opened with.
	Name() string
	// Sync makes contents and length durable.
	Sync() error
	Stat() (fs.FileInfo, error)
	// Truncate sets the length; what is added reads as zeros and reserves nothing.
	Truncate(bytes int64) error
	// Preallocate makes the file at least this long, with its disk space reserved, so that later writes cannot run out
	// of it. Existing contents stay; what is added reads as zeros.
	Preallocate(bytes int64) error
}

// WriteAtomic replaces a file with what write puts into it. The contents go to name+".tmp", are synced, and are renamed
// into place; then the directory is synced. On an error the old file is untouched and the temporary one removed. Two
// writers of one name must not run at once.
func WriteAtomic(fsys FS, name string, write func(File) error) (err error) {
	temp := name + ".tmp"
	f, err := fsys.Create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = fsys.Remove(temp) // the first error is the one to report
		}
	}()
	if err := firstOf(fillAndSync(f, write), f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func fillAndSync(f File, write func(File) error) error {
	if err := write(f); err != nil {
		return err
	}
	return f.Sync()
}

// firstOf is the first error: the one that later ones follow from.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteFileAtomic is WriteAtomic of bytes.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	return WriteAtomic(fsys, name, func(f File) error {
		_, err := f.Write(data)
		return err
	})
}

// ReadFile reads a whole file, which may be longer than it says. One that is longer than maxBytes is an error, and no
// more than that is read.
func ReadFile(fsys FS, name string, maxBytes int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return below.ReadAll(f, name, maxBytes)
}

// Exists reports whether the operating system has something at a path, at the end of a link if it is one.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// MakeDirs makes a directory and those above it, and returns those that were not there before, leaf first.
func MakeDirs(fsys FS, name string, perm fs.FileMode) (made []string, err error) {
	for dir := filepath.Clean(name); ; dir = filepath.Dir(dir) {
		_, err := fsys.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return nil, err
		}
		made = append(made, dir)
	}
	return made, fsys.MkdirAll(name, perm)
}

// RemoveEmpty removes directories, in order, up to the first one that is not empty.
func RemoveEmpty(fsys FS, dirs []string) {
	for _, dir := range dirs {
		if fsys.Remove(dir) != nil {
			return // it is in use
		}
	}
}

// RemoveAll removes a file, or a directory with all that is in it. A name that does not exist is no error. A symbolic
// link is never followed, also if it cannot be removed.
func RemoveAll(fsys FS, name string) error {
	if _, real := fsys.(OS); real {
		return os.RemoveAll(name) // where no link can take a directory's place between two operations either
	}
	err := fsys.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	info, errThere := fsys.Lstat(name)
	switch {
	case errors.Is(errThere, fs.ErrNotExist):
		return err
	case errThere != nil:
		return errThere
	case !info.IsDir():
		return err
	}
	entries, errThere := fsys.ReadDir(name)
	switch {
	case errThere != nil:
		return errThere
	case len(entries) == 0:
		return err // it is not for what is in it that it stays
	}
	for _, e := range entries {
		if err := RemoveAll(fsys, filepath.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return fsys.Remove(name)
}

// zeroFill extends a file to a length by writing, which reserves the space wherever writing does.
func zeroFill(f *os.File, bytes int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := info.Size(); at < bytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), bytes-at)], at); err != nil {
			return err
		}
	}
	return nil
}
