package gguf

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

// smallPieces is a small llama with a tokenizer of SentencePiece's kind.
func smallPieces() *document {
	d := small("llama")
	tokens := []string{"<unk>", "<s>", "<0x41>", "<0x42>", "  ", "<mark>", "▁a", "ab", "▁", "a", "b", "aba", "x y"}
	types := []int32{2, 3, 6, 6, 4, 4, 1, 1, 1, 1, 1, 1, 5}
	d.tensors["token_embd.weight"], d.tensors["output.weight"] = f32Tensor(len(tokens), 8), f32Tensor(len(tokens), 8)
	d.meta["tokenizer.ggml.model"], d.meta["tokenizer.ggml.pre"] = "llama", "default"
	d.meta["tokenizer.ggml.tokens"], d.meta["tokenizer.ggml.token_type"] = tokens, types
	d.meta["tokenizer.ggml.bos_token_id"], d.meta["tokenizer.ggml.eos_token_id"] = 1, 1
	d.meta["tokenizer.ggml.scores"] = []float32{0, 0, 0, 0, -1000, -1000, -2, -3, -7, -5, -6, -4, 0}
	delete(d.meta, "tokenizer.ggml.merges")
	return d
}

// TestImportPieces: scores become merges, bytes and spaces are as in SentencePiece.
func TestImportPieces(t *testing.T) {
	plain := smallPieces()
	plain.meta["tokenizer.ggml.add_space_prefix"] = false
	tok, bare := tokenizerOf(t, smallPieces()), tokenizerOf(t, plain)
	for text, want := range map[string][2][]int32{
		"ab":       {{6, 10}, {7}},              // ▁a has a higher score than ab
		"aab":      {{6, 7}, {9, 7}},            // ▁a ab
		"abab":     {{6, 10, 7}, {7, 7}},        // aba comes too late: both ab have been joined
		"  b":      {{4, 8, 10}, {4, 10}},       // the run of two spaces comes before all
		"BA?":      {{8, 3, 2, 0}, {3, 2, 0}},   // by bytes, and unknown
		"a<mark>b": {{6, 5, 8, 10}, {9, 5, 10}}, // the prefix stands after tokens that users defined, too
	} {
		for i, tok := range []interface {
			Encode(text string, special bool) []int32
		}{tok, bare} {
			if got := tok.Encode(text, false); !slices.Equal(got, want[i]) {
				t.Errorf("%q with prefix %v has the ids %v, want %v", text, i == 0, got, want[i])
			}
		}
	}
	if got := tok.Encode("a", true); !slices.Equal(got, []int32{1, 6}) {
		t.Errorf("with special tokens %v", got)
	}
	for text, ids := range map[string][]int32{"ab ab": tok.Encode("ab ab", true), "BA": {8, 3, 2}} {
		if got := tok.Decode(ids, true); got != text {
			t.Errorf("%v decodes to %q, want %q", ids, got, text)
		}
	}
}

// TestMergesOf: merges of one score stand in the order of transformers, of which there are two.
func TestMergesOf(t *testing.T) {
	pieces := &tokens{tokens: []string{"-", "--", "---", "x-", "x", "-x"}, types: []int32{1, 4, 4, 1, 1, 1}}
	for longerFirst, want := range map[bool]string{
		false: "- -, - --, -- -, x -, - x",
		true:  "-- -, - --, - -, x -, - x",
	} {
		got, err := pieces.mergesOf([]float32{-8, -9, -9, -1, -8, -1}, longerFirst)
		if text := strings.Join(got, ", "); err != nil || text != want {
			t.Errorf("longer ones first %v: %q, %v, want %q", longerFirst, text, err, want)
		}
	}
}

// TestBadPieces: what is wrong with a tokenizer of SentencePiece's kind is one line.
func TestBadPieces(t *testing.T) {
	meta := func(key string, v any) func(*document) {
		return func(d *document) { d.meta["tokenizer.ggml."+key] = v }
	}
	token := func(s string) func(*document) {
		return func(d *document) { d.meta["tokenizer.ggml.tokens"].([]string)[7] = s }
	}
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		change func(*document)
		words  []string
	}{
		"no scores":      {meta("scores", "none"), []string{"scores is missing"}},
		"few scores":     {meta("scores", []float32{1}), []string{"13 fp32 numbers"}},
		"other scores":   {meta("scores", make([]int32, 13)), []string{"13 fp32 numbers"}},
		"one score":      {meta("scores", make([]float32, 13)), []string{"one score"}},
		"no number":      {meta("scores", slices.Repeat([]float32{nan}, 13)), []string{"token 0", "NaN"}},
		"squeezed":       {meta("remove_extra_whitespaces", true), []string{"remove_extra_whitespaces", "use"}},
		"prefix":         {meta("add_space_prefix", 1), []string{"add_space_prefix"}},
		"type":           {meta("token_type", slices.Repeat([]int32{7}, 13)), []string{"type 7"}},
		"a space":        {token("a b"), []string{"token 7", "▁"}},
		"twice the same": {token("▁▁"), []string{"4 and 7"}},
		"empty":          {token(""), []string{"token 7 is empty"}},
		"long":           {token(strings.Repeat("a", 1025)), []string{"token 7", "1025 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := smallPieces()
			c.change(d)
			doc := d.bytes()
			g, err := parse(bytes.NewReader(doc), int64(len(doc)))
			if err == nil {
				_, err = g.tokens(architectureOf("llama"), 13)
			}
			wantOneLine(t, err, c.words...)
		})
	}
	// Each of these tokens can be made in very many ways.
	runs := &tokens{}
	for n := 1; n < 200; n++ {
		runs.tokens, runs.types = append(runs.tokens, strings.Repeat("-", n)), append(runs.types, tokenNormal)
	}
	_, err := runs.mergesOf(make([]float32, len(runs.tokens)), false)
	wantOneLine(t, err, "more than 1592 ways")
}
