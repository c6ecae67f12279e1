package data

import (
	"context"
	"errors"
	"fmt"
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
			return nil, nil, fmt.Errorf("its end says gzip, which it is not: %w", err)
		}
		return unpacking{r, "gzip"}, func() { r.Close() }, nil
	case ".zst", ".zstd":
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, nil, err
		}
		return unpacking{r, "zstd"}, r.Close, nil
	}
	return in, func() {}, nil
}

// unpacking says what an error means that the reader of a compression gives.
type unpacking struct {
	in   io.Reader
	name string
}

func (u unpacking) Read(p []byte) (int, error) {
	n, err := u.in.Read(p)
	switch {
	case err == io.ErrUnexpectedEOF: // without it the parser of rows would think that they end here
		err = fmt.Errorf("the file is cut off: its %s data do not end", u.name)
	case err != nil && err != io.EOF && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("its %s data are damaged: %w", u.name, err)
	}
	return n, err
}
