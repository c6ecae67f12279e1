package data

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
)

// A row of prompts is a text, or messages for the chat template, and keeps its other keys for those who judge answers.
func TestPrompts(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "prompts.jsonl", `{"data_source": "sums", "prompt": [{"role": "user", "content": "2+2?"}], `+
		`"reward_model": {"style": "rule", "ground_truth": "4"}, "label": 0, "documents": "d"}
{"prompt": "say a", "answer": null}
`)
	o := Options{Tokenizer: tokenizer.Bytes(), Renderer: chatOf(t, chatML)}
	d, err := prepare(t, Source{Path: path, Type: Prompts}, o)
	if err != nil {
		t.Fatal(err)
	}
	if !d.HasPrompts() || d.Len() != 2 || d.TargetTokens() != 0 {
		t.Fatalf("%d documents, %d tokens that count", d.Len(), d.TargetTokens())
	}
	e, err := d.Example(0)
	if text := tokenizer.Bytes().Decode(e.InputIDs, false); err != nil || text != "<user>2+2?</s>\n<assistant>" {
		t.Errorf("%q, %v", text, err)
	}
	if e, err = d.Example(1); err != nil || !slices.Equal(e.InputIDs, tokenizer.Bytes().Encode("say a", false)) {
		t.Errorf("%v, %v", e.InputIDs, err)
	}
	first, err := d.Asked(0)
	if err != nil || len(first.Prompt.Messages) != 1 || string(first.Row["reward_model"]) !=
		`{"style":"rule","ground_truth":"4"}` || string(first.Row["label"]) != "0" || first.Row["prompt"] != nil {
		t.Errorf("%+v, %v", first, err)
	}
	other := write(t, dir, "other.jsonl", `{"prompt": "say a", "answer": 1}`)
	sum := d.Fingerprint()
	if d, err = prepare(t, Source{Path: other, Type: Prompts}, Options{Tokenizer: tokenizer.Bytes()}); err != nil ||
		d.Fingerprint() == sum {
		t.Errorf("fingerprints %s of rows whose answers differ, %v", sum, err)
	}
	for want, row := range map[string]string{
		`field "prompt" is missing`:            `{"question": "x"}`,
		`field "prompt" is no prompt: write a`: `{"prompt": {"a": 1}}`,
		"end with one of the user":             `{"prompt": [{"role": "assistant", "content": "x"}]}`,
		"and the model has no chat template":   `{"prompt": [{"role": "user", "content": "x"}]}`,
		"only text can be trained on":          `{"prompt": "x", "images": ["a.png"]}`,
	} {
		bad := write(t, dir, "bad.jsonl", row)
		if _, err := prepare(t, Source{Path: bad, Type: Prompts}, Options{Tokenizer: tokenizer.Bytes()}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}

// An answer has the tokens that a row of a pair with it has.
func TestAnsweredTokens(t *testing.T) {
	for _, c := range []struct {
		p    Prompt
		want string
	}{
		{Prompt{Text: "say"}, "say\nyes"},
		{Prompt{Messages: []Message{{User, "say"}}}, ""},
	} {
		ids, err := AnsweredTokens(t.Context(), tokenizer.Bytes(), Plain, c.p, "yes")
		if c.want == "" {
			if err == nil {
				t.Errorf("messages without a chat template are %v", ids)
			}
			continue
		}
		if text := tokenizer.Bytes().Decode(ids, true); err != nil || text != c.want || ids[len(ids)-1] != 256 {
			t.Errorf("%q, %v, %v", text, ids, err)
		}
	}
}
