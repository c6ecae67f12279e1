package data

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// LoaderOptions are the sizes of a step and the order of the data.
type LoaderOptions struct {
	SequenceLen   int           // positions in a row
	BatchTokens   int           // positions in a step, a multiple of MicroBatch*SequenceLen
	MicroBatch    int           // rows in a micro-batch
	Seed          uint64        // of the order
	Epochs        int           // passes over the data; 0 goes on for ever
	LongDocuments LongDocuments // "" is SplitLong
}

// Cursor is the place in the data where the next step begins. It is all the state of a [Loader], and means the same
// only with the same dataset (see [Dataset.Fingerprint]) and the same options but Epochs, BatchTokens and MicroBatch.
type Cursor struct {
	Epoch int `json:"epoch"` // passes that are complete
	Row   int `json:"row"`   // rows of this pass that were handed out
}

// Loader hands out the micro-batches of one step after the other. A step takes the next BatchTokens/SequenceLen rows;
// where an epoch ends inside a step, the step goes on with the next one. Each epoch is packed and ordered anew.
//
// A Loader is not safe for concurrent use. It keeps 16 bytes per document, and 8 for the epoch at hand.
type Loader struct {
	d       *Dataset
	o       LoaderOptions
	pieces  pieceList
	packing Packing
	cursor  Cursor
	plan    rowPlan
	planned int // the epoch of plan
}

// NewLoader packs the first epoch and stands at its beginning. Errors name the option and what to make of it.
func NewLoader(d *Dataset, o LoaderOptions) (*Loader, error) {
	if o.LongDocuments == "" {
		o.LongDocuments = SplitLong
	}
	if err := checkPacking(o.SequenceLen, o.LongDocuments); err != nil {
		return nil, err
	}
	switch {
	case o.MicroBatch < 1:
		return nil, fmt.Errorf("the micro-batch has %d rows: it must have at least 1", o.MicroBatch)
	case o.BatchTokens < 1 || o.BatchTokens%o.SequenceLen != 0:
		return nil, fmt.Errorf("batch_tokens is %d: it must be a multiple of sequence_len %d", o.BatchTokens, o.SequenceLen)
	case o.BatchTokens/o.SequenceLen%o.MicroBatch != 0:
		return nil, fmt.Errorf("batch_tokens %d is %d rows of sequence_len %d: they do not fall into micro-batches of %d rows",
			o.BatchTokens, o.BatchTokens/o.SequenceLen, o.SequenceLen, o.MicroBatch)
	case o.Epochs < 0:
		return nil, fmt.Errorf("epochs is %d: it must not be negative", o.Epochs)
	}
	l := &Loader{d: d, o: o, planned: -1}
	var err error
	if l.pieces, l.packing, err = packable(d, o.SequenceLen, o.LongDocuments); err != nil {
		return nil, err
	}
	l.packing.Rows = l.epochRows(0)
	l.packing.Positions = int64(l.packing.Rows) * int64(o.SequenceLen)
	if l.pieces.weighted() {
		l.countWeighted()
	}
	if l.packing.TargetTokens == 0 {
		return nil, errors.New("the weights leave no target tokens in the first epoch: raise weight")
	}
	return l, nil
}

// countWeighted counts what is in the first epoch, where documents come as often as their weights say.
func (l *Loader) countWeighted() {
	p := &l.packing
	p.Documents, p.RealTokens, p.TargetTokens = 0, 0, 0
	for _, i := range l.plan.members {
		piece := l.pieces.all[i]
		if i == 0 || !l.pieces.all[i-1].more {
			p.Documents++
		}
		run := l.d.run(piece.start)
		start := piece.start - run.base
		end := start + int64(piece.length)
		if piece.more {
			end++ // the last position learns the first token of the next piece
		}
		p.RealTokens += int64(piece.length)
		p.TargetTokens += onesBetween(run.counted, start+1, end)
	}
}

// packable cuts a dataset into pieces, of which there must be some with a target.
func packable(d *Dataset, sequenceLen int, long LongDocuments) (pieceList, Packing, error) {
	ps, p := pieces(d, sequenceLen, long)
	if len(ps.all) > maxDocuments {
		return ps, p, fmt.Errorf("there are more than %d documents after cutting them to sequence_len %d", maxDocuments, sequenceLen)
	}
	if p.TargetTokens == 0 {
		return ps, p, fmt.Errorf("the data have no target tokens: %d documents, %d dropped as longer than sequence_len %d",
			p.Documents, p.Dropped, sequenceLen)
	}
	return ps, p, nil
}

