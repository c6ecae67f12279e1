package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// otherUser is the file system in which another user puts a directory of theirs at the name of a run's, between the
// run's check of that name and its making.
type otherUser struct {
	vfs.FS
	dir  string
	then func()
	done bool
}

func (o *otherUser) MkdirAll(name string, perm os.FileMode) error {
	if !o.done {
		o.done = true
		o.then()
	}
	return o.FS.MkdirAll(name, perm)
}

// A run checks its directory again once it holds it: one that changed between the first check and the making is
// refused, and nothing in it is removed.
func TestDirectoryChangesBeforeItIsHeld(t *testing.T) {
	for what, then := range map[string]func(dir string) error{
		"open to all": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777))
		},
		"checkpoints open to all": func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, CheckpointsName), 0o777),
				os.Chmod(filepath.Join(dir, CheckpointsName), 0o777))
		},
		"a model open to all": func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, LastModel), 0o777), os.Chmod(filepath.Join(dir, LastModel), 0o777))
		},
		"as it was": nil,
	} {
		c := &runfile.Config{OutputDir: filepath.Join(t.TempDir(), "run")}
		f := Files{}
		half := filepath.Join(c.OutputDir, PlanName+".tmp")
		f.FS = &otherUser{FS: vfs.OS{}, dir: c.OutputDir, then: func() {
			if then == nil {
				return
			}
			if err := then(c.OutputDir); err != nil {
				t.Fatal(err)
			}
			write(t, half, "of the other user")
		}}
		dir, err := f.holdRun(c)
		if then == nil {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			} else {
				dir.Close()
			}
			continue
		}
		if not := (*vfs.NotOwnError)(nil); !errors.As(err, &not) {
			t.Errorf("%s: error %v", what, err)
		}
		if !vfs.Exists(half) {
			t.Errorf("%s: a file in it was removed", what)
		}
	}
}
