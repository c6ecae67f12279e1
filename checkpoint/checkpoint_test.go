package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

func TestSaveAndOpen(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		r := start(t, fsys, dir)
		w, err := r.Create(100, specs)
		must(t, err)
		must(t, r.fill(w, 100))
		if w.Written() != 196+int64(len(configText)) || w.Linked() != 200 {
			t.Errorf("%d bytes written, %d linked", w.Written(), w.Linked())
		}
		got, err := w.Commit(manifestOf(100))
		must(t, err)
		if want := filepath.Join(dir, "step-000100"); got != want {
			t.Errorf("committed as %s, want %s", got, want)
		}
		w.Abort() // does nothing
		if got := names(t, fsys, dir); !slices.Equal(got, []string{"step-000100"}) {
			t.Errorf("the directory holds %q", got)
		}
		// The run's own files may go, and with them nothing of the checkpoint.
		must(t, vfs.RemoveAll(fsys, r.pool))
		c, err := Open(fsys, got)
		must(t, err)
		must(t, whole(c))

		var last, total int64
		must(t, c.Verify(context.Background(), func(d, n int64) { last, total = d, n }))
		if last != 396 || total != 396 {
			t.Errorf("progress ended at %d of %d", last, total)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := c.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		e, ok := c.Extent(moments.ID)
		if !ok || e.Spec != moments || len(e.Pieces) != 3 {
			t.Errorf("Extent: %+v", e)
		}
		if _, ok := c.Extent(ID{"block.7", store.Low}); ok {
			t.Error("an extent that is not there")
		}
		if _, ok, err := c.Attachment("norm.weights"); ok || err != nil {
			t.Errorf("an extent is no attachment: %v", err)
		}
	})
}

// A store can adopt linked pieces. It cannot adopt pieces from memory, which share a file, unless the extent has a
// single piece.
func TestPieceFiles(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 6)
	c, _, err := Latest(m, root)
	must(t, err)
	files, ok := c.PieceFiles(moments.ID, 9)
	if !ok || len(files) != 3 {
		t.Fatalf("%+v", files)
	}
	for _, f := range files {
		data, err := vfs.ReadFile(m, f.Path, 1<<20)
		must(t, err)
		if want := contents(moments, 6)[f.Off:][:f.Bytes]; !bytes.Equal(data[:f.Bytes], want) || xxh3.Hash(want) != f.XXH3 || f.Version != 9 {
			t.Errorf("%+v", f)
		}
	}
	if _, ok := c.PieceFiles(weights.ID, 9); ok {
		t.Error("pieces that share a file can be adopted")
	}
	if _, ok := c.PieceFiles(norm.ID, 9); !ok {
		t.Error("the only piece cannot be adopted")
	}
	if _, ok := c.PieceFiles(ID{"x", store.Low}, 9); ok {
		t.Error("what is not there can be adopted")
	}
}

// An extent that is partly on disk: what is added keeps its offset, and what is linked has files of its own.
func TestMixedExtent(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		r := start(t, fsys, dir)
		w, err := r.Create(2, []Spec{moments})
		must(t, err)
		want := contents(moments, 2)
		path, err := r.version(want[:80])
		must(t, err)
		must(t, w.Add(moments.ID, 2, want[160:]))
		must(t, w.Link(moments.ID, 0, path, xxh3.Hash(want[:80])))
		must(t, w.Add(moments.ID, 1, want[80:160]))
		dir, err = w.Commit(Manifest{})
		must(t, err)
		c, err := Open(fsys, dir)
		must(t, err)
		got := make([]byte, 200)
		must(t, c.Read(moments.ID, 0, got))
		if !bytes.Equal(got, want) {
			t.Error("the pieces are mixed up")
		}
		if got := names(t, fsys, dir); !slices.Equal(got, []string{"block.0.first-moments", "block.0.first-moments.00000", manifestName}) {
			t.Errorf("files %q", got)
		}
	})
}

// A copy of a checkpoint works in any place and under any name.
func TestCopiedElsewhere(t *testing.T) {
	dir := t.TempDir()
	start(t, vfs.OS{}, filepath.Join(dir, root), 3)
	must(t, os.CopyFS(filepath.Join(dir, "elsewhere"), os.DirFS(filepath.Join(dir, root, "step-000003"))))
	must(t, os.RemoveAll(filepath.Join(dir, "out")))
	c, err := Open(vfs.OS{}, filepath.Join(dir, "elsewhere"))
	must(t, err)
	must(t, whole(c))
}

func TestReadAnyRange(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 5)
	c, _, err := Latest(m, root)
	must(t, err)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(specs).Draw(t, "extent")
		off := rapid.Int64Range(0, s.Bytes).Draw(t, "offset")
		n := rapid.Int64Range(0, s.Bytes-off).Draw(t, "bytes")
		got := make([]byte, n)
		if err := c.Read(s.ID, off, got); err != nil || !bytes.Equal(got, contents(s, 5)[off:off+n]) {
			t.Fatalf("%v [%d, +%d): %v", s.ID, off, n, err)
		}
	})
	// A piece that the range only touches is verified as a whole.
	must(t, m.FlipBit(filepath.Join(root, "step-000005", "block.0.weights"), 79, 0))
	if err := c.Read(weights.ID, 0, make([]byte, 41)); err == nil {
		t.Error("a changed piece was read in part")
	}
	must(t, c.Read(weights.ID, 0, make([]byte, 40)))
}

func TestPrune(t *testing.T) {
	for _, c := range []struct {
		keep, best    int
		broken        int
		removed, left []int
	}{
		{2, -1, -1, []int{3, 2, 1}, []int{5, 4}},
		{1, 2, -1, []int{4, 3, 1}, []int{5, 2}},
		{1, 5, -1, []int{4, 3, 2, 1}, []int{5}},
		{9, -1, -1, nil, []int{5, 4, 3, 2, 1}},
		{0, -1, -1, nil, []int{5, 4, 3, 2, 1}},
		{2, -1, 5, []int{2, 1}, []int{5, 4, 3}}, // what is broken does not count
		{1, -1, 4, []int{4, 3, 2, 1}, []int{5}}, // and goes in its turn
	} {
		m := vfs.NewMem()
		r := start(t, m, root, 1, 2, 3, 4, 5)
		if c.broken >= 0 {
			must(t, m.Remove(filepath.Join(root, DirName(c.broken), "norm.weights")))
		}
		removed, err := r.prune(5, c.keep, c.best)
		must(t, err)
		if !slices.Equal(removed, c.removed) {
			t.Errorf("keep %d, best %d: removed %v, want %v", c.keep, c.best, removed, c.removed)
		}
		entries, err := List(m, root)
		must(t, err)
		var left []int
		for _, e := range entries {
			left = append(left, e.Step)
			if (e.Err != nil) != (e.Step == c.broken) || e.Dir != filepath.Join(root, DirName(e.Step)) {
				t.Errorf("entry %+v", e)
			}
		}
		if !slices.Equal(left, c.left) || len(names(t, m, root)) != len(left) {
			t.Errorf("keep %d, best %d: %v left, want %v", c.keep, c.best, left, c.left)
		}
	}
}

func TestLatest(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		if c, broken, err := Latest(fsys, dir); c != nil || broken != nil || err != nil {
			t.Errorf("nothing there: %v %v %v", c, broken, err)
		}
		start(t, fsys, dir, 9, 10, 1000000, 2000000)
		must(t, fsys.MkdirAll(filepath.Join(dir, ".step-3000000.tmp"), 0o777))
		must(t, fsys.MkdirAll(filepath.Join(dir, "step-7"), 0o777)) // not our name
		must(t, fsys.Remove(filepath.Join(dir, "step-2000000", manifestName)))
		must(t, fsys.Rename(filepath.Join(dir, "step-000009"), filepath.Join(dir, "step-1500000")))
		c, broken, err := Latest(fsys, dir)
		must(t, err)
		must(t, whole(c))
		if c.Manifest.Step != 1000000 || len(broken) != 2 || broken[0].Step != 2000000 || broken[1].Step != 1500000 {
			t.Fatalf("step %d, broken %+v", c.Manifest.Step, broken)
		}
		for i, want := range []string{"this is no checkpoint: it has no manifest.json: resume from the previous checkpoint, ",
			"this is the checkpoint of step 9 under another name: resume from the previous checkpoint, "} {
			if got := broken[i].Err.Error(); !strings.Contains(got, want+c.Dir()) {
				t.Errorf("error %q, want %q", got, want)
			}
		}
	})
}

// A new checkpoint of a step takes the place of the one that is there, which stays until then.
func TestReplace(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 4)
	must(t, m.FlipBit(filepath.Join(root, "step-000004", "norm.weights"), 0, 0))
	w, err := r.Create(4, specs)
	must(t, err)
	must(t, r.fill(w, 4))
	w.Abort()
	c, _, err := Latest(m, root)
	must(t, err)
	if whole(c) == nil {
		t.Fatal("the old one is not there any more")
	}
	_, err = r.save(4)
	must(t, err)
	c, _, err = Latest(m, root)
	must(t, err)
	must(t, whole(c))
	if got := names(t, m, root); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
}

// A replaced checkpoint that could not be removed does not come back when the one in its place is pruned.
func TestPruneAfterReplace(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 4, 5)
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpRemove && strings.Contains(op.Name, replacedSuffix) && strings.HasSuffix(op.Name, "norm.weights") {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	_, err := r.save(4)
	must(t, err)
	m.Intercept(nil)
	if got := names(t, m, root); len(got) != 3 {
		t.Fatalf("the directory holds %q", got)
	}
	_, err = r.prune(5, 1, -1)
	must(t, err)
	must(t, r.Close())
	_, err = acquire(m, root)
	must(t, err)
	if got := names(t, m, root); !slices.Equal(got, []string{"step-000005"}) {
		t.Errorf("the directory holds %q", got)
	}
}

func TestIncompleteSaves(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 1)
	w, err := r.Create(2, specs)
	must(t, err)
	must(t, w.Add(norm.ID, 0, contents(norm, 2)))
	if _, err := w.Commit(manifestOf(2)); err == nil || !strings.Contains(err.Error(), "step 2 was not saved: weights of block.0 are not complete: 0 of 100 bytes") {
		t.Errorf("error %v", err)
	}
	if got := names(t, m, root); !slices.Equal(got, []string{"step-000001"}) {
		t.Errorf("the directory holds %q", got)
	}
	for what, f := range map[string]func(*Writer){
		"twice":          func(w *Writer) { w.Add(norm.ID, 0, contents(norm, 3)); w.Add(norm.ID, 0, contents(norm, 3)) },
		"another length": func(w *Writer) { w.Add(norm.ID, 0, make([]byte, 17)) },
		"unknown":        func(w *Writer) { w.Add(ID{"norm", store.Low}, 0, nil) },
		"beyond":         func(w *Writer) { w.Add(norm.ID, 1, nil) },
		"attachment":     func(w *Writer) { w.Attach("../x", nil) },
		"manifest":       func(w *Writer) { w.Attach(manifestName, nil) },
		"second save":    func(w *Writer) { r.Create(4, specs) },
		"after the end":  func(w *Writer) { w.Abort(); w.Add(norm.ID, 0, contents(norm, 3)) },
	} {
		w, err := r.Create(3, specs)
		must(t, err)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f(w)
		}()
		w.Abort()
	}
}

