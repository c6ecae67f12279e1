package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/vfs"
)

// At every moment of a run that saves, saves again, prunes, and replaces a checkpoint, the machine stops; whatever of
// what was not synced survived, the next run finds a whole checkpoint, at least as new as the last one that the run
// was told was safe, can save on, and has nothing of the interrupted save left.
func TestCrashes(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		testCrashes(t, func(m *vfs.Mem) (*run, func(step int) error) {
			r := start(t, m, root)
			return r, func(step int) error { _, err := r.save(step); return err }
		})
	})
	t.Run("on two hosts", func(t *testing.T) {
		testCrashes(t, func(m *vfs.Mem) (*run, func(step int) error) {
			c := newCluster(t, root, m, m)
			return c.runs[0], c.saveAll
		})
	})
}

// testCrashes tests a run that begins on a file system, and its saves.
func testCrashes(t *testing.T, begin func(*vfs.Mem) (*run, func(step int) error)) {
	m := vfs.NewMem()
	m.RecordCrashes()
	r, save := begin(m)
	// A file in another directory says which save the run believes in, as metrics and exit status do.
	must(t, m.MkdirAll("believed", 0o777))
	believe := func(step int) {
		must(t, vfs.WriteFileAtomic(m, fmt.Sprintf("believed/%d", step), nil))
	}
	for _, step := range []int{1, 2, 3} {
		must(t, save(step))
		believe(step)
		_, err := r.prune(step, 1, 1)
		must(t, err)
	}
	must(t, save(3)) // it replaces the other
	images := m.CrashImages()
	found := map[int]int{}
	for _, image := range images {
		believed := 0
		for step := 1; step <= 3; step++ {
			if _, err := image.FS.Stat(fmt.Sprintf("believed/%d", step)); err == nil {
				believed = step
			}
		}
		// Everything that has a checkpoint's name is one, before anybody cleans up.
		entries, err := List(image.FS, root)
		must(t, err)
		for _, e := range entries {
			if e.Err != nil {
				t.Fatalf("%s: %v", image.Point, e.Err)
			}
			c, err := Open(image.FS, e.Dir)
			must(t, err)
			if err := whole(c); err != nil {
				t.Fatalf("%s: %v", image.Point, err)
			}
		}
		next, err := acquire(image.FS, root)
		must(t, err)
		c, broken, err := Latest(image.FS, root)
		must(t, err)
		step := 0
		if c != nil {
			step = c.Manifest.Step
			if err := whole(c); err != nil {
				t.Fatalf("%s: %v", image.Point, err)
			}
		}
		if step < believed || len(broken) > 0 {
			t.Fatalf("%s: step %d was saved, and step %d is the latest; broken: %v", image.Point, believed, step, broken)
		}
		found[step]++
		for _, name := range names(t, image.FS, root) {
			if strings.HasPrefix(name, ".") {
				t.Fatalf("%s: %s is left", image.Point, name)
			}
		}
		if _, err := next.save(step + 1); err != nil {
			t.Fatalf("%s: %v", image.Point, err)
		}
	}
	t.Logf("%d images; latest step: %v", len(images), found)
	for step := range 4 {
		if found[step] == 0 {
			t.Errorf("no image has step %d as its latest", step)
		}
	}
}

// The crash test above notices each sync that is left out.
func TestCrashesNoticeMissingSyncs(t *testing.T) {
	for name, skip := range map[string]func(vfs.Op) bool{
		"image":     func(op vfs.Op) bool { return strings.HasSuffix(op.Name, "block.0.weights") },
		"version":   func(op vfs.Op) bool { return strings.Contains(op.Name, "pool/version-") }, // the store's own
		"manifest":  func(op vfs.Op) bool { return strings.HasSuffix(op.Name, manifestName) },
		"files":     func(op vfs.Op) bool { return op.Kind == vfs.OpSyncDir && strings.HasSuffix(op.Name, savingSuffix) },
		"directory": func(op vfs.Op) bool { return op.Kind == vfs.OpSyncDir && op.Name == root },
		"parent":    func(op vfs.Op) bool { return op.Kind == vfs.OpSyncDir && op.Name == "out" },
	} {
		m := vfs.NewMem()
		must(t, m.MkdirAll("believed", 0o777))
		m.RecordCrashes()
		lazy := &lazySync{m, skip}
		start(t, lazy, root, 1)
		must(t, vfs.WriteFileAtomic(m, "believed/1", nil))
		bad := 0
		for _, image := range m.CrashImages() {
			_, err := image.FS.Stat("believed/1")
			c, broken, _ := Latest(image.FS, root)
			if err == nil && c == nil || len(broken) > 0 || c != nil && whole(c) != nil {
				bad++
			}
		}
		if bad == 0 {
			t.Errorf("no crash would show that %s is not synced", name)
		}
	}
}

