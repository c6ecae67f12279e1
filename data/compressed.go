package data

import (
	"io"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindowBytes bounds what a zstd file may ask for: --long=27 is the most that the zstd program reads unasked.
const maxWindowBytes = 128 << 20

// decompress reads through a compression that the file's name tells. done must be called at the end.
func decompress(name string, in io.Reader) (out io.Reader, done func(), err error) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".gz":
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return r, func() { r.Close() }, nil
	case ".zst", ".zstd":
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return in, func() {}, nil
}
