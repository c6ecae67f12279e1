package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// small are the extents of the runs that are made to fail.
var small = []store.Spec{
	{ID: store.ID{Part: 0, Kind: store.Weights}, Bytes: 5000, Piece: 4096},
	{ID: store.ID{Part: 0, Kind: store.FirstMoment}, Bytes: 100, Piece: 8192},
}

// errWrong reports that a store lent bytes that differ from the written ones.
var errWrong = errors.New("wrong bytes")

// train writes the versions after from up to to, and saves every second one. A checkpoint exists once its manifest
// does.
func train(ctx context.Context, d *store.Disk, fsys vfs.FS, from, to uint64) error {
	for version := from; version < to; version++ {
		for _, s := range small {
			for off, n := range s.Pieces() {
				d.Prefetch(trace.Fetch.Of(0), s.ID, off, version+1)
				l, err := d.Borrow(ctx, trace.Update.Of(0), s.ID, off, n, store.ReadWrite, version)
				if err != nil {
					return err
				}
				right := storetest.Matches(l.Bytes(), s.ID, off, version)
				storetest.Pattern(l.Bytes(), s.ID, off, version+1)
				l.Release()
				if !right {
					return fmt.Errorf("%w: to change", errWrong)
				}
			}
			if err := check(ctx, d, s, version+1); err != nil {
				return err
			}
		}
		if version%2 == 1 {
			if err := checkpoint(ctx, d, fsys, version+1); err != nil {
				return err
			}
		}
	}
	return d.Sync(ctx)
}

// check reads an extent in a lane that does not write it.
func check(ctx context.Context, d *store.Disk, s store.Spec, version uint64) error {
	for off, n := range s.Pieces() {
		l, err := d.Borrow(ctx, trace.Fetch.Of(0), s.ID, off, n, store.Read, version)
		if err != nil {
			return err
		}
		right := storetest.Matches(l.Bytes(), s.ID, off, version)
		l.Release()
		if !right {
			return fmt.Errorf("%w: version %d of %v", errWrong, version, s.ID)
		}
	}
	return nil
}