// epochRows makes the plan that of an epoch and returns its number of rows, which is 0 behind the last epoch.
func (l *Loader) epochRows(epoch int) int {
	if l.o.Epochs > 0 && epoch >= l.o.Epochs {
		return 0
	}
	if l.planned != epoch {
		l.plan, l.planned = packEpoch(l.pieces, l.o.SequenceLen, l.o.Seed, epoch), epoch
	}
	return l.plan.rows()
}

// Packing reports how the first epoch is packed. Later ones differ by a few rows, since their order does.
func (l *Loader) Packing() Packing { return l.packing }

// Steps is the number of steps that all Epochs take together. It is 0 when there is no end. It packs every epoch to
// count its rows.
func (l *Loader) Steps() int {
	total := 0
	for epoch := range l.o.Epochs {
		total += l.epochRows(epoch)
	}
	return ceilDiv(total, l.stepRows())
}

func (l *Loader) stepRows() int { return l.o.BatchTokens / l.o.SequenceLen }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// Cursor is where the next step begins.
func (l *Loader) Cursor() Cursor { return l.cursor }

// Seek makes c the place where the next step begins.
func (l *Loader) Seek(c Cursor) error {
	if c.Epoch < 0 || c.Row < 0 || l.o.Epochs > 0 && c.Epoch > l.o.Epochs {
		return fmt.Errorf("data cursor epoch %d row %d is outside the data", c.Epoch, c.Row)
	}
	if rows := l.epochRows(c.Epoch); c.Row > 0 && c.Row >= rows {
		return fmt.Errorf("data cursor row %d is outside epoch %d, which has %d rows: the data are not those of the run",
			c.Row, c.Epoch, rows)
	}
	l.cursor = c
	return nil
}

// Next returns the micro-batches of the next step: always BatchTokens/SequenceLen/MicroBatch of them, all of the same
// shape. After the last epoch it returns io.EOF; the step before that may end in rows of padding.
func (l *Loader) Next(ctx context.Context) ([]Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l.epochRows(l.cursor.Epoch) == 0 {
		return nil, io.EOF
	}
	batches := make([]Batch, l.stepRows()/l.o.MicroBatch)
	for m := range batches {
		batches[m] = newBatch(l.o.MicroBatch, l.o.SequenceLen)
		for row := range l.o.MicroBatch {
			rows := l.epochRows(l.cursor.Epoch)
			if rows == 0 {
				break
			}
			batches[m].fill(row, l.d, l.pieces.all, l.plan.row(l.cursor.Row))
			if l.cursor.Row++; l.cursor.Row == rows {
				l.cursor = Cursor{Epoch: l.cursor.Epoch + 1}
			}
		}
	}
	return batches, nil
}

// EvalLoader hands out a dataset once, in its own order, packed. It is not safe for concurrent use.
type EvalLoader struct {
	d          *Dataset
	microBatch int
	sequence   int
	pieces     pieceList
	plan       rowPlan
	packing    Packing
	next       int
}

// NewEvalLoader packs the dataset into rows of sequenceLen positions. Documents longer than a row are split, so every
// target counts, though those after a cut see less before them.
func NewEvalLoader(d *Dataset, sequenceLen, microBatch int) (*EvalLoader, error) {
	if err := checkPacking(sequenceLen, SplitLong); err != nil {
		return nil, err
	}
	if microBatch < 1 {
		return nil, errors.New("the micro-batch must have at least 1 row")
	}
	l := &EvalLoader{d: d, microBatch: microBatch, sequence: sequenceLen}
	var err error
	if l.pieces, l.packing, err = packable(d, sequenceLen, SplitLong); err != nil {
		return nil, err
	}
	l.plan = pack(l.pieces.all, nil, sequenceLen)
	l.packing.Rows = l.plan.rows()
	l.packing.Positions = int64(l.packing.Rows) * int64(sequenceLen)
	return l, nil
}

// Packing reports how the dataset is packed.
func (l *EvalLoader) Packing() Packing { return l.packing }

// Batches is the number of micro-batches.
func (l *EvalLoader) Batches() int { return ceilDiv(l.plan.rows(), l.microBatch) }

// Next returns the next micro-batch, or io.EOF after the last, which may end in rows of padding.
func (l *EvalLoader) Next(ctx context.Context) (Batch, error) {
	if err := ctx.Err(); err != nil {
		return Batch{}, err
	}
	if l.next == l.plan.rows() {
		return Batch{}, io.EOF
	}
	b := newBatch(l.microBatch, l.sequence)
	for row := 0; row < l.microBatch && l.next < l.plan.rows(); row++ {
		b.fill(row, l.d, l.pieces.all, l.plan.row(l.next))
		l.next++
	}
	return b, nil
}

// Reset starts again from the first micro-batch.
func (l *EvalLoader) Reset() { l.next = 0 }
