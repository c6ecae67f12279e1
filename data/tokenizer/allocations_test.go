//go:build !race

package tokenizer

import (
	"slices"
	"testing"
	"unicode/utf8"
)

// TestEncodeAllocations: a text costs the memory of its ids; scratch and caches are used again.
func TestEncodeAllocations(t *testing.T) {
	var texts []string
	readJSON(t, "texts.json", &texts)
	texts = slices.DeleteFunc(texts, func(s string) bool { return !utf8.ValidString(s) })
	for _, name := range []string{"gpt2", "llama3"} { // which rewrite no text
		tok := load(t, name)
		var ids []int32
		one := testing.AllocsPerRun(20, func() {
			for _, text := range texts {
				ids = tok.AppendEncode(ids[:0], text, true)
			}
		}) / float64(len(texts))
		// The collector may empty the pool of scratch; the race detector does at random, so this file is not for it.
		if one > 1 {
			t.Errorf("%s: %.2f allocations per text", name, one)
		}
	}
}
