package data

import (
	"bufio"
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
		m := &members{in: bufio.NewReader(in)}
		if m.gzip, err = gzip.NewReader(m.in); err != nil {
			return nil, nil, fmt.Errorf("its name ends in .gz, and it is not gzip: %w; rename it, or compress it", err)
		}
		m.gzip.Multistream(false)
		return unpacking{m, "gzip"}, func() { m.gzip.Close() }, nil
	case ".zst", ".zstd":
		peeked := bufio.NewReader(in)
		if _, err := peeked.Peek(1); err == io.EOF {
			return nil, nil, errors.New("the file is cut off: it has no byte, and zstd writes some even for nothing")
		}
		in = peeked
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, nil, err
		}
		return unpacking{r, "zstd"}, r.Close, nil
	}
	return in, func() {}, nil
}

// members reads gzip files that stand one after the other in one, as gzip allows, and says where something else follows them.
type members struct {
	in   *bufio.Reader
	gzip *gzip.Reader // of one member
}

func (m *members) Read(p []byte) (int, error) {
	n, err := m.gzip.Read(p)
	if err != io.EOF {
		return n, err
	}
	switch mark, endErr := m.in.Peek(2); {
	case endErr == io.EOF && len(mark) == 0:
		return n, io.EOF
	case endErr != nil && endErr != io.EOF:
		return n, endErr
	case endErr == io.EOF && mark[0] == 0x1f:
		return n, io.ErrUnexpectedEOF
	case mark[0] != 0x1f || mark[1] != 0x8b:
		return n, errAfterGzip
	}
	if err := m.gzip.Reset(m.in); err != nil {
		return n, err
	}
	m.gzip.Multistream(false)
	return n, nil
}

// errAfterGzip refuses files that unpacking would not call damaged.
var errAfterGzip = errors.New("there are bytes after its gzip data that are not gzip: pack the file again")

// unpacking says what an error means that the reader of a compression gives.
type unpacking struct {
	in   io.Reader
	name string
}

func (u unpacking) Read(p []byte) (int, error) {
	n, err := u.in.Read(p)
	switch {
	case err == io.ErrUnexpectedEOF: // without it the parser of rows would think that they end here
		err = fmt.Errorf("the file is cut off: its %s data do not end: download or pack it again", u.name)
	case err != nil && err != io.EOF && err != errAfterGzip && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("its %s data are damaged, or it is another file (%w): rename it, or download or pack it again", u.name, err)
	}
	return n, err
}
