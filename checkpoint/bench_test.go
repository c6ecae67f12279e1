package checkpoint

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// The rates of a save from memory, the manifest and all syncs included, and of verifying it, on the file system of the
// temporary directory.
func BenchmarkSave(b *testing.B) {
	spec := Spec{ID{"block.0", store.FirstMoment}, tensor.F32, 256 << 20, 16 << 20}
	data := make([]byte, spec.PieceBytes)
	dir := filepath.Join(b.TempDir(), root)
	r := start(b, vfs.OS{}, dir)
	defer r.Close()
	b.SetBytes(spec.Bytes)
	for step := range b.N {
		w, err := r.Create(step, []Spec{spec})
		must(b, err)
		for i := range spec.Pieces() {
			must(b, w.Add(spec.ID, i, data))
		}
		_, err = w.Commit(Manifest{})
		must(b, err)
		_, err = r.prune(step, 1, -1)
		must(b, err)
	}
}

func BenchmarkVerify(b *testing.B) {
	spec := Spec{ID{"block.0", store.FirstMoment}, tensor.F32, 256 << 20, 16 << 20}
	r := start(b, vfs.OS{}, filepath.Join(b.TempDir(), root))
	w, err := r.Create(1, []Spec{spec})
	must(b, err)
	for i := range spec.Pieces() {
		must(b, w.Add(spec.ID, i, make([]byte, spec.PieceBytes)))
	}
	dir, err := w.Commit(Manifest{})
	must(b, err)
	c, err := Open(vfs.OS{}, dir)
	must(b, err)
	b.SetBytes(spec.Bytes)
	for b.Loop() {
		must(b, c.Verify(b.Context(), nil))
	}
}

// A manifest of 123e9 parameters in pieces of 4 Mi, each in a file of its own: what a resume, a list and a save take
// besides the state itself.
func BenchmarkManifest(b *testing.B) {
	m := &Manifest{}
	for i := range 29_300 {
		for kind, dtype := range map[store.Kind]tensor.DType{store.Weights: tensor.BF16, store.Low: tensor.I16,
			store.FirstMoment: tensor.F32, store.SecondMoment: tensor.F32} {
			n := dtype.Bytes() << 22
			s := Spec{ID{"block." + string(rune('a'+i%26)) + Sum(i).String(), kind}, dtype, n, n}
			m.Files = append(m.Files, File{s.pieceName(0), n})
			m.Extents = append(m.Extents, Extent{s, []Piece{{s.pieceName(0), 0, n, 0}}})
		}
	}
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	doc, err := m.encode()
	must(b, err)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		_, err := decode(doc)
		must(b, err)
	}
}

// What host 0 of four does with the messages of the others, for a manifest of 123e9 parameters in pieces of 4 Mi.
func BenchmarkMerge(b *testing.B) {
	var all []Spec
	for part := range 88 {
		for kind, dtype := range map[store.Kind]tensor.DType{store.Weights: tensor.BF16, store.Low: tensor.I16,
			store.FirstMoment: tensor.F32, store.SecondMoment: tensor.F32} {
			piece := dtype.Bytes() << 22
			all = append(all, Spec{ID{fmt.Sprint("block.", part), kind}, dtype, 333 * piece, piece})
		}
	}
	there := map[string]bool{}
	var docs [][]byte
	for host := range 4 {
		w := newWriter(vfs.NewMem(), "", 1, all)
		for i, e := range w.extents {
			if i/4%4 != host {
				continue
			}
			for piece := range e.Pieces {
				e.Pieces[piece] = Piece{File: e.imageName(), Offset: int64(piece) * e.PieceBytes, Bytes: e.PieceBytes}
			}
			e.todo, w.lengths[e.imageName()], there[e.imageName()] = 0, e.Bytes, true
		}
		doc, err := json.Marshal(w.saved())
		must(b, err)
		docs = append(docs, doc)
	}
	b.ReportAllocs()
	for b.Loop() {
		w := newWriter(vfs.NewMem(), "", 1, all)
		for _, doc := range docs {
			must(b, w.merge("", doc, there))
		}
		must(b, w.missing(true))
	}
	b.ReportMetric(float64(len(docs[0])), "bytes/message")
}
