package hf

import (
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/vfs"
)

// ReadBack compares a range of a file, which was synced, with the checksum of what was written there, and asks the
// drive for it where the system lets it: a model is often all that is kept of a run.
func ReadBack(f vfs.File, off, n int64, sum uint64) error {
	vfs.DropCache(f, off, n)
	var h xxh3.Hasher
	if _, err := io.CopyBuffer(&h, io.NewSectionReader(f, off, n), make([]byte, min(max(n, 1), 1<<20))); err != nil {
		return err
	}
	if h.Sum64() != sum {
		return fmt.Errorf("%s: what was read back is not what was written: check the drive, and write the model again", f.Name())
	}
	return nil
}
