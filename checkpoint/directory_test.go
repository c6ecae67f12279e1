package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/vfs"
)

// failing fails all operations of a kind on a path, with EIO.
func failing(kind vfs.OpKind, name string) func(vfs.Op) vfs.Outcome {
	return func(op vfs.Op) vfs.Outcome {
		if op.Kind == kind && op.Name == name {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	}
}

// isHeld reports whether some run has the lock of a directory.
func isHeld(fsys vfs.FS, dir string) bool {
	d, err := Acquire(fsys, dir, ours)
	if err == nil {
		_ = d.Close()
	}
	return errors.Is(err, vfs.ErrLocked)
}

// A run whose directory, or lock, vanished under it takes both again, and says which it was.
func TestRetake(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		r := start(t, fsys, dir, 1)
		for _, c := range []struct {
			what   string
			remove func() error
			lost   string
		}{
			{"nothing", func() error { return nil }, ""},
			{"the lock", func() error { return fsys.Remove(filepath.Join(dir, lockName)) }, filepath.Join(dir, lockName)},
			{"nothing more", func() error { return nil }, ""},
			{"all", func() error { return vfs.RemoveAll(fsys, dir) }, dir},
		} {
			known := len(r.known)
			must(t, c.remove())
			lost, err := r.Retake()
			if err != nil || lost != c.lost {
				t.Errorf("%s: lost %q, error %v", c.what, lost, err)
			}
			if !isHeld(fsys, dir) {
				t.Errorf("%s: another run can have the directory", c.what)
			}
			if want := lost != dir; (len(r.known) == known) != want {
				t.Errorf("%s: %d checkpoints are known to be whole", c.what, len(r.known))
			}
		}
		_, err := r.save(2)
		must(t, err)

		must(t, fsys.Remove(filepath.Join(dir, lockName)))
		other, err := Acquire(fsys, dir, ours)
		must(t, err)
		if lost, err := r.Retake(); !errors.Is(err, vfs.ErrLocked) || lost != filepath.Join(dir, lockName) {
			t.Errorf("another run has the directory: lost %q, error %v", lost, err)
		}
		must(t, r.Close())
		must(t, other.Close())
	})
}

// A start that could not have the lock removes the directories that it made, and no lock of another run.
func TestAbandonWithoutLock(t *testing.T) {
	m := vfs.NewMem()
	m.Intercept(failing(vfs.OpOpen, root+"/"+lockName))
	if _, err := Acquire(m, root, ours); !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v", err)
	}
	m.Intercept(nil)
	if _, err := m.Stat("out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the start made is left: %v", err)
	}

	must(t, m.MkdirAll(root, 0o777))
	d, err := Hold(m, root)
	must(t, err)
	must(t, d.Abandon())
	if _, err := m.Stat(root + "/" + lockName); err != nil {
		t.Errorf("the lock's file in a directory that was there: %v", err)
	}

	other, err := Acquire(m, root, ours) // in a directory that this start made, before it got the lock
	must(t, err)
	must(t, (&Directory{fsys: m, path: root, made: []string{root, "out"}}).Abandon())
	if is, err := other.lock.InPlace(); !is || err != nil {
		t.Errorf("another run's lock is in place: %v, error %v", is, err)
	}
}

// A checkpoint that gets its name back, since the one that was to replace it did not, has it durably, or the run does
// not start.
func TestRecoverIsDurable(t *testing.T) {
	hidden := hiddenName(1, ours.Run, replacedSuffix)
	for what, c := range map[string]struct {
		kind vfs.OpKind
		name string
	}{
		"rename": {vfs.OpRename, root + "/step-000001"}, "sync": {vfs.OpSyncDir, root},
		"look": {vfs.OpStat, root + "/step-000001"}, "list": {vfs.OpReadDir, root},
	} {
		m := vfs.NewMem()
		r := start(t, m, root, 1)
		must(t, r.Close())
		must(t, m.Rename(root+"/step-000001", root+"/"+hidden))
		m.Intercept(failing(c.kind, c.name))
		if _, err := acquire(m, root); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s fails: error %v", what, err)
		}
		m.Intercept(nil)
		r, err := acquire(m, root)
		must(t, err)
		if got := names(t, m, root); !slices.Equal(got, []string{"step-000001"}) {
			t.Errorf("%s: the directory holds %q", what, got)
		}
		must(t, r.Close())
	}
}

