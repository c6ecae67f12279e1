package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/fault"
)

// Sync waits until everything that was written and released is on disk, and durable except for the transient kinds.
// Leases may be held, but lanes that continue writing may keep Sync from ending.
func (d *Disk) Sync(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.dirty > 0 && d.err == nil {
		if err := d.wait(ctx); err != nil {
			return err
		}
	}
	if d.err != nil {
		return d.err
	}
	var files []*file
	for id, e := range d.extents {
		for i := range e.pieces {
			if f := e.pieces[i].file; f != nil && !id.Kind.Transient() {
				files = append(files, f)
			}
		}
	}
	return d.syncFiles(ctx, files)
}

// syncFiles makes files durable that are not so already. The caller holds the lock, which syncFiles gives up meanwhile.
func (d *Disk) syncFiles(ctx context.Context, files []*file) error {
	if d.addressOnly {
		return nil
	}
	var list []*file
	for _, f := range files {
		if !f.synced {
			f.pins++
			list = append(list, f)
		}
	}
	d.mu.Unlock()
	errs := make([]error, len(list))
	var wg fault.Group
	next := make(chan int)
	for range min(d.workers*len(d.drives), len(list)) {
		wg.Go(func() {
			for i := range next {
				if errs[i] = ctx.Err(); errs[i] == nil {
					errs[i] = d.syncFile(list[i])
				}
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	wg.Wait()
	d.mu.Lock()
	for i, f := range list {
		f.synced = f.synced || errs[i] == nil
		d.unpin(f)
	}
	for _, err := range errs {
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			// The system may drop what it could not write and report it only once: the file cannot be trusted.
			d.fail(fmt.Errorf("store: make state durable: %w", err))
			return d.err
		}
	}
	return nil
}

// syncFile makes a file durable. It opens the file to read, since a checkpoint may give the file a second name at the
// same time, and no file with two names is opened to be written. Sync is for the file, and for what other handles have
// written.
func (d *Disk) syncFile(f *file) error {
	open, err := d.fs.OpenFile(f.path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return cmp.Or(open.Sync(), open.Close())
}

// PieceFile is a file with one version of a piece.
type PieceFile struct {
	Path    string // "" for a piece that was never written: it is zeros, and there is no file
	Off     int64  // of the piece in its extent
	Bytes   int64  // of the piece; the file may be longer, to whole blocks, by zeros
	XXH3    uint64 // of the piece
	Version uint64
	Linked  bool // it may be given a second name; else it may be copied
}

// Files calls keep with the durable file of each piece of an extent at its current version, in order. While keep runs
// the file stays in place, so that it can be copied or, if linked is set for its drive, be given a second name: then
// the file is never changed from then on, whether or not it has got one. A nil linked is set for none.
//
// For each linked file another one is reserved at once: if the disk has no room, Files fails, with nothing lost, and
// not a later write. The space comes back as the versions are replaced and the checkpoints that link them are removed.
// Files waits for writes of the extent that are under way, and panics if a lease to write it is out. The extent must
// not be borrowed to write before keep has been called or Files has returned.
func (d *Disk) Files(ctx context.Context, id ID, linked []bool, keep func(PieceFile) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	files, err := d.pinFiles(ctx, id)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			if f != nil {
				d.unpin(f)
			}
		}
	}()
	written := slices.DeleteFunc(slices.Clone(files), func(f *file) bool { return f == nil })
	isLinked := map[*drive]bool{}
	for i, is := range linked {
		isLinked[d.drives[i]] = is
	}
	for _, f := range written {
		if isLinked[f.drive] {
			if err := d.share(f); err != nil {
				return err
			}
		}
	}
	if err := d.syncFiles(ctx, written); err != nil {
		return err
	}
	i := 0
	for off, n := range d.extents[id].Pieces() {
		p := PieceFile{Off: off, Bytes: n}
		if f := files[i]; f != nil {
			p.Path, p.XXH3, p.Version, p.Linked = f.path, f.sum, f.version, isLinked[f.drive]
		}
		i++
		d.mu.Unlock()
		err := keep(p)
		d.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// pinFiles waits until the current versions of an extent are in files and pins these; nil for pieces that are zeros.
func (d *Disk) pinFiles(ctx context.Context, id ID) ([]*file, error) {
	pieces := d.extent(id).pieces
	for i := range pieces {
		pieces[i].check(id, Read, pieces[i].version)
	}
	// Readers, so that a writer that comes too early is noticed.
	for i := range pieces {
		pieces[i].take(Read)
	}
	defer func() {
		for i := range pieces {
			pieces[i].endAccess(Read)
		}
	}()
	files := make([]*file, len(pieces))
	for i := range pieces {
		for pieces[i].isUnwritten() {
			if d.err != nil {
				return nil, d.err
			}
			if err := d.wait(ctx); err != nil {
				return nil, err
			}
		}
	}
	for i := range pieces {
		if f := pieces[i].file; f != nil {
			f.pins++
			files[i] = f
		}
	}
	return files, nil
}

// isUnwritten reports whether the current version is in a buffer alone.
func (p *diskPiece) isUnwritten() bool {
	return p.buf != nil && (p.buf.state == dirty || p.buf.state == writing)
}

// share makes sure that a file is not recycled, by reserving another one in its place.
func (d *Disk) share(f *file) error {
	if f.shared || d.addressOnly {
		return nil
	}
	if err := d.addFile(f.drive, f.bytes); err != nil {
		free, errFree := d.fs.FreeBytes(f.drive.Dir)
		return fmt.Errorf("a checkpoint that keeps %s of state needs as much room again in %s, and %s: %w; free some, lower save.keep, or set memory.path and output_dir to a larger drive",
			gib(f.bytes), f.drive.Dir, describeFree(free, errFree), err)
	}
	f.shared = true
	return nil
}

// Adopt makes an extent that was never written what the files hold, one for each piece in order, as [Disk.Files] listed
// them, of any drive. The files get a second name and are not changed; where the file system cannot do that, as on
// another drive than the piece's, they are copied, which is logged. Their contents are verified when they are copied or
// read.
func (d *Disk) Adopt(ctx context.Context, id ID, files []PieceFile) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.extent(id)
	if len(files) != len(e.pieces) {
		return fmt.Errorf("store: %d files for the %d pieces of %v", len(files), len(e.pieces), id)
	}
	i := 0
	for off, n := range e.Pieces() {
		p, from := &e.pieces[i], files[i]
		i++
		p.check(id, Write, 0)
		if p.buf != nil {
			panic(fmt.Sprintf("store: %v adopted after use", p))
		}
		if from.Off != off || from.Bytes != n {
			return fmt.Errorf("store: %s: %d bytes at %d do not fit %v, %d bytes at %d", from.Path, from.Bytes, from.Off, p, n, off)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if from.Path != "" {
			f, err := d.adoptFile(p, from)
			if err != nil {
				return fmt.Errorf("store: adopt %v: %w", p, err)
			}
			p.file = f
		}
		p.version = from.Version
	}
	return nil
}

func (d *Disk) adoptFile(p *diskPiece, from PieceFile) (*file, error) {
	v := p.drive
	f := &file{drive: v, bytes: fileBytes(p.bytes), sum: from.XXH3, version: from.Version, synced: true, shared: true,
		path: p.versionPath(from.Version)}
	if d.addressOnly {
		return f, nil
	}
	info, err := d.fs.Stat(from.Path)
	if err != nil {
		return nil, err
	}
	if info.Size() < p.bytes {
		return nil, fmt.Errorf("%s has %d bytes and not %d", from.Path, info.Size(), p.bytes)
	}
	err = d.fs.Link(from.Path, f.path)
	if err == nil {
		return f, nil
	}
	if !v.copies {
		v.copies = true
		d.log.Warn("state is copied, since it cannot be linked", "to", v.Dir, "error", err)
	}
	own, err := d.takeFile(v, f.bytes)
	if err != nil {
		return nil, err
	}
	own.sum, own.version = from.XXH3, from.Version
	if err := d.copyFile(own, from); err != nil {
		v.free[own.bytes] = append(v.free[own.bytes], own)
		return nil, err
	}
	return own, d.rename(own, f.path)
}

// copyFile copies a piece through the page cache and verifies it.
func (d *Disk) copyFile(to *file, from PieceFile) error {
	in, err := d.fs.Open(from.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := d.fs.OpenFile(to.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	sum := xxh3.New()
	_, err = io.CopyBuffer(io.MultiWriter(out, sum), io.LimitReader(in, from.Bytes), make([]byte, 1<<20))
	if err := cmp.Or(err, out.Close()); err != nil {
		return err
	}
	if sum.Sum64() != from.XXH3 {
		return fmt.Errorf("%s: %w", from.Path, ErrChecksum)
	}
	return nil
}
