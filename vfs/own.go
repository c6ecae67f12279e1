package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/below"
)

// NotOwnError is why a file or a directory is not written to: another user made it, or can change it while the program
// works in it. What such a directory holds may have been prepared so that a write changes a file of this user's
// elsewhere.
type NotOwnError struct {
	Path string
	Why  string // what it is, and what to do about it
}

func (e *NotOwnError) Error() string { return e.Path + " " + e.Why }

// CheckDir refuses a directory that a program must not clean or write to: one of another user, one that every user can
// write to (without the sticky bit, with which users change only their own files), and a link that another user has
// made. It is a *[NotOwnError]. Directories of root are trusted, and so are those of a group that write for it. A
// directory that does not exist is fine. A link of this user's own leads to the directory that is checked.
//
// Where the file system itself decides who owns files and who may write (a share whose server maps all users to one, a
// drive without permissions), a directory is this user's if a new one looks the same.
func CheckDir(fsys FS, name string) error {
	info, err := fsys.Lstat(name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if uid, ok := owner(info); ok && !trusted(uid) {
			return &NotOwnError{name, fmt.Sprintf("is a link that another user (uid %d) has made: remove it, or choose another directory", uid)}
		}
		info, err = fsys.Stat(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	why := ""
	uid, known := owner(info)
	switch {
	case !known || !info.IsDir():
		return nil // who opens or lists it says what it is
	case !trusted(uid):
		why = fmt.Sprintf("belongs to another user (uid %d): choose a directory of your own, or run as that user", uid)
	case info.Mode()&(0o002|fs.ModeSticky) == 0o002:
		why = "can be written to by every user: close it (chmod o-w), or choose another directory"
	default:
		return nil
	}
	if fresh, err := freshDir(fsys, name); err == nil {
		now, _ := owner(fresh)
		if now == uid && info.Mode()&0o002 <= fresh.Mode()&0o002 {
			return nil
		}
	}
	return &NotOwnError{name, why}
}

// freshDir is what a directory looks like that this process makes for itself in another one.
func freshDir(fsys FS, in string) (fs.FileInfo, error) {
	name := filepath.Join(in, fmt.Sprintf(".millrace-%016x.tmp", rand.Uint64()))
	if err := fsys.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	info, err := fsys.Lstat(name)
	return info, firstOf(err, fsys.Remove(name))
}

// openOwn opens a file for writing. It takes a regular file without other names, of this user, of root, or of the owner
// of the directory, and follows no link. It empties a file only once it knows that.
func openOwn(name string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(name, flag&^os.O_TRUNC|noFollow, perm)
	if err != nil {
		if info, errThere := os.Lstat(name); errThere == nil && !info.Mode().IsRegular() && !info.IsDir() {
			err = notOwn(name, info)
		}
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = notOwn(name, info)
	}
	if err == nil && flag&os.O_TRUNC != 0 && info.Size() > 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, err
	}
	return f, nil
}

// notOwn is why a file is not written to; nil if there is no reason.
func notOwn(name string, info fs.FileInfo) error {
	refuse := func(format string, args ...any) error {
		return &NotOwnError{name, fmt.Sprintf(format, args...)}
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return refuse("is a symbolic link, which is not written through: remove it")
	case !mode.IsRegular():
		return refuse("is %s, where a regular file is needed: remove it", below.KindOf(mode))
	case names(info) > 1:
		return notOneName(name, names(info))
	}
	uid, ok := owner(info)
	if !ok || trusted(uid) {
		return nil
	}
	if dir, err := os.Stat(filepath.Dir(name)); err == nil {
		if of, _ := owner(dir); of == uid {
			return nil // who could put any other file here
		}
	}
	return refuse("belongs to another user (uid %d): remove it, or run as that user", uid)
}

// notOneName refuses a file that has other names, where its contents would change, too.
func notOneName(name string, names int) error {
	return &NotOwnError{name, fmt.Sprintf("has %d names (hard links), and would change under all of them: make it a copy (cp), or remove it", names)}
}

// trusted reports whether a user cannot be kept from changing what this process changes: this user, and root.
func trusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }
