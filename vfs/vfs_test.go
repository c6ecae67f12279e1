package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// each runs a test on both implementations.
func each(t *testing.T, f func(t *testing.T, fsys FS, dir string)) {
	t.Run("OS", func(t *testing.T) { f(t, OS{}, t.TempDir()) })
	t.Run("Mem", func(t *testing.T) {
		m := NewMem()
		must(t, m.MkdirAll("top", 0o777))
		f(t, m, "top")
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, fsys FS, name string) string {
	t.Helper()
	b, err := ReadFile(fsys, name, 1<<20)
	must(t, err)
	return string(b)
}

func TestFiles(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		f, err := fsys.Create(a)
		must(t, err)
		for _, s := range []string{"hello ", "world"} {
			if n, err := f.Write([]byte(s)); n != len(s) || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := f.WriteAt([]byte("W"), 6); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 8)
		if n, err := f.ReadAt(p, 6); n != 5 || err != io.EOF || string(p[:n]) != "World" {
			t.Errorf("ReadAt = %q, %v", p[:n], err)
		}
		must(t, f.Preallocate(20))
		must(t, f.Preallocate(3))
		must(t, f.Truncate(13))
		must(t, f.Sync())
		info, err := f.Stat()
		must(t, err)
		if info.Size() != 13 || info.Name() != "a" || info.IsDir() {
			t.Errorf("Stat: %v", info)
		}
		must(t, f.Close())
		if _, err := f.Write(p); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if got := read(t, fsys, a); got != "hello World\x00\x00" {
			t.Errorf("contents %q", got)
		}

		must(t, fsys.Link(a, b))
		if err := fsys.Link(a, b); !errors.Is(err, fs.ErrExist) {
			t.Errorf("link onto a file: %v", err)
		}
		must(t, fsys.Remove(a))
		if _, err := fsys.Stat(a); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat of a removed file: %v", err)
		}
		if got := read(t, fsys, b); !strings.HasPrefix(got, "hello") {
			t.Errorf("the second name has %q", got)
		}
		must(t, WriteFileAtomic(fsys, a, []byte("new")))
		must(t, fsys.Rename(a, b))
		if got := read(t, fsys, b); got != "new" {
			t.Errorf("renamed: %q", got)
		}
		f, err = fsys.OpenFile(b, os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		f.Write([]byte("er"))
		must(t, f.Close())
		if got := read(t, fsys, b); got != "newer" {
			t.Errorf("appended: %q", got)
		}
		if _, err := ReadFile(fsys, b, 4); err == nil || !strings.Contains(err.Error(), "more than the 4 bytes") {
			t.Errorf("a file that is too long: %v", err)
		}
		if _, err := fsys.OpenFile(b, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666); !errors.Is(err, fs.ErrExist) {
			t.Errorf("exclusive: %v", err)
		}
		f, err = fsys.Open(b)
		must(t, err)
		if _, err := f.Write(p); err == nil {
			t.Error("a file open for reading was written")
		}
		must(t, f.Close())

		deep := filepath.Join(dir, "x", "y")
		if _, err := fsys.Create(filepath.Join(deep, "f")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("create without a directory: %v", err)
		}
		must(t, fsys.MkdirAll(deep, 0o777))
		must(t, fsys.MkdirAll(deep, 0o777))
		must(t, WriteFileAtomic(fsys, filepath.Join(deep, "f"), nil))
		must(t, fsys.SyncDir(deep))
		if err := fsys.Remove(deep); err == nil {
			t.Error("a full directory was removed")
		}
		if err := fsys.MkdirAll(filepath.Join(b, "z"), 0o777); err == nil {
			t.Error("a directory below a file")
		}
		entries, err := fsys.ReadDir(dir)
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, fmt.Sprint(e.Name(), e.IsDir()))
		}
		if !slices.Equal(names, []string{"bfalse", "xtrue"}) {
			t.Errorf("ReadDir: %v", names)
		}
		must(t, fsys.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "z")))
		must(t, RemoveAll(fsys, filepath.Join(dir, "z")))
		must(t, RemoveAll(fsys, filepath.Join(dir, "z")))
	})
}

// The two implementations agree on random programs, errors included.
func TestMemAgreesWithOS(t *testing.T) {
	base := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		dir := filepath.Join(base, fmt.Sprint(round))
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		mem := NewMem()
		mem.MkdirAll(dir, 0o777)
		name := rapid.SampledFrom([]string{"a", "b", "d", "d/a", "d/e", "d/e/f"})
		for range rapid.IntRange(1, 25).Draw(t, "operations") {
			op := rapid.SampledFrom([]string{"write", "remove", "rename", "link", "mkdir", "removeall", "truncate"}).Draw(t,
				"op")
			one := filepath.Join(dir, name.Draw(t, "name"))
			two := filepath.Join(dir, name.Draw(t, "other"))
			n := rapid.Int64Range(0, 50).Draw(t, "n")
			do := func(fsys FS) error {
				switch op {
				case "remove":
					return fsys.Remove(one)
				case "removeall":
					return RemoveAll(fsys, one)
				case "mkdir":
					return fsys.MkdirAll(one, 0o777)
				case "rename", "link":
					// Directories are moved nowhere in this program, and systems differ in what they allow.
					if info, err := fsys.Stat(one); err == nil && info.IsDir() {
						return nil
					}
					if op == "link" {
						return fsys.Link(one, two)
					}
					return fsys.Rename(one, two)
				}
				f, err := fsys.OpenFile(one, os.O_RDWR|os.O_CREATE, 0o666)
				if err != nil {
					return err
				}
				defer f.Close()
				if op == "truncate" {
					return f.Truncate(n)
				}
				_, err = f.WriteAt([]byte(op), n)
				return err
			}
			real, fake := do(OS{}), do(mem)
			if (real == nil) != (fake == nil) || errors.Is(real, fs.ErrNotExist) != errors.Is(fake, fs.ErrNotExist) {
				t.Fatalf("%s %s %s: %v on the system, %v in memory", op, one, two, real, fake)
			}
		}
		if a, b := listing(OS{}, dir), listing(mem, dir); a != b {
			t.Fatalf("on the system:\n%s\nin memory:\n%s", a, b)
		}
	})
}

func listing(fsys FS, dir string) string {
	var b strings.Builder
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		fmt.Fprintln(&b, name)
		if e.IsDir() {
			b.WriteString(listing(fsys, name))
		} else {
			data, err := ReadFile(fsys, name, 1<<20)
			fmt.Fprintf(&b, "%q %v\n", data, err)
		}
	}
	return b.String()
}

// Fail every operation, in every way: the file is the old or the new one, the error is the one injected, and nothing is
// left over.
func TestWriteAtomicUnderFaults(t *testing.T) {
	for how, fault := range map[string]func(int, error) func(Op) Outcome{
		"once": FailNth, "from then on": FailFrom, "short": ShortNth,
	} {
		for n := 1; ; n++ {
			m := NewMem()
			must(t, WriteFileAtomic(m, "f", []byte("old")))
			before := m.Ops()
			m.Intercept(fault(before+n, syscall.ENOSPC))
			err := WriteAtomic(m, "f", func(f File) error {
				if _, err := f.Write([]byte("new ")); err != nil {
					return err
				}
				_, err := f.Write([]byte("contents"))
				return err
			})
			ops := m.Ops() - before
			m.Intercept(nil)
			if ops < n {
				if n < 7 || err != nil {
					t.Fatalf("%d operations, %v", ops, err)
				}
				break
			}
			got := read(t, m, "f")
			if got != "old" && got != "new contents" {
				t.Errorf("operation %d failed %s: the file holds %q", n, how, got)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("operation %d failed %s: error %v", n, how, err)
			}
			if entries, _ := m.ReadDir("."); len(entries) != 1 {
				t.Errorf("operation %d failed %s: %d files are left", n, how, len(entries))
			}
		}
	}
}

// After every crash the file is the old or the new one, and the new one once WriteAtomic has returned.
func TestWriteAtomicUnderCrashes(t *testing.T) {
	m := NewMem()
	must(t, WriteFileAtomic(m, "f", []byte("old")))
	m.RecordCrashes()
	must(t, WriteFileAtomic(m, "f", []byte("new")))
	images := m.CrashImages()
	count := map[string]int{}
	for _, image := range images {
		got := read(t, image.FS, "f")
		count[got]++
		if got != "old" && got != "new" {
			t.Errorf("%s: the file holds %q", image.Point, got)
		}
		// The next run continues from there.
		must(t, WriteFileAtomic(image.FS, "f", []byte("newer")))
	}
	if count["old"] == 0 || count["new"] == 0 {
		t.Errorf("crash images: %v", count)
	}
	if last := images[len(images)-1]; read(t, last.FS, "f") != "newer" {
		t.Error("an image cannot be written")
	}
}

