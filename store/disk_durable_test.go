package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// save links the files of an extent into a directory, as a checkpoint does.
func save(t testing.TB, fsys vfs.FS, d *store.Disk, id store.ID, dir string) ([]store.PieceFile, error) {
	var kept []store.PieceFile
	if err := fsys.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	err := d.Files(t.Context(), id, []bool{true}, func(f store.PieceFile) error {
		if f.Path != "" {
			to := filepath.Join(dir, fmt.Sprintf("%d-%v-%d", id.Part, id.Kind, f.Off))
			if err := fsys.Link(f.Path, to); err != nil {
				return err
			}
			f.Path = to
		}
		kept = append(kept, f)
		return nil
	})
	if err == nil {
		err = fsys.SyncDir(dir)
	}
	return kept, err
}

// each runs a test on a real file system and on one in memory.
func each(t *testing.T, f func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("OS", func(t *testing.T) { f(t, vfs.OS{}, t.TempDir()) })
	t.Run("Mem", func(t *testing.T) { f(t, vfs.NewMem(), "top") })
}

// Files that a checkpoint has linked never change, however often the pieces are written afterwards. Another store can
// start from them, and a third one from that store's checkpoint.
func TestCheckpointsKeepTheirVersions(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		big := store.Spec{ID: store.ID{Part: 1, Kind: store.Weights}, Bytes: 9<<20 + 777, Piece: 9 << 20} // pieces of several blocks
		specs := []store.Spec{four, big}
		d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at(filepath.Join(dir, "state")), Specs: specs})
		kept := map[uint64][]store.PieceFile{}
		for version := range uint64(6) {
			fill(t, d, big, version)
			fill(t, d, four, version)
			if version%2 == 1 {
				name := filepath.Join(dir, fmt.Sprint("step-", version+1))
				for _, s := range specs {
					files, err := save(t, fsys, d, s.ID, name)
					if err != nil {
						t.Fatal(err)
					}
					kept[version+1] = append(kept[version+1], files...)
				}
			}
			if version == 3 {
				if err := vfs.RemoveAll(fsys, filepath.Join(dir, "step-2")); err != nil {
					t.Fatal(err)
				}
				delete(kept, 2)
			}
		}
		holds(t, d, four, 6)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		for version, files := range kept {
			// Twice, the second time from what the first store lists.
			for round := range uint64(2) {
				d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at(filepath.Join(dir, fmt.Sprint("state ", version, round))),
					Specs: specs})
				for i, s := range specs {
					if err := d.Adopt(t.Context(), s.ID, files[4*i:min(4*i+4, len(files))]); err != nil {
						t.Fatal(err)
					}
					holds(t, d, s, version)
				}
				var next []store.PieceFile
				for _, s := range specs {
					files, err := save(t, fsys, d, s.ID, filepath.Join(dir, fmt.Sprint("again-", version, round)))
					if err != nil {
						t.Fatal(err)
					}
					next = append(next, files...)
				}
				fill(t, d, four, version)
				holds(t, d, four, version+1)
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				files = next
			}
		}
	})
}

// Without checkpoints the files are the same ones forever.
func TestFilesAreRecycled(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at(dir), Specs: []store.Spec{four}, Workers: 2})
		defer d.Close()
		for version := range uint64(5) {
			fill(t, d, four, version)
			if err := d.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			entries, err := fsys.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			current := 0
			for _, e := range entries {
				if strings.Contains(e.Name(), fmt.Sprintf(".v%d.", version+1)) {
					current++
				}
			}
			if len(entries) != 1+4+2 || current != 4 {
				t.Fatalf("version %d: %d files, %d of them current: %v", version+1, len(entries), current, entries)
			}
		}
	})
}

// The file of a short piece is as long as a block, and holds nothing of the piece that was in memory before it.
func TestPaddingIsZeros(t *testing.T) {
	m := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: m, Specs: []store.Spec{four}})
	defer d.Close()
	fill(t, d, four, 0)
	files, err := save(t, m, d, four.ID, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	last := files[3]
	text, err := vfs.ReadFile(m, last.Path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) != 4096 || last.Bytes != 100 || len(bytes.Trim(text[100:], "\x00")) > 0 {
		t.Errorf("%d bytes for the piece of %d, and the rest is not zeros", len(text), last.Bytes)
	}
}

