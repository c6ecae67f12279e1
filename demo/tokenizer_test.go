package demo

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/data/tokenizer"
)

// The learned tokenizer is one that the program reads, it gives each text back, and the same text teaches the same
// tokenizer.
func TestTokenizerRoundTrip(t *testing.T) {
	train, heldOut := readBook()
	train = train[:40_000]
	learned, err := learnTokenizer(train, 600)
	if err != nil {
		t.Fatal(err)
	}
	again, err := learnTokenizer(train, 600)
	if err != nil {
		t.Fatal(err)
	}
	if string(learned) != string(again) {
		t.Error("the same text taught another tokenizer")
	}
	for _, field := range []string{"single_word", "lstrip", "rstrip", "add_prefix_space", "trim_offsets"} {
		if !strings.Contains(string(learned), `"`+field+`"`) {
			t.Errorf("there is no %q, without which Hugging Face's tokenizers refuses the file", field)
		}
	}
	tokens, err := tokenizer.Parse(learned)
	if err != nil {
		t.Fatal(err)
	}
	ids := tokens.Encode(heldOut, false)
	if got := tokens.Decode(ids, true); got != heldOut {
		t.Error("the held-out text does not come back")
	}
	if perToken := float64(len(heldOut)) / float64(len(ids)); perToken < 2 {
		t.Errorf("a token has %.2f bytes; bytes alone would have 1", perToken)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~\n]{0,60}`).Draw(t, "text")
		if got := string(tokens.Decode(tokens.Encode(text, false), true)); got != text {
			t.Errorf("%q came back as %q", text, got)
		}
	})
}

// The merges are those of the algorithm that counts all pairs of a text again after each merge.
func TestMergesAreThoseOfRecounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`([abc]{1,7} ){1,25}`).Draw(t, "text")
		fast := countPairs(text)
		for token := 256; ; token++ {
			slow := &pairCounts{words: fast.words, counts: fast.counts, pairs: map[pair]int{}, where: map[pair][]int{}}
			for i := range slow.words {
				slow.add(i, 1)
			}
			p, times := fast.mostFrequent()
			q, want := slow.mostFrequent()
			if p != q || times != want {
				t.Fatalf("the most frequent pair of %v is %v, %d times; counted again it is %v, %d times", fast.words, p, times, q,
					want)
			}
			if times < 2 {
				return
			}
			fast.merge(p, token)
		}
	})
}