func checkpoint(ctx context.Context, d *store.Disk, fsys vfs.FS, version uint64) error {
	dir := fmt.Sprintf("checkpoints/%d", version)
	if err := fsys.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var manifest [][]store.PieceFile
	for _, s := range small {
		var files []store.PieceFile
		err := d.Files(ctx, s.ID, []bool{true}, func(f store.PieceFile) error {
			to := filepath.Join(dir, filepath.Base(f.Path))
			if err := fsys.Link(f.Path, to); err != nil {
				return err
			}
			f.Path = to
			files = append(files, f)
			return nil
		})
		if err != nil {
			return err
		}
		manifest = append(manifest, files)
	}
	if err := errors.Join(fsys.SyncDir(dir), fsys.SyncDir("checkpoints"), fsys.SyncDir(".")); err != nil {
		return err
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(fsys, fmt.Sprintf("checkpoints/%d.json", version), text)
}

// resume opens a store from a checkpoint, if it exists, and checks every byte.
func resume(ctx context.Context, fsys vfs.FS, version uint64) (*store.Disk, error) {
	text, err := vfs.ReadFile(fsys, fmt.Sprintf("checkpoints/%d.json", version), 1<<20)
	if err != nil {
		return nil, nil
	}
	var manifest [][]store.PieceFile
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, err
	}
	d, err := tryOpen(fsys)
	if err != nil {
		return nil, err
	}
	for i, s := range small {
		err := d.Adopt(ctx, s.ID, manifest[i])
		if err == nil {
			err = check(ctx, d, s, version)
		}
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

func tryOpen(fsys vfs.FS) (*store.Disk, error) {
	return store.NewDisk(store.DiskOptions{FS: fsys, Drives: at("state"), Specs: small, Quota: quota(1),
		Accounts: hostmem.New(), Workers: 2})
}

// Every operation fails, in every way: nothing hangs or panics, no wrong byte is lent, the error is the one injected,
// and the checkpoints that exist can be resumed from.
func TestDiskUnderFaults(t *testing.T) {
	ctx := t.Context()
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		if cause == syscall.ENOSPC && testing.Short() {
			break
		}
		for how, fault := range map[string]func(int, error) func(vfs.Op) vfs.Outcome{
			"once": vfs.FailNth, "from then on": vfs.FailFrom, "short": vfs.ShortNth,
		} {
			seen := map[vfs.OpKind]bool{}
			for n := 1; ; n++ {
				m := vfs.NewMem()
				f := fault(n, cause)
				m.Intercept(func(op vfs.Op) vfs.Outcome {
					o := f(op)
					if o.Err != nil {
						seen[op.Kind] = true
					}
					return o
				})
				d, err := tryOpen(m)
				if err == nil {
					err = train(ctx, d, m, 0, 4)
					if again := d.Sync(ctx); err == nil && again != nil {
						t.Errorf("operation %d failed %s: Sync gave nothing and then %v", n, how, again)
					}
					err = errors.Join(err, d.Close())
				}
				ops := m.Ops()
				m.Intercept(nil)
				if err != nil && !errors.Is(err, cause) {
					t.Fatalf("operation %d failed %s with %v: %v", n, how, cause, err)
				}
				for version := uint64(2); version <= 4; version += 2 {
					d, err := resume(ctx, m, version)
					if err != nil {
						t.Fatalf("operation %d failed %s with %v: checkpoint %d: %v", n, how, cause, version, err)
					}
					if d != nil {
						d.Close()
					}
				}
				if ops < n {
					break
				}
			}
			for kind := range vfs.OpLock + 1 {
				rare := kind == vfs.OpTruncate || kind == vfs.OpStat
				spared := how == "from then on" && slices.Contains([]vfs.OpKind{vfs.OpRead, vfs.OpClose, vfs.OpRemove, vfs.OpReadDir, vfs.OpFreeBytes}, kind)
				if !rare && !spared && !seen[kind] {
					t.Errorf("no %v failed", kind)
				}
			}
		}
	}
}

// After a power cut at any point, every checkpoint whose manifest survived is whole, whatever happened to unsynced
// data, and a run continues from it.
func TestDiskUnderCrashes(t *testing.T) {
	ctx := t.Context()
	m := vfs.NewMem()
	d, err := tryOpen(m)
	if err != nil {
		t.Fatal(err)
	}
	m.RecordCrashes()
	if err := errors.Join(train(ctx, d, m, 0, 6), d.Close()); err != nil {
		t.Fatal(err)
	}
	found := map[uint64]int{}
	images := m.CrashImages()
	step := max(1, len(images)/400) // all of them take long; the last ones have the most checkpoints
	for i := len(images) - 1; i >= 0; i -= step {
		for version := uint64(2); version <= 6; version += 2 {
			d, err := resume(ctx, images[i].FS, version)
			if err != nil {
				t.Fatalf("%s: checkpoint %d: %v", images[i].Point, version, err)
			}
			if d == nil {
				continue
			}
			found[version]++
			if err := errors.Join(train(ctx, d, images[i].FS, version, version+1), d.Close()); err != nil {
				t.Fatalf("%s: after checkpoint %d: %v", images[i].Point, version, err)
			}
		}
	}
	t.Logf("%d images, every %d.; checkpoints found %v", len(images), step, found)
	if len(found) != 3 {
		t.Error("some checkpoints are in no image")
	}
}

// The crash test can fail: where the store's syncs do nothing, a checkpoint is torn in some image.
func TestCrashesFindMissingSyncs(t *testing.T) {
	m := vfs.NewMem()
	d, err := tryOpen(unsynced{m})
	if err != nil {
		t.Fatal(err)
	}
	m.RecordCrashes()
	if err := errors.Join(train(t.Context(), d, m, 0, 2), d.Close()); err != nil {
		t.Fatal(err)
	}
	for _, image := range m.CrashImages() {
		d, err := resume(t.Context(), image.FS, 2)
		if err != nil {
			return
		}
		if d != nil {
			d.Close()
		}
	}
	t.Error("no image is torn")
}

// unsynced is a file system whose files claim to be durable.
type unsynced struct{ vfs.FS }

func (u unsynced) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := u.FS.OpenFile(name, flag, perm)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error { return nil }

// A write that fails in the background comes back from everything that follows.
func TestWriteErrorsStick(t *testing.T) {
	m := vfs.NewMem()
	d, err := tryOpen(m)
	if err != nil {
		t.Fatal(err)
	}
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpWrite {
			return vfs.Outcome{Err: syscall.EIO, Written: op.Bytes / 2}
		}
		return vfs.Outcome{}
	})
	s := small[0]
	l := borrow(t, d, trace.Update.Of(0), s.ID, 0, 4096, store.Write, 0)
	// A lane that waits for a buffer when the write fails.
	waiting := make(chan error)
	go func() {
		_, err := d.Borrow(t.Context(), trace.Update.Of(0), s.ID, 4096, 904, store.Read, 0)
		waiting <- err
	}()
	l.Release()
	if err := <-waiting; err != nil && !errors.Is(err, syscall.EIO) { // it may have been quicker
		t.Error(err)
	}
	for what, err := range map[string]error{
		"Sync":  d.Sync(t.Context()),
		"Files": d.Files(t.Context(), s.ID, []bool{true}, func(store.PieceFile) error { return nil }),
		"Borrow": func() error {
			_, err := d.Borrow(t.Context(), trace.Drain.Of(0), small[1].ID, 0, 1, store.Read, 0)
			return err
		}(),
	} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.Prefetch(trace.Drain.Of(0), small[1].ID, 0, 0)
	if err := d.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close: %v", err)
	}
}

