// Package parquet reads rows of Parquet files as JSON objects.
//
// It is made for data sets: a File is opened, Rows goes through the top-level columns that are wanted, in the order of
// the file, and hands each row out as a JSON object, as for the other file formats. Columns that are not asked for are
// not read. Nesting (lists, structs, lists of structs) is put together while the values stream by, so a reader holds at
// most one row, and one page and one dictionary of each column that it reads.
//
// A file may be damaged or hostile. Each size that it states is compared with what the file has and with Limits
// before there is memory for it, and data that unpack to more than the stated size are refused. So Limits bound the
// memory and time that a file can cost, and a fault of the file is an error that names the column and the page.
//
// The format is that of github.com/apache/parquet-format: pages of version 1 and 2; plain, dictionary, run-length,
// delta and byte-stream-split values; snappy, gzip, Brotli, zstd, LZ4_RAW or no compression. Encrypted files, LZO and
// the older LZ4 are refused by name.
//
// It is not built on github.com/parquet-go/parquet-go, whose memory a caller cannot bound without decoding the pages
// first: v0.32.0, even after a guard that checks every page header, allocates until the process dies for a file of 105
// bytes with a damaged LZ4 block ((*Codec).Decode of compress/lz4) and for one of 732 bytes with 100 long runs of
// indices (decodeInt32 of encoding/rle), and of sound files it reads some in LZ4 wrongly without an error (its issue
// 608) and panics at the empty pages of version 2 that pyarrow writes.
package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits bound what a file may cost in memory and, with TotalBytes, in time.
type Limits struct {
	RowBytes  int // of one row as JSON
	PageBytes int // of one page, packed or unpacked; also the most values in one
	HeldBytes int // of all pages, dictionaries and read buffers at a time
	// TotalBytes are those of all pages unpacked and of all rows as JSON, with valueCost for each value. Compression,
	// dictionaries, runs and shared prefixes make gigabytes of a file of a few hundred bytes, so this should follow from
	// the file's size.
	TotalBytes int64
}

// valueCost is the cost of a value in Limits.TotalBytes in addition to its JSON: nulls and values that a large row
// leaves out take time, too.
const valueCost = 16

// maxFooterBytes bounds the footer, which is parsed whole. One of 10,000 row groups of ten columns has about 10 MB.
const maxFooterBytes = 64 << 20

// ErrRowTooLarge tells yield of a row that is larger than Limits.RowBytes.
var ErrRowTooLarge = errors.New("the row is too large")

// File is an open Parquet file. It keeps no more than the footer.
type File struct {
	in     io.ReaderAt
	limits Limits
	body   int64 // the footer's offset: no page goes beyond it
	root   *node
	groups []rowGroup
	held   int   // bytes of buffers, of Limits.HeldBytes
	spent  int64 // of Limits.TotalBytes
	unpack unpackers
}