// A run that continues the checkpoints of another one, in a copy, ends what an interrupted process of that has begun
// there. Hidden directories of any other run stay.
func TestIncompleteSavesOfEarlierRuns(t *testing.T) {
	dir := t.TempDir()
	r, err := acquire(vfs.OS{}, dir)
	must(t, err)
	_, err = r.save(1)
	must(t, errors.Join(err, r.Close()))
	left := func(run RunID, step int, suffix string) string {
		return filepath.Join(dir, hiddenName(step, run, suffix))
	}
	foreign := NewRunID()
	for _, name := range []string{left(ours.Run, 7, savingSuffix), left(ours.Run, 8, prunedSuffix),
		left(foreign, 7, savingSuffix)} {
		must(t, os.Mkdir(name, 0o777))
	}
	must(t, os.Rename(filepath.Join(dir, DirName(1)), left(ours.Run, 1, replacedSuffix)))
	d, err := Acquire(vfs.OS{}, dir, Owner{Run: NewRunID(), Earlier: []RunID{ours.Run}})
	must(t, err)
	defer d.Close()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{lockName, filepath.Base(left(foreign, 7, savingSuffix)), DirName(1)}; !slices.Equal(names, want) {
		t.Errorf("there are %v, want %v", names, want)
	}
}

// A loss that is not finite is left out; all else of such a run is saved.
func TestLossThatIsNotFinite(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root)
	w, err := r.Create(1, nil)
	must(t, err)
	nan := math.NaN()
	dir, err := w.Commit(Manifest{EvalLoss: &nan})
	must(t, err)
	c, err := Open(m, dir)
	must(t, err)
	if c.Manifest.EvalLoss != nil || c.Manifest.Step != 1 {
		t.Errorf("%+v", c.Manifest)
	}
}

func TestConcurrentAdds(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		r := start(t, fsys, dir)
		w, err := r.Create(8, specs)
		must(t, err)
		var wait sync.WaitGroup
		for _, s := range specs {
			for i := range s.Pieces() {
				wait.Go(func() {
					off, n := s.piece(i)
					if err := w.Add(s.ID, i, contents(s, 8)[off:off+n]); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wait.Go(func() {
			if err := w.Attach("config.json", []byte(configText)); err != nil {
				t.Error(err)
			}
		})
		wait.Wait()
		dir, err = w.Commit(manifestOf(8))
		must(t, err)
		c, err := Open(fsys, dir)
		must(t, err)
		must(t, whole(c))
	})
}

// Every byte of a checkpoint is under a checksum.
func TestFlippedBits(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 100, 200)
	dir := filepath.Join(root, "step-000200")
	flips := 0
	for _, name := range names(t, m, dir) {
		path := filepath.Join(dir, name)
		info, err := m.Stat(path)
		must(t, err)
		length := info.Size()
		if strings.Contains(name, "first-moments") {
			length -= 16 // the store's padding, which belongs to no piece
		}
		step := int64(1)
		if name == manifestName {
			step = 3 // it is long
		}
		for off := int64(0); off < length; off += step {
			flips++
			must(t, m.FlipBit(path, off, uint(off)))
			c, err := Open(m, dir)
			if err == nil {
				err = c.Verify(context.Background(), nil)
			}
			if err == nil {
				t.Fatalf("byte %d of %s was changed, and no check noticed", off, name)
			}
			damage := (*DamageError)(nil)
			if !errors.As(err, &damage) || damage.Path != path || damage.Previous != filepath.Join(root, "step-000100") ||
				strings.Contains(err.Error(), "\n") {
				t.Fatalf("byte %d of %s: error %v", off, name, err)
			}
			if c != nil && name == "norm.weights" && c.ReadPiece(norm.ID, 0, make([]byte, 16)) == nil {
				t.Fatalf("byte %d of %s was changed, and read", off, name)
			}
			must(t, m.FlipBit(path, off, uint(off)))
		}
	}
	if flips < 700 {
		t.Errorf("%d flips", flips)
	}
	c, err := Open(m, dir)
	must(t, err)
	must(t, whole(c))
}

func TestDamage(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(dir string) error
		want string
	}{
		"missing":  {func(dir string) error { return os.Remove(filepath.Join(dir, "norm.weights")) }, "norm.weights: the file is missing: resume from the previous checkpoint, "},
		"short":    {func(dir string) error { return os.Truncate(filepath.Join(dir, "norm.weights"), 15) }, "norm.weights: the file has 15 bytes and was saved with 16: resume from "},
		"long":     {func(dir string) error { return os.Truncate(filepath.Join(dir, "norm.weights"), 17) }, "norm.weights: the file has 17 bytes and was saved with 16: resume from "},
		"no files": {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o777)) }, "step-000002: this is no checkpoint: it has no manifest.json: resume from "},
		"a file":   {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o666)) }, "step-000002: this is no checkpoint: it has no manifest.json: resume from "},
		"gone":     {os.RemoveAll, "there is no checkpoint "},
		"a directory": {func(dir string) error {
			name := filepath.Join(dir, "norm.weights")
			return errors.Join(os.Remove(name), os.Mkdir(name, 0o777))
		}, "norm.weights: this is not a file: resume from "},
		"empty manifest": {func(dir string) error { return os.Truncate(filepath.Join(dir, manifestName), 0) }, "manifest.json: this is not a manifest that can be trusted: it does not begin like one of a millrace checkpoint: resume"},
		"all zeros": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestName), make([]byte, 500), 0o666)
		},
			"manifest.json: this is not a manifest that can be trusted: it does not begin like one of a millrace checkpoint: resume"},
	} {
		dir := filepath.Join(t.TempDir(), root)
		start(t, vfs.OS{}, dir, 1, 2)
		must(t, c.do(filepath.Join(dir, "step-000002")))
		_, err := Open(vfs.OS{}, filepath.Join(dir, "step-000002"))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", what, err, c.want)
		}
		latest, broken, err := Latest(vfs.OS{}, dir)
		must(t, err)
		if latest.Manifest.Step != 1 || (len(broken) == 1) != (what != "gone") {
			t.Errorf("%s: latest %d, broken %v", what, latest.Manifest.Step, broken)
		}
	}
}

// A directory that goes away while it is open is an error with a way out, and so is one that goes while it is written.
func TestVanishedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), root)
	r := start(t, vfs.OS{}, dir, 1, 2)
	c, err := Open(vfs.OS{}, filepath.Join(dir, "step-000002"))
	must(t, err)
	w, err := r.Create(3, specs)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(dir, "step-000002")))
	must(t, os.RemoveAll(filepath.Join(dir, hiddenName(3, ours.Run, savingSuffix))))
	for _, err := range []error{c.ReadPiece(norm.ID, 0, make([]byte, 16)), c.Verify(context.Background(), nil)} {
		if err == nil || !strings.HasSuffix(err.Error(), "the file is missing: resume from the previous checkpoint, "+filepath.Join(dir, "step-000001")) {
			t.Errorf("error %v", err)
		}
	}
	err = w.Add(norm.ID, 0, contents(norm, 3))
	if err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(err.Error(),
		"the path is missing or not a directory: restore it, or set another output_dir") {
		t.Errorf("error %v", err)
	}
	if again := w.Add(weights.ID, 0, contents(weights, 3)[:40]); again != err {
		t.Errorf("the error does not stay: %v", again)
	}
	if _, again := w.Commit(manifestOf(3)); again != err {
		t.Errorf("the error does not stay: %v", again)
	}
	_, err = r.save(3)
	must(t, err)
	must(t, os.RemoveAll(dir))
	if _, err := r.save(4); err == nil {
		t.Error("saved into nothing")
	}
}

func TestCompare(t *testing.T) {
	m := &Manifest{Mathematics: map[string]string{"seed": "1", "learning_rate": "1e-05", "gone": "x"}}
	if d := Compare(m, map[string]string{"seed": "1", "learning_rate": "1e-05", "gone": "x"}); d != nil {
		t.Errorf("equal: %v", d)
	}
	x, one, two, empty := "x", "1", "2", ""
	want := Differences{{Key: "gone", Saved: &x}, {Key: "new", Wanted: &empty}, {Key: "seed", Saved: &one, Wanted: &two}}
	if diff := cmp.Diff(want, Compare(m, map[string]string{"seed": "2", "learning_rate": "1e-05", "new": ""})); diff != "" {
		t.Error(diff)
	}
	if d := Compare(&Manifest{}, map[string]string{"a": "b"}); len(d) != 1 {
		t.Errorf("nothing saved: %v", d)
	}
}

// The format on disk. A change here raises FormatVersion, except a new member that may be absent.
func TestGoldenManifest(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root)
	must(t, r.Own(Owner{})) // no id, as in manifests from before there were such members; nor what follows
	w, err := r.Create(7, []Spec{norm})
	must(t, err)
	must(t, w.Add(norm.ID, 0, bytes.Repeat([]byte{1}, 16)))
	must(t, w.Attach("config.json", []byte("{}")))
	manifest := manifestOf(7)
	manifest.ComputedOn, manifest.MomentCodes, manifest.Algorithms = "", "", nil
	dir, err := w.Commit(manifest)
	must(t, err)
	got, err := vfs.ReadFile(m, filepath.Join(dir, manifestName), 1<<20)
	must(t, err)
	want, err := os.ReadFile("testdata/manifest.json")
	must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
	c, err := Open(m, dir)
	must(t, err)
	manifest.Step, manifest.Files = 7, []File{{"config.json", 2}, {"norm.weights", 16}}
	manifest.Attachments, manifest.Extents = c.Manifest.Attachments, c.Manifest.Extents
	// JSON may escape; what is meant is the same.
	var data, again any
	must(t, json.Unmarshal(manifest.Data, &data))
	must(t, json.Unmarshal(c.Manifest.Data, &again))
	manifest.Data, c.Manifest.Data = nil, nil
	if diff := cmp.Diff(&manifest, c.Manifest); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(data, again); diff != "" {
		t.Error(diff)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]int{"step-000000": 0, "step-000100": 100, "step-1234567": 1234567, "step-100": -1,
		"step-0000100": -1, "step--00001": -1, "step-+00001": -1, "step-": -1, ".step-000100": -1, "step-99999999999999999999": -1} {
		if got, ok := stepOf(name); ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", ".", "..", ".x", "a/b", "a\\b", "a b", "a\x00", "é", "a:b", strings.Repeat("a", 201)} {
		if isPlainName(name) {
			t.Errorf("%q is a plain name", name)
		}
	}
	step, suffix, ok := hiddenStep(hiddenName(100, ours.Run, replacedSuffix), ours)
	if step != 100 || suffix != replacedSuffix || !ok {
		t.Error("hiddenStep")
	}
	for _, run := range []RunID{ours.Run, ""} {
		name := hiddenName(100, run, savingSuffix)
		one, other := ownName(name), ownName(name)
		step, suffix, ok := hiddenStep(one, Owner{Run: run})
		if step != 100 || suffix != savingSuffix || !ok || one == other {
			t.Errorf("hiddenStep of %s: %d, %s, %v", one, step, suffix, ok)
		}
		if _, _, ok := hiddenStep(one, Owner{Run: NewRunID()}); ok {
			t.Errorf("hiddenStep of %s for another run", one)
		}
	}
	if _, _, ok := hiddenStep(ownName(hiddenName(100, ours.Run, savingSuffix)), Owner{}); ok {
		t.Error("hiddenStep of the name of a run with an id for one without")
	}
	if _, _, ok := hiddenStep("step-000100."+ours.Run.Short()+".tmp", ours); ok {
		t.Error("hiddenStep of a visible name")
	}
	if _, _, ok := hiddenStep(hiddenName(100, NewRunID(), replacedSuffix), ours); ok {
		t.Error("hiddenStep of another run's name")
	}
	for name, want := range map[string]bool{"step-000020.damaged": true, "step-000020.damaged-2": true,
		"step-000020": false, "step-20.damaged": false, ".step-000020.damaged": false, "step-000020.": false} {
		if _, ok := asideStep(name); ok != want {
			t.Errorf("%s was set aside: %v", name, ok)
		}
	}
}