// A read ahead that fails is forgotten: the lane that borrows the piece reads it again, and gets the error of that.
func TestReadAheadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		d := openDisk(t, store.DiskOptions{FS: m, Specs: []store.Spec{four}, Workers: 2})
		defer d.Close()
		fill(t, d, four, 0)
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		broken := func(op vfs.Op) vfs.Outcome {
			if op.Kind == vfs.OpRead {
				return vfs.Outcome{Err: syscall.EIO}
			}
			return vfs.Outcome{}
		}
		m.Intercept(broken)
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
		synctest.Wait()
		_, err := d.Borrow(t.Context(), trace.Fetch.Of(0), four.ID, 0, 4096, store.Read, 1)
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("error %v", err)
		}
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
		synctest.Wait()
		m.Intercept(nil)
		holds(t, d, four, 1)
	})
}

// A Sync that is cancelled leaves the store as it is: the next one makes all durable.
func TestCancelledSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		d := openDisk(t, store.DiskOptions{FS: m, Specs: []store.Spec{four}, Workers: 2})
		defer d.Close()
		fill(t, d, four, 0)
		synctest.Wait() // all is written
		syncs := 0
		m.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.Kind == vfs.OpSync {
				syncs++
			}
			return vfs.Outcome{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Sync(ctx); !errors.Is(err, context.Canceled) || syncs > 0 {
			t.Errorf("error %v after %d syncs", err, syncs)
		}
		if err := d.Sync(t.Context()); err != nil || syncs != 4 {
			t.Errorf("error %v after %d syncs", err, syncs)
		}
		if err := d.Sync(ctx); err != nil {
			t.Errorf("nothing to sync: error %v", err)
		}
	})
}

// A drive that fails two of three times costs nothing; one that always fails says so.
func TestDiskTriesAgain(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpRead, vfs.OpWrite, vfs.OpRename, vfs.OpRemove} {
		for failing, want := range map[int]error{2: nil, 3: syscall.EIO} {
			m, tries, failed := vfs.NewMem(), map[string]int{}, 0
			d, err := tryOpen(m)
			if err != nil {
				t.Fatal(err)
			}
			m.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.Kind != kind || filepath.Dir(op.Name) != "state" {
					return vfs.Outcome{}
				}
				tries[op.Name]++
				if (tries[op.Name]-1)%3 >= failing {
					return vfs.Outcome{}
				}
				failed++
				return vfs.Outcome{Err: syscall.EIO}
			})
			err = train(t.Context(), d, m, 0, 6)
			m.Intercept(nil)
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%d of 3 of %v fail: %v", failing, kind, err)
			}
			if failed == 0 {
				t.Errorf("no %v failed", kind)
			}
			_ = d.Close() // it reports the same
		}
	}
}
