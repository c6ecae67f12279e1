package data

import (
	"bufio"
	"encoding/binary"
	"os"

	"github.com/zeebo/xxh3"
)

// part is the tokens of one source on their way into a dataset.
type part struct {
	run      tokenRun
	ends     []int64 // within the run
	skipped  int
	firstBad string
}

// builder collects examples. The tokens go into memory, or into a file that is mapped afterwards, so that they need not
// fit; a bit for each of them and 8 bytes per document are kept.
type builder struct {
	part
	n   int64 // tokens
	sum *xxh3.Hasher128
	out *bufio.Writer // of file; nil: tokens stay in memory
	buf []byte

	failed error // why the file cannot be written
}

// newBuilder collects in memory.
func newBuilder() *builder { return &builder{sum: xxh3.New128()} }

// newFileBuilder collects tokens into a file, from its current offset on.
func newFileBuilder(f *os.File) *builder {
	b := newBuilder()
	b.out = bufio.NewWriterSize(f, 1<<20)
	return b
}

func (b *builder) append(e Example) error {
	if err := checkExample(e); err != nil {
		return err
	}
	b.buf = b.buf[:0]
	for t, id := range e.InputIDs {
		if b.n%64 == 0 {
			b.run.counted = append(b.run.counted, 0)
		}
		if e.Labels[t] == id {
			b.run.counted[b.n/64] |= 1 << (b.n % 64)
		}
		b.n++
		b.buf = binary.LittleEndian.AppendUint32(b.buf, uint32(id))
	}
	b.ends = append(b.ends, b.n)
	if b.out == nil {
		b.run.tokens = append(b.run.tokens, e.InputIDs...)
	}
	return b.write()
}

// write adds buf to the sum and to the file.
func (b *builder) write() error {
	b.sum.Write(b.buf) // a hash does not fail
	if b.out == nil {
		return nil
	}
	_, b.failed = b.out.Write(b.buf)
	return b.failed
}

// finish writes what stands behind the tokens, padded to 8 bytes: counted and ends, little-endian.
func (b *builder) finish() (*part, error) {
	b.buf = append(b.buf[:0], make([]byte, tokenPadding(uint64(b.n)))...)
	flush := func(v uint64) error {
		b.buf = binary.LittleEndian.AppendUint64(b.buf, v)
		if len(b.buf) < 1<<16 {
			return nil
		}
		err := b.write()
		b.buf = b.buf[:0]
		return err
	}
	for _, v := range b.run.counted {
		if err := flush(v); err != nil {
			return nil, err
		}
	}
	for _, v := range b.ends {
		if err := flush(uint64(v)); err != nil {
			return nil, err
		}
	}
	if err := b.write(); err != nil {
		return nil, err
	}
	if b.out != nil {
		if err := b.out.Flush(); err != nil {
			return nil, err
		}
	}
	b.run.sum = b.sum.Sum128().Bytes()
	return &b.part, nil
}

// tokenPadding is how many bytes stand behind tokens, so that what follows can be read in place.
func tokenPadding(tokens uint64) uint64 { return tokens % 2 * 4 }
