package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millrace/millrace/vfs"
)

// FileSuffix ends all names of files that the store makes in its directory. It removes all files with it when it opens
// and when it closes.
const FileSuffix = ".extent"

// The problem. Every step of training replaces nearly all of the state: hundreds of gigabytes in a drive's files. A
// kill may come at any byte of that. A checkpoint must be the state after one step and no mixture of two. And a full
// disk must be found out before the first step, not in the fortieth hour.
//
// The obvious answer is one large file, each piece written in place. Then a kill leaves a piece that is half old and
// half new, so that something else must hold the old one; and a checkpoint must copy the whole file, and steps wait.
//
// The answer here: each version of a piece has a file on the piece's drive, whose life is a circle.
//
//	free      in the pool, "free-000012.extent", its space reserved
//	current   written, then renamed "part-3-exp-avg-0.v17.extent": the latest version of its piece
//	retired   a later version is current: the file is renamed again, back into the pool
//
// A current file is never written to, so a kill tears only what nothing refers to. The pool of a drive has a file for
// each of its pieces and one for each of its workers, which is all that can be in use at once. All of them are made and
// reserved with the store.
//
// A checkpoint gives current files a second name (disk_durable.go), which costs no copy, and marks them shared: such a
// file never returns to the pool. So another file is reserved for it at once. If the disk is full, the checkpoint
// fails, with nothing lost, and no later write does.
//
// Who waits for whom? A worker that writes a buffer waits in takeFile while the pool is empty. The pool is empty only
// while retired files are pinned: Sync and Files pin a file so that it keeps its name while they make it durable or
// link it. Both wait for writes before they pin, and for nothing but the drive after that. So no circle of waits
// closes.

// file is one of the store's files: in the pool, or a version of a piece.
type file struct {
	number  int
	drive   *drive
	path    string
	bytes   int64 // padded to whole blocks
	sum     uint64
	version uint64
	synced  bool
	shared  bool // it has, or may have, a name elsewhere: never to be written again
	pins    int  // it is being synced or linked and keeps its name
	retired bool // once it is not pinned it leaves
}

func (v *drive) freePath(number int) string {
	return filepath.Join(v.Dir, fmt.Sprintf("free-%06d%s", number, FileSuffix))
}

func (p *diskPiece) versionPath(version uint64) string {
	kind := strings.ReplaceAll(p.id.Kind.String(), " ", "-")
	return filepath.Join(p.drive.Dir, fmt.Sprintf("part-%d-%s-%d.v%d%s", p.id.Part, kind, p.index, version, FileSuffix))
}

func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// reserveFiles takes the directories and fills the pools.
func (d *Disk) reserveFiles(specs []Spec) error {
	for _, v := range d.drives {
		if err := d.holdDir(v); err != nil {
			return err
		}
	}
	for i, counts := range fileCounts(specs, d.deal, d.workers) {
		if err := d.fillPool(d.drives[i], counts); err != nil {
			return err
		}
	}
	return nil
}

// holdDir takes a drive's directory, and empties it.
func (d *Disk) holdDir(v *drive) error {
	if err := vfs.CheckDir(d.fs, v.Dir); err != nil {
		return fmt.Errorf("store: the directory for state on disk: %w", err)
	}
	made, err := vfs.MakeDirs(d.fs, v.Dir, 0o775)
	if v.made = made; err != nil {
		return fmt.Errorf("store: make the directory for state on disk: %w", err)
	}
	lock, err := d.fs.Lock(lockFile(v.Dir))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("store: %w: name another memory.path, or wait for the other run", err)
	}
	if err != nil {
		return fmt.Errorf("store: hold the directory for state on disk: %w", err)
	}
	v.lock = lock
	if err := clearDir(d.fs, v.Dir); err != nil {
		return fmt.Errorf("store: remove what an earlier run left: %w", err)
	}
	return nil
}

