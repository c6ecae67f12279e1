package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestConcurrentLaw: many goroutines that encode with one tokenizer get what one alone gets.
func TestConcurrentLaw(t *testing.T) {
	var texts []string
	readJSON(t, "texts.json", &texts)
	for _, name := range []string{"llama3", "gemma", "unigram"} {
		tok := load(t, name)
		rapid.Check(t, func(t *rapid.T) {
			many := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(texts), rapid.String()), 0, 100).Draw(t, "texts")
			special := rapid.Bool().Draw(t, "special")
			got := make([][][]int32, rapid.IntRange(2, 5).Draw(t, "goroutines"))
			var wg sync.WaitGroup
			for g := range got {
				wg.Go(func() {
					for _, text := range many {
						got[g] = append(got[g], tok.Encode(text, special))
					}
				})
			}
			wg.Wait()
			for i, text := range many {
				want := tok.Encode(text, special)
				for g := range got {
					if !slices.Equal(got[g][i], want) {
						t.Fatalf("%q: %v, want %v", text, got[g][i], want)
					}
				}
			}
		})
	}
}

// TestDecoder: the half of a tokenizer that decodes does so as the whole one.
func TestDecoder(t *testing.T) {
	for _, name := range names {
		tok := load(t, name)
		d, bytes := DecoderOf(tok)
		if n := int64(tok.VocabSize()); bytes < 64*n || bytes > 1024*n {
			t.Errorf("%s: %d bytes for %d tokens", name, bytes, n)
		}
		rapid.Check(t, func(t *rapid.T) {
			ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
			skip := rapid.Bool().Draw(t, "skip special")
			if got, want := d.Decode(ids, skip), tok.Decode(ids, skip); got != want {
				t.Fatalf("%s, %v: %q, want %q", name, ids, got, want)
			}
			for _, id := range ids {
				if got, want := d.AppendBytes(nil, id, skip), tok.AppendBytes(nil, id, skip); !slices.Equal(got, want) {
					t.Fatalf("%s, %d: %q, want %q", name, id, got, want)
				}
			}
		})
	}
}

// TestTruncated: a text that ends within a character is the text before it and one replacement.
func TestTruncated(t *testing.T) {
	for _, name := range names {
		tok := load(t, name)
		rapid.Check(t, func(t *rapid.T) {
			s := rapid.String().Draw(t, "text")
			last := string(rapid.RuneFrom([]rune("é漢🌊\u07ff\u0800\U00010000\U0010ffff")).Draw(t, "last"))
			n := rapid.IntRange(1, len(last)-1).Draw(t, "bytes")
			got, want := tok.Encode(s+last[:n], false), tok.Encode(s+"\uFFFD", false)
			if !slices.Equal(got, want) {
				t.Fatalf("%q and %d bytes of %q: %v, want %v", s, n, last, got, want)
			}
			// In the middle of a text as well.
			got, want = tok.Encode(last[:n]+" a"+s, false), tok.Encode("\uFFFD a"+s, false)
			if !slices.Equal(got, want) {
				t.Fatalf("%d bytes of %q and %q: %v, want %v", n, last, s, got, want)
			}
		})
	}
}

// TestDecodeLaws: Decode returns UTF-8. Where every byte has a token, it returns the normalized text. It returns what
// AppendBytes returns token by token, except for repaired bytes and a space in front.
func TestDecodeLaws(t *testing.T) {
	for name, lossless := range map[string]bool{"gpt2": true, "llama3": true, "qwen2": true, "llama2": true, "gemma": true, "smollm2": false, "unigram_bytes": false} {
		tok := load(t, name)
		rapid.Check(t, func(t *rapid.T) {
			s := strings.ReplaceAll(rapid.String().Draw(t, "text"), wordMark, "_")
			ids := tok.Encode(s, false)
			got := tok.Decode(ids, false)
			if !utf8.ValidString(got) {
				t.Fatalf("%q decoded is %q", s, got)
			}
			want := s
			if name == "qwen2" {
				want = tok.normalize(s)
			}
			if lossless && got != want {
				t.Fatalf("%s: %q came back as %q", name, want, got)
			}
			var b []byte
			for _, id := range ids {
				b = tok.AppendBytes(b, id, false)
			}
			if piecewise := lossy(b); piecewise != got && piecewise != " "+got {
				t.Fatalf("%s: %q, by tokens %q", name, got, piecewise)
			}
			// Any ids are decoded to UTF-8.
			ids = rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
			if got := tok.Decode(ids, true); !utf8.ValidString(got) {
				t.Fatalf("%v decoded is %q", ids, got)
			}
		})
	}
}