// Sizes that do not add up are refused before anything is made from them.
func TestSpecsThatCannotBe(t *testing.T) {
	for _, s := range []Spec{
		{ID{"../a", store.Low}, tensor.I16, 4, 4}, {ID{"a", store.Kinds}, tensor.I16, 4, 4}, {ID{"a", store.Low}, tensor.Invalid, 4, 4},
		{ID{"a", store.Low}, tensor.I16, 0, 4}, {ID{"a", store.Low}, tensor.I16, 4, 0}, {ID{"a", store.Low}, tensor.I16, -4, 4},
		{ID{"a", store.Low}, tensor.I16, math.MaxInt64, 4}, {ID{"a", store.Low}, tensor.I16, 1 << 50, 1},
		{ID{strings.Repeat("a", 190), store.Low}, tensor.I16, 4, 4}, {ID{"a", store.Low}, tensor.DType(200), 4, 4},
	} {
		if s.check() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
	for _, s := range specs {
		must(t, s.check())
	}
}

// A list of checkpoints keeps no pieces. One that does not say whose it is is not pruned.
func TestListKeepsNoPieces(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 1, 2, 3)
	entries, err := List(m, root)
	must(t, err)
	for _, e := range entries {
		if e.Err != nil || e.Manifest.Bytes() == 0 || e.Manifest.Files != nil {
			t.Errorf("%+v", e)
		}
		for _, x := range e.Manifest.Extents {
			if x.Pieces != nil {
				t.Errorf("step %d has the pieces of %v", e.Step, x.ID)
			}
		}
	}
	must(t, vfs.WriteFileAtomic(m, filepath.Join(root, DirName(1), manifestName), []byte("not read")))
	removed, err := r.prune(3, 1, -1)
	if err != nil || !slices.Equal(removed, []int{2}) {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// A directory is of a run that has saved all that is in it, or if there is nothing to lose.
func TestIsOf(t *testing.T) {
	other := Owner{Run: "ffeeddccbbaa99887766554433221100"}
	copied := Owner{Run: other.Run, Earlier: []RunID{ours.Run}}
	saving := func(t *testing.T, fsys vfs.FS, dir string) {
		makeIn(t, fsys, dir, hiddenName(3, ours.Run, savingSuffix))
	}
	thesis := func(t *testing.T, fsys vfs.FS, dir string) { makeIn(t, fsys, dir, "thesis") }
	damage := func(t *testing.T, fsys vfs.FS, dir string) {
		must(t, vfs.WriteFileAtomic(fsys, filepath.Join(dir, DirName(2), manifestName), []byte("{}")))
	}
	for what, c := range map[string]struct {
		steps []int
		spoil func(*testing.T, vfs.FS, string)
		owner Owner
		want  bool
	}{
		"missing":             {nil, nil, ours, true},
		"checkpoints":         {[]int{1, 2}, nil, ours, true},
		"of another run":      {[]int{1, 2}, nil, other, false},
		"of the run it was":   {[]int{1, 2}, nil, copied, true},
		"one is damaged":      {[]int{1, 2}, damage, ours, true},
		"all are damaged":     {[]int{2}, damage, ours, false},
		"nothing but a lock":  {nil, func(t *testing.T, fsys vfs.FS, dir string) { start(t, fsys, dir) }, ours, true},
		"a save of the run's": {nil, saving, ours, true},
		"a save of another":   {nil, saving, other, false},
		"other files":         {nil, thesis, ours, false},
		"other files as well": {[]int{1}, thesis, ours, true},
	} {
		t.Run(what, func(t *testing.T) {
			m, dir := vfs.NewMem(), "run/checkpoints"
			if len(c.steps) > 0 {
				start(t, m, dir, c.steps...)
			}
			if c.spoil != nil {
				c.spoil(t, m, dir)
			}
			if is, err := IsOf(m, dir, c.owner); err != nil || is != c.want {
				t.Errorf("%v, error %v", is, err)
			}
		})
	}
}

func makeIn(t *testing.T, fsys vfs.FS, dir, name string) {
	t.Helper()
	must(t, fsys.MkdirAll(filepath.Join(dir, name), 0o777))
}
