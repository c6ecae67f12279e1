package vfs

import (
	"io/fs"
	"os"
	"sync"
	"unsafe"
)

// Faulty is a file system before another one, real or not, in which any operation fails on request, for tests of
// whole programs. Operations that were not asked to fail never do. Operations of an open file can fail too, those of
// a held lock cannot.
type Faulty struct {
	under FS

	mu        sync.Mutex
	ops       int
	intercept func(Op) Outcome
}

var _ FS = (*Faulty)(nil)

// NewFaulty is a file system that does what another one does.
func NewFaulty(under FS) *Faulty { return &Faulty{under: under} }

// Intercept asks f about every operation from now on, one at a time; nil lets all be. F must not call the Faulty.
func (y *Faulty) Intercept(f func(Op) Outcome) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.intercept = f
}

// Ops is the number of operations so far.
func (y *Faulty) Ops() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.ops
}

func (y *Faulty) begin(op Op) Outcome {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.ops++
	if op.N = y.ops; y.intercept == nil {
		return Outcome{}
	}
	return y.intercept(op)
}

// fails is the error of an operation on a name that has no bytes.
func (y *Faulty) fails(kind OpKind, name string) error {
	if o := y.begin(Op{Kind: kind, Name: name}); o.Err != nil {
		return pathError(kind.String(), name, o.Err)
	}
	return nil
}

// Open opens for reading.
func (y *Faulty) Open(name string) (File, error) { return y.OpenFile(name, os.O_RDONLY, 0) }

// Create makes or empties a file.
func (y *Faulty) Create(name string) (File, error) {
	return y.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o664)
}

// OpenFile implements FS.
func (y *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if o := y.begin(Op{Kind: OpOpen, Name: name, Flag: flag}); o.Err != nil {
		return nil, pathError("open", name, o.Err)
	}
	f, err := y.under.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{f, y, flag}, nil
}

// Rename implements FS.
func (y *Faulty) Rename(oldName, newName string) error {
	if o := y.begin(Op{Kind: OpRename, Name: newName}); o.Err != nil {
		return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: o.Err}
	}
	return y.under.Rename(oldName, newName)
}

// Exchange implements FS.
func (y *Faulty) Exchange(a, b string) error {
	if o := y.begin(Op{Kind: OpExchange, Name: b}); o.Err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: o.Err}
	}
	return y.under.Exchange(a, b)
}

// Link implements FS.
func (y *Faulty) Link(oldName, newName string) error {
	if o := y.begin(Op{Kind: OpLink, Name: newName}); o.Err != nil {
		return &os.LinkError{Op: "link", Old: oldName, New: newName, Err: o.Err}
	}
	return y.under.Link(oldName, newName)
}

// Remove implements FS.
func (y *Faulty) Remove(name string) error {
	if err := y.fails(OpRemove, name); err != nil {
		return err
	}
	return y.under.Remove(name)
}

// MkdirAll implements FS.
func (y *Faulty) MkdirAll(name string, perm fs.FileMode) error {
	if err := y.fails(OpMkdir, name); err != nil {
		return err
	}
	return y.under.MkdirAll(name, perm)
}

// ReadDir implements FS.
func (y *Faulty) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := y.fails(OpReadDir, name); err != nil {
		return nil, err
	}
	return y.under.ReadDir(name)
}

// Stat implements FS.
func (y *Faulty) Stat(name string) (fs.FileInfo, error) {
	if err := y.fails(OpStat, name); err != nil {
		return nil, err
	}
	return y.under.Stat(name)
}

// Lstat implements FS.
func (y *Faulty) Lstat(name string) (fs.FileInfo, error) {
	if err := y.fails(OpStat, name); err != nil {
		return nil, err
	}
	return y.under.Lstat(name)
}

// SyncDir implements FS.
func (y *Faulty) SyncDir(name string) error {
	if err := y.fails(OpSyncDir, name); err != nil {
		return err
	}
	return y.under.SyncDir(name)
}

// FreeBytes implements FS.
func (y *Faulty) FreeBytes(name string) (int64, error) {
	if err := y.fails(OpFreeBytes, name); err != nil {
		return 0, err
	}
	return y.under.FreeBytes(name)
}

// Lock implements FS.
func (y *Faulty) Lock(name string) (Lock, error) {
	if err := y.fails(OpLock, name); err != nil {
		return nil, err
	}
	return y.under.Lock(name)
}

// faultyFile is an open file of a Faulty.
type faultyFile struct {
	File
	fs   *Faulty
	flag int
}

func (f *faultyFile) Read(p []byte) (int, error) { return f.read(p, f.File.Read) }

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	return f.read(p, func(p []byte) (int, error) { return f.File.ReadAt(p, off) })
}

func (f *faultyFile) read(p []byte, read func([]byte) (int, error)) (int, error) {
	o := f.fs.begin(Op{Kind: OpRead, Name: f.Name(), Bytes: len(p)})
	if o.Err != nil {
		return 0, pathError("read", f.Name(), o.Err)
	}
	n, err := read(p)
	if o.Damage != nil && n > 0 {
		o.Damage(p[:n])
	}
	return n, err
}

func (f *faultyFile) Write(p []byte) (int, error) { return f.write(p, f.File.Write) }

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	return f.write(p, func(p []byte) (int, error) { return f.File.WriteAt(p, off) })
}

func (f *faultyFile) write(p []byte, write func([]byte) (int, error)) (int, error) {
	o := f.fs.begin(Op{Kind: OpWrite, Name: f.Name(), Bytes: len(p)})
	switch {
	case o.Err != nil:
		n := min(max(o.Written, 0), len(p))
		if f.flag&Direct != 0 {
			n -= n % DirectAlign
		}
		if n > 0 {
			if n, err := write(p[:n]); err != nil {
				return n, err
			}
		}
		return n, pathError("write", f.Name(), o.Err)
	case o.Damage != nil && len(p) > 0:
		damaged := alignedBytes(len(p))
		copy(damaged, p)
		o.Damage(damaged)
		return write(damaged)
	}
	return write(p)
}

// alignedBytes is memory that direct I/O takes.
func alignedBytes(n int) []byte {
	p := make([]byte, n+DirectAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(p))) % DirectAlign
	return p[skip : int(skip)+n]
}

func (f *faultyFile) Sync() error {
	if err := f.fs.fails(OpSync, f.Name()); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) Stat() (fs.FileInfo, error) {
	if err := f.fs.fails(OpStat, f.Name()); err != nil {
		return nil, err
	}
	return f.File.Stat()
}

func (f *faultyFile) Truncate(bytes int64) error {
	if err := f.fs.fails(OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(bytes)
}

func (f *faultyFile) Preallocate(bytes int64) error {
	if err := f.fs.fails(OpPreallocate, f.Name()); err != nil {
		return err
	}
	return f.File.Preallocate(bytes)
}

// Close closes, also where it is told to fail.
func (f *faultyFile) Close() error {
	err := f.File.Close()
	if told := f.fs.fails(OpClose, f.Name()); told != nil {
		return told
	}
	return err
}
