package data

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/objective"
)

// drawPairs makes sources of pairs whose tokens are all different.
func drawPairs(t *rapid.T, longest int, weights ...float64) *Dataset {
	next := 1
	side := rapid.Custom(func(t *rapid.T) Example {
		n := rapid.IntRange(1, longest).Draw(t, "length")
		e := sided(next, n, rapid.IntRange(0, n).Draw(t, "prompt"))
		next += n + 1 // so that no document continues another
		return e
	})
	var sources []groupedSource
	for _, weight := range weights {
		s := groupedSource{group: 2, weight: weight}
		for range rapid.IntRange(1, 20).Draw(t, "pairs") {
			s.examples = append(s.examples, side.Draw(t, "chosen"), side.Draw(t, "rejected"))
		}
		sources = append(sources, s)
	}
	d, err := grouped(sources...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// drawPairOptions are options of pairs, with the rows of a micro-batch.
func drawPairOptions(t *rapid.T) (o LoaderOptions, micro int) {
	o, micro = drawOptions(t)
	o.LongDocuments = rapid.SampledFrom([]LongDocuments{"", AutoLong, TruncateLong, DropLong}).Draw(t, "overlong")
	o.GroupsPerStep = rapid.IntRange(0, 5).Draw(t, "pairs of a step")
	rows := o.BatchTokens / o.SequenceLen
	o.Cohorts = rapid.SampledFrom(slices.DeleteFunc([]int{0, 1, 2, 3}, func(n int) bool {
		return n > 0 && rows%n != 0
	})).Draw(t, "cohorts")
	o.PromptTargets = rapid.Bool().Draw(t, "prompts")
	return o, micro
}

// fates tells which pairs of a dataset a loader packs, and what it counts.
func fates(t *rapid.T, d *Dataset, o LoaderOptions) (packed []int, p Packing) {
	share := o.BatchTokens / max(o.Cohorts, 1)
	for pair := range d.Len() / 2 {
		var cut, long, tokens, targets, empty int
		for _, i := range []int{2 * pair, 2*pair + 1} {
			e := example(t, d, i)
			n := min(len(e.InputIDs), o.SequenceLen)
			counted := n - 1
			for _, l := range e.Labels[1:n] {
				if l == Ignore {
					counted--
				}
			}
			if counted == 0 {
				empty++
			}
			if n < len(e.InputIDs) {
				long++
			}
			if o.PromptTargets {
				counted = n - 1
			}
			tokens, targets, cut = tokens+n, targets+counted, cut+len(e.InputIDs)-n
		}
		if o.LongDocuments == DropLong && long > 0 {
			p.DroppedPairs, p.Dropped = p.DroppedPairs+1, p.Dropped+long
			p.CutTokens += int64(tokens + cut)
			continue
		}
		p.Truncated += long
		p.CutTokens += int64(cut)
		switch {
		case empty > 0:
			p.EmptyPairs++
			p.CutTokens += int64(tokens)
		case tokens > share:
			p.WidePairs++
			p.CutTokens += int64(tokens)
		default:
			p.Pairs, p.Documents = p.Pairs+1, p.Documents+2
			p.RealTokens += int64(tokens)
			p.TargetTokens += int64(targets)
			packed = append(packed, pair)
		}
	}
	return packed, p
}

// checkPairs checks the documents of a step, in which share rows belong together, and returns its pairs.
func checkPairs(t *rapid.T, d *Dataset, batches []MicroBatch, placed []Placed, share int) (pairs []int) {
	checkPlaced(t, d, batches, placed)
	for _, b := range batches {
		checkBatch(t, b, map[int32]int{}, map[int32]int32{})
	}
	shareOf := func(p Placed) int {
		return (p.Micro*batches[p.Micro].Sequences + p.First/batches[p.Micro].SequenceLen) / share
	}
	before := 0
	for i := 0; i < len(placed); i += 2 {
		chosen, rejected := placed[i], placed[i+1]
		if chosen.Document%2 != 0 || rejected.Document != chosen.Document+1 || chosen.Group != i/2 || rejected.Group != i/2 ||
			chosen.Side != objective.Chosen || rejected.Side != objective.Rejected {
			t.Fatalf("%+v and %+v are a pair", chosen, rejected)
		}
		if shareOf(chosen) != shareOf(rejected) || shareOf(chosen) < before {
			t.Fatalf("%+v and %+v are in shares of %d rows", chosen, rejected, share)
		}
		before = shareOf(chosen)
		pairs = append(pairs, chosen.Document/2)
	}
	return pairs
}

// TestPairsLaw: each pair that can be packed comes once per epoch, and steps hold as many of them as fit.
func TestPairsLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPairs(t, 90, []float64{1, 1, 1}[:rapid.IntRange(1, 3).Draw(t, "sources")]...)
		o, micro := drawPairOptions(t)
		o.Epochs = rapid.IntRange(1, 3).Draw(t, "epochs")
		packed, want := fates(t, d, o)
		l, err := NewLoader(d, o)
		if len(packed) == 0 {
			if err == nil || !strings.Contains(err.Error(), "no pair") && !strings.Contains(err.Error(), "no token counts") {
				t.Fatalf("no pair fits: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p := l.Packing()
		want.Rows, want.Positions = p.Rows, int64(p.Rows*o.SequenceLen)
		if p != want || p.Efficiency() <= 0 || p.Efficiency() > 1 ||
			(p.LeftOut(o.SequenceLen) == "") != (p.Pairs == d.Len()/2) {
			t.Fatalf("packing %+v, want %+v", p, want)
		}
		var pairs []int
		steps, rows := 0, 0
		for ; ; steps++ {
			batches, err := next(l, micro)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			of := checkPairs(t, d, batches, l.Documents(), l.stepRows()/max(o.Cohorts, 1))
			if len(of) == 0 || o.GroupsPerStep > 0 && len(of) > o.GroupsPerStep {
				t.Fatalf("a step has %d pairs, at most %d", len(of), o.GroupsPerStep)
			}
			pairs = append(pairs, of...)
			rows += l.stepRows()
		}
		if steps != l.Steps() {
			t.Fatalf("%d steps, %d foretold", steps, l.Steps())
		}
		if o.Epochs == 1 && (p.Rows > rows || p.Rows <= rows-l.stepRows()) {
			t.Fatalf("packing has %d rows, steps have %d", p.Rows, rows)
		}
		if len(pairs) != o.Epochs*len(packed) {
			t.Fatalf("%d pairs in %d epochs of %d", len(pairs), o.Epochs, len(packed))
		}
		for epoch := range slices.Chunk(pairs, len(packed)) {
			if epoch = slices.Sorted(slices.Values(epoch)); !slices.Equal(epoch, packed) {
				t.Fatalf("an epoch has the pairs %v, want %v", epoch, packed)
			}
		}
	})
}

// TestPairsOfASlowStep compares the pairs and rows of steps with those that the slow reference takes from the order.
func TestPairsOfASlowStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPairs(t, 60, 1)
		o, micro := drawPairOptions(t)
		o.LongDocuments, o.GroupsPerStep = TruncateLong, 0
		if packed, _ := fates(t, d, o); len(packed) == 0 {
			t.Skip("draws another: no pair of this dataset fits in a step of this size")
		}
		l, err := NewLoader(d, o)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			at := l.Cursor()
			batches, err := next(l, micro)
			if err != nil {
				t.Fatal(err)
			}
			var want []Placed
			share := l.stepRows() / l.o.Cohorts
			for cohort := range l.o.Cohorts {
				var groups [][]int32
				var documents []int
				for c := at; len(groups) <= o.BatchTokens; { // more than fit
					group, after, _ := l.pairs.order.find(c)
					lengths, sum := l.pairs.order.lengths(nil, group)
					if c = after; sum <= int64(share*o.SequenceLen) {
						groups = append(groups, lengths)
						documents = append(documents, 2*l.pairs.order.inDataset(group))
					}
				}
				rowOf := slowFit(groups, share, o.SequenceLen)
				for i, row := range rowOf {
					want = append(want, Placed{Micro: int(row) + cohort*share, Document: documents[i/2] + i%2})
				}
				for taken := 0; taken < len(rowOf)/2; { // and those that fit nowhere before it
					group, after, _ := l.pairs.order.find(at)
					if _, sum := l.pairs.order.lengths(nil, group); sum <= int64(share*o.SequenceLen) {
						taken++
					}
					at = after
				}
			}
			var got []Placed
			for _, p := range l.Documents() {
				got = append(got, Placed{Micro: p.Micro*batches[0].Sequences + p.First/o.SequenceLen, Document: p.Document})
			}
			if !slices.Equal(got, want) {
				t.Fatalf("rows and documents %+v, want %+v", got, want)
			}
		}
	})
}

// TestPairsResume: a loader that seeks to the place between two steps continues with the same steps, and one with
// steps of another size with the same pairs.
func TestPairsResume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPairs(t, 60, rapid.SampledFrom([][]float64{{1}, {1, 1}, {0.5, 2.3}}).Draw(t, "weights")...)
		o, micro := drawPairOptions(t)
		a, err := NewLoader(d, o)
		isEmpty := func(start string) bool { return strings.HasPrefix(err.Error(), start) }
		if err != nil && slices.ContainsFunc([]string{"no pair", "no token counts", "the weights leave no"}, isEmpty) {
			t.Skip("draws another: no pair of this dataset can be in a step of this size, which a loader refuses")
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewLoader(d, o)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 30).Draw(t, "steps before") {
			if _, err := next(a, micro); err != nil {
				t.Fatal(err)
			}
		}
		a.Steps() // must not move it
		at := a.Cursor()
		if err := b.Seek(at); err != nil {
			t.Fatal(err)
		}
		pairs := func(l *Loader) (of []int) {
			for _, p := range l.Documents() {
				of = append(of, p.Document)
			}
			return of
		}
		var order []int
		for range 3 {
			x, err := next(a, micro)
			if err != nil {
				t.Fatal(err)
			}
			y, err := next(b, micro)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(x, y); diff != "" || !slices.Equal(a.Documents(), b.Documents()) || a.Cursor() != b.Cursor() {
				t.Fatal(diff)
			}
			order = append(order, pairs(a)...)
		}
		if a.Packing().WidePairs > 0 {
			return // steps of another size may have these
		}
		o.Cohorts, o.GroupsPerStep, o.BatchTokens = 1, 0, rapid.IntRange(2, 12).Draw(t, "rows")*o.SequenceLen
		c, err := NewLoader(d, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Seek(at); err != nil {
			t.Fatal(err)
		}
		if _, err := next(c, 1); err != nil {
			t.Fatal(err)
		}
		of := pairs(c)
		if n := min(len(of), len(order)); !slices.Equal(of[:n], order[:n]) {
			t.Fatalf("the next documents are %v, and in larger steps %v", order, of)
		}
	})
}

