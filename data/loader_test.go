package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hostmem"
)

// drawDataset makes documents whose tokens are all different, so that a token tells where it comes from.
func drawDataset(t *rapid.T, longest int) (*Dataset, []Example) {
	next := int32(1)
	examples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Example {
		n := rapid.IntRange(1, longest).Draw(t, "length")
		prompt := rapid.IntRange(0, n).Draw(t, "prompt")
		var e Example
		for i := range n {
			e.InputIDs = append(e.InputIDs, 0)
			e.Labels = append(e.Labels, int32(i-prompt)) // negative: ignored; the ids come below
		}
		return e
	}), 1, 40).Draw(t, "examples")
	for _, e := range examples {
		for i := range e.InputIDs {
			e.InputIDs[i] = next
			if e.Labels[i] < 0 {
				e.Labels[i] = Ignore
			} else {
				e.Labels[i] = next
			}
			next++
		}
	}
	d, err := NewDataset(examples)
	if err != nil {
		t.Fatal(err)
	}
	return d, examples
}

// wantTargets maps each token to the token that it must learn.
func wantTargets(examples []Example) map[int32]int32 {
	want := map[int32]int32{}
	for _, e := range examples {
		for i := range len(e.InputIDs) - 1 {
			if l := e.Labels[i+1]; l != Ignore {
				want[e.InputIDs[i]] = l
			}
		}
	}
	return want
}

// checkBatch checks what holds in every batch, and enters its tokens and targets.
func checkBatch(t *rapid.T, b MicroBatch, seen map[int32]int, targets map[int32]int32) {
	n := b.Sequences * b.SequenceLen
	for name, a := range map[string][]int32{"tokens": b.IDs, "targets": b.Targets, "positions": b.Positions,
		"document starts": b.DocStart, "document ends": b.DocEnd} {
		if len(a) != n {
			t.Fatalf("%d %s for %d positions", len(a), name, n)
		}
	}
	realTokens, targetTokens := 0, 0
	for i := range n {
		row := int32(i / b.SequenceLen * b.SequenceLen)
		start, end := b.DocStart[i], b.DocEnd[i]
		if start < row || start > int32(i) || end <= int32(i) || end > row+int32(b.SequenceLen) {
			t.Fatalf("position %d has document %d..%d in row %d", i, start, end, row)
		}
		if b.DocStart[start] != start || b.DocEnd[start] != end || b.DocStart[end-1] != start {
			t.Fatalf("document %d..%d disagrees with itself", start, end)
		}
		if b.IDs[i] == 0 { // padding: the documents have no token 0
			if b.Targets[i] != -1 || b.Positions[i] != 0 || start != int32(i) || end != int32(i)+1 {
				t.Fatalf("padding at %d has target %d, position %d, document %d..%d", i, b.Targets[i], b.Positions[i], start, end)
			}
			if next := i + 1; next%b.SequenceLen != 0 && b.IDs[next] != 0 {
				t.Fatalf("padding at %d is not at the end of its row", i)
			}
			continue
		}
		realTokens++
		seen[b.IDs[i]]++
		if b.Positions[i] != int32(i)-start {
			t.Fatalf("position of %d is %d in document %d..%d", i, b.Positions[i], start, end)
		}
		if start < int32(i) && b.IDs[i] != b.IDs[i-1]+1 {
			t.Fatalf("token %d follows %d", b.IDs[i], b.IDs[i-1])
		}
		if b.Targets[i] >= 0 {
			targetTokens++
			targets[b.IDs[i]] = b.Targets[i]
		}
	}
	if realTokens != b.RealTokens || targetTokens != b.TargetTokens {
		t.Fatalf("counts are %d and %d, not %d and %d", b.RealTokens, b.TargetTokens, realTokens, targetTokens)
	}
}

// drawOptions are options with the rows of a micro-batch.
func drawOptions(t *rapid.T) (o LoaderOptions, micro int) {
	micro = rapid.IntRange(1, 3).Draw(t, "micro-batch")
	o = LoaderOptions{
		SequenceLen: rapid.IntRange(2, 70).Draw(t, "sequence length"),
		Seed:        rapid.Uint64().Draw(t, "seed"),
	}
	o.BatchTokens = o.SequenceLen * micro * rapid.IntRange(1, 3).Draw(t, "micro-batches")
	return o, micro
}

