package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var names = []string{"gpt2", "llama3", "qwen2", "smollm2", "prefix", "expressions",
	"llama2", "gemma", "metaspace_first", "unigram", "unigram_bytes"}

func readJSON(t testing.TB, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, name string) *Pipeline {
	t.Helper()
	tok, err := Load(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type oracle struct {
	IDs         [][]int32 `json:"ids"`
	WithSpecial [][]int32 `json:"with_special"`
	Decoded     []string  `json:"decoded"`
}

// TestOracle compares with what the `tokenizers` library made of the same texts (testdata/make.py).
func TestOracle(t *testing.T) {
	var texts []string
	readJSON(t, "texts.json", &texts)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			var want oracle
			readJSON(t, name+".ids.json", &want)
			foreign := []int32{tok.TokenID("café"), tok.TokenID("\u212bngstrom")}
			for i, text := range texts {
				if got := tok.Encode(text, false); !slices.Equal(got, want.IDs[i]) {
					t.Errorf("%q\n got %v\nwant %v", text, spell(tok, got), spell(tok, want.IDs[i]))
				}
				if got := tok.Encode(text, true); !slices.Equal(got, want.WithSpecial[i]) {
					t.Errorf("with special tokens: %q\n got %v\nwant %v", text, got, want.WithSpecial[i])
				}
				// The library reads the letters of an added token as bytes when it decodes; here they are letters.
				if slices.ContainsFunc(want.IDs[i], func(id int32) bool { return slices.Contains(foreign, id) }) {
					continue
				}
				if got := tok.Decode(want.IDs[i], true); got != want.Decoded[i] {
					t.Errorf("decoded %q\n got %q\nwant %q", text, got, want.Decoded[i])
				}
			}
		})
	}
}

func spell(t Tokenizer, ids []int32) string {
	var s []string
	for _, id := range ids {
		s = append(s, t.Token(id))
	}
	return strings.Join(s, " ")
}

// TestScannersEqualExpressions checks each hand-written scanner against the regular expression that it stands for.
func TestScannersEqualExpressions(t *testing.T) {
	parts := []string{"a", "B", "é", "漢", "の", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "1", "23", "½", "٣", "'", "'s", "'S", "'ſ",
		"'Re", "'ll", "'lL", "'t", "!", "-_", "/", "$", "😀", "\u0301", "\x00", "\u200b", "ǅ", "ʰ", "AB", "cD"}
	for text, scan := range scanners {
		slow, err := compileExpression(text)
		if err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(t *rapid.T) {
			s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 30).Draw(t, "parts"), "")
			fast, want := words(split{matcher: scan}, s), words(split{matcher: slow}, s)
			if !slices.Equal(fast, want) {
				t.Fatalf("%s\n%q\nscanner    %q\nexpression %q", text, s, fast, want)
			}
		})
	}
}

func words(s splitter, text string) []string {
	var out []string
	s.split(word{text, true}, func(w word) { out = append(out, w.text) })
	return out
}

// TestMergeLongEqualsShort checks the heap against the plain search on words that both can do.
func TestMergeLongEqualsShort(t *testing.T) {
	for _, name := range names {
		tok := load(t, name)
		m, ok := tok.model.(*bpe)
		if !ok {
			continue
		}
		e := tok.newEncoder().(*encoder)
		rapid.Check(t, func(t *rapid.T) {
			ids := rapid.SliceOfN(rapid.Int32Range(0, int32(tok.VocabSize()-1)), 1, shortWord).Draw(t, "ids")
			a, b := slices.Clone(ids), slices.Clone(ids)
			a, b = a[:m.mergeShort(a)], b[:m.mergeLong(b, e)]
			if !slices.Equal(a, b) {
				t.Fatalf("short %v, long %v", a, b)
			}
		})
	}
}

