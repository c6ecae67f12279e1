package data

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/rng"
)

// Dataset is a list of tokenized documents. It does not change once made, and may be used by several goroutines.
//
// Tokens that come through the cache lie in mapped files, so that a set may be larger than the memory: what is not
// being read can be given back at any time. Others take 4 bytes and a bit each. A document takes 8 bytes either way.
type Dataset struct {
	runs        []tokenRun
	ends        []int64 // document i of all runs is tokens ends[i-1] to ends[i]
	chosen      []int32 // which of these documents there are, in order; nil is all of them
	sources     []sourceDocuments
	targets     int64
	skipped     int
	firstBad    string
	fingerprint string
	entries     []Source
}

// tokenRun is the tokens of one source. No document lies in two.
type tokenRun struct {
	base    int64    // tokens in the runs before
	tokens  []int32  // not written to: it may be a mapped file
	counted []uint64 // bit t: the label of token t of this run is the token itself, else Ignore
	sum     [16]byte // of tokens, counted and the documents' ends
}

// sourceDocuments is how many documents, one after the other, have a weight.
type sourceDocuments struct {
	documents int
	weight    float64
}

// NewDataset makes a dataset of examples. Labels must be the token itself or [Ignore], and no example may be empty.
func NewDataset(examples []Example) (*Dataset, error) {
	b := newBuilder()
	for i, e := range examples {
		if err := b.append(e); err != nil {
			return nil, fmt.Errorf("example %d: %w", i, err)
		}
	}
	p, err := b.finish()
	if err != nil {
		return nil, err
	}
	var d Dataset
	d.add(p, 1)
	d.seal()
	return &d, nil
}

// add appends the documents of a source.
func (d *Dataset) add(p *part, weight float64) {
	run := p.run
	if n := len(d.ends); n > 0 {
		run.base = d.ends[n-1]
	}
	d.runs = append(d.runs, run)
	for _, end := range p.ends {
		d.ends = append(d.ends, run.base+end)
	}
	d.sources = append(d.sources, sourceDocuments{len(p.ends), weight})
	d.skipped += p.skipped
	if d.firstBad == "" {
		d.firstBad = p.firstBad
	}
}

// seal computes what is derived from the documents.
func (d *Dataset) seal() {
	h := xxh3.New128()
	for i, r := range d.runs {
		h.Write(r.sum[:]) // a hash does not fail
		fmt.Fprintf(h, "%d %v\n", d.sources[i].documents, d.sources[i].weight)
	}
	d.fingerprint = fmt.Sprintf("%x", h.Sum128().Bytes())
	d.count()
}

// count sums up the targets.
func (d *Dataset) count() {
	d.targets = 0
	for i := range d.Len() {
		d.targets += d.targetsOf(i)
	}
}

// targetsOf counts the targets of document i, whose first token is none.
func (d *Dataset) targetsOf(i int) int64 {
	start, end := d.bounds(i)
	r := d.run(start)
	return onesBetween(r.counted, start-r.base+1, end-r.base)
}

// onesBetween counts the bits from to before to.
func onesBetween(set []uint64, from, to int64) (n int64) {
	for from < to {
		w := set[from/64] >> (from % 64)
		if left := to - from; left < 64-from%64 {
			w &= 1<<left - 1
		}
		n += int64(bits.OnesCount64(w))
		from += 64 - from%64
	}
	return n
}

// run is where token t of all runs lies.
func (d *Dataset) run(t int64) *tokenRun {
	if len(d.runs) == 1 {
		return &d.runs[0]
	}
	i, found := slices.BinarySearchFunc(d.runs, t, func(r tokenRun, t int64) int { return cmp.Compare(r.base, t) })
	if !found {
		i--
	}
	return &d.runs[i]
}

func (r *tokenRun) isCounted(t int64) bool { return r.counted[t/64]>>(t%64)&1 == 1 }

func (d *Dataset) bounds(i int) (start, end int64) {
	if d.chosen != nil {
		i = int(d.chosen[i])
	}
	if i > 0 {
		start = d.ends[i-1]
	}
	return start, d.ends[i]
}

// Len is the number of documents.
func (d *Dataset) Len() int {
	if d.chosen != nil {
		return len(d.chosen)
	}
	return len(d.ends)
}

// Tokens is the number of tokens in all documents.
func (d *Dataset) Tokens() (n int64) {
	if d.chosen == nil && len(d.ends) > 0 {
		return d.ends[len(d.ends)-1]
	}
	for i := range d.Len() {
		start, end := d.bounds(i)
		n += end - start
	}
	return n
}

// TargetTokens is the number of tokens that count in the loss.
func (d *Dataset) TargetTokens() int64 { return d.targets }

// LongestDocument is the length of the longest document in tokens.
func (d *Dataset) LongestDocument() int {
	longest := int64(0)
	for i := range d.Len() {
		start, end := d.bounds(i)
		longest = max(longest, end-start)
	}
	return int(longest)
}

// Skipped is how many bad rows were left out because their source says so, and what was wrong with the first.
func (d *Dataset) Skipped() (rows int, first string) { return d.skipped, d.firstBad }

// Example returns a copy of document i.
func (d *Dataset) Example(i int) Example {
	start, end := d.bounds(i)
	r := d.run(start)
	e := Example{InputIDs: slices.Clone(r.tokens[start-r.base : end-r.base]), Labels: make([]int32, end-start)}
	for t, id := range e.InputIDs {
		e.Labels[t] = Ignore
		if r.isCounted(start - r.base + int64(t)) {
			e.Labels[t] = id
		}
	}
	return e
}

// Sources are the entries that [Prepare] was given, with the commit as the revision of each that lies on the hub: with it the
// same files are read anywhere. An entry whose files the hub has converted stays as it was, and so does one of a registry.
func (d *Dataset) Sources() []Source { return slices.Clone(d.entries) }

// Fingerprint identifies the documents, their order, their weights and what counts in them. A checkpoint records it: a
// cursor means nothing in another dataset.
func (d *Dataset) Fingerprint() string { return d.fingerprint }

// Split takes documents out of the dataset for evaluation, chosen by seed: a share of them if size is below 1, else that
// many. Both parts keep the order, and use the same tokens. It is an error if either would be empty.
func (d *Dataset) Split(size float64, seed uint64) (training, held *Dataset, err error) {
	n := d.Len()
	k := int(size)
	if size < 1 {
		k = max(int(math.Round(size*float64(n))), 1)
	}
	if k < 1 || k >= n {
		return nil, nil, fmt.Errorf("val_size %v is %d of %d documents: both parts must have some", size, k, n)
	}
	isHeld := make([]bool, n)
	for _, i := range rng.New(seed, "hold out documents", 0, 0).Perm(n)[:k] {
		isHeld[i] = true
	}
	return d.subset(isHeld, false, "training"), d.subset(isHeld, true, "held out"), nil
}

// subset is the documents whose mark is as given.
func (d *Dataset) subset(marks []bool, mark bool, what string) *Dataset {
	s := &Dataset{runs: d.runs, ends: d.ends, chosen: []int32{}, skipped: d.skipped, firstBad: d.firstBad, entries: d.entries}
	h := xxh3.New128()
	fmt.Fprintf(h, "%s %s\n", d.fingerprint, what) // a hash does not fail
	i := 0
	for _, source := range d.sources {
		before := len(s.chosen)
		for range source.documents {
			if marks[i] == mark {
				at := int32(i)
				if d.chosen != nil {
					at = d.chosen[i]
				}
				s.chosen = append(s.chosen, at)
				fmt.Fprintln(h, at)
			}
			i++
		}
		s.sources = append(s.sources, sourceDocuments{len(s.chosen) - before, source.weight})
	}
	s.fingerprint = fmt.Sprintf("%x", h.Sum128().Bytes())
	s.count()
	return s
}

// checkExample returns what is wrong with an example.
func checkExample(e Example) error {
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
	return nil
}

// maxDocuments bounds a dataset, whose documents are numbered by int32 while packing.
const maxDocuments = math.MaxInt32 / 2
