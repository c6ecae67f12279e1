package data

import (
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/hostmem"
)

// Names in the accounts of memory that grows with the data.
const (
	// OrderPurpose accounts for the positions of documents, and for their order. It is the same for the same data.
	OrderPurpose = "data order"
	// TokensPurpose accounts for tokens that no cache has. A size that follows from it follows from the state of the
	// cache.
	TokensPurpose = "data tokens"
)

// index finds the documents of a source in its tokens: 4 bytes for a document, and 8 for each 64 of them. Documents
// that have a number take 8 bytes more. It is outside of the Go heap, whose collector lets garbage grow with what is
// kept.
type index struct {
	region  *hostmem.Region
	starts  []int64 // of every indexStride-th document
	lengths []uint32
	numbers []float64 // of documents, of each those that it has; nil: they have none
	wide    int       // numbers of a document
}

const indexStride = 64

// newIndex returns an index with room for that number of documents, which have some columns.
func newIndex(accounts *hostmem.Accounts, documents int, has columns) (*index, error) {
	strides := int64(documents+indexStride-1) / indexStride
	numbers := 8 * int64(has.numbers()) * int64(documents)
	r, err := reserve(accounts, numbers+8*strides+4*int64(documents))
	if err != nil {
		return nil, err
	}
	b := r.Bytes()
	starts, lengths := b[numbers:numbers+8*strides], b[numbers+8*strides:]
	return &index{r, hostmem.I64(starts), hostmem.U32(lengths), hostmem.F64(b[:numbers]), has.numbers()}, nil
}

// reserve takes memory that is there for good, so that the accounts hold all that is resident before a run is planned.
func reserve(accounts *hostmem.Accounts, bytes int64) (*hostmem.Region, error) {
	return reserveAs(OrderPurpose, accounts, bytes)
}

func reserveAs(purpose string, accounts *hostmem.Accounts, bytes int64) (*hostmem.Region, error) {
	r, err := accounts.Reserve(purpose, bytes)
	if err != nil {
		return nil, err
	}
	if err := r.Populate(); err != nil {
		return nil, firstOf(err, r.Close())
	}
	return r, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// read fills the index with the ends of documents, one after the other. Every document has a token.
func (x *index) read(ends io.Reader) error {
	buf := make([]byte, 8<<10)
	start := int64(0)
	for i := 0; i < len(x.lengths); {
		b := buf[:min(len(buf), 8*(len(x.lengths)-i))]
		if _, err := io.ReadFull(ends, b); err != nil {
			return err
		}
		for _, end := range hostmem.I64(b) {
			switch {
			case end <= start:
				return fmt.Errorf("document %d is out of order", i)
			case end-start > math.MaxUint32:
				return fmt.Errorf("document %d has %d tokens, more than %d", i, end-start, int64(math.MaxUint32))
			}
			if i%indexStride == 0 {
				x.starts[i/indexStride] = start
			}
			x.lengths[i] = uint32(end - start)
			start = end
			i++
		}
	}
	return nil
}

// bounds are the first token of a document, and the first one after it.
func (x *index) bounds(i int) (start, end int64) {
	first := i / indexStride * indexStride
	start = x.starts[i/indexStride]
	for _, n := range x.lengths[first:i] {
		start += int64(n)
	}
	return start, start + int64(x.lengths[i])
}

// end is the first token after a document.
func (x *index) end(i int) int64 {
	_, end := x.bounds(i)
	return end
}
