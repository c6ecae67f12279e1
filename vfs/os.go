package vfs

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// OS is the operating system's file system.
type OS struct{}

var _ FS = OS{}

// Open opens a regular file for reading.
func (OS) Open(name string) (File, error) {
	f, err := OpenRegular(name)
	if err != nil {
		return nil, err // and not a File that holds a nil *os.File
	}
	return osFile{f}, nil
}

// Create makes or empties a file.
func (OS) Create(name string) (File, error) {
	return OS{}.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o664)
}

// OpenFile is os.OpenFile for reading. For writing it follows no link at the name, and takes a regular file of this
// user's alone; see [NotOwnError].
func (OS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	open := os.OpenFile
	if flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		open = openOwn
	}
	f, err := open(name, flag, perm&^0o002) // no file is open to every user's writing, also with umask 0
	if err != nil {
		return nil, err // and not a File that holds a nil *os.File
	}
	return osFile{f}, nil
}

// Rename is os.Rename.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Link is os.Link.
func (OS) Link(oldName, newName string) error { return os.Link(oldName, newName) }

// Remove is os.Remove.
func (OS) Remove(name string) error { return os.Remove(name) }

// MkdirAll is os.MkdirAll.
func (OS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

// ReadDir is os.ReadDir.
func (OS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

// Stat is os.Stat.
func (OS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// Lstat is os.Lstat.
func (OS) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// SyncDir is fsync of the directory. Where directories cannot be synced (Windows, some network file systems) there is
// nothing better to do, and it does nothing.
func (OS) SyncDir(name string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return firstOf(err, d.Close())
}

type osFile struct{ *os.File }

func (f osFile) Preallocate(bytes int64) error { return preallocate(f.File, bytes) }
