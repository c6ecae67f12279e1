package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// In any run of pieces, wherever it begins, each drive has its share to less than two pieces.
func TestDealIsEven(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shares := rapid.SliceOfN(rapid.IntRange(0, 12), 1, 5).Draw(rt, "shares")
		shares[0]++
		total := 0
		for _, share := range shares {
			total += share
		}
		deal := store.NewDeal(shares)
		if len(deal) != total {
			rt.Fatalf("a deal of %d, want %d", len(deal), total)
		}
		begin, n := rapid.IntRange(0, total).Draw(rt, "begin"), rapid.IntRange(0, 3*total).Draw(rt, "pieces")
		counts := make([]int, len(shares))
		for i := range n {
			counts[deal[(begin+i)%total]]++
		}
		for drive, share := range shares {
			exact := float64(n*share) / float64(total)
			if got := float64(counts[drive]); got < exact-2 || got > exact+2 || share == 0 && got > 0 {
				rt.Errorf("drive %d of shares %v has %v of %d pieces, its share is %.1f", drive, shares, got, n, exact)
			}
		}
	})
	if deal := store.NewDeal(nil); len(deal) != 0 {
		t.Errorf("a deal without drives: %v", deal)
	}
}

// many are extents of several kinds, some of them shorter than a piece.
func many() (specs []store.Spec) {
	for part := range 9 {
		for _, kind := range []store.Kind{store.Weights, store.Low, store.FirstMoment} {
			bytes := int64(part%4)*8192 + 100
			specs = append(specs, store.Spec{ID: store.ID{Part: part, Kind: kind}, Bytes: bytes, Piece: 8192})
		}
	}
	return specs
}

// The space that is reserved on each drive is the space that was foretold, in whatever order the extents come.
func TestDriveBytes(t *testing.T) {
	specs, deal := many(), store.NewDeal([]int{3, 0, 1, 2})
	foretold := store.DriveBytes(specs, deal, 3)
	turned := append(append([]store.Spec{}, specs[10:]...), specs[:10]...)
	if again := store.DriveBytes(turned, deal, 3); fmt.Sprint(again) != fmt.Sprint(foretold) {
		t.Errorf("%v in another order than %v", again, foretold)
	}
	m := vfs.NewMem()
	dirs := []string{"a", "b", "c", "d"}
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at(dirs...), Deal: deal, Specs: turned, Workers: 3})
	defer d.Close()
	for i, dir := range dirs {
		if got := bytesIn(t, m, dir); got != foretold[i] || (got == 0) != (i == 1) {
			t.Errorf("%d bytes are reserved in %s, foretold %d", got, dir, foretold[i])
		}
	}
	for _, s := range specs {
		fill(t, d, s, 0)
	}
	if err := d.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all int64
	for i, n := range d.WrittenBytes() {
		if all += n; (n == 0) != (i == 1) {
			t.Errorf("%d bytes were written to %s", n, dirs[i])
		}
	}
	if now := d.Traffic(); now.WrittenBytes != all {
		t.Errorf("%d bytes were written, %d to the drives", now.WrittenBytes, all)
	}
	for i, dir := range dirs {
		if got := bytesIn(t, m, dir); got != foretold[i] {
			t.Errorf("%d bytes are in %s after a version was written, foretold %d", got, dir, foretold[i])
		}
	}
}

// bytesIn counts the bytes of the store's files in a directory.
func bytesIn(t *testing.T, fsys vfs.FS, dir string) (sum int64) {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), store.FileSuffix) {
			continue
		}
		info, err := fsys.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

// several is a file system whose top directories are drives: they have rates of their own, no file has names on two of
// them, and each has its own room.
type several struct {
	vfs.FS
	rates map[string]*drive // by directory; one that is not there takes no time
	free  map[string]int64  // less than the file system has
}

func top(name string) string {
	name, _, _ = strings.Cut(filepath.ToSlash(filepath.Clean(name)), "/")
	return name
}

func (s several) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := s.FS.OpenFile(name, flag, perm)
	if d := s.rates[top(name)]; d != nil && err == nil {
		return driveFile{f, d}, nil
	}
	return f, err
}