// The recorder finds each of the syncs that a careless writer leaves out.
func TestCrashesFindMissingSyncs(t *testing.T) {
	write := func(m *Mem, syncFile, syncDir bool) {
		f, err := m.Create("f.tmp")
		must(t, err)
		f.Write([]byte("ne"))
		f.Write([]byte("w"))
		if syncFile {
			must(t, f.Sync())
		}
		must(t, f.Close())
		must(t, m.Rename("f.tmp", "f"))
		if syncDir {
			must(t, m.SyncDir("."))
		}
		// The caller now believes that the file is safe, and records so.
		must(t, WriteFileAtomic(m, "done/flag", nil))
	}
	for _, c := range []struct{ file, dir, safe bool }{{true, true, true}, {false, true, false}, {true, false, false}} {
		m := NewMem()
		must(t, m.MkdirAll("done", 0o777))
		must(t, WriteFileAtomic(m, "f", []byte("old")))
		m.RecordCrashes()
		write(m, c.file, c.dir)
		bad := 0
		for _, image := range m.CrashImages() {
			_, err := image.FS.Stat("done/flag")
			got := read(t, image.FS, "f")
			if got != "new" && (got != "old" || err == nil) {
				bad++
			}
		}
		if (bad == 0) != c.safe {
			t.Errorf("file synced %v, directory synced %v: %d bad images", c.file, c.dir, bad)
		}
	}
}

func TestLock(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "lock")
		held, err := fsys.Lock(name)
		must(t, err)
		if _, err := fsys.Lock(name); !errors.Is(err, ErrLocked) {
			t.Errorf("locked twice: %v", err)
		}
		must(t, held.Close())
		held, err = fsys.Lock(name)
		must(t, err)
		must(t, held.Close())
		if _, err := fsys.Lock(filepath.Join(dir, "nowhere", "lock")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a lock without a directory: %v", err)
		}
	})
}

// A lock knows whether its file still has its name, whatever has the name now.
func TestLockInPlace(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "held", "lock")
		expect := func(what string, l Lock, want bool) {
			t.Helper()
			if is, err := l.InPlace(); is != want || err != nil {
				t.Errorf("%s: in place is %v, error %v", what, is, err)
			}
		}
		must(t, fsys.MkdirAll(filepath.Dir(name), 0o777))
		held, err := fsys.Lock(name)
		must(t, err)
		expect("held", held, true)
		must(t, RemoveAll(fsys, filepath.Dir(name)))
		expect("removed", held, false)
		must(t, fsys.MkdirAll(filepath.Dir(name), 0o777))
		expect("in a new directory", held, false)
		other, err := fsys.Lock(name)
		must(t, err)
		expect("where another is held", held, false)
		expect("the other", other, true)
		must(t, held.Close())
		must(t, other.Close())
	})
}

func TestFreeBytes(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		n, err := fsys.FreeBytes(dir)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil || n <= 0 {
			t.Errorf("%d bytes, %v", n, err)
		}
		if _, err := fsys.FreeBytes(filepath.Join(dir, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of nothing: %v", err)
		}
	})
}

func TestCapacity(t *testing.T) {
	m := NewMem()
	m.SetCapacity(100)
	f, err := m.Create("f")
	must(t, err)
	must(t, f.Preallocate(60))
	must(t, m.Link("f", "g")) // takes nothing
	if n, err := m.FreeBytes("."); n != 40 || err != nil {
		t.Errorf("%d bytes are free, %v", n, err)
	}
	h, err := m.Create("h")
	must(t, err)
	if err := h.Preallocate(41); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("preallocated too much: %v", err)
	}
	if n, err := h.WriteAt(make([]byte, 2), 39); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote too much: %d, %v", n, err)
	}
	if _, err := h.WriteAt(make([]byte, 2), 38); err != nil {
		t.Error(err)
	}
}

// A file that is open for direct I/O takes nothing that is not aligned; the memory that hostmem maps is.
func TestDirectWantsAlignment(t *testing.T) {
	if Direct == 0 {
		t.Skip("no direct I/O here")
	}
	m := NewMem()
	f, err := m.OpenFile("f", os.O_RDWR|os.O_CREATE|Direct, 0o666)
	must(t, err)
	page := make([]byte, 3*DirectAlign)
	page = page[-uintptr(unsafe.Pointer(&page[0]))%DirectAlign:][:2*DirectAlign]
	if _, err := f.WriteAt(page, DirectAlign); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		p   []byte
		off int64
	}{{page, 512}, {page[:100], 0}, {page[1 : DirectAlign+1], 0}} {
		if _, err := f.WriteAt(c.p, c.off); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("wrote %d bytes at %d: %v", len(c.p), c.off, err)
		}
		if _, err := f.ReadAt(c.p, c.off); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("read %d bytes at %d: %v", len(c.p), c.off, err)
		}
	}
}

