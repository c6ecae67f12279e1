package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/vfs"
)

// The problem. A checkpoint of a large model is hundreds of gigabytes in thousands of files, and a machine can stop
// between any two writes. After that the newest checkpoint must be whole or not there, the one before it must be
// unchanged, and every byte of both must be the one that was saved. State that is on disk already should not be written
// a second time.
//
// The obvious answer is to write the files and then a marker that says "complete". It fails on real disks: the marker
// can be durable before the data, a file can have its length and not its contents, and a name can survive in a
// directory that was never synced. Writing over the older checkpoint of the same step loses both when the machine
// stops in between.
//
// The answer here: Writer fills a directory whose name no reader takes for a checkpoint, and one rename makes it
// appear, after everything below it is durable:
//
//	Create:  make .step-N.tmp; remove what an interrupted run left
//	Add:     write a piece into its extent's file, hash it; sync the file when its last piece is there
//	Link:    give a file of the disk tier, which never changes, a second name; record its hash
//	Commit:  sync what is open; write the manifest (lengths, hashes, a seal over itself); sync it, and the directory
//	         a checkpoint of this step is there already: rename it to .step-N.old
//	         rename .step-N.tmp to step-N; sync the parent
//	         remove .step-N.old
//
// A crash before the rename leaves a hidden directory, which the next Acquire removes. A crash between the two
// renames leaves the old checkpoint under its hidden name, and Acquire gives it its name back. Tests replay each
// prefix of the operations on a file system that forgets what was not synced, in each order that a disk may choose.

// Writer is a save under way. Every piece of every extent is either added or linked, in any order; then Commit makes
// the checkpoint appear. Methods may be called from several goroutines, Commit and Abort when all others have
// returned. The first error stays: whatever follows returns it, and Commit fails.
//
// An unknown extent, a piece that comes twice or one that has another length is a bug of the caller and panics.
type Writer struct {
	d      *Directory // nil on hosts that do not lead
	hosts  *Hosts     // that save together; nil: this process does alone
	fsys   vfs.FS
	step   int
	hidden string // the directory until it is renamed to a checkpoint

	mu          sync.Mutex
	extents     []*saving
	byID        map[ID]*saving
	attachments []Attachment
	lengths     map[string]int64 // of the files so far
	written     int64
	linkedBytes int64
	cause, err  error // the first error: what went wrong, and what the caller sees of it
	ended       bool
}

// saving is an extent that is being saved.
type saving struct {
	Extent
	taken []bool
	todo  int64 // bytes of pieces that are not recorded
	image *image
}

// Create starts to save a step. There is one save at a time; Commit and Abort end it. If the run has a checkpoint of
// this step already, it stays until Commit puts the new one in its place. One of another run is an error. One that does
// not say whose it is, since it is damaged, is set aside.
func (d *Directory) Create(step int, extents []Spec) (*Writer, error) {
	w := newWriter(d.fsys, filepath.Join(d.path, hiddenName(step, d.owner.Run, savingSuffix)), step, extents)
	w.d = d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.saving {
		panic("checkpoint: a second save was started before the first one ended")
	}
	err := d.recover()
	if err == nil {
		err = d.makeRoom(step)
	}
	if err == nil {
		err = vfs.RemoveAll(d.fsys, w.hidden) // recover has tried; here it must succeed
	}
	if err == nil {
		err = d.fsys.MkdirAll(w.hidden, 0o775)
	}
	if err != nil {
		return nil, w.failure(err)
	}
	d.saving = true
	return w, nil
}

// newWriter is the writer of a save in a hidden directory.
func newWriter(fsys vfs.FS, hidden string, step int, extents []Spec) *Writer {
	w := &Writer{fsys: fsys, hidden: hidden, step: step, byID: map[ID]*saving{}, lengths: map[string]int64{}}
	for _, s := range extents {
		if err := s.check(); err != nil {
			panic("checkpoint: " + err.Error())
		}
		if w.byID[s.ID] != nil {
			panic(fmt.Sprintf("checkpoint: %v are there twice", s.ID))
		}
		e := &saving{Extent: Extent{s, make([]Piece, s.Pieces())}, taken: make([]bool, s.Pieces()), todo: s.Bytes}
		w.extents = append(w.extents, e)
		w.byID[s.ID] = e
	}
	return w
}

// failure is the error that the caller sees.
func (w *Writer) failure(err error) error {
	way := fix(err)
	if of := (*hostError)(nil); errors.As(err, &of) {
		way = "" // it has that already
	}
	return fmt.Errorf("the checkpoint of step %d was not saved: %w%s", w.step, err, way)
}

