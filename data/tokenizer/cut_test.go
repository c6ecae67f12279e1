package tokenizer

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestCut: where a text is cut, the ids of both sides are those of the whole.
func TestCut(t *testing.T) {
	var texts []string
	readJSON(t, "texts.json", &texts)
	cut := map[string]bool{"gpt2": true, "llama3": true, "qwen2": true, "smollm2": true, "prefix": true}
	spec, err := os.ReadFile("testdata/metaspace_first.json")
	if err != nil {
		t.Fatal(err)
	}
	words, err := Parse(bytes.Replace(spec, []byte(`"split":false`), []byte(`"split":true`), 1))
	if err != nil {
		t.Fatal(err)
	}
	checkCut(t, "metaspace", words, texts, true)
	// Deepseek's three steps, and tokens that take white space or look for words.
	one := `{"id":%d,"content":%q,"single_word":%t,"lstrip":%[4]t,"rstrip":%[4]t,"normalized":%[3]t,"special":false}`
	added := fmt.Sprintf(one, 3, "keep it", false, false) + "," + fmt.Sprintf(one, 4, "stop", true, true) + "," +
		fmt.Sprintf(one, 5, " end", true, false)
	step := `{"type":"Split","pattern":{"Regex":%q},"behavior":"Isolated","invert":false}`
	for name, expr := range map[string]string{"deepseek": deepseekExpr, "gpt4o": gpt4oExpr, "tekken": tekkenExpr} {
		steps := fmt.Sprintf(step, threeDigitsExpr) + "," + fmt.Sprintf(step, cjkExpr) + "," + fmt.Sprintf(step, expr)
		names := fmt.Sprintf(`{"version":"1.0","added_tokens":[%s],"normalizer":{"type":"NFC"},`+
			`"pre_tokenizer":{"type":"Sequence","pretokenizers":[%s,`+
			`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},`+
			`"model":{"type":"BPE","vocab":{%s},"merges":[]}}`, added, steps, byteVocabulary())
		tok, err := Parse([]byte(names))
		if err != nil {
			t.Fatal(name, err)
		}
		checkCut(t, name, tok, texts, true)
	}
	for _, name := range names {
		checkCut(t, name, load(t, name), texts, cut[name])
	}
	checkCut(t, "bytes", Bytes().(interface {
		Tokenizer
		Cut(string, int) int
	}), texts, true)
}

// byteVocabulary has a token for each byte from id 6 on, and the added ones.
func byteVocabulary() string {
	entries := []string{`"keep it":3`, `"stop":4`, `" end":5`, `"0x0":0`, `"0x1":1`, `"0x2":2`}
	for b, r := range alphabet {
		entries = append(entries, fmt.Sprintf("%q:%d", string(r), 6+b))
	}
	return strings.Join(entries, ",")
}

func checkCut(t *testing.T, name string, tok interface {
	Tokenizer
	Cut(string, int) int
}, texts []string, want bool) {
	t.Helper()
	found := 0
	parts := append([]string{"a b", "ab cd", "word\nword", "。\n字", "字\n字", "!\nA", " \n", "\n\n",
		" keep it", "keep it ", "stop", "x stop y", " end", "the end of it", "'s", "1", "1234", "\u0301", "é", "\u00a0",
		"\u3000", "▁", "<|eos|>"}, texts...)
	padding := strings.Repeat("1", 700) // around it there is room to look for tokens
	rapid.Check(t, func(t *rapid.T) {
		text := padding + strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 30).Draw(t, "text"), "") + padding
		whole := tok.Encode(text, false)
		for n := len(text); n > 0; n -= 37 {
			i := tok.Cut(text[:n], 0)
			if i == 0 {
				continue
			}
			found++
			if both := slices.Concat(tok.Encode(text[:i], false), tok.Encode(text[i:], false)); !slices.Equal(both, whole) {
				t.Fatalf("%s: cut between %.40q and %.40q", name, text[max(0, i-40):i], text[i:])
			}
			if strings.TrimSpace(text[:i]) == "" || strings.TrimSpace(text[i:]) == "" {
				t.Fatalf("%s: %q is blank before or after byte %d", name, text, i)
			}
		}
	})
	if want != (found > 0) && !t.Failed() {
		t.Errorf("%s: %d places to cut", name, found)
	}
}
