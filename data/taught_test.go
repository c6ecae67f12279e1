package data

import (
	"fmt"
	"strings"
	"testing"
)

// topOf reads what a teacher says of a document, with k tokens at each place.
func topOf(t *testing.T, d *Dataset, i, k int) string {
	t.Helper()
	n := k * int(d.length(i)-1)
	ids, logProbs := make([]int32, n), make([]float32, n)
	if err := d.Top(i, k, ids, logProbs); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(ids, logProbs)
}

// TestTaught: the teacher's tokens are of the token in whose place they are, from the cache as from memory, and where
// more are asked for; a token without any is no target, nor is one that labels leave out.
func TestTaught(t *testing.T) {
	s := Source{Type: Distill, Path: write(t, t.TempDir(), "a.jsonl", `{"input_ids": [10, 11, 12], `+
		`"target_token_ids": [[1, 2], [11, 7], [3]], "target_logprobs": [[0, -9], [-0.5, -2], [0]]}`+"\n"+
		`{"input_ids": [20, 21, 22, 23], "target_token_ids": [[], [5, 6], [], [9, 8]], `+
		`"target_logprobs": [[], [-1, -1.5], [], [-0.125, -4]], "labels": [-100, -100, 22, 23]}`)}
	cache := t.TempDir()
	for _, dir := range []string{"", cache, cache} {
		d, err := prepare(t, s, Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if d.TopK() != 2 {
			t.Errorf("lists have %d tokens", d.TopK())
		}
		for i, want := range []string{"[10 11 12] [-100 11 12]", "[20 21 22 23] [-100 -100 -100 23]"} {
			e, err := d.Example(i)
			if got := fmt.Sprint(e.InputIDs, e.Labels); err != nil || got != want {
				t.Errorf("document %d: %s, %v, want %s", i, got, err, want)
			}
		}
		for _, x := range []struct {
			document, k int
			want        string
		}{{0, 2, "[11 7 3 -1] [-0.5 -2 0 0]"}, {1, 2, "[5 6 -1 -1 9 8] [-1 -1.5 0 0 -0.125 -4]"},
			{0, 3, "[11 7 -1 3 -1 -1] [-0.5 -2 0 0 0 0]"}} {
			if got := topOf(t, d, x.document, x.k); got != x.want {
				t.Errorf("document %d, %d tokens: %s, want %s", x.document, x.k, got, x.want)
			}
		}
		if err := d.Top(0, 1, make([]int32, 2), make([]float32, 2)); err == nil {
			t.Error("fewer tokens than there are can be read")
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBadTeachers: lists that are not one for each token, or not of distributions over the vocabulary, and rows that
// teach nothing are refused in a line.
func TestBadTeachers(t *testing.T) {
	for _, c := range []struct{ row, want string }{
		{`"target_token_ids": [[1]], "target_logprobs": [[0]]`, `field "input_ids" is missing`},
		{`"input_ids": [1, 2], "target_logprobs": [[], [0]]`, `field "target_token_ids" is missing`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [1]]`, `field "target_logprobs" is missing`},
		{`"input_ids": [1, 2], "target_token_ids": [[1]], "target_logprobs": [[], [0]]`,
			`field "target_token_ids" has 1 lists for 2 tokens of input_ids`},
		{`"input_ids": [1, 2], "target_token_ids": [1, 2], "target_logprobs": [[], [0]]`,
			`field "target_token_ids": item 0 is a number, and must be a list of numbers`},
		{`"input_ids": [1, 2], "target_token_ids": 7, "target_logprobs": [[], [0]]`,
			`field "target_token_ids" is no list of lists, but a number`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [1, 2]], "target_logprobs": [[], [0]]`,
			`field "target_logprobs" has 1 numbers at 1, and target_token_ids has 2 tokens there`},
		{`"input_ids": [1, 2], "target_token_ids": [[], []], "target_logprobs": [[], []]`,
			`field "target_token_ids" has 0 tokens at a place: there must be 1 to 1024`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [1.5]], "target_logprobs": [[], [0]]`,
			`field "target_token_ids" has 1.5, which is no token`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [-1]], "target_logprobs": [[], [0]]`,
			`field "target_token_ids" has -1, which is no token`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [257]], "target_logprobs": [[], [0]]`,
			`target_token_ids has token 257 at 1, and the vocabulary has 257: the teacher has another tokenizer`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4, 4]], "target_logprobs": [[], [-1, -1]]`,
			`target_token_ids has token 4 twice at 1`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0.5]]`,
			`field "target_logprobs" has 0.5 at 1: a log-probability is not above 0`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4, 5]], "target_logprobs": [[], [-0.1, -0.2]]`,
			`field "target_logprobs" has probabilities at 1 that add up to 1.724, more than 1`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [null]]`,
			`field "target_logprobs": number 0 is null`},
		{`"input_ids": [1, 2], "target_token_ids": [[4], []], "target_logprobs": [[0], []]`,
			`no token after the first counts`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0]], "labels": [1, -100]`,
			`no token after the first counts`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0]], "labels": [1]`,
			`field "labels" has 1 numbers for 2 tokens of input_ids`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0]], "labels": [1, 3]`,
			`field "labels" has 3 at 1, which is neither the token there nor -100`},
		{`"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0]], "weights": [0, 1]`,
			`the row has "weights", which type distill does not read`},
	} {
		s := Source{Type: Distill, Path: write(t, t.TempDir(), "a.jsonl", "{"+c.row+"}")}
		_, err := prepare(t, s, Options{})
		if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
	two := `{"input_ids": [1, 2], "target_token_ids": [[], [4]], "target_logprobs": [[], [0]]}` + "\n" +
		`{"input_ids": [1, 2], "target_token_ids": [[], [4, 5]], "target_logprobs": [[], [-1, -1]]}`
	_, err := prepare(t, Source{Type: Distill, Path: write(t, t.TempDir(), "a.jsonl", two)}, Options{})
	if err == nil || !strings.Contains(err.Error(),
		"its longest list has 2 tokens of the teacher, and that of the first row has 1") {
		t.Errorf("lists of two lengths: %v", err)
	}
}

// FuzzTaught reads bytes as a row of type distill: what is accepted has a target, and lists of tokens of the
// vocabulary.
func FuzzTaught(f *testing.F) {
	f.Add(`{"input_ids": [1, 2], "target_token_ids": [[], [4, 9]], "target_logprobs": [[], [-0.5, -2]], ` +
		`"labels": [-100, 2]}`)
	f.Add(`{"input_ids": "[1, 2]", "target_token_ids": "[[3], [4]]", "target_logprobs": [[0], ["-1"]]}`)
	f.Add(`{"input_ids": [1, 3e38], "target_token_ids": [[1e300], {}], "target_logprobs": [[-1e308], []]}`)
	s := rowReader{Source: Source{Type: Distill}.withDefaults()}
	f.Fuzz(func(t *testing.T, text string) {
		all := acceptedRow(t, s, text)
		if all == nil {
			return
		}
		b := newBuilder()
		if err := b.appendDocument(all[0]); err != nil {
			t.Fatal(err)
		}
		if k := all[0].has.topK(); k < 1 || k > MaxTopK || !all[0].has.areKnown() {
			t.Fatalf("columns %x", all[0].has)
		}
	})
}