// The pieces that were never written have no files in a checkpoint.
func TestZerosAreKeptAsZeros(t *testing.T) {
	fsys := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("a"), Specs: []store.Spec{four}})
	defer d.Close()
	borrow(t, d, trace.Update.Of(0), four.ID, 4096, 4096, store.ReadWrite, 0).Release()
	kept, err := save(t, fsys, d, four.ID, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range kept {
		if written := i == 1; (f.Path != "") != written || (f.Version == 1) != written || f.Off != int64(i)*4096 {
			t.Errorf("piece %d: %+v", i, f)
		}
	}
	b := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("b"), Specs: []store.Spec{four}})
	defer b.Close()
	if err := b.Adopt(t.Context(), four.ID, kept); err != nil {
		t.Fatal(err)
	}
	l := borrow(t, b, trace.Update.Of(0), four.ID, 0, 4096, store.Read, 0)
	if len(bytes.Trim(l.Bytes(), "\x00")) > 0 {
		t.Error("not zeros")
	}
	l.Release()
}

func TestAdoptRefuses(t *testing.T) {
	fsys := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("a"), Specs: []store.Spec{four}})
	fill(t, d, four, 0)
	kept, err := save(t, fsys, d, four.ID, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	for what, change := range map[string]func([]store.PieceFile) []store.PieceFile{
		"3 files for the 4 pieces": func(f []store.PieceFile) []store.PieceFile { return f[:3] },
		"do not fit":               func(f []store.PieceFile) []store.PieceFile { f[1].Bytes--; return f },
		"not exist":                func(f []store.PieceFile) []store.PieceFile { f[2].Path = "nowhere"; return f },
		"has 10 bytes":             func(f []store.PieceFile) []store.PieceFile { f[3].Path = "short"; return f },
	} {
		vfs.WriteFileAtomic(fsys, "short", make([]byte, 10))
		d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("b"), Specs: []store.Spec{four}})
		err := d.Adopt(t.Context(), four.ID, change(append([]store.PieceFile(nil), kept...)))
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
		d.Close()
	}
}

// Where there are no hard links, files are copied, and that is said; a copy is verified.
func TestAdoptWithoutLinks(t *testing.T) {
	fsys := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("a"), Specs: []store.Spec{four}})
	fill(t, d, four, 0)
	kept, err := save(t, fsys, d, four.ID, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	fsys.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpLink {
			return vfs.Outcome{Err: syscall.EPERM}
		}
		return vfs.Outcome{}
	})
	var log bytes.Buffer
	for range 2 {
		log.Reset()
		d = openDisk(t, store.DiskOptions{FS: fsys, Drives: at("b"), Specs: []store.Spec{four},
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		err = d.Adopt(t.Context(), four.ID, kept)
		if err != nil {
			break
		}
		holds(t, d, four, 1)
		fill(t, d, four, 1)
		holds(t, d, four, 2)
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "copied") {
			t.Errorf("logged: %s", log.String())
		}
		d.Close()
		fsys.FlipBit(kept[2].Path, 17, 3)
	}
	if !errors.Is(err, store.ErrChecksum) || !strings.Contains(err.Error(), kept[2].Path) {
		t.Errorf("a damaged file was adopted: %v", err)
	}
	d.Close()
}

func TestFlippedBit(t *testing.T) {
	fsys := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: fsys, Drives: at("a"), Specs: []store.Spec{four}})
	defer d.Close()
	fill(t, d, four, 0)
	if err := d.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("a", "part-7-second-moments-0.v1.extent")
	if err := fsys.FlipBit(name, 4095, 7); err != nil {
		t.Fatal(err)
	}
	for range 2 { // by itself, and after a hint
		_, err := d.Borrow(t.Context(), trace.Fetch.Of(0), four.ID, 0, 1, store.Read, 1)
		if !errors.Is(err, store.ErrChecksum) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "piece 0 of second moments of part 7") {
			t.Errorf("a flipped bit: %v", err)
		}
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
	}
	borrow(t, d, trace.Fetch.Of(0), four.ID, 4096, 1, store.Read, 1).Release() // the others can still be read
	// The same bit again makes it right.
	fsys.FlipBit(name, 4095, 7)
	holds(t, d, four, 1)
}