// Fail makes the save fail with an error of the caller, unless it has failed already: whatever follows returns the
// first error.
func (w *Writer) Fail(err error) { _ = w.fail(err) }

// fail records the first error, and returns it.
func (w *Writer) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.cause, w.err = err, w.failure(err)
	}
	return w.err
}

// Err is the first error so far, or nil.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Dir is the directory that the save writes to, which has a hidden name until Commit.
func (w *Writer) Dir() string { return w.hidden }

// take claims a piece, and returns the first error so far.
func (w *Writer) take(id ID, piece int) (*saving, error) {
	e := w.byID[id]
	if e == nil || piece < 0 || piece >= len(e.Pieces) {
		panic(fmt.Sprintf("checkpoint: there is no piece %d of %v", piece, id))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		panic("checkpoint: a piece came after the end")
	}
	if e.taken[piece] {
		panic(fmt.Sprintf("checkpoint: piece %d of %v came twice", piece, id))
	}
	e.taken[piece] = true
	return e, w.err
}

// record notes the place of a piece. It returns true for the last piece of an extent.
func (w *Writer) record(e *saving, piece int, p Piece, fileBytes int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Pieces[piece] = p
	e.todo -= p.Bytes
	w.lengths[p.File] = max(w.lengths[p.File], fileBytes)
	return e.todo == 0
}

// Add writes a piece from memory. Memory on page boundaries goes to the disk before it returns; of other memory, it
// blocks until the disk has taken most of what was added before, so that what waits in the page cache stays below two
// pieces per extent that is being added. Data may change when it returns.
func (w *Writer) Add(id ID, piece int, data []byte) error {
	e, err := w.take(id, piece)
	if err != nil {
		return err
	}
	off, n := e.piece(piece)
	if int64(len(data)) != n {
		panic(fmt.Sprintf("checkpoint: piece %d of %v has %d bytes, and came with %d", piece, id, n, len(data)))
	}
	image, err := w.image(e)
	if err != nil {
		return w.fail(err)
	}
	if err := image.write(data, off); err != nil {
		return w.fail(err)
	}
	w.count(n)
	p := Piece{File: id.imageName(), Offset: off, Bytes: n, Sum: Sum(xxh3.Hash(data))}
	if w.record(e, piece, p, off+n) {
		// Synced here rather than by Commit, so that Commit has little left to wait for.
		if err := w.closeImage(e); err != nil {
			return w.fail(err)
		}
	}
	return nil
}

// image is the file for an extent's pieces from memory.
func (w *Writer) image(e *saving) (i *image, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.image == nil {
		e.image, err = createImage(w.fsys, filepath.Join(w.hidden, e.imageName()))
	}
	return e.image, err
}

// closeImage makes an extent's pieces from memory durable.
func (w *Writer) closeImage(e *saving) error {
	i := e.image
	if i == nil {
		return nil
	}
	e.image = nil
	return firstOf(i.sync(), i.close())
}

// Attach writes a small file that is to travel with the state, such as config.json. Of several hosts, host 0 does.
func (w *Writer) Attach(name string, data []byte) error {
	if err := w.takeName(name, data); err != nil {
		return err
	}
	if err := w.writeFile(name, data); err != nil {
		return w.fail(err)
	}
	return nil
}

// takeName claims the name of an attachment, and returns the first error so far.
func (w *Writer) takeName(name string, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, twice := w.lengths[name]; !isPlainName(name) || name == manifestName || twice || w.d == nil {
		panic(fmt.Sprintf("checkpoint: %q cannot be the name of an attachment", name))
	}
	w.lengths[name] = int64(len(data))
	w.attachments = append(w.attachments, Attachment{name, Sum(xxh3.Hash(data))})
	return w.err
}

// writeFile writes and syncs a small file.
func (w *Writer) writeFile(name string, data []byte) error {
	f, err := w.fsys.Create(filepath.Join(w.hidden, name))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	w.count(int64(len(data)))
	return firstOf(err, f.Close())
}

func (w *Writer) count(written int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written += written
}

// Written is the bytes that were written to the disk so far.
func (w *Writer) Written() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// Linked is the bytes of the pieces that joined the checkpoint without being written.
func (w *Writer) Linked() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.linkedBytes
}

