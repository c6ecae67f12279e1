//go:build unix

package vfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// another is a user that is neither this one nor root.
const another = 54321

// chown gives a file or a link to another user, which only root can.
func chown(t *testing.T, name string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to other users")
	}
	must(t, os.Lchown(name, another, another))
}

// A file that is opened for writing is a regular one with one name: a link's target is not changed, made, or waited
// for.
func TestWritingFollowsNoLink(t *testing.T) {
	writers := map[string]func(name string) (File, error){
		"Create":   OS{}.Create,
		"OpenFile": func(name string) (File, error) { return OS{}.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0) },
		"append": func(name string) (File, error) {
			return OS{}.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o666)
		},
		"Lock": func(name string) (File, error) { return OS{}.Lock(name) },
	}
	for what, c := range map[string]struct {
		make func(kept, name string) error
		want string // of the error; empty: it is opened
	}{
		"a file":          {func(_, name string) error { return os.WriteFile(name, []byte("old"), 0o666) }, ""},
		"a link":          {os.Symlink, "is a symbolic link"},
		"a dangling link": {func(kept, name string) error { return os.Symlink(kept+"-none", name) }, "is a symbolic link"},
		"a hard link":     {os.Link, "has 2 names"},
		"a pipe":          {func(_, name string) error { return syscall.Mkfifo(name, 0o666) }, "is a named pipe"},
		"a link to a device": {func(_, name string) error { return os.Symlink(os.DevNull, name) },
			"is a symbolic link"},
	} {
		for how, open := range writers {
			t.Run(what+", "+how, func(t *testing.T) {
				dir := t.TempDir()
				kept, name := filepath.Join(dir, "kept"), filepath.Join(dir, "name")
				must(t, os.WriteFile(kept, []byte("precious"), 0o666))
				must(t, c.make(kept, name))
				f, err := open(name)
				if err == nil {
					_, err = f.Write([]byte("new"))
					must(t, errors.Join(err, f.Close()))
				}
				var refused *NotOwnError
				if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refused) ||
					!strings.Contains(err.Error(), name+" "+c.want)) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if text, err := os.ReadFile(kept); err != nil || string(text) != "precious" {
					t.Errorf("the other file is %q, error %v", text, err)
				}
				if _, err := os.Lstat(kept + "-none"); err == nil {
					t.Error("a file was made where the link leads")
				}
			})
		}
	}
}

// A file of another user is not written to, unless the directory is that user's: then nothing was put there that this
// user has not allowed.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "name")
	must(t, os.WriteFile(name, []byte("old"), 0o666))
	chown(t, name)
	var refused *NotOwnError
	if f, err := (OS{}).Create(name); !errors.As(err, &refused) {
		t.Errorf("%v, error %v", f, err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "old" {
		t.Errorf("the file is %q, error %v", text, err)
	}
	chown(t, dir)
	f, err := OS{}.Create(name)
	must(t, err)
	must(t, f.Close())
}

func TestCheckDir(t *testing.T) {
	mode := func(mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, name string) {
			must(t, os.Mkdir(name, 0o777))
			must(t, os.Chmod(name, mode))
		}
	}
	link := func(t *testing.T, name string) {
		must(t, os.Mkdir(name+"-big", 0o777))
		must(t, os.Symlink(name+"-big", name))
	}
	for what, c := range map[string]struct {
		make func(*testing.T, string)
		want string // of the error; empty: it is fine
	}{
		"none":                 {func(*testing.T, string) {}, ""},
		"private":              {mode(0o700), ""},
		"readable":             {mode(0o755), ""},
		"of a group":           {mode(0o2775), ""},
		"of everybody":         {mode(0o777), "can be written to by every user"},
		"of everybody, sticky": {mode(0o777 | os.ModeSticky), ""},
		"a link":               {link, ""},
		"a file":               {func(t *testing.T, name string) { must(t, os.WriteFile(name, nil, 0o666)) }, ""},
		"a link to nothing":    {func(t *testing.T, name string) { must(t, os.Symlink("none", name)) }, ""},
		"another user's":       {func(t *testing.T, name string) { mode(0o755)(t, name); chown(t, name) }, "belongs to another user"},
		"another user's, open": {func(t *testing.T, name string) { mode(0o777)(t, name); chown(t, name) }, "belongs to another user"},
		"another user's link":  {func(t *testing.T, name string) { link(t, name); chown(t, name) }, "another user (uid 54321) has made"},
		"a link to another user's": {func(t *testing.T, name string) { link(t, name); chown(t, name+"-big") },
			"belongs to another user"},
	} {
		t.Run(what, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "run")
			c.make(t, name)
			err := CheckDir(OS{}, name)
			var refused *NotOwnError
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refused) ||
				!strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(name, ".*.tmp")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
	must(t, CheckDir(NewMem(), "run"))
}

