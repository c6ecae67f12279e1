package vfs

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"
)

// memFile is an open file of a Mem.
type memFile struct {
	fs     *Mem
	node   *node
	name   string
	flag   int
	at     int64
	closed bool
}

func (f *memFile) Name() string { return f.name }

// begin is the Mem's, and refuses what the file was not opened for.
func (f *memFile) begin(kind OpKind, bytes int) (int, error) {
	write := kind == OpWrite || kind == OpTruncate || kind == OpPreallocate
	switch {
	case f.closed:
		return 0, fs.ErrClosed
	case write && f.flag&(os.O_WRONLY|os.O_RDWR) == 0, kind == OpRead && f.flag&os.O_WRONLY != 0:
		return 0, syscall.EBADF
	case f.node.isDir() && kind != OpStat:
		return 0, syscall.EISDIR
	}
	return f.fs.begin(kind, f.name, bytes)
}

func (f *memFile) Read(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n, err := f.read(p, f.at)
	f.at += int64(n)
	return n, err
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n, err := f.read(p, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (f *memFile) read(p []byte, off int64) (int, error) {
	if _, err := f.begin(OpRead, len(p)); err != nil {
		return 0, pathError("read", f.name, err)
	}
	if off < 0 || !f.aligned(p, off) {
		return 0, pathError("read", f.name, syscall.EINVAL)
	}
	if off >= int64(len(f.node.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	return copy(p, f.node.data[off:]), nil
}

func (f *memFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.flag&os.O_APPEND != 0 {
		f.at = int64(len(f.node.data))
	}
	n, err := f.write(p, f.at)
	f.at += int64(n)
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.flag&os.O_APPEND != 0 {
		return 0, pathError("write", f.name, fs.ErrInvalid) // as os.File
	}
	return f.write(p, off)
}

func (f *memFile) write(p []byte, off int64) (int, error) {
	if off < 0 || !f.aligned(p, off) {
		return 0, pathError("write", f.name, syscall.EINVAL)
	}
	n, err := f.begin(OpWrite, len(p))
	if err == nil {
		if err = f.fs.fits(f.node, off+int64(n)); err != nil {
			n = 0
		}
	}
	if n > 0 {
		f.fs.change(f.node, change{off, p[:n]})
	}
	if err != nil {
		return n, pathError("write", f.name, err)
	}
	return n, nil
}

func (f *memFile) Truncate(bytes int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.begin(OpTruncate, 0); err != nil {
		return pathError("truncate", f.name, err)
	}
	if bytes < 0 {
		return pathError("truncate", f.name, fs.ErrInvalid)
	}
	f.fs.change(f.node, change{off: bytes})
	return nil
}

func (f *memFile) Preallocate(bytes int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.begin(OpPreallocate, 0); err != nil {
		return pathError("preallocate", f.name, err)
	}
	if err := f.fs.fits(f.node, bytes); err != nil {
		return pathError("preallocate", f.name, err)
	}
	if bytes > int64(len(f.node.data)) {
		f.fs.change(f.node, change{off: bytes})
	}
	return nil
}

// Sync makes contents and length durable. There is a crash point before it and one after it.
func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.point("before sync of " + f.name)
	if _, err := f.begin(OpSync, 0); err != nil {
		return pathError("sync", f.name, err)
	}
	f.node.makeDurable()
	f.fs.point("after sync of " + f.name)
	return nil
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.begin(OpStat, 0); err != nil {
		return nil, pathError("stat", f.name, err)
	}
	return stat(filepath.Base(f.name), f.node), nil
}

// Close closes, also where it is told to fail.
func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	if _, err := f.fs.begin(OpClose, f.name, 0); err != nil {
		return pathError("close", f.name, err)
	}
	return nil
}

// aligned reports whether a file that was opened for direct I/O takes this buffer at this offset.
func (f *memFile) aligned(p []byte, off int64) bool {
	return f.flag&Direct == 0 || off%DirectAlign == 0 && len(p)%DirectAlign == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(p)))%DirectAlign == 0
}