// lazySync leaves out some syncs.
type lazySync struct {
	*vfs.Mem
	skip func(vfs.Op) bool
}

func (l *lazySync) SyncDir(name string) error {
	if l.skip(vfs.Op{Kind: vfs.OpSyncDir, Name: name}) {
		return nil
	}
	return l.Mem.SyncDir(name)
}

func (l *lazySync) Open(name string) (vfs.File, error) {
	f, err := l.Mem.Open(name)
	return lazyFile{f, l}, err
}

func (l *lazySync) Create(name string) (vfs.File, error) {
	f, err := l.Mem.Create(name)
	return lazyFile{f, l}, err
}

type lazyFile struct {
	vfs.File
	l *lazySync
}

func (f lazyFile) Sync() error {
	if f.l.skip(vfs.Op{Kind: vfs.OpSync, Name: f.Name()}) {
		return nil
	}
	return f.File.Sync()
}

// Every operation of a save and a prune fails, once or from then on, with nothing or half of a write done: the error
// is the system's, earlier checkpoints are whole, and a later run has no trace of it.
func TestFaults(t *testing.T) {
	work := func(r *run) error {
		if _, err := r.save(3); err != nil {
			return err
		}
		if _, err := r.prune(3, 2, -1); err != nil {
			return err
		}
		_, err := r.save(3)
		return err
	}
	// These may fail without a word: what is told to the kernel in passing, and the removal of what is not needed.
	silent := map[vfs.OpKind]bool{vfs.OpClose: true, vfs.OpRemove: true, vfs.OpReadDir: true, vfs.OpStat: true}
	for how, f := range map[string]struct {
		fault func(int, error) func(vfs.Op) vfs.Outcome
		cause error
	}{
		"once": {vfs.FailNth, syscall.EIO}, "from then on": {vfs.FailFrom, syscall.ENOSPC}, "short": {vfs.ShortNth, syscall.ENOSPC},
	} {
		cause := f.cause
		failures := 0
		for n := 1; ; n++ {
			m := vfs.NewMem()
			r := start(t, m, root, 1, 2)
			before := m.Ops()
			inject := f.fault(before+n, cause)
			var hit vfs.OpKind
			var spared bool // it may fail without an error, or does not fail: it is the store's
			m.Intercept(func(op vfs.Op) vfs.Outcome {
				isStores := strings.HasPrefix(op.Name, r.pool)
				if op.N == before+n {
					// Prune takes a checkpoint that it cannot look into for one that is not complete.
					looks := (op.Kind == vfs.OpOpen || op.Kind == vfs.OpRead) && strings.HasPrefix(op.Name, root+"/step-")
					hit, spared = op.Kind, isStores || looks
				}
				if isStores {
					return vfs.Outcome{}
				}
				return inject(op)
			})
			err := work(r)
			m.Intercept(nil)
			if m.Ops()-before < n {
				must(t, err)
				break
			}
			at := fmt.Sprintf("operation %d (%v) failed %s with %v", n, hit, how, cause)
			switch {
			case err == nil && !silent[hit] && !spared:
				t.Fatalf("%s: no error", at)
			case err != nil && !errors.Is(err, cause):
				t.Fatalf("%s: error %v", at, err)
			case err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), fix(cause))):
				t.Fatalf("%s: error %q", at, err)
			}
			if err != nil {
				failures++
			}
			must(t, r.Close())

			r, err = acquire(m, root)
			must(t, err)
			entries, err := List(m, root)
			must(t, err)
			if len(entries) < 2 || entries[0].Step < 2 {
				t.Fatalf("%s: left are %+v", at, entries)
			}
			for _, e := range entries {
				c, err := Open(m, e.Dir)
				must(t, err)
				if err := whole(c); err != nil {
					t.Fatalf("%s: %v", at, err)
				}
			}
			if got := names(t, m, root); len(got) != len(entries) {
				t.Fatalf("%s: left are %q", at, got)
			}
			if _, err := r.save(4); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		}
		if failures < 50 {
			t.Errorf("%s with %v: %d failures", how, cause, failures)
		}
	}
}

// Reading reports what the disk reports, and what to do.
func TestReadFaults(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 1, 2)
	dir := filepath.Join(root, "step-000002")
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpRead && strings.HasPrefix(op.Name, dir) {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	_, err := Open(m, dir)
	want := dir + "/manifest.json: it cannot be read: input/output error: resume from the previous checkpoint, " + root + "/step-000001"
	if !errors.Is(err, syscall.EIO) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if c, broken, err := Latest(m, root); err != nil || c.Manifest.Step != 1 || len(broken) != 1 {
		t.Errorf("latest: %v %v", broken, err)
	}
}