// fillPool reserves a drive's files, of which there are that many by length.
func (d *Disk) fillPool(v *drive, counts map[int64]int) (err error) {
	var need int64
	for bytes, n := range counts {
		need += bytes * int64(n)
	}
	free, errFree := d.fs.FreeBytes(v.Dir)
	if errFree == nil && free < need {
		err = syscall.ENOSPC
	}
	for bytes, n := range counts {
		for range n {
			if err == nil {
				err = d.addFile(v, bytes)
			}
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("store: %d bytes (%s) of state go to %s and %s: %w; make room, or change memory.path, memory.disk or memory.host",
			need, gib(need), v.Dir, describeFree(free, errFree), err)
	case err != nil:
		return fmt.Errorf("store: reserve %d bytes of files: %w", need, err)
	}
	return d.probeDirect(v)
}

func describeFree(n int64, err error) string {
	if err != nil {
		return "there is less room"
	}
	return fmt.Sprintf("%d bytes (%s) are free", n, gib(n))
}

func gib(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

// RemoveLeft removes what a process that was killed has left in its directory for state on disk, and the directory if
// nothing else is in it. The error matches [vfs.ErrLocked], and nothing is removed, while a process has the directory.
func RemoveLeft(fsys vfs.FS, dir string) error {
	lock, err := fsys.Lock(lockFile(dir))
	if err != nil {
		return err
	}
	if err = clearDir(fsys, dir); err == nil {
		_ = fsys.Remove(lockFile(dir))
		vfs.RemoveEmpty(fsys, []string{dir})
	}
	return cmp.Or(err, lock.Close())
}

// clearDir removes the store's files, also those of a run that was killed.
func clearDir(fsys vfs.FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), FileSuffix) {
			err = cmp.Or(err, fsys.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// addFile adds a file to a drive's pool, with its space.
func (d *Disk) addFile(v *drive, bytes int64) error {
	v.files++
	f := &file{number: v.files, drive: v, path: v.freePath(v.files), bytes: bytes}
	open, err := d.fs.Create(f.path)
	if err != nil {
		return err
	}
	if err := cmp.Or(open.Preallocate(bytes), open.Close()); err != nil {
		return cmp.Or(err, d.fs.Remove(f.path))
	}
	v.free[bytes] = append(v.free[bytes], f)
	return nil
}

// probeDirect finds out whether direct I/O works on a drive, and says so if not. Some file systems refuse it when a
// file is opened, others when it is written.
func (d *Disk) probeDirect(v *drive) error {
	for _, files := range v.free {
		if err := d.writeDirect(files[0], d.anyBlock()); err != nil {
			if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
				return fmt.Errorf("store: write to the directory for state on disk: %w", err)
			}
			d.log.Warn("the file system refuses direct I/O: state on disk goes through the page cache", "dir", v.Dir, "error",
				err)
			v.direct = 0
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

func (d *Disk) writeDirect(f *file, mem []byte) error {
	if f.drive.direct == 0 {
		return errors.ErrUnsupported
	}
	open, err := d.fs.OpenFile(f.path, os.O_WRONLY|f.drive.direct, 0)
	if err != nil {
		return err
	}
	_, err = open.WriteAt(mem, 0)
	return cmp.Or(err, open.Close())
}

var errClosed = errors.New("the store was closed")

// takeFile takes a file of this length from a drive's pool. There is one, or a pinned one is about to come back.
func (d *Disk) takeFile(v *drive, bytes int64) (*file, error) {
	if d.addressOnly {
		return &file{drive: v, bytes: bytes}, nil
	}
	for len(v.free[bytes]) == 0 {
		if d.err != nil {
			return nil, d.err
		}
		if d.closed {
			return nil, errClosed
		}
		_ = d.wait(context.Background()) // which does not end
	}
	pool := v.free[bytes]
	f := pool[len(pool)-1]
	v.free[bytes] = pool[:len(pool)-1]
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
		return d.rename(f, f.drive.freePath(f.number))
	})
	d.mu.Lock()
	switch {
	case err != nil:
		d.fail(fmt.Errorf("store: recycle a file: %w", err))
	case !f.shared:
		f.drive.free[f.bytes] = append(f.drive.free[f.bytes], f)
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
