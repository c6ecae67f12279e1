package data

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"unsafe"
)

// tokenRun is the tokens of one source. They are read where they are, a document at a time: tokens that were mapped
// would count as the memory of the process, page by page as an epoch comes by.
type tokenRun struct {
	*index
	first   int         // documents in the runs before
	prompts []uint32    // tokens before the first one that counts, by document; nil: not looked for
	size    int64       // tokens
	tokens  io.ReaderAt // int32 each
	counted io.ReaderAt // bit t: the label of token t is the token itself, else Ignore; in words of 8 bytes
	has     columns
	columns [tokenColumns]io.ReaderAt // float32 for each token; nil where the source has no such column
	rewards []string                  // names of rollouts' rewards, sorted
	asked   asked                     // the rows of prompts
	sum     [16]byte                  // of tokens, counted, the documents' ends and the columns
	from    io.Closer                 // the file or the memory that they are in
}

// close gives up what the run holds.
func (r *tokenRun) close() error {
	err := errors.Join(r.region.Close(), r.asked.close())
	if r.from == nil {
		return err
	}
	return errors.Join(err, r.from.Close())
}

// readTokens reads tokens from one on.
func (r *tokenRun) readTokens(dst []int32, from int64) error {
	return readNumbers(r.tokens, dst, from)
}

func readNumbers[T int32 | uint64 | float32](src io.ReaderAt, dst []T, from int64) error {
	if len(dst) == 0 {
		return nil
	}
	size := int(unsafe.Sizeof(dst[0]))
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), size*len(dst))
	if n, err := src.ReadAt(b, from*int64(size)); n < len(b) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read tokens: %w: the file was changed while it was used; start again", err)
	}
	return nil
}

// bitReader reads which tokens are counted, through a window that goes up with what is asked for.
type bitReader struct {
	run   *tokenRun
	words []uint64
	first int64 // word
	n     int64 // words that are here
}

// bitWindow is the window of a pass over all documents, in words.
const bitWindow = 4096

// ones counts the bits of a run from to before to.
func (b *bitReader) ones(r *tokenRun, from, to int64) (n int64, err error) {
	for from < to {
		if err := b.fetch(r, from); err != nil {
			return 0, err
		}
		w := b.words[from/64-b.first] >> (from % 64)
		if left := to - from; left < 64-from%64 {
			w &= 1<<left - 1
		}
		n += int64(bits.OnesCount64(w))
		from += 64 - from%64
	}
	return n, nil
}

// isCounted reports whether token t of a run is.
func (b *bitReader) isCounted(r *tokenRun, t int64) (bool, error) {
	if err := b.fetch(r, t); err != nil {
		return false, err
	}
	return b.words[t/64-b.first]>>(t%64)&1 == 1, nil
}

// fetch has the window cover token t.
func (b *bitReader) fetch(r *tokenRun, t int64) error {
	w := t / 64
	if b.run == r && w >= b.first && w < b.first+b.n {
		return nil
	}
	b.run, b.first = r, w
	b.n = min(int64(len(b.words)), (r.size+63)/64-w)
	if err := readNumbers(r.counted, b.words[:b.n], w); err != nil {
		b.run = nil
		return err
	}
	return nil
}