// TestRoundTrip checks that decoding gives the text back where nothing normalizes it and every byte has a token.
func TestRoundTrip(t *testing.T) {
	for _, tok := range []Tokenizer{load(t, "gpt2"), load(t, "llama3"), Bytes()} {
		rapid.Check(t, func(t *rapid.T) {
			s := rapid.String().Draw(t, "text")
			if got := tok.Decode(tok.Encode(s, false), false); got != s {
				t.Fatalf("%q came back as %q", s, got)
			}
		})
	}
}

func TestEncodeNotUTF8(t *testing.T) {
	tok := load(t, "gpt2")
	// One replacement for each maximal ill-formed part, as Unicode recommends.
	for in, want := range map[string]string{
		"a\xffb": "a\uFFFDb", "\xe4\xbd": "\uFFFD", "\xf0\x9f\x98x": "\uFFFDx", "\xc0\xaf": "\uFFFD\uFFFD", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD",
		"\xe4\xbd\xa0": "你", "\xf4\x90\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD",
	} {
		if got := tok.Decode(tok.Encode(in, false), false); got != want {
			t.Errorf("%q came back as %q, want %q", in, got, want)
		}
	}
}

func TestVocabulary(t *testing.T) {
	tok := load(t, "llama3")
	bos, eos := tok.TokenID("<|bos|>"), tok.TokenID("<|eos|>")
	if bos == None || eos == None || tok.VocabSize() != int(max(bos, eos))+1 {
		t.Fatalf("bos %d, eos %d, vocabulary %d", bos, eos, tok.VocabSize())
	}
	if before, after := tok.Template(); !slices.Equal(before, []int32{bos}) || len(after) > 0 {
		t.Errorf("template %v, %v", before, after)
	}
	if id := tok.TokenID("no such token"); id != None {
		t.Errorf("unknown token has id %d", id)
	}
	if tok.Token(-1) != "" || tok.Token(1<<30) != "" || tok.Decode([]int32{-1, 1 << 30}, false) != "" {
		t.Error("ids outside the vocabulary stand for something")
	}
	if got := tok.Decode([]int32{bos, tok.TokenID("a"), eos}, true); got != "a" {
		t.Errorf("without special tokens: %q", got)
	}
	if tok.Hash() == load(t, "gpt2").Hash() {
		t.Error("two tokenizers have one hash")
	}
}

func TestBytes(t *testing.T) {
	tok := Bytes()
	if tok.VocabSize() != 257 || tok.EOS() != 256 || tok.BOS() != None {
		t.Fatalf("vocabulary %d, eos %d, bos %d", tok.VocabSize(), tok.EOS(), tok.BOS())
	}
	for id := range int32(257) {
		if got := tok.TokenID(tok.Token(id)); got != id {
			t.Errorf("%q has id %d, not %d", tok.Token(id), got, id)
		}
	}
	if got := tok.Encode("a\xff", true); !slices.Equal(got, []int32{'a', 255}) {
		t.Errorf("ids %v", got)
	}
	if got := tok.Decode([]int32{'a', 256, 257, -1}, true); got != "a" {
		t.Errorf("decoded %q", got)
	}
	if got := tok.Decode([]int32{'a', 256}, false); got != "a<|endoftext|>" {
		t.Errorf("decoded %q", got)
	}
}

func FuzzEncode(f *testing.F) {
	var texts []string
	readJSON(f, "texts.json", &texts)
	for _, s := range texts[:60] {
		f.Add(s)
	}
	var toks []*Pipeline
	for _, name := range names {
		toks = append(toks, load(f, name))
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, tok := range toks {
			ids := tok.Encode(s, true)
			for _, id := range ids {
				if id < 0 || int(id) >= tok.VocabSize() {
					t.Fatalf("id %d of %d", id, tok.VocabSize())
				}
			}
			if got := tok.Decode(ids, false); !utf8.ValidString(got) {
				t.Fatalf("decoded %q", got)
			}
		}
		if tok := toks[0]; utf8.ValidString(s) {
			if got := tok.Decode(tok.Encode(s, false), false); got != s {
				t.Fatalf("%q came back as %q", s, got)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile("load.go")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			tok := load(b, name)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(string(text), false)
			}
		})
	}
}
