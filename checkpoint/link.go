package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/vfs"
)

// Link adds a piece that has a file of its own, from byte 0, with the checksum of its bytes. The file gets a second
// name in the checkpoint, with no bytes written. Where the file system has no hard links, or the file is on another
// one, Link copies the file and compares the copy with the checksum. The file may be longer than the piece.
//
// Contents and length of the file must be durable, and the file must never be written again. The files of a store.Disk
// are such (see Files).
func (w *Writer) Link(id ID, piece int, path string, sum uint64) error {
	return w.join(id, piece, sum, func(to string, n int64) (int64, error) {
		err := w.fsys.Link(path, to)
		if err == nil {
			return w.checkLinked(path, to, n)
		}
		if cannotLink(err) {
			err = w.copyPiece(path, to, n, sum)
		}
		return n, err
	})
}

// Copy has a piece join as Link does, always by a copy: the file may be written to when it returns.
func (w *Writer) Copy(id ID, piece int, path string, sum uint64) error {
	return w.join(id, piece, sum, func(to string, n int64) (int64, error) { return n, w.copyPiece(path, to, n, sum) })
}

// join takes a piece as a file of its own, which put makes; it returns the file's length.
func (w *Writer) join(id ID, piece int, sum uint64, put func(to string, n int64) (int64, error)) error {
	e, err := w.take(id, piece)
	if err != nil {
		return err
	}
	_, n := e.piece(piece)
	name := id.pieceName(piece)
	length, err := put(filepath.Join(w.hidden, name), n)
	if err != nil {
		return w.fail(err)
	}
	w.record(e, piece, Piece{File: name, Bytes: n, Sum: Sum(sum)}, length)
	return nil
}

// cannotLink is true of the errors of file systems without hard links, of files on another one, of files that have too
// many names, and of files that the system's policy does not let us link.
func cannotLink(err error) bool {
	for _, e := range []error{syscall.EXDEV, syscall.EPERM, syscall.EACCES, syscall.EMLINK, syscall.ENOSYS, errors.ErrUnsupported} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// checkLinked returns the length of a file that was linked, which must hold the piece.
func (w *Writer) checkLinked(path, to string, n int64) (int64, error) {
	info, err := w.fsys.Stat(to)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() || info.Size() < n {
		return 0, fmt.Errorf("%s has %d bytes, and the piece that is linked has %d", path, info.Size(), n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.linkedBytes += n
	return info.Size(), nil
}

// copyPiece copies the first n bytes of a file, durably.
func (w *Writer) copyPiece(path, to string, n int64, sum uint64) error {
	from, err := w.fsys.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := w.fsys.Create(to)
	if err != nil {
		return err
	}
	err = w.copyInto(f, from, n, sum)
	if err == nil {
		err = f.Sync()
	}
	vfs.DropCache(f, 0, 0)
	return firstOf(err, f.Close())
}

func (w *Writer) copyInto(to, from vfs.File, n int64, sum uint64) error {
	h := xxh3.New()
	buf := make([]byte, min(n, chunkBytes))
	for off := int64(0); off < n; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), n-off)]
		if err := readFull(from, buf, off); err != nil {
			return err
		}
		if _, err := to.WriteAt(buf, off); err != nil {
			return err
		}
		h.Write(buf)
	}
	vfs.DropCache(from, 0, n)
	w.count(n)
	if h.Sum64() != sum {
		return fmt.Errorf("%s does not match its checksum: its disk has changed it", from.Name())
	}
	return nil
}
