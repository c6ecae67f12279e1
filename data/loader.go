package data

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/spelling"
)

// LoaderOptions are the sizes of a step and the order of the data.
type LoaderOptions struct {
	SequenceLen   int           // positions in a row
	BatchTokens   int           // positions in a step, a multiple of SequenceLen
	Seed          uint64        // of the order
	Epochs        int           // passes over the data; 0 repeats without end
	LongDocuments LongDocuments // "" is SplitLong, and of pairs TruncateLong
	Cohorts       int           // equal shares of a step's rows, one of which has both documents of a pair; 0 is 1
	GroupsPerStep int           // bounds the pairs of a step; 0: all that fit
	PromptTargets bool          // tokens that do not count in the loss are targets too, of weight 0
	ScoreAt       ScoreAt       // nil: targets are the next tokens
	// Mismatched, with Options.InTwos, gives a step as many rows more, for prompts with the answers of others.
	Mismatched bool
	Accounts   *hostmem.Accounts // count the memory of the order; nil: not counted
}

// Cursor is the place in the data where the next step begins. It is all the state of a [Loader], and means the same
// only with the same dataset (see [Dataset.Fingerprint]) and the same SequenceLen, Seed and LongDocuments.
type Cursor struct {
	Epoch int `json:"epoch"` // passes that are complete
	Row   int `json:"row"`   // rows of this pass that were handed out; of a dataset of pairs, its pairs
}

// Loader hands out the micro-batches of one step after the other. A step takes the next BatchTokens/SequenceLen rows;
// where an epoch ends inside a step, the step continues with the next one. Each epoch is packed and ordered again, in
// memory that is reserved when the loader is made: 12 bytes for each document, or piece of one, and up to 16 for each
// row, all under [OrderPurpose].
//
// A dataset of pairs has no such rows: a step takes the next pairs of the epoch, as many as fit in its rows. Both
// documents of a pair are in the step, in any two of its rows or in one. Their order takes 4 bytes for each pair of an
// epoch, 8 with weights and 4 for each pair of a source then, and 4 for each pair that is packed if some are left out.
//
// A Loader is not safe for concurrent use.
type Loader struct {
	o       LoaderOptions
	pieces  *pieces
	packing Packing
	cursor  Cursor
	order   *order
	planned int         // the epoch of order
	pairs   *groupSteps // nil: documents are by themselves, and pieces and order have them
	writer  writer
}

// NewLoader packs the first epoch and stands at its beginning. Errors name the option and what to make of it.
func NewLoader(d *Dataset, o LoaderOptions) (_ *Loader, err error) {
	if o.LongDocuments == "" {
		o.LongDocuments = defaultLong(d)
	}
	if o.Cohorts == 0 {
		o.Cohorts = 1
	}
	if o.Accounts == nil {
		o.Accounts = hostmem.New()
	}
	if err := checkPacking(o.SequenceLen, o.LongDocuments); err != nil {
		return nil, err
	}
	switch {
	case o.BatchTokens < 1 || o.BatchTokens%o.SequenceLen != 0:
		return nil, fmt.Errorf("batch_tokens is %d: it must be a multiple of sequence_len %d", o.BatchTokens, o.SequenceLen)
	case o.Epochs < 0:
		return nil, fmt.Errorf("epochs is %d: it must not be negative", o.Epochs)
	}
	if err := checkSteps(d, o); err != nil {
		return nil, err
	}
	l := &Loader{o: o, planned: -1, writer: newWriter(o.SequenceLen, o.PromptTargets, o.ScoreAt)}
	defer func() {
		if err != nil {
			err = firstOf(err, l.Close())
		}
	}()
	if d.isGrouped() {
		if err = l.packPairs(d); err != nil {
			return nil, err
		}
		return l, nil
	}
	if l.pieces, l.packing, err = newPieces(d, o.SequenceLen, o.LongDocuments, o.Accounts); err != nil {
		return nil, err
	}
	n, tokens := l.pieces.most()
	if l.order, err = newOrder(l.pieces, n, tokens, o.Accounts); err != nil {
		return nil, err
	}
	if d.weighted() {
		if err := l.countWeighted(); err != nil {
			return nil, err
		}
	}
	l.packing.Rows = l.epochRows(0)
	l.packing.Positions = int64(l.packing.Rows) * int64(o.SequenceLen)
	if l.packing.TargetTokens == 0 {
		return nil, errors.New("the weights leave no target tokens in the first epoch: raise weight")
	}
	l.packing.setTargets(o.PromptTargets, o.ScoreAt)
	return l, nil
}

// Close gives back the memory of the order. The dataset is the caller's.
func (l *Loader) Close() error {
	var err error
	if l.order != nil {
		err = l.order.close()
	}
	if l.pieces != nil {
		err = firstOf(err, l.pieces.close())
	}
	if l.pairs != nil {
		err = firstOf(err, l.pairs.order.close())
	}
	return err
}