func (s several) Link(old, new string) error {
	if top(old) != top(new) {
		return &fs.PathError{Op: "link", Path: new, Err: syscall.EXDEV}
	}
	return s.FS.Link(old, new)
}

func (s several) FreeBytes(dir string) (int64, error) {
	if free, ok := s.free[top(dir)]; ok {
		return free, nil
	}
	return s.FS.FreeBytes(dir)
}

// The rates of drives add up: of drives with shares by their rates, also of a lane that reads one kind.
func TestRatesOfDrivesAddUp(t *testing.T) {
	const perSec, pieces, size = 2e6, 240, 16384
	for _, c := range []struct {
		name  string
		rates []float64 // of each drive, of perSec
	}{{"one", []float64{1}}, {"two", []float64{1, 1}}, {"one of them thrice as fast", []float64{1, 3}},
		{"four", []float64{1, 1, 1, 1}}} {
		synctest.Test(t, func(t *testing.T) {
			all, shares, dirs := 0.0, []int{}, []string{}
			fsys := several{FS: vfs.NewMem(), rates: map[string]*drive{}}
			for i, rate := range c.rates {
				dirs, shares, all = append(dirs, fmt.Sprint("drive", i)), append(shares, int(rate)), all+rate
				fsys.rates[dirs[i]] = newDrive(4, rate*perSec, rate*perSec)
			}
			s := store.Spec{ID: store.ID{Kind: store.Weights}, Bytes: pieces * size, Piece: size}
			ahead := int64(4 * all / slices.Min(c.rates)) // so that the slowest drive has four requests
			d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at(dirs...), Deal: store.NewDeal(shares),
				Specs: []store.Spec{s}, Quota: store.LaneQuota(int(ahead), int(ahead)), Workers: 4})
			defer d.Close()
			fill(t, d, s, 0)
			if err := d.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			begin := time.Now() // on the bubble's clock, which the machine's speed does not move
			lane := trace.Fetch.Of(0)
			for i := range int64(pieces) {
				for next := i; next <= i+ahead && next < pieces; next++ {
					if i == 0 || next == i+ahead {
						d.Prefetch(lane, s.ID, next*size, 1)
					}
				}
				borrow(t, d, lane, s.ID, i*size, size, store.Read, 1).Release()
			}
			took, read := time.Since(begin).Seconds(), d.Traffic().ReadBytes // others were still in buffers
			least := float64(read) / (all * perSec)
			if t.Logf("%s: %.3f of the time that the drives need", c.name, took/least); took > 1.1*least {
				t.Errorf("%s: reading takes %.3f s, and the drives need %.3f", c.name, took, least)
			}
			begin = time.Now()
			fill(t, d, s, 1)
			if err := d.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took, least := time.Since(begin).Seconds(), pieces*size/(all*perSec); took > 1.1*least {
				t.Errorf("%s: writing takes %.3f s, and the drives need %.3f", c.name, took, least)
			}
			if read < 3*pieces*size/4 {
				t.Errorf("%d bytes were read of %d", read, pieces*size)
			}
		})
	}
}

