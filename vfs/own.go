package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
// made. Inside are directories in it for which the same holds. The error is a *[NotOwnError], and says what to do about
// all of them. Directories of root are trusted, and so are those of a group that write for it. A directory that does
// not exist is fine. A link of this user's own leads to the directory that is checked.
//
// Where the file system itself decides who owns files and who may write (a share whose server maps all users to one, a
// drive without permissions), a directory is this user's if a new one looks the same.
func CheckDir(fsys FS, name string, inside ...string) error {
	var first *NotOwnError
	var open []string // that this user can close
	for _, dir := range append([]string{name}, inside...) {
		why, canClose, err := checkDir(fsys, dir)
		if err != nil {
			return err
		}
		if why == "" {
			continue
		}
		if first == nil {
			first = &NotOwnError{dir, why}
		}
		if canClose && !slices.ContainsFunc(open, func(above string) bool { return isBelow(fsys, dir, above) }) {
			open = append(open, dir)
		}
	}
	if first == nil {
		return nil
	}
	fix := ""
	if len(open) > 0 && first.Path == open[0] {
		fix = "close it (chmod -R o-w " + strings.Join(open, " ") + "), or "
	}
	first.Why += ": " + fix + otherDir(fsys, name, first.Path)
	return first
}

// otherDir says what to do instead of working in a directory that is refused: dir, which is name or in it.
func otherDir(fsys FS, name, dir string) string {
	switch {
	case dir != name:
		return "remove it, or choose another directory than " + name
	case isLink(fsys, name):
		return "remove it, or choose another directory"
	}
	if _, err := freshDir(fsys, name); err != nil {
		return "choose a directory of your own"
	}
	return "use a new directory in it, such as " + filepath.Join(name, "run")
}

// isBelow reports whether a change of a directory and of all that is below it changes another one.
func isBelow(fsys FS, dir, above string) bool {
	return strings.HasPrefix(dir, above+string(filepath.Separator)) && !isLink(fsys, dir)
}

func isLink(fsys FS, name string) bool {
	info, err := fsys.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// checkDir is why a directory is refused; empty if it is not. canClose is that this user can take the permissions away
// that are the reason.
func checkDir(fsys FS, name string) (why string, canClose bool, err error) {
	info, err := fsys.Lstat(name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if uid, ok := owner(info); ok && !trusted(uid) {
			return fmt.Sprintf("is a link that another user (uid %d) has made", uid), false, nil
		}
		info, err = fsys.Stat(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	uid, known := owner(info)
	switch {
	case !known || !info.IsDir():
		return "", false, nil // who opens or lists it says what it is
	case !trusted(uid):
		why = fmt.Sprintf("belongs to another user (uid %d)", uid)
	case info.Mode()&(0o002|fs.ModeSticky) == 0o002:
		why, canClose = "can be written to by every user", uid == os.Geteuid()
	default:
		return "", false, nil
	}
	if fresh, err := freshDir(fsys, name); err == nil {
		now, _ := owner(fresh)
		if now == uid && info.Mode()&0o002 <= fresh.Mode()&0o002 {
			return "", false, nil
		}
	}
	return why, canClose, nil
}

// freshDir describes a directory that this process makes for itself in another one.
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
	return &NotOwnError{name, fmt.Sprintf("has %d names (hard links), and would change under all of them: "+
		"make it a copy (cp), or remove it", names)}
}

// trusted reports whether a user cannot be kept from changing what this process changes: this user, and root.
func trusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }
