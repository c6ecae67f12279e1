package data

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/internal/spelling"
)

// Dataset is a list of tokenized documents. It does not change once made, and may be used by several goroutines until
// it is closed.
//
// Tokens that come through the cache are read from its files when they are needed, so that a set may be larger than
// the memory. Others take 4 bytes and a bit each, counted under [TokensPurpose]. A document takes a little more than 4
// bytes either way, counted under [OrderPurpose].
type Dataset struct {
	accounts    *hostmem.Accounts
	runs        []tokenRun
	documents   int     // of all runs
	chosen      []int32 // which of these documents there are, in order; nil is all of them
	groupFirst  []int32 // of rollouts: the first document of each group, and the number of documents; nil: no rollouts
	sources     []sourceDocuments
	targets     int64
	skipped     int
	firstBad    string
	equal       int // pairs that were left out
	turns       TurnCounts
	stops       []int32 // at which a generation ends
	spellsStops bool    // a text can have one of stops
	fingerprint string
	entries     []Source
	owned       []func() error // what Close gives back
}

// sourceDocuments counts documents, one after the other, that have one type and one weight.
type sourceDocuments struct {
	documents int
	kind      Type
	weight    float64
	group     int // documents that belong together: with 2, documents 2i and 2i+1 are a pair; 0 and 1: each by itself
}

// groupSize returns the number of documents of a group, which is 1 where each is by itself.
func (s sourceDocuments) groupSize() int { return max(s.group, 1) }

// NewDataset makes a dataset of examples. Labels must be the token itself or [Ignore], and no example may be empty.
func NewDataset(examples []Example) (*Dataset, error) {
	b := newBuilder()
	for i, e := range examples {
		if err := b.append(e); err != nil {
			return nil, fmt.Errorf("example %d: %w", i, err)
		}
	}
	d := &Dataset{accounts: hostmem.New()}
	p, err := b.finishInMemory(d.accounts)
	if err != nil {
		return nil, err
	}
	d.add(p, Text, 1)
	return d, d.seal()
}

// add appends the documents of a source, which the dataset takes over.
func (d *Dataset) add(p *part, kind Type, weight float64) {
	run := p.run
	run.first, run.rewards = d.documents, p.rewards
	d.documents += len(run.lengths)
	d.runs = append(d.runs, run)
	d.owned = append(d.owned, run.close)
	d.sources = append(d.sources, sourceDocuments{len(run.lengths), kind, weight, kind.format().group()})
	d.equal += p.equal
	d.skipped += p.skipped
	d.turns.add(p.turns)
	if d.firstBad == "" {
		d.firstBad = p.firstBad
	}
}

// SourceSums are checksums of the documents of each source, by its path. Sources of one path are taken together.
func (d *Dataset) SourceSums() map[string]string {
	sums := map[string]string{}
	for i, s := range d.entries {
		sums[s.Path] += fmt.Sprintf("%x", d.runs[i].sum[:8])
	}
	return sums
}

// Close gives back the memory and closes the files. The held out part of a split is closed before the training part.
func (d *Dataset) Close() error {
	var errs []error
	for _, f := range d.owned {
		errs = append(errs, f())
	}
	d.owned = nil
	return errors.Join(errs...)
}

// groupSize returns the number of documents of each group. All sources of a sealed dataset have the same.
func (d *Dataset) groupSize() int {
	if len(d.sources) == 0 {
		return 1
	}
	return d.sources[0].groupSize()
}

// checkGroups refuses sources of several sizes of groups, and groups that are not whole.
func (d *Dataset) checkGroups() error {
	for _, s := range d.sources {
		switch size := s.groupSize(); {
		case size != d.groupSize():
			return errors.New("datasets has pairs and documents by themselves: a run trains on one of both, so give each a run " +
				"of its own")
		case s.documents%size != 0:
			return fmt.Errorf("a source has %s, which is no multiple of %d: a side of a pair is missing",
				spelling.Count(s.documents, "document"), size)
		}
	}
	return nil
}

// seal checks the documents together, and computes what is derived from them.
func (d *Dataset) seal() error {
	if err := d.checkGroups(); err != nil {
		return err
	}
	h := xxh3.New128()
	for i, r := range d.runs {
		h.Write(r.sum[:]) // a hash does not fail
		fmt.Fprintf(h, "%d %v\n", d.sources[i].documents, d.sources[i].weight)
	}
	if size := d.groupSize(); size > 1 {
		fmt.Fprintf(h, "in groups of %d\n", size)
	}
	d.fingerprint = fmt.Sprintf("%x", h.Sum128().Bytes())
	return d.count()
}

// count sums up the targets. The first token of a document does not count.
func (d *Dataset) count() error {
	d.targets = 0
	bits := bitReader{words: make([]uint64, bitWindow)}
	for i := range d.Len() {
		r, start, end := d.locate(i)
		n, err := bits.ones(r, start+1, end)
		if err != nil {
			return err
		}
		d.targets += n
	}
	return nil
}

// locate finds document i: its run, its first token and the one after its last.
func (d *Dataset) locate(i int) (r *tokenRun, start, end int64) {
	r, at := d.documentRun(i)
	start, end = r.bounds(at)
	return r, start, end
}

// length returns the length of document i.
func (d *Dataset) length(i int) int64 {
	r, at := d.documentRun(i)
	return int64(r.lengths[at])
}

// documentRun is the run that has document i, and its number there.
func (d *Dataset) documentRun(i int) (r *tokenRun, at int) {
	if d.chosen != nil {
		i = int(d.chosen[i])
	}
	if len(d.runs) == 1 {
		return &d.runs[0], i
	}
	n, found := slices.BinarySearchFunc(d.runs, i, func(r tokenRun, i int) int { return cmp.Compare(r.first, i) })
	if !found {
		n--
	}
	return &d.runs[n], i - d.runs[n].first
}

// Len is the number of documents.
func (d *Dataset) Len() int {
	if d.chosen != nil {
		return len(d.chosen)
	}
	return d.documents
}

// Tokens is the number of tokens in all documents.
func (d *Dataset) Tokens() (n int64) {
	for i := range d.Len() {
		n += d.length(i)
	}
	return n
}

// TargetTokens is the number of tokens that count in the loss.
func (d *Dataset) TargetTokens() int64 { return d.targets }

// LongestDocument is the length of the longest document in tokens.
func (d *Dataset) LongestDocument() int {
	longest := int64(0)
	for i := range d.Len() {
		longest = max(longest, d.length(i))
	}
	return int(longest)
}

// Skipped counts the bad rows that were left out because their source says so, and tells the fault of the first.
func (d *Dataset) Skipped() (rows int, first string) { return d.skipped, d.firstBad }

// Example reads document i.
func (d *Dataset) Example(i int) (Example, error) {
	r, start, end := d.locate(i)
	e := Example{InputIDs: make([]int32, end-start), Labels: make([]int32, end-start)}
	bits := bitReader{words: make([]uint64, (end-start)/64+2)}
	if err := r.readTokens(e.InputIDs, start); err != nil {
		return Example{}, err
	}
	for t, id := range e.InputIDs {
		counted, err := bits.isCounted(r, start+int64(t))
		if err != nil {
			return Example{}, err
		}
		e.Labels[t] = Ignore
		if counted {
			e.Labels[t] = id
		}
	}
	return e, nil
}

// Sources are the entries that [Prepare] was given, with the commit as the revision of each that is on the hub: with it
// the same files are read anywhere. An entry whose files the hub has converted stays as it was, and so does an entry of
// a registry.
func (d *Dataset) Sources() []Source { return slices.Clone(d.entries) }

// Fingerprint identifies the documents, their order, their weights and what counts in them. A checkpoint records it: a
// cursor means nothing in another dataset.
func (d *Dataset) Fingerprint() string { return d.fingerprint }

// Split takes documents out of the dataset for evaluation, chosen by seed: a share of them if size is below 1, else
// that many. Of a dataset of pairs it takes pairs, and size counts these. Both parts keep the order, and use the same
// tokens, which now belong to the training part. It is an error if either would be empty.
func (d *Dataset) Split(size float64, seed uint64) (training, held *Dataset, err error) {
	if d.HasRollouts() {
		return nil, nil, errors.New("val_size: rollouts have no held-out loss; remove it")
	}
	group, what := d.groupSize(), "document"
	if group > 1 {
		what = "pair"
	}
	n := d.Len() / group
	k := int(size)
	if size < 1 {
		k = max(int(math.Round(size*float64(n))), 1)
	}
	if k < 1 || k >= n {
		return nil, nil, fmt.Errorf("val_size %v leaves nothing to train on, or nothing to evaluate: there are %s; choose "+
			"another, or set eval.datasets", size, spelling.Count(n, what))
	}
	scratch, err := reserve(d.accounts, 4*int64(n))
	if err != nil {
		return nil, nil, err
	}
	defer scratch.Close()
	order := hostmem.I32(scratch.Bytes())
	rng.New(seed, "hold out documents", 0, 0).Perm(order)
	isHeld := make([]uint64, (n+63)/64)
	for _, i := range order[:k] {
		isHeld[i/64] |= 1 << (i % 64)
	}
	in := func(bit uint64) func(int) bool {
		return func(i int) bool { return isHeld[i/group/64]>>(i/group%64)&1 == bit }
	}
	if training, err = d.subset((n-k)*group, in(0), "training"); err != nil {
		return nil, nil, err
	}
	if held, err = d.subset(k*group, in(1), "held out"); err != nil {
		return nil, nil, firstOf(err, training.Close())
	}
	training.owned, d.owned = append(training.owned, d.owned...), nil
	return training, held, nil
}

// subset copies the n documents for which in is true.
func (d *Dataset) subset(n int, in func(i int) bool, what string) (*Dataset, error) {
	r, err := reserve(d.accounts, 4*int64(n))
	if err != nil {
		return nil, err
	}
	s := &Dataset{accounts: d.accounts, runs: d.runs, documents: d.documents, chosen: hostmem.I32(r.Bytes())[:0], skipped: d.skipped,
		firstBad: d.firstBad, equal: d.equal, turns: d.turns, stops: d.stops, spellsStops: d.spellsStops,
		entries: d.entries, owned: []func() error{r.Close}}
	h := xxh3.New128()
	fmt.Fprintf(h, "%s %s\n", d.fingerprint, what) // a hash does not fail
	i := 0
	for _, source := range d.sources {
		before := len(s.chosen)
		for range source.documents {
			if in(i) {
				at := int32(i)
				if d.chosen != nil {
					at = d.chosen[i]
				}
				s.chosen = append(s.chosen, at)
				fmt.Fprintln(h, at)
			}
			i++
		}
		source.documents = len(s.chosen) - before
		s.sources = append(s.sources, source)
	}
	s.fingerprint = fmt.Sprintf("%x", h.Sum128().Bytes())
	if err := s.count(); err != nil {
		return nil, firstOf(err, s.Close())
	}
	return s, nil
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
