package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// longPieces is an extent whose pieces are longer than what is read or copied at once, and no multiple of it.
var longPieces = Spec{ID{"block.0", store.FirstMoment}, tensor.F32, 5*chunkBytes + 40, 2*chunkBytes + 12}

// saveLong saves it, each piece by the function.
func saveLong(t *testing.T, m *vfs.Mem, put func(r *run, w *Writer, piece int, data []byte)) (*Checkpoint, []byte) {
	t.Helper()
	r := start(t, m, root)
	w, err := r.Create(1, []Spec{longPieces})
	must(t, err)
	data := contents(longPieces, 1)
	for i := range longPieces.Pieces() {
		off, n := longPieces.piece(i)
		put(r, w, i, data[off:off+n])
	}
	dir, err := w.Commit(Manifest{})
	must(t, err)
	c, err := Open(m, dir)
	must(t, err)
	return c, data
}

// Ranges that begin and end anywhere in pieces of several chunks; at the edges of chunks and pieces above all.
func TestReadRangesOfLongPieces(t *testing.T) {
	c, data := saveLong(t, vfs.NewMem(), func(_ *run, w *Writer, piece int, data []byte) {
		must(t, w.Add(longPieces.ID, piece, data))
	})
	edges := []int64{0, longPieces.Bytes}
	for i := range longPieces.Pieces() {
		off, n := longPieces.piece(i)
		for at := int64(0); at < n; at += chunkBytes {
			edges = append(edges, off+at)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	near := func() int64 { return min(max(edges[r.IntN(len(edges))]+r.Int64N(3)-1, 0), longPieces.Bytes) }
	for range 60 {
		from, to := near(), near()
		from, to = min(from, to), max(from, to)
		got := make([]byte, to-from)
		if err := c.Read(longPieces.ID, from, got); err != nil || !bytes.Equal(got, data[from:to]) {
			t.Fatalf("[%d, %d): error %v", from, to, err)
		}
	}
	must(t, c.VerifyExtent(t.Context(), longPieces.ID))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.VerifyExtent(ctx, longPieces.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
}

// A copy is of the piece and no more, it is durable, and its bytes are those that the checksum is of.
func TestCopyOfLongPieces(t *testing.T) {
	m := vfs.NewMem()
	synced := map[string]bool{}
	m.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpSync {
			synced[filepath.Base(op.Name)] = true
		}
		return vfs.Outcome{}
	})
	c, data := saveLong(t, m, func(r *run, w *Writer, piece int, data []byte) {
		path, err := r.version(data)
		must(t, err)
		must(t, w.Copy(longPieces.ID, piece, path, xxh3.Hash(data)))
	})
	got := make([]byte, len(data))
	must(t, c.Read(longPieces.ID, 0, got))
	if !bytes.Equal(got, data) {
		t.Error("the pieces differ")
	}
	for i, p := range c.Manifest.Extents[0].Pieces {
		info, err := m.Stat(filepath.Join(c.Dir(), p.File))
		must(t, err)
		if info.Size() != p.Bytes || !synced[p.File] {
			t.Errorf("piece %d of %d bytes has a file of %d; synced: %v", i, p.Bytes, info.Size(), synced[p.File])
		}
	}
}

// A piece that changes after the checkpoint was opened has an error that says how.
func TestPieceFaults(t *testing.T) {
	for want, spoil := range map[string]func(m *vfs.Mem, name string){
		": the file ends too early: resume from": func(m *vfs.Mem, name string) {
			f, err := m.OpenFile(name, 1, 0)
			must(t, err)
			must(t, f.Truncate(15))
		},
		": it cannot be read: input/output error: resume from": func(m *vfs.Mem, name string) { m.Intercept(failing(vfs.OpRead, name)) },
		": the file is missing: resume from":                   func(m *vfs.Mem, name string) { must(t, m.Remove(name)) },
		": the 16 bytes at 0 are not those that were saved":    func(m *vfs.Mem, name string) { must(t, m.FlipBit(name, 15, 7)) },
	} {
		m := vfs.NewMem()
		start(t, m, root, 1, 2)
		c, err := Open(m, root+"/step-000002")
		must(t, err)
		spoil(m, root+"/step-000002/norm.weights")
		for what, err := range map[string]error{
			"piece": c.ReadPiece(norm.ID, 0, make([]byte, 16)), "range": c.Read(norm.ID, 1, make([]byte, 5)),
			"extent": c.VerifyExtent(t.Context(), norm.ID), "all": c.Verify(t.Context(), nil),
		} {
			if damage := (*DamageError)(nil); !errors.As(err, &damage) || !strings.Contains(err.Error(), want) ||
				damage.Lasts() == errors.Is(err, syscall.EIO) {
				t.Errorf("%s: error %v, want %s", what, err, want)
			}
		}
	}
}

// An attachment that was changed is not returned.
func TestChangedAttachment(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 1, 2)
	c, err := Open(m, root+"/step-000002")
	must(t, err)
	must(t, m.FlipBit(root+"/step-000002/config.json", 3, 0))
	data, ok, err := c.Attachment("config.json")
	if err == nil || !ok || data != nil || !strings.Contains(err.Error(), "config.json: the 23 bytes at 0 are not those that were saved") {
		t.Errorf("%q, %v, error %v", data, ok, err)
	}
}