// A file system without hard links, or a store on another one, gets copies.
func TestCopiesWhereLinksCannotBe(t *testing.T) {
	for _, cause := range []error{syscall.EXDEV, syscall.EPERM, syscall.EMLINK, syscall.ENOTSUP} {
		m := vfs.NewMem()
		r := start(t, m, root)
		m.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.Kind == vfs.OpLink {
				return vfs.Outcome{Err: cause}
			}
			return vfs.Outcome{}
		})
		w, err := r.Create(1, specs)
		must(t, err)
		must(t, r.fill(w, 1))
		if w.Linked() != 0 || w.Written() != 396+int64(len(configText)) {
			t.Errorf("%v: %d linked, %d written", cause, w.Linked(), w.Written())
		}
		dir, err := w.Commit(manifestOf(1))
		must(t, err)
		c, err := Open(m, dir)
		must(t, err)
		must(t, whole(c))
		// Copied bytes are compared: a store's file that has changed is not saved as if it were right.
		w, err = r.Create(2, specs)
		must(t, err)
		path, err := r.version(make([]byte, 80))
		must(t, err)
		if err := w.Link(moments.ID, 0, path, 1); err == nil || !strings.Contains(err.Error(), path+" does not match its checksum") {
			t.Errorf("error %v", err)
		}
		w.Abort()
	}
}

func TestLinkOfFilesThatAreWrong(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root)
	w, err := r.Create(1, specs)
	must(t, err)
	if err := w.Link(moments.ID, 0, "nowhere", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	w.Abort()
	w, err = r.Create(1, specs)
	must(t, err)
	path, err := r.version(make([]byte, 10))
	must(t, err)
	if err := w.Link(moments.ID, 0, path, 0); err == nil || !strings.Contains(err.Error(), path+" has 26 bytes, and the piece that is linked has 80") {
		t.Errorf("error %v", err)
	}
	w.Abort()
}

// failingSync fails one sync of a directory.
type failingSync struct {
	vfs.FS
	armed bool
}

func (f *failingSync) SyncDir(name string) error {
	if f.armed && name == root {
		f.armed = false
		return &fs.PathError{Op: "sync", Path: name, Err: syscall.EIO}
	}
	return f.FS.SyncDir(name)
}

// A save that is said to have failed is not there, and what it would have replaced is.
func TestFailedSavesAreNotThere(t *testing.T) {
	m := &failingSync{FS: vfs.NewMem()}
	r := start(t, m, root, 1)
	before, err := Open(m, filepath.Join(root, DirName(1)))
	must(t, err)
	for _, step := range []int{1, 2} { // one replaces another, one is new
		m.armed = true
		if _, err := r.save(step); !errors.Is(err, syscall.EIO) || m.armed {
			t.Fatalf("step %d: error %v", step, err)
		}
		entries, err := List(m, root)
		must(t, err)
		if len(entries) != 1 || entries[0].Err != nil {
			t.Fatalf("step %d: %v", step, entries)
		}
		after, err := Open(m, entries[0].Dir)
		must(t, err)
		if err := whole(after); err != nil || after.Manifest.Step != before.Manifest.Step {
			t.Errorf("step %d: %v", step, err)
		}
	}
	if _, err := r.save(2); err != nil {
		t.Error(err)
	}
}

// A start that failed leaves what was there before it, and nothing else; one that begins meanwhile is not disturbed.
func TestAbandon(t *testing.T) {
	for name, before := range map[string]string{"nothing was there": "", "the run's directory was": "out", "all was there": root} {
		m := vfs.NewMem()
		if before != "" {
			must(t, m.MkdirAll(before, 0o777))
		}
		d, err := Acquire(m, root, ours)
		must(t, err)
		if _, err := Acquire(m, root, ours); err == nil || !strings.Contains(err.Error(), "is held by another run") {
			t.Errorf("%s: a second run has the lock: %v", name, err)
		}
		must(t, d.Abandon())
		_, errOut := m.Stat("out")
		_, errRoot := m.Stat(root)
		if (errOut == nil) != (before != "") || (errRoot == nil) != (before == root) {
			t.Errorf("%s: out: %v, checkpoints: %v", name, errOut, errRoot)
		}
		next, err := Acquire(m, root, ours)
		must(t, err)
		if _, err := Acquire(m, root, ours); err == nil || !strings.Contains(err.Error(), "is held by another run") {
			t.Errorf("%s: two runs have the lock after an abandoned start: %v", name, err)
		}
		must(t, next.Close())
	}
}