// TestPairsByWeight: with the weight 2 a pair comes twice in an epoch, and with 0.5 in every other one.
func TestPairsByWeight(t *testing.T) {
	source := func(first int, weight float64) (s groupedSource) {
		s = groupedSource{group: 2, weight: weight}
		for i := range 4 {
			s.examples = append(s.examples, sided(first+20*i, 5, 2), sided(first+20*i+10, 5, 2))
		}
		return s
	}
	twice := source(1, 2)
	twice.examples = append(twice.examples, sided(81, 6, 2), sided(91, 5, 2)) // longer than a step
	d, err := grouped(twice, source(101, 0.5))
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 10, BatchTokens: 10, Seed: 3, Epochs: 2})
	if err != nil {
		t.Fatal(err)
	}
	times := make([]int, 9)
	for range 20 {
		if _, err := next(l, 1); err != nil {
			t.Fatal(err)
		}
		times[l.Documents()[0].Document/2]++
	}
	if want := []int{4, 4, 4, 4, 0, 1, 1, 1, 1}; !slices.Equal(times, want) {
		t.Errorf("in two epochs pairs come %v times, want %v", times, want)
	}
	want := Packing{Documents: 20, Pairs: 10, WidePairs: 1, CutTokens: 11, Rows: 10, Positions: 100, RealTokens: 100,
		TargetTokens: 60}
	if p := l.Packing(); p != want || l.Steps() != 20 {
		t.Errorf("packing %+v in %d steps, want %+v in 20", p, l.Steps(), want)
	}
}

// TestPairsEvaluated: an evaluation has each pair that fits once, in the order of the dataset, however many
// rows a call has.
func TestPairsEvaluated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPairs(t, 90, 1, 1)
		o, micro := drawPairOptions(t)
		rows := o.BatchTokens / o.SequenceLen
		packed, want := fates(t, d, o)
		l, err := NewEvalLoader(d, EvalOptions{SequenceLen: o.SequenceLen, LongDocuments: o.LongDocuments, Cohorts: o.Cohorts,
			PromptTargets: o.PromptTargets})
		if err != nil {
			if len(packed) > 0 {
				t.Fatal(err)
			}
			return
		}
		for range 2 {
			var pairs []int
			for {
				into := batches(rows/micro, micro, o.SequenceLen)
				err := l.Next(t.Context(), into)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				pairs = append(pairs, checkPairs(t, d, into, l.Documents(), rows/max(o.Cohorts, 1))...)
			}
			if p := l.Packing(); !slices.Equal(pairs, packed) || p.WidePairs != want.WidePairs ||
				p.Pairs != want.Pairs+want.WidePairs || p.EmptyPairs != want.EmptyPairs || p.DroppedPairs != want.DroppedPairs {
				t.Fatalf("pairs %v of packing %+v, want %v of %+v", pairs, p, packed, want)
			}
			l.Reset()
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPairErrors(t *testing.T) {
	pair := func(n, prompt int) groupedSource {
		return groupedSource{[]Example{sided(1, n, prompt), sided(51, n, prompt)}, 2, 1}
	}
	for _, c := range []struct {
		source groupedSource
		o      LoaderOptions
		want   string
	}{
		{pair(5, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 16, LongDocuments: SplitLong},
			"overlong is split: half of an answer"},
		{pair(5, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 24, Cohorts: 2},
			"batch_tokens is 3 rows of sequence_len 8: 2 cohorts"},
		{pair(5, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 24, Cohorts: -2}, "cohorts is -2"},
		{pair(5, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 24, GroupsPerStep: -1}, "pairs_per_step is -1"},
		{groupedSource{[]Example{count(3)}, 1, 1}, LoaderOptions{SequenceLen: 8, BatchTokens: 24, GroupsPerStep: 2},
			"pairs_per_step is 2, and the datasets have no pairs"},
		{groupedSource{slices.Repeat([]Example{count(3)}, 3), 3, 1}, LoaderOptions{SequenceLen: 8, BatchTokens: 24},
			"the datasets have groups of 3 documents"},
		{pair(9, 8), LoaderOptions{SequenceLen: 8, BatchTokens: 16}, "no pair can be trained on: 1 pair left out: 1 with a " +
			"side that has no token that counts in its first 8; raise sequence_len"},
		{pair(9, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 16, LongDocuments: DropLong}, "no pair can be trained on: " +
			"1 pair left out: 1 with a side longer than sequence_len (8); raise sequence_len"},
		{pair(7, 2), LoaderOptions{SequenceLen: 8, BatchTokens: 16, Cohorts: 2}, "no pair can be trained on: 1 pair left " +
			"out: 1 longer than the rows of a step, or of a cohort's share of it; raise batch_tokens to two rows for each "},
		{pair(9, 9), LoaderOptions{SequenceLen: 8, BatchTokens: 16},
			"no token counts in the loss: the documents have prompts"},
	} {
		d, err := grouped(c.source)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewLoader(d, c.o); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	d, err := grouped(pair(5, 2), pair(6, 2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewEvalLoader(d, EvalOptions{SequenceLen: 8, LongDocuments: SplitLong}); err == nil {
		t.Error("an evaluation splits pairs")
	}
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 16, Epochs: 1})
	if err != nil {
		t.Fatal(err)
	}
	const want = "data cursor pair 2 is outside epoch 0, which has 2 pairs: the data are not those of the run"
	if err := l.Seek(Cursor{Row: 2}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestPairsTakeNoMemory: what steps and epochs of pairs take was reserved when the loader was made.
func TestPairsTakeNoMemory(t *testing.T) {
	const pairs = 20_000
	s := groupedSource{group: 2, weight: 1}
	for i := range 2 * pairs {
		s.examples = append(s.examples, sided(1, 3+i*7919%12, i*31%9))
	}
	s.weight = 1.5
	d, err := grouped(s)
	if err != nil {
		t.Fatal(err)
	}
	accounts := hostmem.New()
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 12, BatchTokens: 12 * 64, Seed: 1, Epochs: 3, Accounts: accounts})
	if err != nil {
		t.Fatal(err)
	}
	reserved, _ := accounts.Total()
	if p := l.Packing(); p.EmptyPairs == 0 || reserved > 24*pairs {
		t.Fatalf("%d bytes are reserved for packing %+v", reserved, p)
	}
	if n := testing.AllocsPerRun(1, func() { l.Steps() }); n > 0 { // a generator for each epoch, and its permutations
		t.Errorf("three epochs take %v allocations", n)
	}
	into := batches(4, 16, 12)
	if n := testing.AllocsPerRun(20, func() {
		if err := l.Next(t.Context(), into); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a step takes %v allocations", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := accounts.Total(); left != 0 {
		t.Errorf("%d bytes are still reserved", left)
	}
}
