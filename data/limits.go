package data

import (
	"fmt"
	"io"
)

// What files may cost. They come from strangers, and a few kilobytes can unpack to more than any machine has.
const (
	maxRowBytes  = 64 << 20  // of one row, which is held in memory
	maxTextBytes = 256 << 20 // of one plain file that is not compressed
	minRowBytes  = 1 << 20   // of what even the smallest budget of memory lets through

	// memoryPerTextByte bounds the bytes of memory that a byte of a row takes until its tokens are kept: it is read,
	// decoded and rendered, has an id and a label of four bytes, and leaves garbage. 16 were measured where each byte
	// is a token; templates and normalizers make copies.
	memoryPerTextByte = 32

	// A compressed file or a Parquet file may unpack, for each of its bytes, to textPerByte or, as a dictionary has a text
	// once for all rows, tableTextPerByte. Beyond that all files of a source together have freeTextBytes, and as many of
	// the largest rows as the user's max_samples asks for. Text rarely packs to a tenth.
	freeTextBytes    = 32 << 20
	textPerByte      = 256
	tableTextPerByte = 4096
)

// limits bound the share of the machine that one source may take. The zero value is for a machine without a budget.
type limits struct {
	memoryBytes int64
}

// rowBytes bounds a row, or the text of a plain file, and all text that is on its way to tokens.
func (l limits) rowBytes(most int) int {
	if l.memoryBytes <= 0 {
		return most
	}
	return int(min(int64(most), max(l.memoryBytes/memoryPerTextByte, minRowBytes)))
}

// heldBytes bounds what a reader of Parquet holds.
func (l limits) heldBytes() int {
	const most = 1 << 30
	if l.memoryBytes <= 0 {
		return most
	}
	return int(min(most, max(l.memoryBytes/2, 16*minRowBytes)))
}

// tokenBytes bounds tokens that are collected in memory, in a buffer that doubles; 0: nothing does.
func (l limits) tokenBytes() int64 { return l.memoryBytes / 4 }

// tooLarge says that something is larger than a limit, of at most most bytes.
func (l limits) tooLarge(what string, limit, most int) error {
	if limit < most {
		return fmt.Errorf("%s is larger than %d MiB, the most that the memory lets become tokens at a time: "+
			"split it, or raise memory.host", what, limit>>20)
	}
	return fmt.Errorf("%s is larger than %d MiB: split it", what, limit>>20)
}

// spare counts the bytes that the files of a source may still unpack to beyond their proportion. It belongs to the
// source, since a data set can have any number of files, and to one reading of it, so that the token cache, which may
// know another source of the run, does not decide what is refused.
type spare struct{ left int64 }

// newSpare returns the bytes beyond the proportion of a source of which no file is read yet.
func (s rowReader) newSpare() *spare {
	asked := int64(min(s.asked, 1<<30)) * int64(s.limits.rowBytes(maxRowBytes))
	return &spare{freeTextBytes + asked}
}

// expansion reads what a compressed file unpacks to, as long as that is in proportion.
type expansion struct {
	out      io.Reader
	packed   *packedBytes
	unpacked int64
	spare    *spare
	taken    int64 // of spare
}

// packedBytes counts what is read of a compressed file.
type packedBytes struct {
	in io.Reader
	n  int64
}

func (p *packedBytes) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	p.n += int64(n)
	return n, err
}

func (e *expansion) Read(b []byte) (int, error) {
	over := max(0, e.unpacked-textPerByte*e.packed.n)
	e.spare.left -= over - e.taken // what comes later may be in proportion again
	e.taken = over
	if e.spare.left < 0 {
		return 0, fmt.Errorf("it unpacks to more than %d times its size: set max_samples to read a part of it, or unpack it "+
			"yourself", textPerByte)
	}
	n, err := e.out.Read(b)
	e.unpacked += int64(n)
	return n, err
}
