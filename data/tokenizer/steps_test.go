package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestSteps compares each normalizer, pre-tokenizer and decoder with what `tokenizers` made of the same texts
// (testdata/make_steps.py).
func TestSteps(t *testing.T) {
	var golden struct {
		Texts       []string   `json:"texts"`
		Tokens      [][]string `json:"tokens"`
		Normalizers []struct {
			Step json.RawMessage `json:"step"`
			Out  []string        `json:"out"`
		} `json:"normalizers"`
		PreTokenizers []struct {
			Step json.RawMessage `json:"step"`
			Out  [][]string      `json:"out"`
		} `json:"pre_tokenizers"`
		Decoders []struct {
			Step json.RawMessage `json:"step"`
			Out  []string        `json:"out"`
		} `json:"decoders"`
	}
	readJSON(t, "steps.json", &golden)
	for _, g := range golden.Normalizers {
		steps, err := readNormalizer(g.Step)
		if err != nil {
			t.Errorf("%.200s: %v", g.Step, err)
			continue
		}
		tok := &Pipeline{normalizers: steps.list}
		for i, text := range golden.Texts {
			if got := tok.normalize(text); got != g.Out[i] {
				t.Errorf("%.200s: %q\n got %q\nwant %q", g.Step, text, got, g.Out[i])
			}
		}
	}
	for _, g := range golden.PreTokenizers {
		pre := &preTokenizer{}
		if err := pre.read(g.Step); err != nil {
			t.Errorf("%s: %v", g.Step, err)
			continue
		}
		if pre.byteLevel {
			pre.steps = append(pre.steps, spellBytes{})
		}
		for i, text := range golden.Texts {
			if got := chain(pre.steps, text); !slices.Equal(got, g.Out[i]) {
				t.Errorf("%s: %q\n got %q\nwant %q", g.Step, text, got, g.Out[i])
			}
		}
	}
	for _, g := range golden.Decoders {
		tok := &Pipeline{}
		if err := tok.addDecoder(g.Step); err != nil {
			t.Errorf("%s: %v", g.Step, err)
			continue
		}
		for i, tokens := range golden.Tokens {
			tokens = slices.Clone(tokens)
			for _, d := range tok.decoders {
				tokens = d.decode(tokens)
			}
			if got := strings.Join(tokens, ""); got != g.Out[i] {
				t.Errorf("%s: %q\n got %q\nwant %q", g.Step, golden.Tokens[i], got, g.Out[i])
			}
		}
	}
}

// chain runs the steps of a pre-tokenizer.
func chain(steps []splitter, text string) []string {
	words := []word{{text, true}}
	if text == "" {
		words = nil
	}
	for _, s := range steps {
		var next []word
		for _, w := range words {
			s.split(w, func(w word) { next = append(next, w) })
		}
		words = next
	}
	var out []string
	for _, w := range words {
		out = append(out, w.text)
	}
	return out
}

// TestHostileExpression runs expressions that take forever in an engine that only backtracks.
func TestHostileExpression(t *testing.T) {
	text := strings.Repeat("a", 20000)
	for _, expr := range []string{"(?:a|a)+b", "(?:a+)+b", "a+a+a+a+b", "(?:a|aa)+$b", "(?:a+?)+?b", "(?:(?:a{1,3})+)+b|a{1,2}c"} {
		x, err := compileExpression(expr)
		if err != nil {
			t.Fatal(err)
		}
		var m memo
		if start, _ := x.next(text, 0, &m); start >= 0 {
			t.Errorf("%s matches", expr)
		}
		if limit := 1000 * len(text); m.steps > limit {
			t.Errorf("%s took %d steps, more than %d", expr, m.steps, limit)
		}
	}
}

// TestExpressionMemory checks that what a search remembers changes nothing, by remembering from the first step on.
func TestExpressionMemory(t *testing.T) {
	text := strings.Repeat("foo barbaz 12345  x\n\n ab'll abcab ", 3)
	for expr := range scanners {
		x, err := compileExpression(expr)
		if err != nil {
			t.Fatal(err)
		}
		var forgets memo
		remembers := memo{failed: make([]uint64, (x.branches+63)/64*(len(text)+1))}
		for i := 0; i < len(text); {
			a, b := x.next(text, i, &forgets)
			c, d := x.next(text, i, &remembers)
			if a != c || b != d {
				t.Fatalf("%s at %d: %d-%d, with memory %d-%d", expr, i, a, b, c, d)
			}
			if a < 0 {
				break
			}
			i = b
		}
	}
}

// A text that the normalizer makes longer is measured without making all of it, and where characters of several bytes
// are cut nowhere.
func TestExceeds(t *testing.T) {
	steps, err := readNormalizer(json.RawMessage(`{"type": "Sequence", "normalizers": [{"type": "NFKC"}, ` +
		`{"type": "Replace", "pattern": {"String": "é"}, "content": "` + strings.Repeat("x", 200) + `"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tok := &Pipeline{normalizers: steps.list, growth: steps.growth}
	for _, text := range []string{strings.Repeat("é", 100_000), strings.Repeat("a", 300_000),
		strings.Repeat("ﷺ", 100_000), "aé", ""} {
		n := len(tok.normalize(text))
		if tok.Exceeds(text, n) || n > 0 && !tok.Exceeds(text, n-1) {
			t.Errorf("%.10s: %d bytes are not what is measured", text, n)
		}
	}
	if (&Pipeline{}).Exceeds("abc", 1) {
		t.Error("a text grows without a normalizer")
	}
}
