package vfs_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/vfs"
)

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// An output replaces a plain file as a whole, follows links, and keeps permissions.
func TestOutputReplacesFiles(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, file, filepath.Join(dir, "new")} {
		if err := vfs.WriteOutput(name, func(io.Writer) error { return io.ErrShortWrite }); !errors.Is(err,
			io.ErrShortWrite) {
			t.Fatal(err)
		}
		if err := vfs.WriteOutput(name, put("to "+name)); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(name); string(text) != "to "+name || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if to, err := os.Readlink(link); to != "file" || err != nil {
		t.Errorf("the link: %q, %v", to, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if all := names(t, dir); len(all) != 3 {
		t.Errorf("files are left over: %v", all)
	}
	o, err := vfs.CreateOutput(file)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Abort()
	_, writeErr := o.Write(nil)
	o.Close()
	_, closedErr := o.WriteAt([]byte("x"), 0)
	if writeErr != nil || closedErr == nil || !strings.Contains(closedErr.Error(), file) {
		t.Errorf("%v, and %v without the user's name for it", writeErr, closedErr)
	}
}

// An output that is not a plain file is written in place or refused, and is never replaced.
func TestOutputKeepsWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := vfs.WriteOutput(os.DevNull, put("gone")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		t.Fatalf("the device is %v, %v", info, err)
	}
	dangling, pipe, inside := filepath.Join(dir, "dangling"), filepath.Join(dir, "pipe"), filepath.Join(dir, "directory")
	if err := errors.Join(os.Symlink("nothing", dangling), syscall.Mkfifo(pipe, 0o666),
		os.Mkdir(inside, 0o777)); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{dangling, pipe, inside, filepath.Join(dir, "none", "x")} {
		before, _ := os.Lstat(name)
		if err := vfs.WriteOutput(name, put("text")); err == nil {
			t.Errorf("%s was written", name)
		}
		if after, _ := os.Lstat(name); before != nil && !os.SameFile(before, after) {
			t.Errorf("%s is another file now", name)
		}
	}
	if all := names(t, dir); len(all) != 3 {
		t.Errorf("files are left over: %v", all)
	}
}

// TestCommitNew: a file that comes to the name meanwhile stays, and nothing else is left.
func TestCommitNew(t *testing.T) {
	for _, comes := range []bool{false, true} {
		name := filepath.Join(t.TempDir(), "a")
		o, err := vfs.CreateOutput(name)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Abort()
		if _, err := o.Write([]byte("new")); err != nil {
			t.Fatal(err)
		}
		want := "new"
		if comes {
			want = "mine"
			if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.CommitNew(); errors.Is(err, fs.ErrExist) != comes || !comes && err != nil {
			t.Errorf("a file comes: %v: %v", comes, err)
		}
		if doc, err := os.ReadFile(name); err != nil || string(doc) != want {
			t.Errorf("a file comes: %v: it holds %q, %v", comes, doc, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 1 {
			t.Errorf("there are %v", left)
		}
	}
}
