package data

import (
	"cmp"
	"context"
	"io"
	"math"

	"github.com/millrace/millrace/hostmem"
)

// EvalLoader hands out a dataset once, in its own order, packed. It is not safe for concurrent use.
type EvalLoader struct {
	pieces  *pieces
	order   *order
	next    int         // row
	pairs   *groupSteps // nil: documents are by themselves, and pieces and order have them
	cursor  Cursor      // of pairs
	packing Packing
	writer  writer
}

// EvalOptions are the sizes of an evaluation.
type EvalOptions struct {
	SequenceLen   int               // positions in a row
	LongDocuments LongDocuments     // of pairs, of answers with a label, and of Wholes; "" is TruncateLong
	Wholes        bool              // no document is split
	Cohorts       int               // as in LoaderOptions, of the rows of a call of Next
	PromptTargets bool              // tokens that do not count in the loss are targets too, of weight 0
	ScoreAt       ScoreAt           // as in LoaderOptions
	Mismatched    bool              // as in LoaderOptions
	Accounts      *hostmem.Accounts // count the memory of the order; nil: not counted
}

// NewEvalLoader packs the dataset into rows. Documents longer than a row are split, so every target counts, though
// targets after a cut have less context. Pairs and answers with a label are cut and left out as in training.
func NewEvalLoader(d *Dataset, o EvalOptions) (*EvalLoader, error) {
	if err := checkPacking(o.SequenceLen, SplitLong); err != nil {
		return nil, err
	}
	if o.Accounts == nil {
		o.Accounts = hostmem.New()
	}
	l := &EvalLoader{writer: newWriter(o.SequenceLen, o.PromptTargets, o.ScoreAt)}
	if d.groupSize() > 1 {
		if err := l.packPairs(d, o); err != nil {
			return nil, err
		}
		return l, nil
	}
	long := SplitLong
	if d.HasLabels() || o.Wholes {
		long = cmp.Or(o.LongDocuments, TruncateLong)
	}
	var err error
	if l.pieces, l.packing, err = newPieces(d, o.SequenceLen, long, o.Accounts); err != nil {
		return nil, err
	}
	if l.order, err = newOrder(l.pieces, int64(l.pieces.n), l.packing.RealTokens, o.Accounts); err != nil {
		return nil, firstOf(err, l.pieces.close())
	}
	l.order.inOrder()
	if err := l.order.done(); err != nil {
		return nil, firstOf(err, l.Close())
	}
	l.packing.setTargets(o.PromptTargets, o.ScoreAt)
	l.packing.Rows = l.order.rows
	l.packing.Positions = int64(l.packing.Rows) * int64(o.SequenceLen)
	return l, nil
}

// packPairs makes the loader one of pairs.
func (l *EvalLoader) packPairs(d *Dataset, o EvalOptions) error {
	of := LoaderOptions{SequenceLen: o.SequenceLen, BatchTokens: o.SequenceLen, LongDocuments: o.LongDocuments,
		Cohorts: max(o.Cohorts, 1), Mismatched: o.Mismatched, Accounts: o.Accounts}
	if of.LongDocuments == "" {
		of.LongDocuments = TruncateLong
	}
	if err := checkPacking(of.SequenceLen, of.LongDocuments); err != nil {
		return err
	}
	g, packing, err := newGroups(d, of, math.MaxInt64)
	if err != nil {
		return err
	}
	packing.setTargets(o.PromptTargets, o.ScoreAt)
	packing.Rows = int((packing.RealTokens + g.row - 1) / g.row)
	packing.Positions = int64(packing.Rows) * g.row
	l.pairs, l.packing = newGroupSteps(datasetOrder(g), of), packing
	return nil
}

// Close gives back the memory of the order. The dataset is the caller's.
func (l *EvalLoader) Close() error {
	if l.pairs != nil {
		return l.pairs.order.close()
	}
	return firstOf(l.order.close(), l.pieces.close())
}

// Packing reports how the dataset is packed. Its WidePairs did not fit in micro-batches that Next has filled since the
// last Reset; the other counts have them.
func (l *EvalLoader) Packing() Packing { return l.packing }

// Rows is the number of rows. Pairs take a few more, which depends on how many rows Next is given at a time.
func (l *EvalLoader) Rows() int { return l.packing.Rows }

// Next fills micro-batches with the next rows, and the rest of them with padding, or returns io.EOF after the last row.
// Of a dataset of pairs it takes the next ones, as many as fit, and both documents of each. A pair that does not fit in
// the rows of all micro-batches, or of a cohort's share of these, is left out.
func (l *EvalLoader) Next(ctx context.Context, into []MicroBatch) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.pairs != nil {
		l.cursor, err = l.pairs.next(l.cursor, into, &l.writer)
		l.packing.WidePairs += l.pairs.wide
		return err
	}
	if l.next == l.order.rows {
		return io.EOF
	}
	l.writer.begin(into)
	for m := range into {
		for row := 0; row < into[m].Sequences && l.next < l.order.rows; row++ {
			if err := l.writer.fill(into, m, row, l.pieces, l.order.row(l.next)); err != nil {
				return err
			}
			l.next++
		}
	}
	return nil
}

// Documents returns the documents that Next has filled in: row by row, and pairs in the order of the dataset, the
// chosen document before the rejected one. The next call of Next uses the slice again.
func (l *EvalLoader) Documents() []Placed { return l.writer.placed }

// Reset starts again from the first row.
func (l *EvalLoader) Reset() { l.next, l.cursor, l.packing.WidePairs = 0, Cursor{}, 0 }
