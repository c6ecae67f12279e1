//go:build unix

package below

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Other files than regular ones are refused in a line, and nothing waits for them.
func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("pipe", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Mknod(filepath.Join(dir, "device"), syscall.S_IFCHR|0o600, 1<<8|5) // as root alone
	for name, want := range map[string]string{"pipe": "a named pipe", "link": "a named pipe", "device": "a device"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			continue
		}
		if f, err := Open(dir, name); err == nil || !strings.Contains(err.Error(), "it is "+want) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
		if doc, err := ReadFile(filepath.Join(dir, name), 10); err == nil || !strings.Contains(err.Error(), "it is "+want) {
			t.Errorf("%s by name: %q, %v", name, doc, err)
		}
	}
	if _, err := ReadFile(os.DevNull, 10); err == nil {
		t.Error("a device was read")
	}
}
