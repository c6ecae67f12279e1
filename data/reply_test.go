package data

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
)

// The prompt of a conversation, and the special token that ends what the assistant says.
func TestPromptAndTurnEnd(t *testing.T) {
	special, err := tokenizer.Load(filepath.Join("tokenizer", "testdata", "smollm2.json"))
	if err != nil {
		t.Fatal(err)
	}
	chatML := `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`
	for name, c := range map[string]struct {
		template, prompt string
		tok              tokenizer.Tokenizer
		end              string
	}{
		"a special token": {chatML, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n" +
			"<|im_start|>assistant\n", special, "<|im_end|>"},
		"text": {strings.ReplaceAll(chatML, "<|im_end|>", "</s>"),
			"<|im_start|>system\nS</s>\n<|im_start|>user\nq</s>\n<|im_start|>assistant\n", special, ""},
		"bytes": {chatML, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n" +
			"<|im_start|>assistant\n", tokenizer.Bytes(), ""},
		"nothing":              {`{% for m in messages %}[{{ m.content }}{% endfor %}`, "[S[q", special, ""},
		"content that is left": {`{% for m in messages %}[{{ m.role }}{% endfor %}`, "[system[user", special, ""},
		"a space before its end": {strings.ReplaceAll(chatML, "m.content + '<", "m.content + ' <"),
			"<|im_start|>system\nS <|im_end|>\n<|im_start|>user\nq <|im_end|>\n<|im_start|>assistant\n", special, "<|im_end|>"},
	} {
		if c.tok == special { // whose special tokens are two
			for _, text := range []*string{&c.template, &c.prompt, &c.end} {
				*text = strings.NewReplacer("<|im_start|>", "<|bos|>", "<|im_end|>", "<|eos|>").Replace(*text)
			}
		}
		chat := chatOf(t, c.template)
		prompt, err := chat.Prompt(t.Context(), []Message{{System, "S"}, {User, "q"}})
		if err != nil || prompt != c.prompt {
			t.Errorf("%s: %q, %v", name, prompt, err)
		}
		id, err := chat.TurnEnd(t.Context(), c.tok)
		if err != nil || (id == tokenizer.None) != (c.end == "") || id != tokenizer.None && c.tok.Token(id) != c.end {
			t.Errorf("%s: ends with %d, %v; want %q", name, id, err, c.end)
		}
	}
}
