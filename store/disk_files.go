package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/vfs"
)

// fileSuffix is on all names that the store makes and removes in its directory.
const fileSuffix = ".extent"

// file is one of the store's files: in the pool, or a version of a piece.
type file struct {
	number  int
	path    string
	bytes   int64 // padded to whole blocks
	sum     uint64
	version uint64
	synced  bool
	shared  bool // it has, or may have, a name elsewhere: never to be written again
	pins    int  // it is being synced or linked and keeps its name
	retired bool // once it is not pinned it leaves
}

func (d *Disk) freePath(number int) string {
	return filepath.Join(d.dir, fmt.Sprintf("free-%06d%s", number, fileSuffix))
}

func (d *Disk) versionPath(p *diskPiece, version uint64) string {
	kind := strings.ReplaceAll(p.id.Kind.String(), " ", "-")
	return filepath.Join(d.dir, fmt.Sprintf("part-%d-%s-%d.v%d%s", p.id.Part, kind, p.index, version, fileSuffix))
}

func (d *Disk) lockFile() string { return filepath.Join(d.dir, "lock") }

// reserveFiles takes the directory and fills the pool.
func (d *Disk) reserveFiles(specs []Spec) error {
	if err := vfs.CheckDir(d.fs, d.dir); err != nil {
		return fmt.Errorf("store: the directory for state on disk: %w", err)
	}
	made, err := vfs.MakeDirs(d.fs, d.dir, 0o775)
	if d.made = made; err != nil {
		return fmt.Errorf("store: make the directory for state on disk: %w", err)
	}
	lock, err := d.fs.Lock(d.lockFile())
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("store: %w: name another memory.path, or wait for the other run", err)
	}
	if err != nil {
		return fmt.Errorf("store: hold the directory for state on disk: %w", err)
	}
	d.lock = lock
	if err := d.clearDir(); err != nil {
		return fmt.Errorf("store: remove what an earlier run left: %w", err)
	}
	counts := fileCounts(specs, d.workers)
	var need int64
	for bytes, n := range counts {
		need += bytes * int64(n)
	}
	free, errFree := d.fs.FreeBytes(d.dir)
	err = nil
	if errFree == nil && free < need {
		err = syscall.ENOSPC
	}
	for bytes, n := range counts {
		for range n {
			if err == nil {
				err = d.addFile(bytes)
			}
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("store: %d bytes (%s) of state go to %s and %s: %w; make room, or change memory.path, memory.disk or memory.host",
			need, gib(need), d.dir, describeFree(free, errFree), err)
	case err != nil:
		return fmt.Errorf("store: reserve %d bytes of files: %w", need, err)
	}
	return d.probeDirect()
}

func describeFree(n int64, err error) string {
	if err != nil {
		return "there is less room"
	}
	return fmt.Sprintf("%d bytes (%s) are free", n, gib(n))
}

func gib(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

// clearDir removes the store's files, also those of a run that was killed.
func (d *Disk) clearDir() error {
	entries, err := d.fs.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), fileSuffix) {
			err = cmp.Or(err, d.fs.Remove(filepath.Join(d.dir, e.Name())))
		}
	}
	return err
}

// addFile adds a file to the pool, with its space.
func (d *Disk) addFile(bytes int64) error {
	d.files++
	f := &file{number: d.files, path: d.freePath(d.files), bytes: bytes}
	open, err := d.fs.Create(f.path)
	if err != nil {
		return err
	}
	if err := cmp.Or(open.Preallocate(bytes), open.Close()); err != nil {
		return cmp.Or(err, d.fs.Remove(f.path))
	}
	d.free[bytes] = append(d.free[bytes], f)
	return nil
}

// probeDirect finds out whether direct I/O works, and says so if not. Some file systems refuse it when a file is
// opened, others when it is written.
func (d *Disk) probeDirect() error {
	for _, files := range d.free {
		if err := d.writeDirect(files[0].path, d.anyBlock()); err != nil {
			if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
				return fmt.Errorf("store: write to the directory for state on disk: %w", err)
			}
			d.log.Warn("the file system refuses direct I/O: state on disk goes through the page cache", "dir", d.dir, "error", err)
			d.direct = 0
		}
		break
	}
	return nil
}

// anyBlock returns one block of staging memory; nil if the store has no staging memory.
func (d *Disk) anyBlock() []byte {
	for _, r := range d.regions {
		if r != nil && r.Len() > 0 {
			return r.Bytes()[:vfs.DirectAlign]
		}
	}
	return nil
}

