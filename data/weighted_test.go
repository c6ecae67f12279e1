package data

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/objective"
)

// TestWeightedTokens: a token's weight is at the position that predicts it, in every piece of a split document and from
// the cache as from memory; a token of weight 0 is no target.
func TestWeightedTokens(t *testing.T) {
	s := Source{Type: Weighted, Path: write(t, t.TempDir(), "a.jsonl",
		`{"input_ids": [10, 11, 12, 13, 14], "weights": [9, 0, 0.5, -2, 3], "ref_logprobs": [0, 0, -1, -2, -3.5]}`)}
	cache := t.TempDir()
	for _, dir := range []string{"", cache, cache} {
		d, err := prepare(t, s, Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := d.Example(0); err != nil || fmt.Sprint(e.Labels) != fmt.Sprint([]int32{Ignore, Ignore, 12, 13, 14}) {
			t.Errorf("labels %v, %v", e.Labels, err)
		}
		for c, want := range map[TokenColumn][]float32{TokenWeights: {9, 0, 0.5, -2, 3}, TokenLogProbs: nil,
			TokenReferences: {0, 0, -1, -2, -3.5}} {
			if got, err := d.Column(0, c); err != nil || cmp.Diff(want, got) != "" {
				t.Errorf("column %d: %v, %v", c, got, err)
			}
		}
		for length, want := range map[int]string{8: "[-1 12 13 14 -1 -1 -1 -1] [1 0.5 -2 3 1 1 1 1]",
			4: "[-1 12 13 14] [1 0.5 -2 3]"} {
			l, err := NewLoader(d, LoaderOptions{SequenceLen: length, BatchTokens: length, Epochs: 1, LongDocuments: SplitLong})
			if err != nil {
				t.Fatal(err)
			}
			var rows []string // a piece after a cut has no target here
			for range (5 + length - 1) / length {
				batches, err := next(l, 1)
				if err != nil {
					t.Fatal(err)
				}
				rows = append(rows, fmt.Sprint(batches[0].Targets, batches[0].Weights))
			}
			if !slices.Contains(rows, want) {
				t.Errorf("sequence_len %d: %s, want %s", length, rows, want)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A mask and an advantage are weights.
	s.Path = write(t, t.TempDir(), "a.jsonl",
		`{"input_ids": [10, 11, 12], "completion_mask": [false, 0, 1], "advantage": -0.5}`)
	d, err := prepare(t, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Column(0, TokenWeights); err != nil || cmp.Diff([]float32{0, 0, -0.5}, got) != "" ||
		d.TargetTokens() != 1 {
		t.Errorf("%v, %v, %d targets", got, err, d.TargetTokens())
	}
}

// TestBadWeights: numbers that are not one finite fp32 for each token, tokens that the vocabulary does not have, and
// rows that teach nothing are refused in a line.
func TestBadWeights(t *testing.T) {
	for _, c := range []struct{ row, want string }{
		{`"weights": [1]`, `field "input_ids" is missing`},
		{`"input_ids": [1, 2]`, `field "weights" is missing`},
		{`"input_ids": [], "weights": [1]`, `field "input_ids" is no list of numbers, but a list`},
		{`"input_ids": [1, 2.5], "weights": [0, 1]`, `field "input_ids" has 2.5, which is no token`},
		{`"input_ids": [1, -2], "weights": [0, 1]`, `field "input_ids" has -2, which is no token`},
		{`"input_ids": [1, 99999], "weights": [0, 1]`, `token 1 of input_ids is 99999, and the vocabulary has 257`},
		{`"input_ids": [1, 2], "weights": [0, 1, 1]`, `field "weights" has 3 numbers for 2 tokens of input_ids`},
		{`"input_ids": [1, 2], "weights": [0, null]`, `field "weights": number 1 is null`},
		{`"input_ids": [1, 2], "weights": [0, "x"]`, `field "weights": number 1 is a text`},
		{`"input_ids": [1, 2], "weights": [0, 1e39]`, `field "weights" has 1e+39 at 1, which is too large for 32 bits`},
		{`"input_ids": [1, 2], "weights": [0, NaN]`,
			`invalid character 'N' looking for beginning of value: NaN, Infinity and None are not JSON`},
		{`"input_ids": [1, 2], "weights": [7, 0]`, `no token after the first has a weight other than 0`},
		{`"input_ids": [1, 2], "weights": [0, 1], "logprobs": [0]`, `field "logprobs" has 1 numbers for 2 tokens`},
		{`"input_ids": [1, 2], "weights": [0, 1], "advantage": 1`, `the row has weights, and completion_mask or advantage`},
		{`"input_ids": [1, 2], "completion_mask": [0, 1]`, `completion_mask and advantage go together`},
		{`"input_ids": [1, 2], "completion_mask": [0, 2], "advantage": 1`,
			`field "completion_mask" has 2: a token is in it (1) or not (0)`},
		{`"input_ids": [1, 2], "weights": [0, 1], "advantages": [0, 1]`,
			`the row has "advantages", which type weighted does not read`},
		{`"input_ids": [1, 2], "weights": [0, 1], "system": "s"`, `the row has "system", which type weighted does not read`},
	} {
		s := Source{Type: Weighted, Path: write(t, t.TempDir(), "a.jsonl", "{"+c.row+"}")}
		_, err := prepare(t, s, Options{})
		if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
	two := `{"input_ids": [1, 2], "weights": [0, 1]}` + "\n" +
		`{"input_ids": [1, 2], "weights": [0, 1], "logprobs": [0, 0]}`
	_, err := prepare(t, Source{Type: Weighted, Path: write(t, t.TempDir(), "a.jsonl", two)}, Options{})
	if err == nil || !strings.Contains(err.Error(),
		"it has other numbers than the rows before it: all rows of an entry must have the same keys") {
		t.Errorf("rows of two kinds: %v", err)
	}
}

// TestSidesOfSteps: a loader says of each answer with a label whether it is desirable.
func TestSidesOfSteps(t *testing.T) {
	s := Source{Type: Binary, Path: write(t, t.TempDir(), "a.jsonl", `{"prompt": "q", "completion": "b", "label": true}
{"prompt": "q", "completion": "long", "label": false}`)}
	d, err := prepare(t, s, Options{Tokenizer: tokenizer.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 32, BatchTokens: 32, Epochs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next(l, 1); err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Documents() {
		if want := []objective.Side{objective.Desirable, objective.Undesirable}[p.Document]; p.Side != want {
			t.Errorf("document %d has side %d, want %d", p.Document, p.Side, want)
		}
	}
	if len(l.Documents()) != 2 {
		t.Errorf("%d documents", len(l.Documents()))
	}
}

// FuzzWeighted reads bytes as a row of tokens: what is accepted has tokens of the vocabulary, a target, and finite
// weights.
func FuzzWeighted(f *testing.F) {
	f.Add(`{"input_ids": [1, 2], "weights": [0, 1], "logprobs": [0, -1.5]}`)
	f.Add(`{"input_ids": "[1, 2]", "completion_mask": [false, 1], "advantage": "0.5"}`)
	f.Add(`{"input_ids": [1, 3e38], "weights": [0, 1e39]}`)
	s := rowReader{Source: Source{Type: Weighted}.withDefaults()}
	f.Fuzz(func(t *testing.T, text string) {
		all := acceptedRow(t, s, text)
		if all == nil {
			return
		}
		if err := newBuilder().appendDocument(all[0]); err != nil {
			t.Fatal(err)
		}
		isTarget := func(l int32) bool { return l != Ignore && int(l) < tokenizer.Bytes().VocabSize() }
		if !slices.ContainsFunc(all[0].Labels[1:], isTarget) {
			t.Fatalf("labels %v", all[0].Labels)
		}
		for _, w := range all[0].columns[TokenWeights] {
			if w-w != 0 {
				t.Fatalf("weights %v", all[0].columns[TokenWeights])
			}
		}
	})
}
