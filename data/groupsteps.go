package data

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// groupSteps fills steps with groups of documents: the next ones in the order of epochs, as many as fit. The documents
// of a group may be in any rows of a cohort's share.
type groupSteps struct {
	order   *groupOrder
	cohorts int
	most    int // groups of a step; 0: no bound
	shelf   shelf
	// others takes the mismatched documents, of which a share has as many rows after its own; nil: there are no such
	// documents.
	others *shelf

	members         []int32 // the groups of the step that fill has filled, by number
	rowOf           []int32 // the rows of their documents
	otherOf         []int32 // the rows of their mismatched documents
	wide            int     // groups on the way that fit in no share
	lengths         []int32 // of the documents of a group
	lengthsOfOthers []int32
	ends            []int // tokens by row
}

func newGroupSteps(order *groupOrder, o LoaderOptions) *groupSteps {
	s := &groupSteps{order: order, cohorts: o.Cohorts, most: o.GroupsPerStep, shelf: newShelf(o.SequenceLen)}
	if o.Mismatched {
		others := newShelf(o.SequenceLen)
		s.others = &others
	}
	return s
}

// kinds is 2 where a share has as many rows for mismatched documents as for the others, else 1.
func (s *groupSteps) kinds() int {
	if s.others != nil {
		return 2
	}
	return 1
}

// measure finds the lengths of a group's documents, and the tokens that they take of a share's rows of one kind.
func (s *groupSteps) measure(group int32) (tokens int64) {
	s.lengths, tokens = s.order.lengths(s.lengths[:0], group)
	if s.others != nil {
		var others int64
		s.lengthsOfOthers, others = s.order.mismatched(s.lengthsOfOthers[:0], group)
		tokens = max(tokens, others)
	}
	return tokens
}

// add puts the documents of the group that was measured on the shelves, or reports that they do not fit.
func (s *groupSteps) add() bool {
	if !s.shelf.add(s.lengths) {
		return false
	}
	if s.others == nil || s.others.add(s.lengthsOfOthers) {
		return true
	}
	s.shelf.rowOf = s.shelf.rowOf[:len(s.shelf.rowOf)-len(s.lengths)] // it takes no more
	return false
}

// fill chooses the groups and the rows of a step that begins at a cursor, and returns the cursor after the step. At the
// end of the data a step has no members. rows are those of one kind.
func (s *groupSteps) fill(c Cursor, rows int) Cursor {
	s.members, s.rowOf, s.otherOf, s.wide = s.members[:0], s.rowOf[:0], s.otherOf[:0], 0
	share := rows / s.cohorts
	epoch, isAlone := c.Epoch, s.order.d.HasRollouts() // a step has no answer twice
	for cohort := range s.cohorts {
		s.shelf.clear(share)
		if s.others != nil {
			s.others.clear(share)
		}
		for (s.most == 0 || len(s.members) < s.most) && !(isAlone && len(s.members) > 0 && c.Epoch > epoch) {
			group, after, ok := s.order.find(c)
			if !ok {
				break
			}
			if s.measure(group) > int64(share)*s.order.row {
				s.wide++
			} else if s.add() {
				if s.members = append(s.members, group); len(s.members) == 1 {
					epoch = c.Epoch
				}
			} else {
				break
			}
			c = after
		}
		first := int32(cohort * share * s.kinds())
		for _, row := range s.shelf.rowOf {
			s.rowOf = append(s.rowOf, first+row)
		}
		if s.others != nil {
			for _, row := range s.others.rowOf {
				s.otherOf = append(s.otherOf, first+int32(share)+row)
			}
		}
	}
	return c
}