// A disk that is too small is one clear line, and nothing is taken.
func TestNoRoom(t *testing.T) {
	for what, prepare := range map[string]func(m *vfs.Mem){
		"known beforehand": func(m *vfs.Mem) { m.SetCapacity(20000) },
		"found out": func(m *vfs.Mem) {
			n := 0
			m.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.Kind == vfs.OpPreallocate {
					if n++; n == 3 {
						return vfs.Outcome{Err: syscall.ENOSPC}
					}
				}
				return vfs.Outcome{}
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			m := vfs.NewMem()
			prepare(m)
			accounts := hostmem.New()
			_, err := store.NewDisk(store.DiskOptions{FS: m, Drives: at("some/dir"), Specs: []store.Spec{four}, Quota: quota(1),
				Accounts: accounts, Workers: 1})
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			for _, want := range []string{"20480 bytes", "some/dir", "are free", "memory.path"} {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%q does not say %q, or not in one line", err, want)
				}
			}
			if entries, _ := m.ReadDir("some/dir"); len(entries) > 1 {
				t.Errorf("files are left over: %v", entries)
			}
			if n, _ := accounts.Total(); n != 0 {
				t.Errorf("%d bytes of memory are left over", n)
			}
		})
	}
}

// A checkpoint that the disk has no room for fails; the run continues, and earlier checkpoints stay.
func TestNoRoomForACheckpoint(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(store.DriveBytes([]store.Spec{four}, nil, 2)[0] + 4*4096)
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at("state"), Specs: []store.Spec{four}, Workers: 2})
	defer d.Close()
	fill(t, d, four, 0)
	if _, err := save(t, m, d, four.ID, "first"); err != nil {
		t.Fatal(err)
	}
	fill(t, d, four, 1)
	if _, err := save(t, m, d, four.ID, "second"); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "are free") {
		t.Fatalf("the disk is full, and saving gave %v", err)
	}
	for version := uint64(2); version < 6; version++ {
		fill(t, d, four, version)
		holds(t, d, four, version+1)
	}
	if err := vfs.RemoveAll(m, "first"); err != nil {
		t.Fatal(err)
	}
	kept, err := save(t, m, d, four.ID, "third")
	if err != nil {
		t.Fatalf("after the first checkpoint was removed: %v", err)
	}
	fill(t, d, four, 6)
	if err := d.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	for _, f := range kept {
		got, err := vfs.ReadFile(m, f.Path, 4096)
		if err != nil || !storetest.Matches(got[:f.Bytes], four.ID, f.Off, 6) {
			t.Errorf("%s is not what was saved: %v", f.Path, err)
		}
	}
}

// Two runs cannot have one directory; what a killed run left is removed.
func TestDirectoryIsHeld(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		o := store.DiskOptions{FS: fsys, Drives: at(dir), Specs: []store.Spec{four}, Quota: quota(1), Accounts: hostmem.New()}
		d := openDisk(t, o)
		fill(t, d, four, 0)
		if _, err := store.NewDisk(o); !errors.Is(err, vfs.ErrLocked) || !strings.Contains(err.Error(), "memory.path") {
			t.Errorf("a second store in one directory: %v", err)
		}
		holds(t, d, four, 1)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := fsys.MkdirAll(dir, 0o777); err != nil { // the store has removed what it had made
			t.Fatal(err)
		}
		for _, name := range []string{"part-1-weights-0.v3.extent", "free-000001.extent", "mine"} {
			if err := vfs.WriteFileAtomic(fsys, filepath.Join(dir, name), []byte("old")); err != nil {
				t.Fatal(err)
			}
		}
		d = openDisk(t, o)
		holds(t, d, four, 0)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		entries, err := fsys.ReadDir(dir)
		if err != nil || len(entries) != 1 { // what is not the store's
			t.Errorf("left: %v, %v", entries, err)
		}
	})
}

// A file system may refuse direct I/O when a file is opened or when it is written; both are said once.
func TestDirectRefused(t *testing.T) {
	if vfs.Direct == 0 {
		t.Skip("no direct I/O here")
	}
	for _, when := range []vfs.OpKind{vfs.OpOpen, vfs.OpWrite} {
		m := vfs.NewMem()
		refused := false
		m.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.Kind == when && (op.Flag&vfs.Direct != 0 || when == vfs.OpWrite && !refused) {
				refused = true
				return vfs.Outcome{Err: syscall.EINVAL}
			}
			return vfs.Outcome{}
		})
		var log bytes.Buffer
		d := openDisk(t, store.DiskOptions{FS: m, Drives: at("x"), Specs: []store.Spec{four},
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		fill(t, d, four, 0)
		holds(t, d, four, 1)
		if err := errors.Join(d.Sync(t.Context()), d.Close()); err != nil {
			t.Error(err)
		}
		if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "direct I/O") || !refused {
			t.Errorf("logged: %q", log.String())
		}
	}
}