// Commit makes the checkpoint durable and visible, and returns its directory; Step, Files, Attachments and Extents of
// the manifest are filled in. It fails if a piece is missing. On an error everything that was written is removed, and
// earlier checkpoints are as they were.
//
// Of several hosts each commits, and all get the same directory or an error of the same words. The manifest is that of
// host 0.
func (w *Writer) Commit(m Manifest) (dir string, err error) {
	defer w.Abort()
	all, err := w.collect(w.finish())
	if err == nil {
		if w.d != nil {
			dir, err = w.complete(m, all)
		}
		dir, err = w.hosts.announce(dir, err)
	}
	switch {
	case err == nil:
		return dir, nil
	case w.hosts == nil:
		return "", w.fail(err)
	}
	return "", w.failure(err) // the hosts agree on it
}

// finish syncs what is not synced. It fails if the save has failed.
func (w *Writer) finish() error {
	if w.cause != nil {
		return w.cause
	}
	if err := w.missing(w.hosts == nil); err != nil {
		return err
	}
	for _, e := range w.extents {
		if err := w.closeImage(e); err != nil {
			return err
		}
	}
	return nil
}

// missing fails if an extent is there in part, or, where all are to be there, not at all.
func (w *Writer) missing(all bool) error {
	for _, e := range w.extents {
		if e.todo > 0 && (all || e.todo < e.Bytes) {
			return fmt.Errorf("%v are not complete: %d of %d bytes have come", e.ID, e.Bytes-e.todo, e.Bytes)
		}
	}
	return nil
}

// complete merges what all hosts have written, writes the manifest, and gives the directory its name, which it returns.
func (w *Writer) complete(m Manifest, all [][]byte) (dir string, err error) {
	if err := w.mergeAll(all); err != nil {
		return "", err
	}
	doc, err := w.manifest(m)
	if err != nil {
		return "", err
	}
	if err := w.writeFile(manifestName, doc); err != nil {
		return "", err
	}
	if err := w.fsys.SyncDir(w.hidden); err != nil {
		return "", err
	}
	dir = filepath.Join(w.d.path, DirName(w.step))
	if err := w.publish(dir); err != nil {
		return "", err
	}
	w.d.Trust(w.step)
	return dir, nil
}

func (w *Writer) manifest(m Manifest) ([]byte, error) {
	m.Run, m.CopiedFrom, m.Step = w.d.owner.Run, w.d.owner.Earlier, w.step
	if m.EvalLoss != nil && (math.IsNaN(*m.EvalLoss) || math.IsInf(*m.EvalLoss, 0)) {
		m.EvalLoss = nil // JSON has no such numbers, and a run that diverged is saved like any other
	}
	m.Files, m.Attachments, m.Extents = w.files(), w.attachments, nil
	slices.SortFunc(m.Attachments, func(a, b Attachment) int { return strings.Compare(a.File, b.File) })
	for _, e := range w.extents {
		m.Extents = append(m.Extents, e.Extent)
	}
	return m.encode()
}

// files lists the written files, by name.
func (w *Writer) files() (files []File) {
	for _, name := range slices.Sorted(maps.Keys(w.lengths)) {
		files = append(files, File{name, w.lengths[name]})
	}
	return files
}

// publish gives the directory its name. An earlier checkpoint of the same step makes room first, under a name from
// which the next Acquire brings it back if the machine stops in between.
func (w *Writer) publish(dir string) error {
	fsys, old := w.fsys, filepath.Join(w.d.path, hiddenName(w.step, w.d.owner.Run, replacedSuffix))
	_, err := fsys.Stat(dir)
	replace := err == nil
	switch {
	case replace:
		if err := fsys.Rename(dir, old); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := fsys.Rename(w.hidden, dir); err != nil {
		if replace {
			_ = fsys.Rename(old, dir) // if this fails too, Acquire does it
		}
		return err
	}
	if err := fsys.SyncDir(w.d.path); err != nil {
		// The caller hears that nothing was saved, so nothing is: the name goes again.
		if fsys.Rename(dir, w.hidden) == nil && replace {
			_ = fsys.Rename(old, dir) // if this fails, Acquire does it
		}
		return err
	}
	_ = vfs.RemoveAll(fsys, old) // what is left costs space, and goes next time
	return nil
}

// Abort ends the save and removes what was written. After Commit, or twice, it does nothing, so that it can be
// deferred. Of several hosts each aborts, when none of them adds any more; host 0 removes what all have written.
func (w *Writer) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	for _, e := range w.extents {
		if e.image != nil {
			_ = e.image.close() // it is removed
			e.image = nil
		}
	}
	if w.d == nil {
		return
	}
	_ = vfs.RemoveAll(w.fsys, w.hidden) // what is left goes next time
	w.d.mu.Lock()
	w.d.saving = false
	w.d.mu.Unlock()
}

// firstOf is the first error: the one that later ones follow from.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
