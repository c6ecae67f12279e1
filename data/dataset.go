package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/zeebo/xxh3"
)

// Dataset is a list of tokenized documents. It does not change once made, and may be used by several goroutines.
//
// It takes 4 bytes and a bit per token, and 8 bytes per document.
type Dataset struct {
	tokens      []int32
	counted     []uint64 // bit t: the label of token t is the token itself, else Ignore
	ends        []int64  // document i is tokens[ends[i-1]:ends[i]]
	targets     int64
	fingerprint string
}

// NewDataset makes a dataset of examples. Labels must be the token itself or [Ignore], and no example may be empty.
func NewDataset(examples []Example) (*Dataset, error) {
	var d Dataset
	for i, e := range examples {
		if err := d.append(e); err != nil {
			return nil, fmt.Errorf("example %d: %w", i, err)
		}
	}
	d.seal()
	return &d, nil
}

func (d *Dataset) append(e Example) error {
	if len(e.InputIDs) == 0 {
		return errors.New("there are no tokens")
	}
	if len(e.Labels) != len(e.InputIDs) {
		return fmt.Errorf("%d labels for %d tokens", len(e.Labels), len(e.InputIDs))
	}
	for t, id := range e.InputIDs {
		if id < 0 {
			return fmt.Errorf("token %d at %d is negative", id, t)
		}
		if l := e.Labels[t]; l != Ignore && l != id {
			return fmt.Errorf("label %d at %d is neither the token %d nor %d", l, t, id, Ignore)
		}
	}
	for t, id := range e.InputIDs {
		if len(d.tokens)%64 == 0 {
			d.counted = append(d.counted, 0)
		}
		if e.Labels[t] == id {
			d.setCounted(int64(len(d.tokens)))
		}
		d.tokens = append(d.tokens, id)
	}
	d.ends = append(d.ends, int64(len(d.tokens)))
	return nil
}

func (d *Dataset) setCounted(t int64)     { d.counted[t/64] |= 1 << (t % 64) }
func (d *Dataset) isCounted(t int64) bool { return d.counted[t/64]>>(t%64)&1 == 1 }

// concat appends all documents of b.
func (d *Dataset) concat(b *Dataset) {
	base := int64(len(d.tokens))
	d.tokens = append(d.tokens, b.tokens...)
	for len(d.counted) < (len(d.tokens)+63)/64 {
		d.counted = append(d.counted, 0)
	}
	for t := range int64(len(b.tokens)) {
		if b.isCounted(t) {
			d.setCounted(base + t)
		}
	}
	for _, end := range b.ends {
		d.ends = append(d.ends, base+end)
	}
}

// seal computes what is derived from the documents.
func (d *Dataset) seal() {
	d.targets = 0
	for i := range d.ends {
		start, end := d.bounds(i)
		for t := start + 1; t < end; t++ {
			if d.isCounted(t) {
				d.targets++
			}
		}
	}
	h := xxh3.New128()
	d.encode(h) // a hash does not fail
	d.fingerprint = fmt.Sprintf("%x", h.Sum128().Bytes())
}

// encode writes the arrays, little-endian: ends, tokens, counted.
func (d *Dataset) encode(w io.Writer) error {
	const chunk = 1 << 13
	buf := make([]byte, 0, 8*chunk)
	for at := 0; at < len(d.ends); at += chunk {
		buf = buf[:0]
		for _, v := range d.ends[at:min(at+chunk, len(d.ends))] {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(v))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	for at := 0; at < len(d.tokens); at += chunk {
		buf = buf[:0]
		for _, v := range d.tokens[at:min(at+chunk, len(d.tokens))] {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(v))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	for at := 0; at < len(d.counted); at += chunk {
		buf = buf[:0]
		for _, v := range d.counted[at:min(at+chunk, len(d.counted))] {
			buf = binary.LittleEndian.AppendUint64(buf, v)
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataset) bounds(i int) (start, end int64) {
	if i > 0 {
		start = d.ends[i-1]
	}
	return start, d.ends[i]
}

// Len is the number of documents.
func (d *Dataset) Len() int { return len(d.ends) }

// Tokens is the number of tokens in all documents.
func (d *Dataset) Tokens() int64 { return int64(len(d.tokens)) }

// TargetTokens is the number of tokens that count in the loss.
func (d *Dataset) TargetTokens() int64 { return d.targets }

// LongestDocument is the length of the longest document in tokens.
func (d *Dataset) LongestDocument() int {
	longest := int64(0)
	for i := range d.ends {
		start, end := d.bounds(i)
		longest = max(longest, end-start)
	}
	return int(longest)
}

// MaxToken is the largest token id, or -1 in an empty dataset. It must be below the model's vocabulary size.
func (d *Dataset) MaxToken() int32 {
	id := int32(-1)
	for _, t := range d.tokens {
		id = max(id, t)
	}
	return id
}

// Example returns a copy of document i.
func (d *Dataset) Example(i int) Example {
	start, end := d.bounds(i)
	e := Example{InputIDs: make([]int32, end-start), Labels: make([]int32, end-start)}
	for t := start; t < end; t++ {
		e.InputIDs[t-start] = d.tokens[t]
		e.Labels[t-start] = Ignore
		if d.isCounted(t) {
			e.Labels[t-start] = d.tokens[t]
		}
	}
	return e
}

// Fingerprint identifies the documents, their order and what counts in them. A checkpoint records it: a cursor means
// nothing in another dataset.
func (d *Dataset) Fingerprint() string { return d.fingerprint }

// maxDocuments bounds a dataset, whose documents are numbered by int32 while packing.
const maxDocuments = math.MaxInt32 / 2