// countWeighted counts what is in the first epoch, where documents come as often as their weights say.
func (l *Loader) countWeighted() error {
	p := &l.packing
	p.Documents, p.RealTokens, p.TargetTokens = 0, 0, 0
	bits := bitReader{words: make([]uint64, bitWindow)}
	for _, i := range l.pieces.d.drawn(l.order.members[:0], l.order.rowOf, l.o.Seed, 0, l.pieces.of) {
		piece := l.pieces.find(i)
		if piece.first {
			p.Documents++
		}
		end := piece.start + piece.length
		if piece.more {
			end++ // the last position learns the first token of the next piece
		}
		n, err := bits.ones(piece.run, piece.start+1, end)
		if err != nil {
			return err
		}
		p.RealTokens += piece.length
		p.TargetTokens += n
	}
	return nil
}

// epochRows makes the order that of an epoch and returns its number of rows, which is 0 after the last epoch.
func (l *Loader) epochRows(epoch int) int {
	if l.o.Epochs > 0 && epoch >= l.o.Epochs {
		return 0
	}
	if l.planned != epoch {
		l.order.epoch(l.o.Seed, epoch)
		l.planned = epoch
	}
	return l.order.rows
}

// Packing reports how the first epoch is packed. Later ones differ by a few rows, since their order does.
func (l *Loader) Packing() Packing { return l.packing }

// Steps is the number of steps that all Epochs take together. It is 0 when there is no end. It packs every epoch to
// count its rows.
func (l *Loader) Steps() int {
	if l.pairs != nil {
		if l.o.Epochs == 0 {
			return 0
		}
		steps, _ := l.pairs.count(l.stepRows(), l.o.Epochs)
		return steps
	}
	total := 0
	for epoch := range l.o.Epochs {
		total += l.epochRows(epoch)
	}
	return ceilDiv(total, l.stepRows())
}

func (l *Loader) stepRows() int { return l.o.BatchTokens / l.o.SequenceLen }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// Cursor returns the position at which the next step begins.
func (l *Loader) Cursor() Cursor { return l.cursor }

// Seek makes c the place where the next step begins.
func (l *Loader) Seek(c Cursor) error {
	if c.Epoch < 0 || c.Row < 0 || l.o.Epochs > 0 && c.Epoch > l.o.Epochs {
		return fmt.Errorf("data cursor epoch %d row %d is outside the data", c.Epoch, c.Row)
	}
	rows, what := 0, "row"
	if l.pairs != nil {
		rows, what = l.pairs.order.epochGroups(c.Epoch), l.pairs.order.d.groupWord()
	} else {
		rows = l.epochRows(c.Epoch)
	}
	if c.Row > 0 && c.Row >= rows {
		return fmt.Errorf("data cursor %s %d is outside epoch %d, which has %s: the data are not those of the run",
			what, c.Row, c.Epoch, spelling.Count(rows, what))
	}
	l.cursor = c
	return nil
}

// Next fills the micro-batches of the next step, which have BatchTokens/SequenceLen rows together, or twice as many
// with Mismatched: of each cohort's rows the second half then has the mismatched documents. After the last epoch it
// returns io.EOF; the step before that may end in rows of padding, and each step of pairs may.
func (l *Loader) Next(ctx context.Context, into []MicroBatch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	want := l.stepRows()
	if l.pairs != nil {
		want *= l.pairs.kinds()
	}
	if rows := rowsOf(into); rows != want {
		panic(fmt.Sprintf("data: a step of %d rows is asked for in %d", want, rows))
	}
	if l.pairs != nil {
		after, err := l.pairs.next(l.cursor, into, &l.writer)
		if err == nil {
			l.cursor = after
		}
		return err
	}
	if l.epochRows(l.cursor.Epoch) == 0 {
		return io.EOF
	}
	l.writer.begin(into)
	for m := range into {
		for row := range into[m].Sequences {
			rows := l.epochRows(l.cursor.Epoch)
			if rows == 0 {
				break
			}
			if err := l.writer.fill(into, m, row, l.pieces, l.order.row(l.cursor.Row)); err != nil {
				return err
			}
			if l.cursor.Row++; l.cursor.Row == rows {
				l.cursor = Cursor{Epoch: l.cursor.Epoch + 1}
			}
		}
	}
	return nil
}

// Documents returns the documents of the step that Next has filled: row by row, and pairs in the order of the epoch,
// the chosen document before the rejected one. The next call of Next uses the slice again.
func (l *Loader) Documents() []Placed { return l.writer.placed }

// rowsOf counts the rows of micro-batches.
func rowsOf(batches []MicroBatch) int {
	n := 0
	for i := range batches {
		n += batches[i].Sequences
	}
	return n
}
