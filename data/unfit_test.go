package data

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnfitRows: rows that are more than text with one answer are refused, whatever type reads them, and others are
// not.
func TestUnfitRows(t *testing.T) {
	const (
		pair  = `"prompt": "a", "response": "b"`
		turns = `"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`
		share = `"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]`
	)
	chosen := strings.Replace(turns, "messages", "chosen_messages", 1)
	rejected := strings.Replace(turns, "messages", "rejected_messages", 1)
	for _, c := range []struct {
		source    Source
		row, want string
	}{
		{Source{Type: PromptResponse}, pair, ""},
		{Source{Type: PromptResponse}, pair + `, "images": [], "image": null, "videos": "", "audios": [null], "label": true, "chosen": "x"`, ""},
		{Source{Type: PromptResponse}, pair + `, "images": ["a.png"]`, `the row has "images": only text can be trained on`},
		{Source{Type: Alpaca}, `"instruction": "a", "output": "b", "image": "a.png"`, `the row has "image"`},
		{Source{Type: Messages}, turns + `, "videos": [{"path": "x"}]`, `the row has "videos"`},
		{Source{Type: ShareGPT}, share + `, "audios": ["x"]`, `the row has "audios"`},
		{Source{Type: Text}, `"text": "a caption", "image": {"path": "x"}`, ""},
		{Source{Type: Text}, `"text": "a <image> caption", "image": {"path": "x"}`, `the row has "image"`},
		{Source{Type: Text}, `"text": "the tag <image>", "label": false, "chosen": "x", "rejected": "y"`, ""},
		{Source{Type: PromptResponse}, pair + `, "label": false`, `"label" is false, which marks the answer as a bad one`},
		{Source{Type: ShareGPT}, share + `, "kto_tag": false`, `"kto_tag" is false`},
		{Source{Type: Messages}, turns + `, "label": 0`, ""},
		{Source{Type: ShareGPT}, share + `, "chosen": {"from": "gpt", "value": "x"}, "rejected": {"from": "gpt", "value": "y"}`, `the row has "chosen" and "rejected"`},
		{Source{Type: Messages}, `"chosen_messages": [], "x": 1`, `field "messages" is missing`},
		{Source{Type: Messages}, chosen + ", " + rejected, `the row has "chosen_messages" and "rejected_messages"`},
		{Source{Type: Messages, Messages: "chosen_messages"}, chosen + ", " + rejected, ""},
		{Source{Type: PromptResponse, Response: "chosen"}, `"prompt": "a", "chosen": "b", "rejected": "c"`, ""},
		{Source{Type: PromptResponse, Prompt: "image"}, `"image": "a", "response": "b"`, ""},
	} {
		c.source.Path = write(t, t.TempDir(), "a.jsonl", "{"+c.row+"}")
		_, err := prepare(t, c.source, Options{Renderer: chatOf(t, chatML)})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.row, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
}

// TestUnfitRowsOfTables: columns that make a row unfit are looked at in Parquet too, and the bytes of a picture are
// no text.
func TestUnfitRowsOfTables(t *testing.T) {
	s := Source{Type: PromptResponse, Path: write(t, t.TempDir(), "a.parquet", string(parquetFile(t, "pictures")))}
	if _, err := prepare(t, s, Options{}); err == nil || !strings.Contains(err.Error(), `a.parquet: row 2: the row has "images": only text`) {
		t.Errorf("a picture: %v", err)
	}
	s.BadRows = SkipBadRows
	if d, err := prepare(t, s, Options{}); err != nil || d.Len() != 1 {
		t.Errorf("skipped: %v", err)
	}
}

// TestTurnsThatDoNotCount: weight and train switch turns off, in both types of conversations, as axolotl and OpenAI
// have them.
func TestTurnsThatDoNotCount(t *testing.T) {
	const want = "<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>[d</s>]\n"
	for _, off := range []string{`"weight": 0`, `"weight": 0.0`, `"train": false`, `"training": false`} {
		on := strings.NewReplacer("false", "true", "0.0", "1.0", "0", "1").Replace(off)
		for kind, row := range map[Type]string{
			Messages: `{"messages": [{"role": "user", "content": "a", ` + off + `}, {"role": "assistant", "content": "b", ` + off + `},
				{"role": "user", "content": "c"}, {"role": "assistant", "content": "d", ` + on + `}]}`,
			ShareGPT: `{"system": "", "conversations": [{"from": "human", "value": "a", ` + off + `}, {"from": "gpt", "value": "b", ` + off + `},
				{"from": "human", "value": "c"}, {"from": "gpt", "value": "d", ` + on + `}]}`,
		} {
			path := write(t, t.TempDir(), "a.jsonl", strings.ReplaceAll(row, "\n", " "))
			d, err := prepare(t, Source{Type: kind, Path: path}, Options{Renderer: chatOf(t, chatML)})
			if err != nil {
				t.Errorf("%s: %v", row, err)
			} else if diff := cmp.Diff([]string{want}, marked(d)); diff != "" {
				t.Errorf("%s: %s", row, diff)
			}
		}
	}
	// A system prompt of its own key does not move the numbers of turns.
	row := `{"system": "S", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}`
	d, err := prepare(t, Source{Type: ShareGPT, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, chatML)})
	if err != nil || marked(d)[0] != "<system>S</s>\n"+want {
		t.Errorf("after a system prompt: %v", err)
	}
	for key, want := range map[string]string{
		`"weight": 0.5`:                      "weight is neither 0 nor 1",
		`"train": "no"`:                      "train is neither 0 nor 1",
		`"train_detail": [{"train": false}]`: "train_detail is not supported",
		`"content": [{"type": "text", "text": "b", "train": false}]`: "a part of the content: it has train",
	} {
		row := `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ` + key + `}]}`
		_, err := prepare(t, Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, chatML)})
		if err == nil || !strings.Contains(err.Error(), "message 1: "+want) {
			t.Errorf("%s: error %v, want %q", key, err, want)
		}
	}
}
