package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// Checkpoint is a complete checkpoint that was opened for reading. It holds no open files, and may be used from several
// goroutines.
type Checkpoint struct {
	Manifest *Manifest

	fsys    vfs.FS
	dir     string
	extents map[ID]*Extent
}

// Open reads a checkpoint's manifest and looks whether every file is there with the right length; it reads no other
// bytes. The directory may be anywhere and have any name. The error is a *DamageError if there is something wrong with
// the checkpoint.
func Open(fsys vfs.FS, dir string) (*Checkpoint, error) {
	c, err := open(fsys, dir)
	if damage := (*DamageError)(nil); errors.As(err, &damage) {
		damage.Previous = previous(fsys, dir, nil)
	}
	return c, err
}

// DamageError reports a checkpoint that differs from what was saved, or that cannot be read.
type DamageError struct {
	Path string // the file or directory that is wrong
	Why  string
	// Previous is the newest complete checkpoint of an earlier step of the run in the same directory; empty without one.
	Previous string
	Err      error // of the system, if there is one

	isLink bool // that leads out of the checkpoint, or out of the directory of checkpoints; Why has what to do
}

func (e *DamageError) Error() string {
	if e.Previous != "" {
		return fmt.Sprintf("%s: %s: resume from the previous checkpoint, %s", e.Path, e.Why, e.Previous)
	}
	if e.isLink {
		return e.Path + ": " + e.Why
	}
	return fmt.Sprintf("%s: %s: there is no earlier checkpoint in that directory; replace it with a copy, or start again",
		e.Path, e.Why)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Lasts reports whether the files are not those that were saved. Otherwise the system failed to read them, and may not
// fail the next time.
func (e *DamageError) Lasts() bool {
	return e.Err == nil || errors.Is(e.Err, fs.ErrNotExist) || errors.Is(e.Err, io.ErrUnexpectedEOF)
}

// open is Open without a look for the previous checkpoint.
func open(fsys vfs.FS, dir string) (*Checkpoint, error) {
	m, err := manifestIn(fsys, dir)
	if err != nil {
		return nil, err
	}
	if err := m.checkFiles(fsys, dir); err != nil {
		return nil, err
	}
	return newCheckpoint(fsys, dir, m), nil
}

func newCheckpoint(fsys vfs.FS, dir string, m *Manifest) *Checkpoint {
	c := &Checkpoint{Manifest: m, fsys: fsys, dir: dir, extents: make(map[ID]*Extent, len(m.Extents))}
	for i := range m.Extents {
		c.extents[m.Extents[i].ID] = &m.Extents[i]
	}
	return c
}

// manifestIn reads the manifest of a checkpoint, and looks at no other file.
func manifestIn(fsys vfs.FS, dir string) (*Manifest, error) {
	name := filepath.Join(dir, manifestName)
	if err := vfs.CheckBelow(fsys, dir, manifestName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, leadsOut(name, err)
	}
	var use budget.Use
	defer use.End()
	if info, err := fsys.Stat(name); err == nil && info.Mode().IsRegular() && info.Size() <= maxManifestBytes {
		if err := use.Take(context.Background(), info.Size()*memoryPerByte); err != nil {
			return nil, unreadable(name, fmt.Errorf("%d bytes: %w", info.Size(), err))
		}
	}
	doc, err := readManifest(fsys, name)
	if err != nil {
		return nil, err
	}
	m, err := decode(doc)
	if err != nil {
		return nil, &DamageError{Path: name, Why: "this is not a manifest that can be trusted: " + err.Error()}
	}
	return m, nil
}

// checkFiles looks whether every file is there with the right length.
func (m *Manifest) checkFiles(fsys vfs.FS, dir string) error {
	for _, f := range m.Files {
		path := filepath.Join(dir, f.Name)
		if err := vfs.CheckBelow(fsys, dir, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return leadsOut(path, err)
		}
		info, err := fsys.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &DamageError{Path: path, Why: "the file is missing", Err: err}
		case err != nil:
			return unreadable(path, err)
		case !info.Mode().IsRegular():
			return &DamageError{Path: path, Why: "this is not a file"}
		case info.Size() != f.Bytes:
			return &DamageError{Path: path,
				Why: fmt.Sprintf("the file has %d bytes and was saved with %d", info.Size(), f.Bytes)}
		}
	}
	return nil
}

func readManifest(fsys vfs.FS, name string) ([]byte, error) {
	info, err := fsys.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotDir):
		dir := filepath.Dir(name)
		if _, err := fsys.Stat(dir); err != nil {
			return nil, &missingError{dir, err}
		}
		if _, isStep := stepOf(filepath.Base(dir)); !isStep {
			return nil, fmt.Errorf("%s is not a checkpoint (it has no %s); name one of the step-... directories of a run", dir, manifestName)
		}
		return nil, &DamageError{Path: dir, Why: "this is no checkpoint: it has no " + manifestName, Err: err}
	case err != nil:
		return nil, unreadable(name, err)
	case !info.Mode().IsRegular():
		return nil, &DamageError{Path: name, Why: "this is not a file"}
	}
	doc, err := vfs.ReadFile(fsys, name, maxManifestBytes)
	if err != nil {
		return nil, unreadable(name, err)
	}
	return doc, nil
}

