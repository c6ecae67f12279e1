package demo

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/vfs"
)

// ErrDiffers says that a run that was killed and resumed has another state than a run that was not, which is a bug.
var ErrDiffers = errors.New("the two runs differ: that is a bug of millrace; please report it, with the directory " +
	"of the demo")

// checkpointOf returns the directory of a checkpoint.
func checkpointOf(run string, step int) string {
	return filepath.Join(run, "checkpoints", checkpoint.DirName(step))
}

// stateSum returns the SHA-256 and the size of the state that a checkpoint has: names, all 32 bits of each weight,
// and both moments. Reading verifies every byte.
func stateSum(ctx context.Context, dir string) (sum string, bytes int64, err error) {
	c, err := checkpoint.Open(vfs.OS{}, dir)
	if err != nil {
		return "", 0, err
	}
	extents := slices.Clone(c.Manifest.Extents)
	slices.SortFunc(extents, func(a, b checkpoint.Extent) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
	h := sha256.New()
	var buf []byte
	for _, e := range extents {
		fmt.Fprintf(h, "%v %v %d\n", e.ID, e.DType, e.Bytes)
		buf = slices.Grow(buf[:0], int(e.Bytes))[:e.Bytes]
		if err := cmp.Or(ctx.Err(), c.Read(e.ID, 0, buf)); err != nil {
			return "", 0, err
		}
		h.Write(buf)
		bytes += e.Bytes
	}
	return fmt.Sprintf("%x", h.Sum(nil)), bytes, nil
}