// The files of a checkpoint get a second name where they are on its drive, and are copied else. A store with another
// deal, or one drive, continues from them.
func TestCheckpointsOfDrives(t *testing.T) {
	fsys := several{FS: vfs.NewMem()}
	specs := many()
	d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("a/state", "b/state"), Deal: store.NewDeal([]int{2, 1}),
		Specs: specs})
	kept, linked, copied := map[store.ID][]store.PieceFile{}, 0, 0
	if err := fsys.MkdirAll("a/checkpoint", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		fill(t, d, s, 0)
		err := d.Files(t.Context(), s.ID, []bool{true, false}, func(f store.PieceFile) error {
			to := filepath.Join("a", "checkpoint", fmt.Sprintf("%d-%v-%d", s.Part, s.Kind, f.Off))
			if (top(f.Path) == "a") != f.Linked {
				t.Errorf("%s may be linked: %v", f.Path, f.Linked)
			}
			var err error
			if f.Linked {
				linked++
				err = fsys.Link(f.Path, to)
			} else {
				copied++
				var doc []byte
				if doc, err = vfs.ReadFile(fsys, f.Path, 1<<20); err == nil {
					err = vfs.WriteFileAtomic(fsys, to, doc)
				}
			}
			f.Path = to
			kept[s.ID] = append(kept[s.ID], f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if linked <= copied || copied == 0 {
		t.Errorf("%d files are linked, and %d copied", linked, copied)
	}
	for version := range uint64(3) { // the checkpoint stays as it is
		for _, s := range specs {
			fill(t, d, s, version+1)
		}
	}
	if err := errors.Join(d.Sync(t.Context()), d.Close()); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]store.DiskOptions{
		"the same":         {Drives: at("a/state", "b/state"), Deal: store.NewDeal([]int{2, 1})},
		"another deal":     {Drives: at("b/state", "a/state", "c"), Deal: store.NewDeal([]int{1, 1, 5})},
		"one drive":        {Drives: at("a/other")},
		"one drive, apart": {Drives: at("c/other")},
	} {
		o.FS, o.Specs = fsys, specs
		d := openDisk(t, o)
		for _, s := range specs {
			if err := d.Adopt(t.Context(), s.ID, kept[s.ID]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			holds(t, d, s, 1)
		}
		for _, s := range specs {
			fill(t, d, s, 1)
			holds(t, d, s, 2)
		}
		if err := errors.Join(d.Sync(t.Context()), d.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, files := range kept {
		for _, f := range files {
			if got, err := vfs.ReadFile(fsys, f.Path, 1<<20); err != nil || len(got) < int(f.Bytes) {
				t.Errorf("%s: %v", f.Path, err)
			}
		}
	}
}

// A drive without room, a directory that another store has and one that cannot be made are each one error, which names
// the directory; nothing is left on the other drives.
func TestBadDrives(t *testing.T) {
	busy := vfs.NewMem()
	other := openDisk(t, store.DiskOptions{FS: busy, Drives: at("b"), Specs: []store.Spec{four}})
	defer other.Close()
	file := vfs.NewMem()
	if err := vfs.WriteFileAtomic(file, "b", nil); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		fsys vfs.FS
		want []string
	}{
		"full": {several{FS: vfs.NewMem(), free: map[string]int64{"b": 4096}}, []string{"go to b", "4096 bytes",
			"are free", "memory.path"}},
		"in use": {busy, []string{"b", "name another memory.path"}},
		"a file": {file, []string{"b"}},
	} {
		accounts := hostmem.New()
		_, err := store.NewDisk(store.DiskOptions{FS: c.fsys, Drives: at("a", "b"), Deal: store.NewDeal([]int{1, 1}),
			Specs: []store.Spec{four}, Quota: quota(1), Accounts: accounts})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%s: %v", what, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", what, err, want)
			}
		}
		if entries, err := c.fsys.ReadDir("a"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v is left in the other directory, %v", what, entries, err)
		}
		if n, _ := accounts.Total(); n != 0 {
			t.Errorf("%s: %d bytes of memory are left over", what, n)
		}
	}
	fill(t, other, four, 0) // it was not disturbed
	holds(t, other, four, 1)
}

// One drive that breaks, breaks the store: no version is lost in silence.
func TestADriveBreaks(t *testing.T) {
	m := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at("a", "b"), Deal: store.NewDeal([]int{1, 1}),
		Specs: []store.Spec{four}})
	fill(t, d, four, 0)
	if err := d.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpWrite && top(op.Name) == "b" {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	for off, n := range four.Pieces() {
		l, err := d.Borrow(t.Context(), trace.Update.Of(0), four.ID, off, n, store.Write, 1)
		if err != nil {
			break // it is known already
		}
		storetest.Pattern(l.Bytes(), four.ID, off, 2)
		l.Release()
	}
	if err := d.Sync(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("after a write that failed: %v", err)
	}
	if err := d.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("closed: %v", err)
	}
}
