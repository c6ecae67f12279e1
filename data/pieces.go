package data

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/hostmem"
)

// pieces is a dataset whose documents are cut to the length of a row. A piece is a document, or a part of one, that is
// in one row; pieces are numbered in the order of the documents, and worked out when they are asked for.
type pieces struct {
	d       *Dataset
	row     int64           // positions
	long    []longTreatment // in the order of the documents
	n       int
	firsts  []int32         // the first piece of every pieceStride-th document; nil where piece i is document i
	region  *hostmem.Region // of firsts; nil without firsts
	sources []sourcePieces
}

// longTreatment holds for the long documents before end that no treatment before holds for.
type longTreatment struct {
	end  int
	long LongDocuments
}

// sourcePieces counts the pieces that the documents of a source are cut into, and their tokens.
type sourcePieces struct{ pieces, tokens int64 }

// pieceStride bounds how many documents are looked at to find a piece.
const pieceStride = 64

// piece is the place of a piece.
type piece struct {
	run      *tokenRun
	document int
	start    int64 // of its first token
	length   int64
	first    bool // it begins its document
	more     bool // the document continues after it, in another piece
	whole    bool // it is all of the document
}

// newPieces cuts the documents of a dataset to the length of a row. The Packing counts each document once.
func newPieces(d *Dataset, sequenceLen int, long LongDocuments, accounts *hostmem.Accounts) (*pieces, Packing, error) {
	ps := &pieces{d: d, row: int64(sequenceLen), long: treatments(d, long)}
	var p Packing
	whole := true
	i, n := 0, int64(0)
	for _, source := range d.sources {
		var of sourcePieces
		long := long.of(source.kind)
		for range source.documents {
			length := d.length(i)
			count, kept := ps.cut(i, length)
			whole = whole && count == 1
			of.pieces += count
			of.tokens += kept
			switch {
			case length <= ps.row:
			case long == DropLong:
				p.Dropped++
			case long == TruncateLong:
				p.Truncated++
			default:
				p.Split++
			}
			if kept > 0 {
				p.Documents++
			}
			p.CutTokens += length - kept
			i++
		}
		ps.sources = append(ps.sources, of)
		p.RealTokens += of.tokens
		n += of.pieces
	}
	if n > maxDocuments {
		return nil, p, fmt.Errorf("there are more than %d documents after cutting them to sequence_len %d", maxDocuments, sequenceLen)
	}
	ps.n = int(n)
	var err error
	if p.TargetTokens, err = ps.targets(p.CutTokens == 0); err != nil {
		return nil, p, err
	}
	if p.TargetTokens == 0 {
		return nil, p, noTargets(d, p, sequenceLen)
	}
	if !whole {
		err = ps.number(accounts)
	}
	return ps, p, err
}

// noTargets is the error of documents in which nothing counts after they were cut.
func noTargets(d *Dataset, p Packing, sequenceLen int) error {
	cut := p.Cut(d.Len(), sequenceLen)
	if cut == "" || d.targets == 0 {
		return errors.New("no token counts in the loss: the documents have prompts alone; see them with millrace preview, " +
			"and correct datasets, or set train_on_prompt")
	}
	return fmt.Errorf("no token counts in the loss: %s, and what is left has prompts alone; raise sequence_len", cut)
}

// treatments groups a dataset's documents by their treatment: neighbours of one treatment form one group.
func treatments(d *Dataset, long LongDocuments) (all []longTreatment) {
	end := 0
	for _, source := range d.sources {
		end += source.documents
		t := longTreatment{end, long.of(source.kind)}
		if n := len(all); n > 0 && all[n-1].long == t.long {
			all[n-1] = t
		} else {
			all = append(all, t)
		}
	}
	return all
}

// cut returns the number of pieces that a document of a length becomes, and the number of its tokens in them.
func (ps *pieces) cut(document int, length int64) (n, tokens int64) {
	if length <= ps.row {
		return 1, length
	}
	of := 0
	for document >= ps.long[of].end {
		of++
	}
	switch ps.long[of].long {
	case DropLong:
		return 0, 0
	case TruncateLong:
		return 1, ps.row
	}
	return (length + ps.row - 1) / ps.row, length
}

// targets counts the targets of all documents. No cut takes one away but where tokens are left out.
func (ps *pieces) targets(all bool) (sum int64, err error) {
	if all {
		return ps.d.targets, nil
	}
	bits := bitReader{words: make([]uint64, bitWindow)}
	for i := range ps.d.Len() {
		r, start, end := ps.d.locate(i)
		_, tokens := ps.cut(i, end-start)
		n, err := bits.ones(r, start+1, start+tokens)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// number notes which pieces belong to which documents.
func (ps *pieces) number(accounts *hostmem.Accounts) (err error) {
	n := ps.d.Len()
	if ps.region, err = reserve(accounts, 4*int64((n+pieceStride-1)/pieceStride)); err != nil {
		return err
	}
	ps.firsts = hostmem.I32(ps.region.Bytes())
	at := int64(0)
	for i := range n {
		if i%pieceStride == 0 {
			ps.firsts[i/pieceStride] = int32(at)
		}
		count, _ := ps.cut(i, ps.d.length(i))
		at += count
	}
	return nil
}

func (ps *pieces) close() error {
	if ps.region == nil {
		return nil
	}
	return ps.region.Close()
}

// documentOf is the document of a piece, and the number of the piece in it.
func (ps *pieces) documentOf(i int32) (document int, at int64) {
	if ps.firsts == nil {
		return int(i), 0
	}
	stride, found := slices.BinarySearch(ps.firsts, i)
	switch {
	case !found:
		stride--
	default: // documents that were left out may share a first piece: the last one has it
		for stride+1 < len(ps.firsts) && ps.firsts[stride+1] == i {
			stride++
		}
	}
	document, at = stride*pieceStride, int64(i-ps.firsts[stride])
	for {
		n, _ := ps.cut(document, ps.d.length(document))
		if at < n {
			return document, at
		}
		at -= n
		document++
	}
}

// length returns the number of tokens of a piece.
func (ps *pieces) length(i int32) int32 {
	document, at := ps.documentOf(i)
	_, tokens := ps.cut(document, ps.d.length(document))
	return int32(min(tokens-at*ps.row, ps.row))
}

// find returns the place of a piece.
func (ps *pieces) find(i int32) piece {
	document, at := ps.documentOf(i)
	r, start, end := ps.d.locate(document)
	_, tokens := ps.cut(document, end-start)
	off := at * ps.row
	length := min(tokens-off, ps.row)
	return piece{r, document, start + off, length, at == 0, off+length < tokens, length == end-start}
}

// of appends the pieces of document i.
func (ps *pieces) of(dst []int32, document int) []int32 {
	first := int32(document)
	if ps.firsts != nil {
		stride := document / pieceStride
		first = ps.firsts[stride]
		for i := stride * pieceStride; i < document; i++ {
			n, _ := ps.cut(i, ps.d.length(i))
			first += int32(n)
		}
	}
	n, _ := ps.cut(document, ps.d.length(document))
	for i := range int32(n) {
		dst = append(dst, first+i)
	}
	return dst
}

// most bounds the pieces and tokens of an epoch, with the room that drawing it takes.
func (ps *pieces) most() (n, tokens int64) {
	documents := 0
	for i, s := range ps.d.sources {
		times, share := wholeWeight(s.weight)
		if share > 0 {
			times++
			documents = max(documents, s.documents)
		}
		n += int64(times) * ps.sources[i].pieces
		tokens += int64(times) * ps.sources[i].tokens
	}
	return max(n, int64(documents)), tokens
}
