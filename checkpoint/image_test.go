package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/vfs"
)

// picky is a file system that has its own mind about direct I/O, and counts what is written so.
type picky struct {
	vfs.FS
	atOpen, atWrite error
	directBytes     *int
}

func (p picky) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	if flag&vfs.Direct == 0 {
		return p.FS.OpenFile(name, flag, perm)
	}
	if p.atOpen != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: p.atOpen}
	}
	f, err := p.FS.OpenFile(name, flag, perm)
	return pickyFile{f, p}, err
}

type pickyFile struct {
	vfs.File
	picky
}

func (f pickyFile) WriteAt(b []byte, off int64) (int, error) {
	if f.atWrite != nil {
		return 0, &fs.PathError{Op: "write", Path: f.Name(), Err: f.atWrite}
	}
	*f.directBytes += len(b)
	return f.File.WriteAt(b, off)
}

// pages is memory that begins on a page's boundary.
func pages(n int) []byte {
	b := make([]byte, n+vfs.DirectAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % vfs.DirectAlign
	return b[skip : int(skip)+n]
}

// Whole blocks of aligned memory go past the page cache, all else does not, and the file holds the same bytes either
// way.
func TestImage(t *testing.T) {
	if vfs.Direct == 0 {
		t.Skip("this system has no direct I/O")
	}
	const block = vfs.DirectAlign
	for name, c := range map[string]struct {
		fsys       picky
		shift      int // of the memory, from a page's boundary
		off        int64
		direct     int
		writeFails bool
		openFails  bool
	}{
		"aligned":            {direct: 3 * block},
		"at a block":         {off: 5 * block, direct: 3 * block},
		"memory not aligned": {shift: 8},
		"offset not aligned": {off: 100},
		"refused at open":    {fsys: picky{atOpen: syscall.EINVAL}},
		"refused at write":   {fsys: picky{atWrite: syscall.EINVAL}},
		"full at write":      {fsys: picky{atWrite: syscall.ENOSPC}, writeFails: true},
		"broken at open":     {fsys: picky{atOpen: syscall.EIO}, openFails: true},
	} {
		t.Run(name, func(t *testing.T) {
			direct := 0
			c.fsys.FS, c.fsys.directBytes = vfs.NewMem(), &direct
			path := filepath.Join("d", "image")
			must(t, c.fsys.MkdirAll("d", 0o777))
			i, err := createImage(c.fsys, path)
			if c.openFails {
				if !errors.Is(err, syscall.EIO) {
					t.Fatalf("error %v, want EIO", err)
				}
				return
			}
			must(t, err)
			data := pages(3*block + 17 + c.shift)[c.shift:]
			for k := range data {
				data[k] = byte(k * 7)
			}
			err = i.write(data, c.off)
			if c.writeFails {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("error %v, want ENOSPC", err)
				}
				must(t, i.close())
				return
			}
			must(t, err)
			must(t, i.sync())
			must(t, i.close())
			got, err := vfs.ReadFile(c.fsys, path, 1<<20)
			must(t, err)
			if !bytes.Equal(got[c.off:], data) {
				t.Error("the file holds other bytes")
			}
			if direct != c.direct {
				t.Errorf("%d bytes went past the page cache, want %d", direct, c.direct)
			}
		})
	}
}