func (d *Disk) writeDirect(path string, mem []byte) error {
	if d.direct == 0 {
		return errors.ErrUnsupported
	}
	f, err := d.fs.OpenFile(path, os.O_WRONLY|d.direct, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(mem, 0)
	return cmp.Or(err, f.Close())
}

var errClosed = errors.New("the store was closed")

// takeFile takes a file of this length from the pool. There is one, or a pinned one is about to come back.
func (d *Disk) takeFile(bytes int64) (*file, error) {
	if d.addressOnly {
		return &file{bytes: bytes}, nil
	}
	for len(d.free[bytes]) == 0 {
		if d.err != nil {
			return nil, d.err
		}
		if d.closed {
			return nil, errClosed
		}
		_ = d.wait(context.Background()) // which does not end
	}
	pool := d.free[bytes]
	f := pool[len(pool)-1]
	d.free[bytes] = pool[:len(pool)-1]
	return f, nil
}

// retire puts a file that is no piece's current version into the pool, or removes it if it has a name elsewhere. The
// caller holds the lock, which retire gives up meanwhile.
func (d *Disk) retire(f *file) {
	switch {
	case f == nil || d.addressOnly:
		return
	case f.pins > 0:
		f.retired = true
		return
	}
	d.mu.Unlock()
	err := again(func() error {
		if f.shared {
			return d.fs.Remove(f.path)
		}
		return d.rename(f, d.freePath(f.number))
	})
	d.mu.Lock()
	switch {
	case err != nil:
		d.fail(fmt.Errorf("store: recycle a file: %w", err))
	case !f.shared:
		d.free[f.bytes] = append(d.free[f.bytes], f)
		d.wake()
	}
}

func (d *Disk) rename(f *file, path string) error {
	if err := d.fs.Rename(f.path, path); err != nil {
		return err
	}
	f.path = path
	return nil
}

// unpin undoes a pin. The caller holds the lock.
func (d *Disk) unpin(f *file) {
	f.pins--
	if f.pins == 0 && f.retired {
		f.retired = false
		d.retire(f)
	}
}

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
	for range min(d.workers, len(list)) {
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
}

// Files calls keep with the durable file of each piece of an extent at its current version, in order. While keep runs
// the file stays in place, so that it can be copied or, if linked is set, be given a second name: then the file is
// never changed from then on, whether or not it has got one.
//
// For each linked file another one is reserved at once: if the disk has no room, Files fails, with nothing lost, and
// not a later write. The space comes back as the versions are replaced and the checkpoints that link them are removed.
// Files waits for writes of the extent that are under way, and panics if a lease to write it is out. The extent must
// not be borrowed to write before keep has been called or Files has returned.
func (d *Disk) Files(ctx context.Context, id ID, linked bool, keep func(PieceFile) error) error {
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
	if linked {
		for _, f := range written {
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
			p.Path, p.XXH3, p.Version = f.path, f.sum, f.version
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
			pieces[i].giveBack(Read)
		}
	}()
	files := make([]*file, len(pieces))
	for i := range pieces {
		for b := pieces[i].buf; b != nil && (b.state == dirty || b.state == writing); b = pieces[i].buf {
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

// share makes sure that a file is not recycled, by reserving another one in its place.
func (d *Disk) share(f *file) error {
	if f.shared || d.addressOnly {
		return nil
	}
	if err := d.addFile(f.bytes); err != nil {
		free, errFree := d.fs.FreeBytes(d.dir)
		return fmt.Errorf("a checkpoint that keeps %s of state needs as much room again in %s, and %s: %w; free some, lower save.keep, or set memory.path and output_dir to a larger drive",
			gib(f.bytes), d.dir, describeFree(free, errFree), err)
	}
	f.shared = true
	return nil
}

// Adopt makes an extent that was never written what the files hold, one for each piece in order, as [Disk.Files] listed
// them. The files get a second name and are not changed; where the file system cannot do that they are copied, which is
// logged. Their contents are verified when they are copied or read.
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
	f := &file{bytes: fileBytes(p.bytes), sum: from.XXH3, version: from.Version, synced: true, shared: true, path: d.versionPath(p, from.Version)}
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
	if !d.copies {
		d.copies = true
		d.log.Warn("state is copied, since it cannot be linked", "to", d.dir, "error", err)
	}
	own, err := d.takeFile(f.bytes)
	if err != nil {
		return nil, err
	}
	own.sum, own.version = from.XXH3, from.Version
	if err := d.copyFile(own, from); err != nil {
		d.free[own.bytes] = append(d.free[own.bytes], own)
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