// A save begins once the files of an interrupted save of that step are removed, or fails: none of them may be in the new
// checkpoint.
func TestCreateRemovesWhatIsLeft(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root)
	left := filepath.Join(root, hiddenName(1, ours.Run, savingSuffix))
	must(t, m.MkdirAll(left, 0o777))
	must(t, vfs.WriteFileAtomic(m, filepath.Join(left, "strange"), nil))
	fails := 1
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpRemove && strings.HasPrefix(op.Name, left) && fails > 0 {
			fails--
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	dir, err := r.save(1)
	must(t, err)
	if fails > 0 {
		t.Error("nothing was removed")
	}
	if got := names(t, m, dir); slices.Contains(got, "strange") {
		t.Errorf("the checkpoint holds %q", got)
	}

	must(t, m.MkdirAll(left, 0o777))
	m.Intercept(failing(vfs.OpRemove, left))
	if _, err := r.Create(1, specs); !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v", err)
	}
}

// A name that is taken gets a number.
func TestSetAside(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root)
	for _, want := range []string{"step-000004.diverged", "step-000004.diverged-2", "step-000004.diverged-3"} {
		_, err := r.save(4)
		must(t, err)
		got, err := r.SetAside(4, Diverged)
		if err != nil || got != filepath.Join(root, want) {
			t.Errorf("%s, error %v, want %s", got, err, want)
		}
		if _, err := m.Stat(filepath.Join(root, want, manifestName)); err != nil {
			t.Error(err)
		}
	}
	if got, err := Aside(m, root); err != nil || len(got) != 3 || got[2] != filepath.Join(root, "step-000004.diverged") {
		t.Errorf("set aside: %q, error %v", got, err)
	}
	if _, err := Aside(m, "nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, err := r.SetAside(5, Diverged); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: error %v", err)
	}
	_, err := r.save(4)
	must(t, err)
	for _, f := range []func(vfs.Op) vfs.Outcome{failing(vfs.OpStat, root+"/step-000004.damaged"), failing(vfs.OpSyncDir, root)} {
		m.Intercept(f)
		if _, err := r.SetAside(4, Damaged); !errors.Is(err, syscall.EIO) {
			t.Errorf("error %v", err)
		}
		m.Intercept(nil)
	}
}

// A save over a damaged checkpoint of its step sets that aside, and one over another run's does not begin.
func TestSaveWhereOneIs(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 4)
	must(t, m.FlipBit(filepath.Join(root, "step-000004", manifestName), 100, 0))
	_, err := r.save(4)
	must(t, err)
	if got := names(t, m, root); !slices.Equal(got, []string{"step-000004", "step-000004.damaged"}) {
		t.Errorf("the directory holds %q", got)
	}
	must(t, r.Own(Owner{Run: "ffeeddccbbaa99887766554433221100"}))
	if _, err := r.Create(4, specs); err == nil || !strings.Contains(err.Error(), "is a checkpoint of another run: move it") {
		t.Errorf("error %v", err)
	}
	m.Intercept(failing(vfs.OpStat, root+"/step-000004"))
	if _, err := r.Create(4, specs); !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v", err)
	}
}

// A checkpoint that an unhealthy step led to is not counted among those that are kept, and nor is one that is damaged
// where only a read of all of it shows that.
func TestPruneReadsWhatItCounts(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 1, 2, 3, 4)
	w, err := r.Create(5, []Spec{norm})
	must(t, err)
	must(t, w.Add(norm.ID, 0, contents(norm, 5)))
	_, err = w.Commit(Manifest{UnhealthySteps: 1})
	must(t, err)
	must(t, r.Close())
	r, err = acquire(m, root) // which has read none of them
	must(t, err)
	must(t, m.FlipBit(filepath.Join(root, "step-000004", "norm.weights"), 3, 0))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Prune(ctx, 5, 2, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
	done, err := r.Prune(context.Background(), 5, 2, -1)
	must(t, err)
	if !slices.Equal(done.Aside, []string{filepath.Join(root, "step-000004.damaged")}) || !slices.Equal(done.Removed, []int{1}) {
		t.Errorf("%+v", done)
	}
	if got := names(t, m, root); !slices.Equal(got, []string{"step-000002", "step-000003", "step-000004.damaged", "step-000005"}) {
		t.Errorf("the directory holds %q", got)
	}
	// A checkpoint is read once: a later change goes unnoticed here.
	must(t, m.FlipBit(filepath.Join(root, "step-000003", "norm.weights"), 3, 0))
	done, err = r.Prune(context.Background(), 5, 1, -1)
	if err != nil || len(done.Aside) > 0 || !slices.Equal(done.Removed, []int{2}) {
		t.Errorf("%+v, error %v", done, err)
	}
}
