package data

import (
	"context"
	"io"

	"github.com/millrace/millrace/hostmem"
)

// EvalLoader hands out a dataset once, in its own order, packed. It is not safe for concurrent use.
type EvalLoader struct {
	pieces  *pieces
	order   *order
	packing Packing
	next    int
	writer  writer
}

// EvalOptions are the sizes of an evaluation.
type EvalOptions struct {
	SequenceLen   int               // positions in a row
	PromptTargets bool              // tokens that do not count in the loss are targets too, of weight 0
	Accounts      *hostmem.Accounts // count the memory of the order; nil: not counted
}

// NewEvalLoader packs the dataset into rows. Documents longer than a row are split, so every target counts, though
// targets after a cut have less context.
func NewEvalLoader(d *Dataset, o EvalOptions) (*EvalLoader, error) {
	if err := checkPacking(o.SequenceLen, SplitLong); err != nil {
		return nil, err
	}
	if o.Accounts == nil {
		o.Accounts = hostmem.New()
	}
	l := &EvalLoader{writer: newWriter(o.SequenceLen, o.PromptTargets)}
	var err error
	if l.pieces, l.packing, err = newPieces(d, o.SequenceLen, SplitLong, o.Accounts); err != nil {
		return nil, err
	}
	if l.order, err = newOrder(l.pieces, int64(l.pieces.n), l.packing.RealTokens, o.Accounts); err != nil {
		return nil, firstOf(err, l.pieces.close())
	}
	l.order.inOrder()
	if err := l.order.done(); err != nil {
		return nil, firstOf(err, l.Close())
	}
	if o.PromptTargets {
		l.packing.targetPrompts()
	}
	l.packing.Rows = l.order.rows
	l.packing.Positions = int64(l.packing.Rows) * int64(o.SequenceLen)
	return l, nil
}

// Close gives back the memory of the order. The dataset is the caller's.
func (l *EvalLoader) Close() error { return firstOf(l.order.close(), l.pieces.close()) }

// Packing reports how the dataset is packed.
func (l *EvalLoader) Packing() Packing { return l.packing }

// Rows is the number of rows.
func (l *EvalLoader) Rows() int { return l.order.rows }

// Next fills micro-batches with the next rows, and the rest of them with padding, or returns io.EOF after the last row.
func (l *EvalLoader) Next(ctx context.Context, into []MicroBatch) error {
	if err := ctx.Err(); err != nil {
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

// Documents returns the documents that Next has filled in, row by row. The next call of Next uses the slice again.
func (l *EvalLoader) Documents() []Placed { return l.writer.placed }

// Reset starts again from the first row.
func (l *EvalLoader) Reset() { l.next = 0 }