// example is a document of a dataset.
func example(t interface{ Fatal(...any) }, d *Dataset, i int) Example {
	e, err := d.Example(i)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// batches are n micro-batches in memory of their own.
func batches(n, sequences, sequenceLen int) []MicroBatch {
	return NewBatches(make([]byte, batch.Bytes(n*sequences*sequenceLen)), n, sequences, sequenceLen)
}

// next returns the next step of a loader, in memory of its own and in micro-batches of that number of rows.
func next(l *Loader, micro int) ([]MicroBatch, error) {
	into := batches(l.stepRows()/micro, micro, l.o.SequenceLen)
	return into, l.Next(context.Background(), into)
}

// TestEpochLaw: over some epochs each token comes once per epoch, with its own target, and every target counts.
func TestEpochLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, examples := drawDataset(t, 150)
		o, micro := drawOptions(t)
		o.Epochs = rapid.IntRange(1, 3).Draw(t, "epochs")
		l, err := NewLoader(d, o)
		if d.TargetTokens() == 0 {
			if err == nil {
				t.Fatal("data without targets are accepted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		seen, targets := map[int32]int{}, map[int32]int32{}
		steps := 0
		for {
			batches, err := next(l, micro)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			steps++
			for _, b := range batches {
				checkBatch(t, b, seen, targets)
			}
		}
		if steps != l.Steps() {
			t.Fatalf("%d steps, %d foretold", steps, l.Steps())
		}
		if len(seen) != int(d.Tokens()) {
			t.Fatalf("%d tokens of %d", len(seen), d.Tokens())
		}
		for id, n := range seen {
			if n != o.Epochs {
				t.Fatalf("token %d came %d times in %d epochs", id, n, o.Epochs)
			}
		}
		want := wantTargets(examples)
		if diff := cmp.Diff(want, targets); diff != "" {
			t.Fatal(diff)
		}
		if p := l.Packing(); p.RealTokens != d.Tokens() || p.TargetTokens != int64(len(want)) || d.TargetTokens() != p.TargetTokens ||
			p.Documents != d.Len() || p.Efficiency() <= 0 || p.Efficiency() > 1 {
			t.Fatalf("packing %+v of %d tokens, %d targets", p, d.Tokens(), len(want))
		}
	})
}

// TestResumeLaw: a loader that seeks to a cursor, also one read back from text, continues with the same batches.
func TestResumeLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, _ := drawDataset(t, 100)
		o, micro := drawOptions(t)
		if d.TargetTokens() == 0 {
			t.Skip("no targets")
		}
		a, err := NewLoader(d, o)
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
		if err := b.Seek(a.Cursor()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			x, err := next(a, micro)
			if err != nil {
				t.Fatal(err)
			}
			y, err := next(b, micro)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(x, y); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// TestRowsDoNotDependOnTheStep: the order of rows is the same however many a step takes, so that batch_tokens and the
// micro-batch may change on resume without losing data.
func TestRowsDoNotDependOnTheStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, _ := drawDataset(t, 60)
		if d.TargetTokens() == 0 {
			t.Skip("no targets")
		}
		stream := func(micro, micros int) []int32 {
			l, err := NewLoader(d, LoaderOptions{SequenceLen: 32, BatchTokens: 32 * micro * micros, Seed: 7})
			if err != nil {
				t.Fatal(err)
			}
			var tokens []int32
			for len(tokens) < 32*24 {
				batches, err := next(l, micro)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range batches {
					tokens = append(tokens, b.IDs...)
				}
			}
			return tokens[:32*24]
		}
		if !slices.Equal(stream(1, 1), stream(3, 2)) {
			t.Fatal("the rows differ")
		}
	})
}

func TestEvalLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, examples := drawDataset(t, 150)
		if d.TargetTokens() == 0 {
			t.Skip("no targets")
		}
		sequenceLen, micro := rapid.IntRange(2, 70).Draw(t, "sequence length"), rapid.IntRange(1, 4).Draw(t, "micro-batch")
		l, err := NewEvalLoader(d, EvalOptions{SequenceLen: sequenceLen})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			seen, targets := map[int32]int{}, map[int32]int32{}
			into := batches(2, micro, sequenceLen)
			for range ceilDiv(l.Rows(), 2*micro) {
				if err := l.Next(t.Context(), into); err != nil {
					t.Fatal(err)
				}
				checkBatch(t, into[0], seen, targets)
				checkBatch(t, into[1], seen, targets)
			}
			if err := l.Next(t.Context(), into); err != io.EOF {
				t.Fatalf("after the last: %v", err)
			}
			if len(seen) != int(d.Tokens()) {
				t.Fatalf("%d tokens of %d", len(seen), d.Tokens())
			}
			if diff := cmp.Diff(wantTargets(examples), targets); diff != "" {
				t.Fatal(diff)
			}
			l.Reset()
		}
	})
}