// leadsOut is a link out of a checkpoint, or in place of one, which is not followed.
func leadsOut(path string, err error) *DamageError {
	e := unreadable(path, err)
	e.Err, e.isLink = nil, true // it lasts
	return e
}

// missingError says that a checkpoint is not there.
type missingError struct {
	dir string
	err error
}

func (e *missingError) Error() string {
	return "there is no checkpoint " + e.dir + "; millrace checkpoint list shows those of a run"
}

func (e *missingError) Unwrap() error { return e.err }

func unreadable(path string, err error) *DamageError {
	var p *fs.PathError
	if errors.As(err, &p) {
		return &DamageError{Path: path, Why: "it cannot be read: " + p.Err.Error(), Err: err}
	}
	return &DamageError{Path: path, Why: "it cannot be read: " + err.Error(), Err: err}
}

// Dir is the checkpoint's directory.
func (c *Checkpoint) Dir() string { return c.dir }

// Extent describes an extent; ok is false if the checkpoint does not hold it.
func (c *Checkpoint) Extent(id ID) (e Extent, ok bool) {
	if p := c.extents[id]; p != nil {
		return *p, true
	}
	return Extent{}, false
}

// PieceFiles returns the files of an extent, for a store.Disk to adopt at a version instead of reading and writing them
// again. The store that adopts them compares the checksums. ok is false if the extent is not there, or if pieces share
// a file.
func (c *Checkpoint) PieceFiles(id ID, version uint64) (files []store.PieceFile, ok bool) {
	e := c.extents[id]
	if e == nil {
		return nil, false
	}
	for i, p := range e.Pieces {
		if p.Offset != 0 { // pieces do not overlap: if each begins its file, none share one
			return nil, false
		}
		off, n := e.piece(i)
		files = append(files, store.PieceFile{Path: filepath.Join(c.dir, p.File), Off: off, Bytes: n, XXH3: uint64(p.Sum), Version: version})
	}
	return files, true
}

// ReadPiece reads a piece of an extent into dst, which has its length, and compares it with its checksum. The extent
// must be there.
func (c *Checkpoint) ReadPiece(id ID, piece int, dst []byte) error {
	e := c.extents[id]
	if e == nil || piece < 0 || piece >= len(e.Pieces) || e.Pieces[piece].Bytes != int64(len(dst)) {
		panic(fmt.Sprintf("checkpoint: there is no piece %d of %d bytes of %v", piece, len(dst), id))
	}
	p := e.Pieces[piece]
	f, err := vfs.OpenBelow(c.fsys, c.dir, p.File)
	if err != nil {
		return c.damaged(p.File, err)
	}
	defer f.Close()
	if err := readFull(f, dst, p.Offset); err != nil {
		return c.damaged(p.File, err)
	}
	vfs.DropCache(f, p.Offset, p.Bytes)
	if Sum(xxh3.Hash(dst)) != p.Sum {
		return c.changed(p.File, p.Offset, p.Bytes)
	}
	return nil
}