// Open reads the footer of a file of the given size.
func Open(in io.ReaderAt, size int64, limits Limits) (*File, error) {
	const ends = 4 + 4 + 4 // the first mark, the footer's length, and the last mark
	var head [4]byte
	var tail [8]byte
	if size < ends {
		return nil, errors.New("it is too short for a Parquet file")
	}
	if err := readFull(in, head[:], 0); err != nil {
		return nil, err
	}
	if err := readFull(in, tail[:], size-8); err != nil {
		return nil, err
	}
	switch {
	case string(tail[4:]) == "PARE":
		return nil, errEncrypted
	case string(head[:]) != "PAR1" || string(tail[4:]) != "PAR1":
		return nil, errors.New("it is not a Parquet file, or it is cut off")
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	switch {
	case length > size-ends:
		return nil, fmt.Errorf("its footer is said to have %d bytes, and the file has %d", length, size)
	case length > maxFooterBytes:
		return nil, fmt.Errorf("its footer has %d bytes: at most %d MiB are read", length, maxFooterBytes>>20)
	}
	footer := make([]byte, length)
	if err := readFull(in, footer, size-8-length); err != nil {
		return nil, err
	}
	f := &File{in: in, limits: limits, body: size - 8 - length}
	if err := f.parseFooter(footer); err != nil {
		return nil, fmt.Errorf("footer: %w", err)
	}
	return f, nil
}

func readFull(in io.ReaderAt, b []byte, at int64) error {
	if n, err := in.ReadAt(b, at); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

// Columns are the names of the top-level columns in the order of the file.
func (f *File) Columns() []string {
	names := make([]string, len(f.root.fields))
	for i, n := range f.root.fields {
		names[i] = n.name
	}
	return names
}

// Rows calls yield for each row, as the JSON object of those of the named columns that the file has (one at least),
// in the order of the file, until it returns false. Fields that are null are left out of objects; numbers that JSON
// does not know (NaN, infinities) are null; strings and byte arrays are written as they are, UTF-8 or not; a column of
// JSON has the values that its texts hold. The object is valid until yield returns. A row larger than Limits.RowBytes
// comes as ErrRowTooLarge, and one whose JSON is broken as an error; any other error ends the reading, as does the first value
// of a column whose type has no form in JSON, such as a date. Fields for which isLabel (or nil) is true, by their path in the row such
// as "messages.timestamp", are null in place of that.
func (f *File) Rows(ctx context.Context, columns []string, isLabel func(field string) bool, yield func(object []byte, err error) bool) error {
	f.held, f.spent = 0, 0
	r := &rows{file: f, passed: map[*node]bool{}}
	for _, n := range f.root.fields {
		if slices.Contains(columns, n.name) {
			r.fields = append(r.fields, n)
			for leaf := n.from; leaf < n.to; leaf++ {
				r.leaves = append(r.leaves, leaf)
			}
		}
	}
	if len(r.leaves) == 0 {
		return errors.New("the file has none of the columns asked for")
	}
	r.cursors = make([]*cursor, f.root.to)
	for _, leaf := range r.leaves {
		n := f.root.leaf(leaf)
		r.cursors[leaf] = &cursor{ctx: ctx, file: f, leaf: n}
		if n.meaning == isRefused && isLabel != nil && isLabel(f.root.field(n)) {
			r.passed[n] = true
		}
	}
	for g, group := range f.groups {
		for _, leaf := range r.leaves {
			if err := r.cursors[leaf].open(group.chunks[leaf]); err != nil {
				return fmt.Errorf("row group %d: %w", g, err)
			}
		}
		for range group.rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.row(); err != nil {
				return fmt.Errorf("row group %d: %w", g, err)
			}
			object, err := r.out, error(nil)
			if r.fault != nil {
				object, err = nil, r.fault
			}
			if !yield(object, err) {
				return nil
			}
		}
		for _, leaf := range r.leaves {
			if c := r.cursors[leaf]; c.left > 0 {
				return fmt.Errorf("row group %d: %w", g, c.failf("it has values after the last of %d rows", group.rows))
			}
		}
	}
	return nil
}

// Spent returns the part of Limits.TotalBytes that was used so far, in bytes.
func (f *File) Spent() int64 { return f.spent }

// spend counts bytes of Limits.TotalBytes.
func (f *File) spend(bytes int) error {
	f.spent += int64(bytes)
	if f.spent > f.limits.TotalBytes {
		return fmt.Errorf("its rows come to more than %d bytes, which is far more than the file has: "+
			"split it, or set max_samples to read a part", f.limits.TotalBytes)
	}
	return nil
}

// hold counts bytes of buffers, which never shrink during a reading.
func (f *File) hold(bytes int) error {
	if bytes > f.limits.HeldBytes-f.held {
		return fmt.Errorf("its pages need more than %d bytes of memory at a time: write the file with smaller pages", f.limits.HeldBytes)
	}
	f.held += bytes
	return nil
}

// room returns a buffer of n bytes, with unknown contents, in place of one that is not needed any more.
func (f *File) room(buffer []byte, n int) ([]byte, error) {
	if n <= cap(buffer) {
		return buffer[:n], nil
	}
	if err := f.hold(n - cap(buffer)); err != nil {
		return buffer, err
	}
	return make([]byte, n), nil
}
