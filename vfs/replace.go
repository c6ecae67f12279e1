package vfs

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// ReplaceFile writes a small file of the operating system's, whole or not at all, and makes its directory, which is
// this user's alone. A reader sees the old contents or the new ones. A directory that another user can have prepared is
// a *[NotOwnError].
func ReplaceFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := CheckDir(OS{}, dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := createTemp(path, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = firstOf(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // err is the one to report
	}
	return err
}

// ReadOwn is ReadFile of a file that ReplaceFile has written. It refuses the directories that ReplaceFile refuses.
func ReadOwn(path string, maxBytes int64) ([]byte, error) {
	if err := CheckDir(OS{}, filepath.Dir(path)); err != nil {
		return nil, err
	}
	return ReadFile(OS{}, path, maxBytes)
}

// createTemp makes a file in the directory of a path, under a name that no other process can have foreseen.
func createTemp(path string, mode fs.FileMode) (*os.File, error) {
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".millrace-%016x.tmp", rand.Uint64()))
	return os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}