// The images of unsynced writes show what a file system may do with them.
func TestCrashFates(t *testing.T) {
	m := NewMem()
	f, err := m.Create("f")
	must(t, err)
	f.Write([]byte("........"))
	must(t, f.Sync())
	must(t, m.SyncDir("."))
	must(t, m.Link("f", "g"))
	must(t, m.SyncDir("."))
	m.RecordCrashes()
	f.WriteAt([]byte("aa"), 0)
	f.WriteAt([]byte("bb"), 2)
	f.WriteAt([]byte("cc"), 4)
	must(t, f.Sync())
	var got []string
	for _, image := range m.CrashImages() {
		s := read(t, image.FS, "f")
		if s != read(t, image.FS, "g") {
			t.Errorf("%s: a hard link was torn apart", image.Point)
		}
		got = append(got, s)
	}
	slices.Sort(got)
	if want := []string{"........", "....cc..", "aab.....", "aabbcc.."}; !slices.Equal(got, want) {
		t.Errorf("images %q, want %q", got, want)
	}
}

// A crash point is a copy: what happens later does not reach it.
func TestImagesAreApart(t *testing.T) {
	m := NewMem()
	must(t, WriteFileAtomic(m, "f", []byte("one")))
	m.RecordCrashes()
	f, err := m.OpenFile("f", os.O_RDWR, 0)
	must(t, err)
	for range 3 {
		f.WriteAt([]byte("two"), 0)
	}
	images := m.CrashImages()
	if len(images) != 1 || read(t, images[0].FS, "f") != "one" {
		t.Fatal("a write went into a crash point")
	}
	must(t, images[0].FS.FlipBit("f", 1, 3))
	if got := read(t, m, "f"); got != "two" {
		t.Errorf("a change of an image reached the file system: %q", got)
	}
}

func TestFlipBit(t *testing.T) {
	m := NewMem()
	must(t, WriteFileAtomic(m, "f", []byte{0, 0, 0}))
	must(t, m.FlipBit("f", 1, 7))
	if got := read(t, m, "f"); got != "\x00\x80\x00" {
		t.Errorf("%q", got)
	}
	if m.FlipBit("f", 3, 0) == nil || m.FlipBit("g", 0, 0) == nil {
		t.Error("a bit that does not exist was flipped")
	}
}

func TestShortWrite(t *testing.T) {
	m := NewMem()
	f, err := m.Create("f")
	must(t, err)
	m.Intercept(ShortNth(m.Ops()+1, io.ErrShortWrite))
	if n, err := f.Write([]byte("abcdef")); n != 3 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%d, %v", n, err)
	}
	f.Write([]byte("x"))
	if got := read(t, m, "f"); got != "abcx" {
		t.Errorf("%q", got)
	}
}

func TestZeroFill(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(name)
	must(t, err)
	f.WriteString("abc")
	must(t, zeroFill(f, 3<<20+1))
	must(t, f.Close())
	b, err := os.ReadFile(name)
	must(t, err)
	if want := append([]byte("abc"), make([]byte, 3<<20-2)...); !bytes.Equal(b, want) {
		t.Errorf("%d bytes", len(b))
	}
}

