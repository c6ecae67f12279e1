package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// The state of a store on disk joins a checkpoint without a byte written, and does not change there while the store
// works on. Another store adopts it and continues from there, and does not touch the checkpoint either.
func TestDiskStoreAndBack(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		ctx := t.Context()
		id := store.ID{Part: 0, Kind: store.FirstMoment}
		extent := store.Spec{ID: id, Bytes: 10000, Piece: 4096}
		spec := Spec{ID{"norm", store.FirstMoment}, tensor.F32, extent.Bytes, extent.Piece}
		open := func(name string) *store.Disk {
			d, err := store.NewDisk(store.DiskOptions{FS: fsys, Accounts: hostmem.New(),
				Drives: []store.Drive{{Dir: filepath.Join(filepath.Dir(dir), name)}}, Specs: []store.Spec{extent},
				Quota: store.LaneQuota(1, 1), Workers: 1})
			must(t, err)
			return d
		}
		write := func(d *store.Disk, data []byte, version uint64) {
			for off, n := range extent.Pieces() {
				l, err := d.Borrow(ctx, trace.Update.Of(0), id, off, n, store.Write, version)
				must(t, err)
				copy(l.Bytes(), data[off:off+n])
				l.Release()
			}
		}
		is := func(d *store.Disk, data []byte, version uint64) {
			t.Helper()
			for off, n := range extent.Pieces() {
				l, err := d.Borrow(ctx, trace.Update.Of(0), id, off, n, store.Read, version)
				must(t, err)
				if !bytes.Equal(l.Bytes(), data[off:off+n]) {
					t.Errorf("version %d is wrong at %d", version, off)
				}
				l.Release()
			}
		}
		first, second := contents(spec, 1), contents(spec, 2)

		r := start(t, fsys, dir)
		d := open("one")
		write(d, first, 0)
		w, err := r.Create(1, []Spec{spec})
		must(t, err)
		must(t, d.Files(ctx, id, []bool{true}, func(f store.PieceFile) error {
			return w.Link(spec.ID, int(f.Off/extent.Piece), f.Path, f.XXH3)
		}))
		write(d, second, 1)
		if w.Linked() != extent.Bytes || w.Written() != 0 {
			t.Errorf("%d bytes linked, %d written", w.Linked(), w.Written())
		}
		saved, err := w.Commit(Manifest{})
		must(t, err)
		write(d, second, 2)
		must(t, d.Sync(ctx))
		must(t, d.Close())
		c, err := Open(fsys, saved)
		must(t, err)
		must(t, c.Verify(ctx, nil))

		d = open("two")
		files, ok := c.PieceFiles(spec.ID, 7)
		if !ok {
			t.Fatal("pieces of a store share a file")
		}
		must(t, d.Adopt(ctx, id, files))
		is(d, first, 7)
		write(d, second, 7)
		is(d, second, 8)
		must(t, d.Close())
		must(t, c.Verify(ctx, nil))
		got := make([]byte, extent.Bytes)
		must(t, c.Read(spec.ID, 0, got))
		if !bytes.Equal(got, first) {
			t.Error("the checkpoint has changed")
		}
	})
}

// A piece that was copied is the checkpoint's own: the store's file may be used again.
func TestCopiedPieces(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		spec := Spec{ID{"norm", store.FirstMoment}, tensor.F32, 10000, 4096}
		data := contents(spec, 1)
		r := start(t, fsys, dir)
		w, err := r.Create(1, []Spec{spec})
		must(t, err)
		path := filepath.Join(filepath.Dir(dir), "state")
		for piece := range spec.Pieces() {
			off, n := spec.piece(piece)
			must(t, vfs.WriteFileAtomic(fsys, path, data[off:off+n]))
			must(t, w.Copy(spec.ID, piece, path, xxh3.Hash(data[off:off+n])))
			f, err := fsys.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt(make([]byte, n), 0)
			must(t, err)
			must(t, f.Close())
		}
		if w.Linked() != 0 || w.Written() < spec.Bytes {
			t.Errorf("%d bytes linked, %d written", w.Linked(), w.Written())
		}
		saved, err := w.Commit(Manifest{})
		must(t, err)
		c, err := Open(fsys, saved)
		must(t, err)
		must(t, c.Verify(t.Context(), nil))
	})
}
