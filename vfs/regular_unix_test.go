//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// A file that is not regular is refused in a line, and nothing waits for it. A link to a regular file counts as
// regular.
func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	pipe, file, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, []byte("text"), 0o600),
		os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{pipe: "a named pipe", dir: "a directory", os.DevNull: "a device", file: "",
		link: ""} {
		open := map[string]func() error{
			"OpenRegular": func() error {
				f, err := OpenRegular(name)
				if err != nil {
					return err
				}
				return f.Close()
			},
			"ReadFile": func() error { _, err := ReadFile(OS{}, name, 100); return err },
			"OS.Open": func() error {
				f, err := OS{}.Open(name)
				if err != nil {
					return err
				}
				return f.Close()
			},
		}
		for how, f := range open {
			err := f()
			if (want == "") != (err == nil) || want != "" && !strings.Contains(err.Error(),
				name+": it is "+want+", where a regular file is needed") {
				t.Errorf("%s of %s: %v", how, name, err)
			}
		}
	}
	if runtime.GOOS == "linux" {
		link := filepath.Join(dir, "environment")
		if err := os.Symlink("/proc/self/environ", link); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"/proc/self/environ", link} {
			if _, err := OpenRegular(name); err == nil ||
				!strings.Contains(err.Error(), name+": it leads to a file of the kernel's") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := OpenRegular(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