func TestBadDirectory(t *testing.T) {
	m := vfs.NewMem()
	vfs.WriteFileAtomic(m, "file", nil)
	for what, o := range map[string]store.DiskOptions{
		"below a file": {FS: m, Drives: at("file/x")},
		"read-only": {FS: func() vfs.FS {
			m := vfs.NewMem()
			m.Intercept(vfs.FailFrom(1, syscall.EROFS))
			return m
		}(), Drives: at("x")},
	} {
		o.Accounts, o.Specs, o.Quota = hostmem.New(), []store.Spec{four}, quota(1)
		_, err := store.NewDisk(o)
		if err == nil || !strings.Contains(err.Error(), o.Drives[0].Dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The store's own count agrees with the kernel's.
func TestTrafficIsTheKernels(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/io")
	}
	var log bytes.Buffer
	s := store.Spec{ID: store.ID{Kind: store.FirstMoment}, Bytes: 12<<20 - 100, Piece: 5 << 20}
	d := openDisk(t, store.DiskOptions{Specs: []store.Spec{s}, Log: slog.New(slog.NewTextHandler(&log, nil)), Workers: 1})
	defer d.Close()
	if log.Len() > 0 {
		t.Skip(log.String())
	}
	if surroundings.IsInMemory(t.TempDir()) {
		t.Skip("the kernel does not count bytes of a file system in memory")
	}
	read0, written0, err := kernelCounts()
	if err != nil {
		t.Skip(err)
	}
	for version := range uint64(3) {
		fill(t, d, s, version)
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		holds(t, d, s, version+1)
	}
	read, written, err := kernelCounts()
	if err != nil {
		t.Fatal(err)
	}
	got := d.Traffic()
	if got.WrittenBytes != 3*12<<20 || got.ReadBytes == 0 || got.Busy <= 0 {
		t.Errorf("traffic %+v", got)
	}
	// Metadata comes on top, and nothing else.
	for _, c := range []struct {
		what         string
		ours, theirs int64
	}{{"read", got.ReadBytes, read - read0}, {"written", got.WrittenBytes, written - written0}} {
		if c.theirs < c.ours || c.theirs > c.ours+1<<20 {
			t.Errorf("%d bytes %s, by the kernel's count %d", c.ours, c.what, c.theirs)
		}
	}
}

func kernelCounts() (read, written int64, err error) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "read_bytes: %d", &read)
		fmt.Sscanf(line, "write_bytes: %d", &written)
	}
	return read, written, nil
}