func count(n int) Example {
	e := Example{InputIDs: make([]int32, n)}
	for i := range e.InputIDs {
		e.InputIDs[i] = int32(i + 1)
	}
	e.Labels = slices.Clone(e.InputIDs)
	return e
}

// TestBatch spells one batch out: two documents in a row, and one that is split.
func TestBatch(t *testing.T) {
	d, err := NewDataset([]Example{
		{InputIDs: []int32{1, 2, 3}, Labels: []int32{Ignore, Ignore, 3}},
		{InputIDs: []int32{4, 5}, Labels: []int32{4, 5}},
		{InputIDs: []int32{11, 12, 13, 14, 15, 16, 17, 18}, Labels: []int32{11, 12, 13, 14, 15, 16, 17, 18}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewEvalLoader(d, EvalOptions{SequenceLen: 6})
	if err != nil {
		t.Fatal(err)
	}
	into := batches(1, 3, 6)
	if err := l.Next(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	got := into[0]
	want := MicroBatch{
		Sequences: 3, SequenceLen: 6, RealTokens: 13, TargetTokens: 9,
		Micro: batch.Micro{
			IDs:       []int32{11, 12, 13, 14, 15, 16, 1, 2, 3, 4, 5, 0, 17, 18, 0, 0, 0, 0},
			Targets:   []int32{12, 13, 14, 15, 16, 17, -1, 3, -1, 5, -1, -1, 18, -1, -1, -1, -1, -1},
			Positions: []int32{0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0, 0},
			DocStart:  []int32{0, 0, 0, 0, 0, 0, 6, 6, 6, 9, 9, 11, 12, 12, 14, 15, 16, 17},
			DocEnd:    []int32{6, 6, 6, 6, 6, 6, 9, 9, 9, 11, 11, 12, 14, 14, 15, 16, 17, 18},
			Weights:   slices.Repeat([]float32{1}, 18),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNewBatch(t *testing.T) {
	b, err := NewBatch([]Example{
		{InputIDs: []int32{7, 8, 9}, Labels: []int32{5, 6, Ignore}}, // labels need not be the tokens
		{InputIDs: []int32{1}, Labels: []int32{1}},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := MicroBatch{
		Sequences: 2, SequenceLen: 3, RealTokens: 4, TargetTokens: 1,
		Micro: batch.Micro{IDs: []int32{7, 8, 9, 1, 0, 0}, Targets: []int32{6, -1, -1, -1, -1, -1}, Positions: []int32{0, 1, 2, 0, 0, 0},
			DocStart: []int32{0, 0, 0, 3, 4, 5}, DocEnd: []int32{3, 3, 3, 4, 5, 6}, Weights: slices.Repeat([]float32{1}, 6)},
	}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Error(diff)
	}
	for want, examples := range map[string][]Example{
		"0 sequences":  {},
		"2 labels":     {{InputIDs: []int32{1}, Labels: []int32{1, 2}}},
		"0 tokens":     {{}},
		"label -5":     {{InputIDs: []int32{1}, Labels: []int32{-5}}},
		"token -1":     {{InputIDs: []int32{-1}, Labels: []int32{1}}},
		"has 5 tokens": {count(5)},
	} {
		if _, err := NewBatch(examples, 4); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", examples, err, want)
		}
	}
}

func TestShuffle(t *testing.T) {
	var examples []Example
	for i := range 200 {
		examples = append(examples, Example{InputIDs: []int32{int32(i), int32(i)}, Labels: []int32{int32(i), int32(i)}})
	}
	d, err := NewDataset(examples)
	if err != nil {
		t.Fatal(err)
	}
	epochs := func(seed uint64) (a, b []int32) {
		l, err := NewLoader(d, LoaderOptions{SequenceLen: 2, BatchTokens: 400, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for _, into := range []*[]int32{&a, &b} {
			batches, err := next(l, 200)
			if err != nil {
				t.Fatal(err)
			}
			*into = batches[0].IDs
		}
		return a, b
	}
	a0, a1 := epochs(1)
	b0, b1 := epochs(1)
	c0, _ := epochs(2)
	if !slices.Equal(a0, b0) || !slices.Equal(a1, b1) {
		t.Error("one seed gives two orders")
	}
	if slices.Equal(a0, a1) || slices.Equal(a0, c0) || slices.IsSorted(a0) {
		t.Error("epochs or seeds share an order")
	}
}

func TestLongDocuments(t *testing.T) {
	d, err := NewDataset([]Example{count(3), count(11), count(8)})
	if err != nil {
		t.Fatal(err)
	}
	o := LoaderOptions{SequenceLen: 8, BatchTokens: 8, LongDocuments: DropLong}
	l, err := NewLoader(d, o)
	if err != nil {
		t.Fatal(err)
	}
	if p, want := l.Packing(), (Packing{Documents: 2, Dropped: 1, CutTokens: 11, Rows: 2, Positions: 16, RealTokens: 11, TargetTokens: 9}); p != want {
		t.Errorf("packing %+v, want %+v", p, want)
	}
	o.LongDocuments = SplitLong
	if l, err = NewLoader(d, o); err != nil {
		t.Fatal(err)
	}
	if p, want := l.Packing(), (Packing{Documents: 3, Split: 1, Rows: 3, Positions: 24, RealTokens: 22, TargetTokens: 19}); p != want {
		t.Errorf("packing %+v, want %+v", p, want)
	}
	o.LongDocuments = TruncateLong
	if l, err = NewLoader(d, o); err != nil {
		t.Fatal(err)
	}
	want := Packing{Documents: 3, Truncated: 1, CutTokens: 3, Rows: 3, Positions: 24, RealTokens: 19, TargetTokens: 16}
	if p := l.Packing(); p != want {
		t.Errorf("packing %+v, want %+v", p, want)
	}
}

// sourcesOf are documents of these lengths, a source for each type.
func sourcesOf(t *testing.T, lengths []int, kinds ...Type) *Dataset {
	t.Helper()
	d := &Dataset{accounts: hostmem.New()}
	for _, kind := range kinds {
		b := newBuilder()
		for _, n := range lengths {
			if err := b.append(count(n)); err != nil {
				t.Fatal(err)
			}
		}
		p, err := b.finishInMemory(d.accounts)
		if err != nil {
			t.Fatal(err)
		}
		d.add(p, kind, 1)
	}
	if err := d.seal(); err != nil {
		t.Fatal(err)
	}
	return d
}

// With auto the documents of each entry have the treatment of their type: text is split, all else is truncated.
func TestLongDocumentsByType(t *testing.T) {
	d := sourcesOf(t, []int{3, 20, 8, 17}, Messages, Text, PromptResponse, Alpaca, ShareGPT, Text)
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 8, LongDocuments: AutoLong})
	if err != nil {
		t.Fatal(err)
	}
	p := l.Packing()
	if p.Split != 4 || p.Truncated != 8 || p.Dropped != 0 || p.CutTokens != 4*(12+9) || p.RealTokens != 2*48+4*27 {
		t.Errorf("%+v", p)
	}
	if got, want := p.Cut(d.Len(), 8), "12 of 24 documents longer than sequence_len (8): 4 split, 8 truncated, 84 tokens "+
		"left out"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// The pieces are those of the documents, each cut as its type says.
	var lengths []int64
	for i := range l.pieces.n {
		piece := l.pieces.find(int32(i))
		lengths = append(lengths, piece.length)
		if int64(l.pieces.length(int32(i))) != piece.length {
			t.Errorf("piece %d: %d and %d tokens", i, l.pieces.length(int32(i)), piece.length)
		}
	}
	cut, split := []int64{3, 8, 8, 8}, []int64{3, 8, 8, 4, 8, 8, 8, 1}
	if want := slices.Concat(cut, split, cut, cut, cut, split); !slices.Equal(lengths, want) {
		t.Errorf("pieces of %v tokens, want %v", lengths, want)
	}
	// A part of the documents keeps their types.
	training, held, err := d.Split(0.5, 1)
	if err != nil {
		t.Fatal(err)
	}
	both := Packing{}
	for _, part := range []*Dataset{training, held} {
		l, err := NewLoader(part, LoaderOptions{SequenceLen: 8, BatchTokens: 8, LongDocuments: AutoLong})
		if err != nil {
			t.Fatal(err)
		}
		both.Split, both.Truncated = both.Split+l.Packing().Split, both.Truncated+l.Packing().Truncated
	}
	if both.Split != 4 || both.Truncated != 8 {
		t.Errorf("of the parts: %+v", both)
	}
}

// Where prompts fill the rows, the error counts the documents that were cut off.
func TestPromptsFillRows(t *testing.T) {
	var all []Example
	for range 40 {
		e := count(40)
		for i := range 35 {
			e.Labels[i] = Ignore
		}
		all = append(all, e)
	}
	d, err := NewDataset(all)
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewLoader(d, LoaderOptions{SequenceLen: 32, BatchTokens: 32, LongDocuments: TruncateLong})
	const want = "no token counts in the loss: 40 of 40 documents longer than sequence_len (32): truncated, 320 tokens left " +
		"out, and what is left has prompts alone; raise sequence_len"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestLoaderErrors(t *testing.T) {
	d, err := NewDataset([]Example{count(9)})
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]LoaderOptions{
		"sequence_len is 0":        {BatchTokens: 8},
		"sequence_len is 33554432": {SequenceLen: 1 << 25, BatchTokens: 8},
		"batch_tokens is 12":       {SequenceLen: 8, BatchTokens: 12},
		"batch_tokens is 0":        {SequenceLen: 8},
		"epochs is -1":             {SequenceLen: 8, BatchTokens: 8, Epochs: -1},
		`overlong is "x"`:          {SequenceLen: 8, BatchTokens: 8, LongDocuments: "x"},
		"no token counts in the loss: 1 of 1 document longer than sequence_len (8): dropped, 9 tokens left out": {
			SequenceLen: 8, BatchTokens: 8, LongDocuments: DropLong},
	} {
		if _, err := NewLoader(d, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", o, err, want)
		}
	}
	if _, err := NewEvalLoader(d, EvalOptions{SequenceLen: 1}); err == nil {
		t.Error("an eval loader with rows of one position")
	}
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 8, Epochs: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Cursor{{Epoch: -1}, {Row: -1}, {Row: 2}, {Epoch: 3}, {Epoch: 2, Row: 1}} {
		if err := l.Seek(c); err == nil {
			t.Errorf("cursor %+v is accepted", c)
		}
	}
	if err := l.Seek(Cursor{Epoch: 2}); err != nil {
		t.Errorf("the end: %v", err)
	}
	if _, err := next(l, 1); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Next(ctx, batches(1, 1, 8)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestNewDatasetErrors(t *testing.T) {
	for want, e := range map[string]Example{
		"no tokens":   {},
		"1 labels":    {InputIDs: []int32{1, 2}, Labels: []int32{1}},
		"label 7":     {InputIDs: []int32{1}, Labels: []int32{7}},
		"token -3 at": {InputIDs: []int32{-3}, Labels: []int32{-3}},
	} {
		if _, err := NewDataset([]Example{e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", e, err, want)
		}
	}
}

func BenchmarkPackEpoch(b *testing.B) {
	var examples []Example
	for i := range 20000 {
		examples = append(examples, count(1+i*7919%700))
	}
	d, err := NewDataset(examples)
	if err != nil {
		b.Fatal(err)
	}
	accounts := hostmem.New()
	ps, packing, err := newPieces(d, 2048, SplitLong, accounts)
	if err != nil {
		b.Fatal(err)
	}
	o, err := newOrder(ps, int64(ps.n), packing.RealTokens, accounts)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		o.epoch(1, 0)
		b.ReportMetric(float64(d.Tokens())/float64(o.rows*2048), "efficiency")
	}
}

func ExampleLoader() {
	d, _ := NewDataset([]Example{{InputIDs: []int32{1, 2, 3}, Labels: []int32{Ignore, 2, 3}}})
	l, _ := NewLoader(d, LoaderOptions{SequenceLen: 4, BatchTokens: 4, Epochs: 1})
	batches := NewBatches(make([]byte, batch.Bytes(4)), 1, 1, 4)
	_ = l.Next(context.Background(), batches)
	fmt.Println(batches[0].IDs, batches[0].Targets)
	// Output: [1 2 3 0] [2 3 -1 -1]
}