// A request that cannot be met is a bug of the caller, and panics before it does harm.
func TestCallersBugs(t *testing.T) {
	m := vfs.NewMem()
	r := start(t, m, root, 1)
	c, err := Open(m, root+"/step-000001")
	must(t, err)
	w, err := r.Create(2, specs)
	must(t, err)
	defer w.Abort()
	must(t, w.Add(norm.ID, 0, contents(norm, 2)))
	must(t, w.Attach("config.json", nil))
	for what, do := range map[string]func(){
		"piece -1":             func() { _ = c.ReadPiece(norm.ID, -1, make([]byte, 16)) },
		"piece after the last": func() { _ = c.ReadPiece(norm.ID, 1, make([]byte, 16)) },
		"piece of 15":          func() { _ = c.ReadPiece(norm.ID, 0, make([]byte, 15)) },
		"piece of nothing":     func() { _ = c.ReadPiece(ID{"x", store.Low}, 0, make([]byte, 15)) },
		"range before":         func() { _ = c.Read(norm.ID, -1, make([]byte, 16)) },
		"range after":          func() { _ = c.Read(norm.ID, 1, make([]byte, 16)) },
		"range too long":       func() { _ = c.Read(norm.ID, 0, make([]byte, 17)) },
		"range of nothing":     func() { _ = c.Read(ID{"x", store.Low}, 0, nil) },
		"add -1":               func() { _ = w.Add(weights.ID, -1, make([]byte, 40)) },
		"add after the last":   func() { _ = w.Add(weights.ID, 3, make([]byte, 40)) },
		"add of 39":            func() { _ = w.Add(weights.ID, 0, make([]byte, 39)) },
		"add twice":            func() { _ = w.Add(norm.ID, 0, make([]byte, 16)) },
		"add to nothing":       func() { _ = w.Add(ID{"x", store.Low}, 0, make([]byte, 16)) },
		"attach twice":         func() { _ = w.Attach("config.json", nil) },
		"attach the manifest":  func() { _ = w.Attach(manifestName, nil) },
		"attach elsewhere":     func() { _ = w.Attach("../x", nil) },
		"two saves":            func() { _, _ = r.Create(3, specs) },
		"extent twice":         func() { _, _ = r.Create(3, []Spec{norm, norm}) },
		"extent of nothing":    func() { _, _ = r.Create(3, []Spec{{}}) },
	} {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || !strings.HasPrefix(s, "checkpoint: ") {
					t.Errorf("%s: no panic of this package, but %v", what, s)
				}
			}()
			do()
		}()
	}
	w.Abort()
	defer func() {
		if recover() == nil {
			t.Error("a piece came after the end")
		}
	}()
	_ = w.Add(weights.ID, 0, make([]byte, 40))
}

// A lock that does not say who holds it, or in words that would spoil a terminal, is still a sentence.
func TestHolder(t *testing.T) {
	m := vfs.NewMem()
	for text, want := range map[string]string{
		"process 7 on host\nmore": "process 7 on host",
		"":                        "which has not said its name",
		"\nprocess 7":             "which has not said its name",
		"a\x1b[31mb\x7f":          "a[31mb",
		"\xff\xfe":                "which has not said its name",
		strings.Repeat("x", 301):  "which has not said its name",
	} {
		must(t, vfs.WriteFileAtomic(m, "lock", []byte(text)))
		if got := holder(m, "lock"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := holder(m, "nowhere"); got != "which has not said its name" {
		t.Errorf("no file: %q", got)
	}
}