// Checkpoints may be taken, and state made durable, while lanes work: listed files stay as they were, and nothing waits
// forever.
func TestFilesDuringWrites(t *testing.T) {
	m := vfs.NewMem()
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at("state"), Specs: []store.Spec{four}, Workers: 2})
	defer d.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := d.Sync(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for version := uint64(0); version < 60; version++ {
		fill(t, d, four, version)
		if version%4 > 0 {
			continue
		}
		// The first file is being linked while all pieces get new versions.
		listed, written := make(chan struct{}), make(chan struct{})
		var kept []store.PieceFile
		saved := version
		wg.Go(func() {
			defer close(written)
			err := d.Files(t.Context(), four.ID, []bool{true}, func(f store.PieceFile) error {
				if f.Off == 0 {
					close(listed)
					for range 100 {
						runtime.Gosched()
					}
				}
				to := fmt.Sprintf("kept-%d-%d", saved, f.Off)
				err := m.Link(f.Path, to)
				f.Path = to
				kept = append(kept, f)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-listed
		fill(t, d, four, version+1)
		version++
		<-written
		fill(t, d, four, version+1)
		version++
		for _, f := range kept {
			got, err := vfs.ReadFile(m, f.Path, 4096)
			if err != nil || f.Version != version-1 || !storetest.Matches(got[:f.Bytes], four.ID, f.Off, f.Version) {
				t.Fatalf("%s is not version %d: %v", f.Path, f.Version, err)
			}
		}
	}
}

// A checkpoint without room does not harm the store: its state can still be written and read, and the next checkpoint
// succeeds as soon as there is room.
func TestCheckpointWithoutRoom(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(1 << 30)
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at("d"), Specs: []store.Spec{four}})
	defer d.Close()
	fill(t, d, four, 0)
	if err := d.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	free, _ := m.FreeBytes("d")
	m.SetCapacity(1<<30 - free + 2*4096) // room for two of four pieces
	for version := uint64(1); version < 6; version++ {
		_, err := save(t, m, d, four.ID, fmt.Sprintf("try-%d", version))
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "lower save.keep") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("error %v", err)
		}
		if err := vfs.RemoveAll(m, fmt.Sprintf("try-%d", version)); err != nil {
			t.Fatal(err)
		}
		fill(t, d, four, version)
		holds(t, d, four, version+1)
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m.SetCapacity(1 << 30)
	kept, err := save(t, m, d, four.ID, "kept")
	if err != nil || len(kept) != 4 {
		t.Fatalf("%d files, %v", len(kept), err)
	}
}

// A checkpoint that copies the files takes no further room in the store.
func TestCopiedFilesTakeNoRoom(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(1 << 30)
	d := openDisk(t, store.DiskOptions{FS: m, Drives: at("d"), Specs: []store.Spec{four}})
	defer d.Close()
	free, _ := m.FreeBytes("d")
	for version := range uint64(5) {
		fill(t, d, four, version)
		pieces := 0
		err := d.Files(t.Context(), four.ID, nil, func(f store.PieceFile) error {
			got, err := vfs.ReadFile(m, f.Path, 4096)
			if err == nil && !storetest.Matches(got[:f.Bytes], four.ID, f.Off, version+1) {
				t.Errorf("%s is not version %d", f.Path, version+1)
			}
			pieces++
			return err
		})
		if err != nil || pieces != 4 {
			t.Fatalf("%d pieces, %v", pieces, err)
		}
	}
	if now, _ := m.FreeBytes("d"); now != free {
		t.Errorf("%d bytes are free, and were %d", now, free)
	}
}

// A store leaves what was there before it: no lock, and no directory that it made.
func TestDiskLeavesNothing(t *testing.T) {
	for _, before := range []bool{false, true} {
		root := t.TempDir()
		dir := filepath.Join(root, "fast", "state")
		if before {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		d, err := store.NewDisk(store.DiskOptions{Drives: at(dir), Specs: small, Quota: quota(1), Accounts: hostmem.New(),
			Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "*"))
		if _, err := os.Stat(filepath.Join(root, "fast")); (err == nil) != before || len(left) > 0 {
			t.Errorf("directory there before: %v; left: %v, %v", before, left, err)
		}
	}
}

// A directory that another user can have prepared is not cleaned, and a link at the lock's name is not followed.
func TestDirectoryOfOthers(t *testing.T) {
	open := func(dir string) error {
		d, err := store.NewDisk(store.DiskOptions{Drives: at(dir), Accounts: hostmem.New(), Quota: store.LaneQuota(1, 1),
			Workers: 1,
			Specs:   []store.Spec{{ID: store.ID{Part: 0, Kind: store.FirstMoment}, Bytes: 4096, Piece: 4096}}})
		if err == nil {
			err = d.Close()
		}
		return err
	}
	dir := filepath.Join(t.TempDir(), "state")
	kept, left := filepath.Join(t.TempDir(), "kept"), filepath.Join(dir, "free-000001.extent")
	for _, err := range []error{os.WriteFile(kept, []byte("precious"), 0o666), os.Mkdir(dir, 0o777),
		os.WriteFile(left, nil, 0o666), os.Chmod(dir, 0o777)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var refused *vfs.NotOwnError
	if err := open(dir); !errors.As(err, &refused) {
		t.Errorf("open to every user: %v", err)
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("it was cleaned: %v", err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Symlink(kept, filepath.Join(dir, "lock"))); err != nil {
		t.Fatal(err)
	}
	if err := open(dir); !errors.As(err, &refused) {
		t.Errorf("a link at the lock: %v", err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "precious" {
		t.Errorf("the file that the link leads to is %q, error %v", text, err)
	}
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	if err := open(dir); err != nil {
		t.Error(err)
	}
}