func TestExchange(t *testing.T) {
	swap := map[string]func(fsys FS, a, b string) error{"": FS.Exchange,
		" in steps": func(_ FS, a, b string) error { return exchangeInSteps(a, b) }}
	for how, exchange := range swap {
		each(t, func(t *testing.T, fsys FS, dir string) {
			if _, real := fsys.(OS); !real && how != "" {
				t.Skip("its exchange is one step")
			}
			for _, name := range []string{"a", "b"} {
				must(t, fsys.MkdirAll(filepath.Join(dir, name), 0o777))
				must(t, WriteFileAtomic(fsys, filepath.Join(dir, name, "was-"+name), nil))
			}
			a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			must(t, exchange(fsys, a, b))
			for _, name := range []string{"a/was-b", "b/was-a"} {
				if _, err := fsys.Stat(filepath.Join(dir, name)); err != nil {
					t.Errorf("exchanged%s: %v", how, err)
				}
			}
			if err := exchange(fsys, a, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("exchanged%s with nothing: %v", how, err)
			}
			if _, err := fsys.Stat(filepath.Join(a, "was-b")); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of a symbolic link the link is removed, and nothing that it leads to.
func TestRemoveAllOfLinks(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	must(t, os.MkdirAll(filepath.Join(dir, "tree"), 0o777))
	must(t, os.MkdirAll(kept, 0o777))
	must(t, os.WriteFile(filepath.Join(kept, "file"), nil, 0o666))
	must(t, os.Symlink(kept, filepath.Join(dir, "tree", "link")))
	must(t, os.Symlink(kept, filepath.Join(dir, "link")))
	for _, name := range []string{"link", "tree"} {
		must(t, RemoveAll(OS{}, filepath.Join(dir, name)))
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Error(err)
	}
}

// A Faulty behaves like its file system, except where it is asked to fail.
func TestFaulty(t *testing.T) {
	m := NewMem()
	y := NewFaulty(m)
	work := func() error {
		if err := y.MkdirAll("d", 0o777); err != nil {
			return err
		}
		if err := WriteFileAtomic(y, "d/a", []byte("twelve bytes")); err != nil {
			return err
		}
		got, err := ReadFile(y, "d/a", 100)
		if err == nil && string(got) != "twelve bytes" {
			err = fmt.Errorf("read %q", got)
		}
		return errors.Join(err, y.Remove("d/a"))
	}
	must(t, work())
	if y.Ops() != m.Ops() {
		t.Errorf("%d operations, and %d below", y.Ops(), m.Ops())
	}
	begin := y.Ops()
	for n := 1; n <= begin; n++ {
		at := y.Ops() + n
		kind := OpKind(0)
		y.Intercept(func(op Op) Outcome {
			if op.N == at {
				kind = op.Kind
				return Outcome{Err: syscall.EIO}
			}
			return Outcome{}
		})
		if err := work(); !errors.Is(err, syscall.EIO) && kind != OpClose {
			t.Errorf("operation %d (%v) fails with %v", n, kind, err)
		}
		y.Intercept(nil)
		must(t, RemoveAll(y, "d"))
	}
	for _, kind := range []OpKind{OpRead, OpWrite} {
		y.Intercept(func(op Op) Outcome {
			if op.Kind == kind {
				return Outcome{Damage: func(p []byte) { p[0] = 'T' }}
			}
			return Outcome{}
		})
		if err := work(); err == nil || err.Error() != `read "Twelve bytes"` {
			t.Errorf("a damaged %v: %v", kind, err)
		}
	}
	// Half of a write, in whole blocks where the file is open for direct I/O.
	y.Intercept(func(op Op) Outcome {
		return Outcome{Err: map[OpKind]error{OpWrite: syscall.ENOSPC}[op.Kind], Written: op.Bytes / 2}
	})
	for _, c := range [][2]int{{0, 3 * DirectAlign / 2}, {Direct, DirectAlign}} { // Direct is 0 on other systems
		flag, want := c[0], c[1]
		f, err := y.OpenFile("f", os.O_RDWR|os.O_CREATE|os.O_TRUNC|flag, 0o666)
		must(t, err)
		if n, err := f.WriteAt(alignedBytes(3*DirectAlign), 0); n != want && Direct != 0 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d bytes are written of %d, error %v", n, 3*DirectAlign, err)
		}
		f.Close()
	}
}

// A file that was longer when it was read than it said is read whole, or refused.
func TestReadFileThatGrows(t *testing.T) {
	m := NewMem()
	for text, ok := range map[string]bool{strings.Repeat("a", 100): true, strings.Repeat("a", 101): false} {
		if err := WriteFileAtomic(m, "/file", []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(emptyBefore{m}, "/file", 100)
		if ok && (err != nil || string(got) != text) || !ok && err == nil {
			t.Errorf("%d bytes: read %d, error %v", len(text), len(got), err)
		}
	}
}

// emptyBefore is a file system whose files say that they are empty.
type emptyBefore struct{ FS }

func (e emptyBefore) Open(name string) (File, error) {
	f, err := e.FS.Open(name)
	return emptyFile{f}, err
}

type emptyFile struct{ File }

func (f emptyFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	return emptyInfo{info}, err
}

type emptyInfo struct{ fs.FileInfo }

func (emptyInfo) Size() int64 { return 0 }