// Read reads any range of an extent into dst, and compares all pieces that it touches with their checksums: for a run
// that cuts its extents otherwise than the one that saved them. A piece that the range cuts is read as a whole.
func (c *Checkpoint) Read(id ID, off int64, dst []byte) error {
	e := c.extents[id]
	if e == nil || off < 0 || off > e.Bytes-int64(len(dst)) {
		panic(fmt.Sprintf("checkpoint: there are no %d bytes at %d of %v", len(dst), off, id))
	}
	var buf []byte
	for len(dst) > 0 {
		piece := int(off / e.PieceBytes)
		at, n := e.piece(piece)
		got := min(at+n-off, int64(len(dst)))
		if got == n {
			if err := c.ReadPiece(id, piece, dst[:n]); err != nil {
				return err
			}
		} else {
			if buf == nil {
				buf = make([]byte, min(chunkBytes, e.PieceBytes))
			}
			part := dst[:got]
			err := c.scan(e.Pieces[piece], buf, func(chunk []byte, in int64) error {
				// The chunk is at byte at+in of the extent, and part at byte off.
				if skip := off - (at + in); skip >= 0 {
					copy(part, chunk[min(skip, int64(len(chunk))):])
				} else if -skip < got {
					copy(part[-skip:], chunk)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		dst, off = dst[got:], off+got
	}
	return nil
}

// Peek reads any range of an extent into dst without its checksums: for numbers that are shown, and not for a state.
func (c *Checkpoint) Peek(id ID, off int64, dst []byte) error {
	e := c.extents[id]
	if e == nil || off < 0 || off > e.Bytes-int64(len(dst)) {
		return fmt.Errorf("%s has no %d bytes at %d of %v; it is of another model or precision", c.dir, len(dst), off, id)
	}
	for len(dst) > 0 {
		piece := int(off / e.PieceBytes)
		at, n := e.piece(piece)
		part := dst[:min(at+n-off, int64(len(dst)))]
		p := e.Pieces[piece]
		f, err := vfs.OpenBelow(c.fsys, c.dir, p.File)
		if err != nil {
			return c.damaged(p.File, err)
		}
		err = readFull(f, part, p.Offset+off-at)
		_ = f.Close() // it was read
		if err != nil {
			return c.damaged(p.File, err)
		}
		dst, off = dst[len(part):], off+int64(len(part))
	}
	return nil
}

// Attachment reads a file that was attached; ok is false if no attachment has that name.
func (c *Checkpoint) Attachment(name string) (data []byte, ok bool, err error) {
	for _, a := range c.Manifest.Attachments {
		if a.File != name {
			continue
		}
		data, err := vfs.ReadBelow(c.fsys, c.dir, name, c.Manifest.length(name))
		if err != nil {
			return nil, true, c.damaged(name, err)
		}
		if Sum(xxh3.Hash(data)) != a.Sum {
			return nil, true, c.changed(name, 0, int64(len(data)))
		}
		return data, true, nil
	}
	return nil, false, nil
}

// length looks up the length of a file in the manifest.
func (m *Manifest) length(name string) int64 {
	for _, f := range m.Files {
		if f.Name == name {
			return f.Bytes
		}
	}
	return 0
}

// VerifyExtent reads an extent and compares it with its checksums, for who takes its files over unread. The extent
// must be there.
func (c *Checkpoint) VerifyExtent(ctx context.Context, id ID) error {
	e := c.extents[id]
	buf := make([]byte, min(chunkBytes, e.PieceBytes))
	for _, p := range e.Pieces {
		if err := c.scan(p, buf, func([]byte, int64) error { return ctx.Err() }); err != nil {
			return err
		}
	}
	return nil
}

// Verify reads everything and compares it with the checksums. The first thing that is wrong is a *DamageError.
// Progress, if it is not nil, is called after each MiB or so with the bytes so far and those of all extents.
func (c *Checkpoint) Verify(ctx context.Context, progress func(done, total int64)) error {
	total, done := c.Manifest.Bytes(), int64(0)
	buf := make([]byte, min(chunkBytes, c.Manifest.longestPiece()))
	for _, a := range c.Manifest.Attachments {
		if _, _, err := c.Attachment(a.File); err != nil {
			return err
		}
	}
	for _, e := range c.Manifest.Extents {
		for _, p := range e.Pieces {
			err := c.scan(p, buf, func(chunk []byte, _ int64) error {
				if done += int64(len(chunk)); progress != nil {
					progress(done, total)
				}
				return ctx.Err()
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// longestPiece is the length of the longest piece.
func (m *Manifest) longestPiece() int64 {
	var longest int64
	for _, e := range m.Extents {
		longest = max(longest, e.Pieces[0].Bytes)
	}
	return longest
}

// chunkBytes is the size of a copy, or of a scan, at a time.
const chunkBytes = 1 << 20

// scan reads a piece through buf, shows each chunk with its offset in the piece, and compares all with the checksum.
// The chunks are verified once scan returns nil.
func (c *Checkpoint) scan(p Piece, buf []byte, show func(chunk []byte, off int64) error) error {
	f, err := vfs.OpenBelow(c.fsys, c.dir, p.File)
	if err != nil {
		return c.damaged(p.File, err)
	}
	defer f.Close()
	h := xxh3.New()
	for off := int64(0); off < p.Bytes; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), p.Bytes-off)]
		if err := readFull(f, buf, p.Offset+off); err != nil {
			return c.damaged(p.File, err)
		}
		h.Write(buf)
		if err := show(buf, off); err != nil {
			return err
		}
	}
	vfs.DropCache(f, p.Offset, p.Bytes)
	if Sum(h.Sum64()) != p.Sum {
		return c.changed(p.File, p.Offset, p.Bytes)
	}
	return nil
}

// readFull reads len(p) bytes at an offset.
func readFull(f vfs.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}

// damaged is an error of reading.
func (c *Checkpoint) damaged(file string, err error) error {
	path := filepath.Join(c.dir, file)
	e := unreadable(path, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Why = "the file is missing"
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Why = "the file ends too early"
	}
	e.Previous = previous(c.fsys, c.dir, &c.Manifest.Run)
	return e
}

// changed is a checksum that does not match.
func (c *Checkpoint) changed(file string, off, n int64) error {
	return &DamageError{Path: filepath.Join(c.dir, file),
		Why:      fmt.Sprintf("the %d bytes at %d are not those that were saved: their checksum does not match", n, off),
		Previous: previous(c.fsys, c.dir, &c.Manifest.Run)}
}
