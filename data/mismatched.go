package data

import (
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/objective"
)

// An objective may ask how likely answers are after prompts that they do not answer: KTO takes their mean for the
// distance of the model from its reference. Answers with a label are then taken in twos: each of the two has a
// document more, its prompt with the answer of the other one. The two are neighbours in the data, so these documents
// are the same in every epoch, and a reference evaluates them once. They are in rows of their own, after those that
// are trained.

// inTwos has documents with a label belong together in twos, and finds the ends of their prompts. The last one of a
// source with an odd number of them is left out.
func (d *Dataset) inTwos() (leftOut int, err error) {
	for i := range d.sources {
		leftOut += d.sources[i].documents % 2
	}
	if leftOut > 0 {
		r, err := reserve(d.accounts, 4*int64(d.documents-leftOut))
		if err != nil {
			return 0, err
		}
		d.owned = append(d.owned, r.Close)
		d.chosen = hostmem.I32(r.Bytes())[:0]
		first := 0
		for _, s := range d.sources {
			for i := range s.documents &^ 1 {
				d.chosen = append(d.chosen, int32(first+i))
			}
			first += s.documents
		}
	}
	for i := range d.sources {
		d.sources[i].documents &^= 1
		d.sources[i].group = 2
	}
	for i := range d.runs {
		region, err := d.runs[i].findPrompts(d.accounts)
		if err != nil {
			return 0, err
		}
		d.owned = append(d.owned, region.Close)
	}
	return leftOut, nil
}

// findPrompts notes how many tokens are before the first one that counts, of each document.
func (r *tokenRun) findPrompts(accounts *hostmem.Accounts) (*hostmem.Region, error) {
	region, err := reserve(accounts, 4*int64(len(r.lengths)))
	if err != nil {
		return nil, err
	}
	r.prompts = hostmem.U32(region.Bytes())
	bits := bitReader{words: make([]uint64, bitWindow)}
	for i, length := range r.lengths {
		start, _ := r.bounds(i)
		n, counted := int64(0), false
		for ; n < int64(length) && !counted; n++ {
			if counted, err = bits.isCounted(r, start+n); err != nil {
				return nil, firstOf(err, region.Close())
			}
		}
		if counted {
			n--
		}
		r.prompts[i] = uint32(n)
	}
	return region, nil
}

// other is the document whose answer a mismatched one has. The last one of an odd number has its own.
func (r *tokenRun) other(document int) int {
	if other := document ^ 1; other < len(r.lengths) {
		return other
	}
	return document
}

// mismatchedLength is the number of tokens of a document's prompt with the answer of the other one.
func (r *tokenRun) mismatchedLength(document int) int64 {
	other := r.other(document)
	return int64(r.prompts[document]) + int64(r.lengths[other]) - int64(r.prompts[other])
}

// readMismatched reads the first tokens of a document's prompt with the answer of the other one.
func (r *tokenRun) readMismatched(dst []int32, document int) error {
	other := r.other(document)
	prompt := min(int(r.prompts[document]), len(dst))
	start, _ := r.bounds(document)
	if err := r.readTokens(dst[:prompt], start); err != nil {
		return err
	}
	start, _ = r.bounds(other)
	return r.readTokens(dst[prompt:], start+int64(r.prompts[other]))
}

// mismatched appends the lengths in rows of the mismatched documents of a group, and returns their sum, too.
func (g *groups) mismatched(dst []int32, number int32) (lengths []int32, sum int64) {
	first, end := g.d.groupDocuments(g.inDataset(number))
	for document := first; document < end; document++ {
		r, at := g.d.documentRun(document)
		length := min(r.mismatchedLength(at), g.row)
		dst = append(dst, int32(length))
		sum += length
	}
	return dst, sum
}

// putMismatched writes the prompt of a document, with the answer of the other one, at a position of micro-batch m.
func (w *writer) putMismatched(into []MicroBatch, m, at int, d *Dataset, document, length, group int) error {
	r, i := d.documentRun(document)
	tokens := w.tokens[:length]
	if err := r.readMismatched(tokens, i); err != nil {
		return err
	}
	prompt := int(r.prompts[i])
	into[m].place(at, tokens, false, func(t int) int32 {
		if t < prompt {
			return Ignore
		}
		return tokens[t]
	})
	w.placed = append(w.placed, Placed{Micro: m, First: at, Length: length, Document: document, Group: group,
		Side: objective.Mismatched, Cut: int64(length) < r.mismatchedLength(i)})
	return nil
}