// next fills micro-batches with the step that begins at a cursor, and returns the cursor after it. After the last step
// it returns io.EOF.
func (s *groupSteps) next(c Cursor, into []MicroBatch, w *writer) (Cursor, error) {
	rows := rowsOf(into)
	if rows%(s.cohorts*s.kinds()) != 0 {
		panic(fmt.Sprintf("data: %d rows of %d kinds for %d cohorts", rows, s.kinds(), s.cohorts))
	}
	if c = s.fill(c, rows/s.kinds()); len(s.members) == 0 {
		return c, io.EOF
	}
	w.begin(into)
	s.ends = slices.Grow(s.ends[:0], rows)[:rows]
	clear(s.ends)
	before := 0 // documents of the members before
	for i, member := range s.members {
		first, end := s.order.d.groupDocuments(s.order.inDataset(member))
		for document := first; document < end; document++ {
			p := s.order.piece(document)
			m, at := s.take(into, int(s.rowOf[before+document-first]), int(p.length))
			if err := w.put(into, m, at, p, i, s.order.d.Side(document)); err != nil {
				return c, err
			}
		}
		before += end - first
		if s.others == nil {
			continue
		}
		s.measure(member)
		for document := first; document < end; document++ {
			length := int(s.lengthsOfOthers[document-first])
			m, at := s.take(into, int(s.otherOf[before-end+document]), length)
			if err := w.putMismatched(into, m, at, s.order.d, document, length, i); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// take takes the next positions of a row, and returns the micro-batch that has them and the first of them there.
func (s *groupSteps) take(into []MicroBatch, row, length int) (m, at int) {
	end := s.ends[row]
	s.ends[row] += length
	for row >= into[m].Sequences {
		row -= into[m].Sequences
		m++
	}
	return m, row*into[m].SequenceLen + end
}

// count counts the steps of a number of epochs, and the rows up to the last one that has a document.
func (s *groupSteps) count(rows, epochs int) (steps, filled int) {
	defer func(epochs int) { s.order.epochs = epochs }(s.order.epochs)
	s.order.epochs = epochs
	for c := (Cursor{}); ; steps++ {
		c = s.fill(c, rows)
		if len(s.members) == 0 {
			return steps, filled
		}
		filled = steps*rows + int(slices.Max(s.rowOf)) + 1
	}
}

// checkSteps returns what is wrong with the sizes of steps of a dataset.
func checkSteps(d *Dataset, o LoaderOptions) error {
	rows := o.BatchTokens / o.SequenceLen
	switch {
	case o.Cohorts < 1:
		return fmt.Errorf("cohorts is %d: it must not be negative", o.Cohorts)
	case o.Mismatched && d.groupSize() == 1:
		return errors.New("mismatched documents need answers with a label, in twos")
	case o.GroupsPerStep < 0:
		return fmt.Errorf("%ss_per_step is %d: it must not be negative", d.groupWord(), o.GroupsPerStep)
	case !d.isGrouped() && o.GroupsPerStep > 0:
		return fmt.Errorf("pairs_per_step is %d, and the datasets have no pairs: leave it out", o.GroupsPerStep)
	case d.isGrouped() && rows%o.Cohorts != 0:
		return fmt.Errorf("batch_tokens is %d rows of sequence_len %d: %d cohorts cannot have equal shares of them; "+
			"make it a multiple", rows, o.SequenceLen, o.Cohorts)
	case d.groupSize() > 2:
		return fmt.Errorf("the datasets have groups of %d documents: only pairs can be packed", d.groupSize())
	}
	return nil
}

// defaultLong returns the treatment of long documents for datasets whose caller names none.
func defaultLong(d *Dataset) LongDocuments {
	if d.isGrouped() {
		return TruncateLong
	}
	return SplitLong
}

// packPairs makes the loader one of pairs.
func (l *Loader) packPairs(d *Dataset) error {
	share := int64(l.stepRows()/l.o.Cohorts) * int64(l.o.SequenceLen)
	g, packing, err := newGroups(d, l.o, share)
	if err != nil {
		return err
	}
	order, err := newGroupOrder(g, l.o)
	if err != nil {
		return firstOf(err, g.close())
	}
	l.pairs = newGroupSteps(order, l.o)
	if d.weighted() {
		packing.Pairs, packing.Documents, packing.RealTokens, packing.TargetTokens = 0, 0, 0, 0
		order.epochGroups(0)
		for _, number := range order.members {
			c, err := g.count(g.inDataset(number))
			if err != nil {
				return err
			}
			if c.tokens <= share {
				packing.pack(c)
			}
		}
		if packing.Pairs == 0 {
			return errors.New("the weights leave no pairs in the first epoch: raise weight")
		}
	}
	packing.setTargets(l.o.PromptTargets, l.o.ScoreAt)
	_, packing.Rows = l.pairs.count(l.stepRows(), 1)
	packing.Positions = int64(packing.Rows) * int64(l.o.SequenceLen)
	l.packing = packing
	return nil
}