// A refusal says what this user can do: about all directories at once, and not what only their owner can do.
func TestCheckDirSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	out, elsewhere := filepath.Join(dir, "out"), filepath.Join(dir, "elsewhere")
	model, saves, link := filepath.Join(out, "model"), filepath.Join(out, "checkpoints"), filepath.Join(out, "link")
	must(t, errors.Join(os.MkdirAll(model, 0o755), os.Mkdir(saves, 0o755), os.Mkdir(elsewhere, 0o755),
		os.Symlink(elsewhere, link)))
	fix := func(want string) {
		t.Helper()
		err := CheckDir(OS{}, out, model, saves, link)
		if err == nil || err.Error() != want {
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
	open := func(names ...string) {
		for _, name := range names {
			must(t, os.Chmod(name, 0o777))
		}
	}
	must(t, CheckDir(OS{}, out, model, saves, link))
	open(model, saves)
	fix(model + " can be written to by every user: close it (chmod -R o-w " + model + " " + saves + "), or remove it, " +
		"or choose another directory than " + out)
	open(out, elsewhere)
	fix(out + " can be written to by every user: close it (chmod -R o-w " + out + " " + link + "), or use a new " +
		"directory in it, such as " + out + "/run")
	must(t, CheckDir(OS{}, filepath.Join(out, "run")))
	for _, name := range []string{out, model, saves, elsewhere} {
		must(t, os.Chmod(name, 0o755))
	}
	chown(t, model)
	fix(model + " belongs to another user (uid 54321): remove it, or choose another directory than " + out)
	chown(t, out)
	fix(out + " belongs to another user (uid 54321): use a new directory in it, such as " + out + "/run")
}

// squashed is a file system that decides itself what directories look like.
type squashed struct{ OS }

func (squashed) Lstat(name string) (os.FileInfo, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	return squashedInfo{info}, nil
}

type squashedInfo struct{ os.FileInfo }

func (i squashedInfo) Mode() os.FileMode { return i.FileInfo.Mode() | 0o777 }
func (i squashedInfo) Sys() any          { return &syscall.Stat_t{Uid: another} }

// Where all files look like those of one user, or open to all, that says nothing.
func TestCheckDirWithoutOwners(t *testing.T) {
	must(t, CheckDir(squashed{}, t.TempDir()))
}

// The target of a link stays also where the link itself cannot be removed.
func TestRemoveAllOfLinksThatStay(t *testing.T) {
	dir := t.TempDir()
	kept, tree := filepath.Join(dir, "kept"), filepath.Join(dir, "tree")
	must(t, errors.Join(os.Mkdir(kept, 0o777), os.Mkdir(tree, 0o777),
		os.WriteFile(filepath.Join(kept, "thesis"), nil, 0o666), os.Symlink(kept, filepath.Join(tree, "link"))))
	check := func(fsys FS, name string) {
		t.Helper()
		if err := RemoveAll(fsys, name); err == nil {
			t.Errorf("%s is removed", name)
		}
		if _, err := os.Stat(filepath.Join(kept, "thesis")); err != nil {
			t.Fatal(err)
		}
	}
	drive := NewFaulty(OS{})
	drive.Intercept(func(op Op) Outcome {
		if op.Kind == OpRemove && filepath.Base(op.Name) == "link" {
			return Outcome{Err: syscall.EACCES}
		}
		return Outcome{}
	})
	check(drive, filepath.Join(tree, "link"))
	check(drive, tree)
	if os.Geteuid() == 0 {
		t.Skip("root can remove any link")
	}
	must(t, os.Chmod(tree, 0o555))
	defer os.Chmod(tree, 0o755)
	check(OS{}, filepath.Join(tree, "link"))
	check(OS{}, tree)
}

// Small files of the cache are not written through links that another process could have foreseen, nor in a directory
// that another user can have prepared, from which they are not read either.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	kept, path := filepath.Join(dir, "kept"), filepath.Join(dir, "cache", "small.json")
	must(t, os.WriteFile(kept, []byte("precious"), 0o666))
	must(t, ReplaceFile(path, []byte("old")))
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, error %v", info.Mode(), err)
	}
	for _, name := range []string{fmt.Sprintf("%s.%d", path, os.Getpid()), path + ".tmp"} {
		must(t, os.Symlink(kept, name))
	}
	must(t, ReplaceFile(path, []byte("new")))
	for name, want := range map[string]string{kept: "precious", path: "new"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			t.Errorf("%s is %q, error %v", name, text, err)
		}
	}
	if text, err := ReadOwn(path, 3); err != nil || string(text) != "new" {
		t.Errorf("%q, error %v", text, err)
	}
	if _, err := ReadOwn(path, 2); err == nil {
		t.Error("a file that is too long is read")
	}
	must(t, os.Chmod(filepath.Dir(path), 0o777))
	var refused *NotOwnError
	if err := ReplaceFile(path, nil); !errors.As(err, &refused) {
		t.Errorf("error %v", err)
	}
	if _, err := ReadOwn(path, 100); !errors.As(err, &refused) {
		t.Errorf("error %v", err)
	}
}
