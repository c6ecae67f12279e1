package data

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/spelling"
)

// groups is a dataset of pairs whose documents are cut to the length of a row. A pair stays whole or is left out. The
// numbers of the others are in the order of the dataset, and are the same for any size of a step: they belong to the
// meaning of a cursor.
type groups struct {
	d      *Dataset
	row    int64 // positions
	n      int
	kept   []int32         // the groups that have a number; nil: all of them
	region *hostmem.Region // of kept
	bits   bitReader
}

// newGroups counts what becomes of the pairs of a dataset where the documents of a pair have share positions together.
func newGroups(d *Dataset, o LoaderOptions, share int64) (_ *groups, p Packing, err error) {
	if p.isOfGroups = d.HasRollouts(); o.LongDocuments == SplitLong {
		return nil, p, fmt.Errorf("overlong is split: half of an answer is no part of a %s; use auto, truncate or drop",
			d.groupWord())
	}
	g := &groups{d: d, row: int64(o.SequenceLen), bits: bitReader{words: make([]uint64, bitWindow)}}
	g.n = d.groupCount()
	out := make([]uint64, (g.n+63)/64) // bit i: group i has no number
	n := 0
	for i := range g.n {
		c, err := g.count(i)
		if err != nil {
			return nil, p, err
		}
		drops := o.LongDocuments == DropLong && c.long > 0
		empty := c.sides < c.documents && !d.HasRollouts() || c.sides == 0
		switch {
		case drops:
			p.DroppedPairs++
		case empty:
			p.EmptyPairs++
		case c.tokens > share:
			p.WidePairs++
		default:
			p.pack(c)
			p.CutTokens -= c.tokens
		}
		p.CutTokens += c.whole
		if drops {
			p.Dropped += c.long
		} else {
			p.Truncated += c.long
		}
		if drops || empty {
			out[i/64] |= 1 << (i % 64)
			continue
		}
		n++
	}
	if p.Pairs == 0 {
		return nil, p, noPairs(d, p, o)
	}
	if n < g.n {
		err = g.number(n, out, o.Accounts)
	}
	return g, p, err
}

// groupCount counts the tokens of a group.
type groupCount struct {
	whole, tokens int64 // of its documents, and of what is left of them in rows
	targets       int64
	documents     int
	long          int // documents longer than a row
	sides         int // documents with a target
}

// count counts the tokens of group i of the dataset.
func (g *groups) count(i int) (c groupCount, err error) {
	first, end := g.d.groupDocuments(i)
	c.documents = end - first
	for document := first; document < end; document++ {
		p := g.piece(document)
		targets, err := g.bits.ones(p.run, p.start+1, p.start+p.length)
		if err != nil {
			return c, err
		}
		c.whole += g.d.length(document)
		c.tokens += p.length
		c.targets += targets
		if !p.whole {
			c.long++
		}
		if targets > 0 {
			c.sides++
		}
	}
	return c, nil
}

// pack counts a group as packed.
func (p *Packing) pack(c groupCount) {
	p.Pairs++
	p.Documents += c.documents
	p.RealTokens += c.tokens
	p.TargetTokens += c.targets
}

// number gives the n groups that are not out their numbers.
func (g *groups) number(n int, out []uint64, accounts *hostmem.Accounts) (err error) {
	if g.region, err = reserve(accounts, 4*int64(n)); err != nil {
		return err
	}
	g.kept = hostmem.I32(g.region.Bytes())[:0]
	for i := range g.n {
		if out[i/64]>>(i%64)&1 == 0 {
			g.kept = append(g.kept, int32(i))
		}
	}
	g.n = n
	return nil
}

func (g *groups) close() error {
	if g.region == nil {
		return nil
	}
	return g.region.Close()
}

// of appends the number of group i of the dataset, if it has one.
func (g *groups) of(dst []int32, i int) []int32 {
	if g.kept == nil {
		return append(dst, int32(i))
	}
	if at, found := slices.BinarySearch(g.kept, int32(i)); found {
		dst = append(dst, int32(at))
	}
	return dst
}

// inDataset returns the group of the dataset that has a number.
func (g *groups) inDataset(number int32) int {
	if g.kept == nil {
		return int(number)
	}
	return int(g.kept[number])
}

// lengths appends the lengths of a group's documents in rows, and returns their sum, too.
func (g *groups) lengths(dst []int32, number int32) (lengths []int32, sum int64) {
	first, end := g.d.groupDocuments(g.inDataset(number))
	for document := first; document < end; document++ {
		length := min(g.d.length(document), g.row)
		dst = append(dst, int32(length))
		sum += length
	}
	return dst, sum
}

// piece returns the place of what is left of a document in its row.
func (g *groups) piece(document int) piece {
	r, start, end := g.d.locate(document)
	length := min(end-start, g.row)
	return piece{run: r, document: document, start: start, length: length, first: true, whole: length == end-start}
}

// most bounds the groups of an epoch, and those of one source of which an epoch takes a share.
func (g *groups) most() (n, shared int64) {
	for _, s := range g.d.sources {
		groups := int64(s.documents / s.groupSize())
		times, share := wholeWeight(s.weight)
		if share > 0 {
			times++
			shared = max(shared, groups)
		}
		n += int64(times) * groups
	}
	return n, shared
}

// LeftOut says in a line how many pairs of a dataset were left out, and why; it is empty if all are packed. Pairs whose
// documents are only cut are in [Packing.Cut].
func (p Packing) LeftOut(sequenceLen int) string {
	var why []string
	unit, side := "pair", "a side"
	if p.isOfGroups {
		unit, side = "group", "an answer"
	}
	empty := side + " that has no token that counts"
	if p.isOfGroups {
		empty = "no token that counts"
	}
	for _, one := range []struct {
		n    int
		what string
	}{
		{p.DroppedPairs, fmt.Sprintf("with %s longer than sequence_len (%d)", side, sequenceLen)},
		{p.EmptyPairs, fmt.Sprintf("with %s in its first %d", empty, sequenceLen)},
		{p.WidePairs, "longer than the rows of a step, or of a cohort's share of it"},
	} {
		if one.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if why == nil {
		return ""
	}
	return fmt.Sprintf("%s left out: %s", spelling.Count(p.DroppedPairs+p.EmptyPairs+p.WidePairs, unit),
		strings.Join(why, ", "))
}

// wider says how a step has room for a group.
func wider(d *Dataset) string {
	if d.HasRollouts() {
		return "raise batch_tokens to the tokens of a group for each cohort"
	}
	return "raise batch_tokens to two rows for each cohort"
}

// noPairs is the error of a dataset whose pairs are all left out.
func noPairs(d *Dataset, p Packing, o LoaderOptions) error {
	if d.targets == 0 || d.Len() == 0 {
		return noTargets(d, p, o.SequenceLen)
	}
	var remedies []string
	if p.DroppedPairs+p.EmptyPairs > 0 {
		remedies = append(remedies, "raise sequence_len")
	}
	if p.WidePairs > 0 {
		remedies = append(remedies, wider(d))
	}
	return fmt.Errorf("no %s can be trained on: %s; %s", d.groupWord(), p.LeftOut(o.SequenceLen),
		strings.Join(remedies, ", or "))
}
