//go:build unix

package train

import (
	"context"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
)

// A user whose files are open to all (umask 000), as in many containers, can start a run again: no file or directory of
// it can be written to by every user.
func TestRunsAreNotOpenToAll(t *testing.T) {
	c := smallConfig(t)
	c.Save.Every, c.Save.Fallback = 2, t.TempDir()
	c.Memory = budget(t, "4MiB")
	c.Memory.Disk = budget(t, "auto").Device
	defer syscall.Umask(syscall.Umask(0))
	until(t, c, "step  6/12")
	fallback := *c
	fallback.OutputDir = filepath.Join(t.TempDir(), "full")
	env, _ := fullBelow(t, &fallback)
	if _, err := Train(context.Background(), &fallback, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 6 {
		t.Errorf("again: %+v, error %v", got, err)
	}
	dirs, files := 0, 0
	for _, root := range []string{c.OutputDir, fallback.OutputDir, c.Save.Fallback} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Mode()&0o002 != 0 {
				t.Errorf("%s is %v", path, info.Mode())
			}
			if e.IsDir() {
				dirs++
			} else {
				files++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if dirs < 8 || files < 30 {
		t.Errorf("only %d directories and %d files", dirs, files)
	}
}
