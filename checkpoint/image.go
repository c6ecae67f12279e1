package checkpoint

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/millrace/millrace/vfs"
)

// image is the file that takes an extent's pieces from memory. Whole blocks of aligned memory, which a run's pages
// are, go past the page cache where the file system lets them: the copy into it takes more of the cores, which a run
// on the CPU device needs, than checksum and disk together. The rest goes through the cache, and is held to little of
// it.
type image struct {
	file vfs.File

	direct vfs.File // the same file, open for direct I/O; nil: the file system refuses it

	mu      sync.Mutex
	refused bool     // the file system refused when it was written to
	ahead   [2]int64 // offset and length of the range of the cache whose writing was started and not awaited
}

func createImage(fsys vfs.FS, name string) (*image, error) {
	f, err := fsys.Create(name)
	if err != nil {
		return nil, err
	}
	i := &image{file: f}
	if vfs.Direct != 0 {
		direct, err := fsys.OpenFile(name, os.O_WRONLY|vfs.Direct, 0)
		switch {
		case err == nil:
			i.direct = direct
		case !refusesDirect(err):
			return nil, firstOf(err, f.Close())
		}
	}
	return i, nil
}

// refusesDirect reports whether an error says no more than that the file system has no direct I/O.
func refusesDirect(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)
}

// blocks returns the number of bytes of a piece, from its start, that direct I/O takes.
func blocks(data []byte, off int64) int64 {
	if off%vfs.DirectAlign != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%vfs.DirectAlign != 0 {
		return 0
	}
	return int64(len(data)) / vfs.DirectAlign * vfs.DirectAlign
}

// write puts a piece at its offset. Several goroutines may write several pieces.
func (i *image) write(data []byte, off int64) error {
	if n := blocks(data, off); n > 0 && i.takesDirect() {
		_, err := i.direct.WriteAt(data[:n], off)
		switch {
		case err == nil:
			data, off = data[n:], off+n
		case !refusesDirect(err):
			return err
		default: // all of it goes through the cache
			i.mu.Lock()
			i.refused = true
			i.mu.Unlock()
		}
	}
	if len(data) == 0 {
		return nil
	}
	if _, err := i.file.WriteAt(data, off); err != nil {
		return err
	}
	n := int64(len(data))
	if err := startWriteback(i.file, off, n); err != nil {
		return err
	}
	i.mu.Lock()
	before := i.ahead
	i.ahead = [2]int64{off, n}
	i.mu.Unlock()
	if before[1] > 0 {
		return dropWritten(i.file, before[0], before[1])
	}
	return nil
}

func (i *image) takesDirect() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.direct != nil && !i.refused
}

// sync makes what was written durable.
func (i *image) sync() error {
	err := i.file.Sync()
	vfs.DropCache(i.file, 0, 0) // 0 bytes: to the end
	return err
}

func (i *image) close() error {
	var err error
	if i.direct != nil {
		err = i.direct.Close()
	}
	return firstOf(err, i.file.Close())
}
