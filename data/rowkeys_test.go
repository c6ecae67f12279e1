package data

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnfitRows: rows with keys that carry meaning and that their type does not read are refused by name, in whatever
// spelling, and others are not.
func TestUnfitRows(t *testing.T) {
	const (
		pair  = `"prompt": "a", "response": "b"`
		turns = `"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`
		share = `"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]`
		tool  = `[{"name": "f"}]`
	)
	chosen := strings.Replace(turns, "messages", "chosen_messages", 1)
	rejected := strings.Replace(turns, "messages", "rejected_messages", 1)
	for _, c := range []struct {
		source    Source
		row, want string
	}{
		{Source{Type: PromptResponse}, pair, ""},
		{Source{Type: PromptResponse}, pair + `, "images": [], "image": null, "videos": "", "audios": [null], "label": true, "chosen": "", "system": " ", "tools": "[]", "functions": "[]", "documents": "null", "history": [], "id": 7, "score": 0.5, "model": "x", "tags": ["a"]`, ""},
		{Source{Type: PromptResponse}, pair + `, "images": ["a.png"]`, `the row has "images": only text can be trained on`},
		{Source{Type: Alpaca}, `"instruction": "a", "output": "b", "image": "a.png"`, `the row has "image"`},
		{Source{Type: Alpaca}, `"instruction": "a", "output": "b", "Image_URL": "a.png"`, `the row has "Image_URL"`},
		{Source{Type: Messages}, turns + `, "videos": [{"path": "x"}]`, `the row has "videos"`},
		{Source{Type: ShareGPT}, share + `, "audios": ["x"]`, `the row has "audios"`},
		{Source{Type: Text}, `"text": "a caption", "image": {"path": "x"}`, ""},
		{Source{Type: Text}, `"text": "a <image> caption", "image": {"path": "x"}`, `the row has "image"`},
		{Source{Type: Text}, `"text": "the tag <image>", "label": false, "chosen": "x", "rejected": "y", "system": "z"`, ""},
		{Source{Type: Text}, `"text": "x", "trainable": false`, `"trainable" is false, which marks the row as one that is not to be learned`},
		{Source{Type: PromptResponse}, pair + `, "label": false`, `"label" is false, which marks the answer as a bad one`},
		{Source{Type: PromptResponse}, pair + `, "label": 0`, `"label" is 0, which marks the answer as a bad one`},
		{Source{Type: PromptResponse}, pair + `, "label": "False"`, `"label" is "False", which marks the answer as a bad one`},
		{Source{Type: PromptResponse}, pair + `, "Label": 0.0`, `"Label" is 0, which marks`},
		{Source{Type: PromptResponse}, pair + `, "kto-tag": "bad"`, `"kto-tag" is "bad": only true or 1 marks a good answer`},
		{Source{Type: PromptResponse}, pair + `, "kto_label": -1`, `"kto_label" is -1: only true or 1`},
		{Source{Type: PromptResponse}, pair + `, "label": {"a": 1}`, `"label" is an object: only true or 1`},
		{Source{Type: PromptResponse}, pair + `, "label": 1, "kto_tag": "True"`, ""},
		{Source{Type: PromptResponse, Ignore: []string{"Label"}}, pair + `, "label": 3`, ""},
		{Source{Type: ShareGPT}, share + `, "kto_tag": false`, `"kto_tag" is false`},
		{Source{Type: Messages}, turns + `, "label": 0`, `"label" is 0, which marks`},
		{Source{Type: ShareGPT}, share + `, "chosen": {"from": "gpt", "value": "x"}, "rejected": {"from": "gpt", "value": "y"}`, `the row has "chosen", which type sharegpt does not read`},
		{Source{Type: Messages}, turns + `, "rejected_response": "x"`, `the row has "rejected_response", which`},
		{Source{Type: Messages}, turns + `, "non_preferred_output": "x"`, `the row has "non_preferred_output", which`},
		{Source{Type: Messages}, turns + `, "chosen": true, "rejected": false`, ""},
		{Source{Type: Messages}, turns + `, "chosen": false`, `the row has "chosen"`},
		{Source{Type: Messages}, `"chosen_messages": [], "x": 1`, `field "messages" is missing`},
		{Source{Type: Messages}, chosen + ", " + rejected, `the row has "chosen_messages"`},
		{Source{Type: Messages, Messages: "chosen_messages"}, chosen + ", " + rejected, ""},
		{Source{Type: PromptResponse, Response: "chosen"}, `"prompt": "a", "chosen": "b", "rejected": "c"`, ""},
		{Source{Type: PromptResponse, Prompt: "image"}, `"image": "a", "response": "b"`, ""},
		{Source{Type: PromptResponse}, pair + `, "system_prompt": "be brief"`, `the row has "system_prompt", which type prompt-response does not read (a system prompt): write system: system_prompt in the entry`},
		{Source{Type: PromptResponse}, pair + `, "functions": ` + tool, `the row has "functions", which type prompt-response does not read (tools that the model may call): write tools: functions in the entry`},
		{Source{Type: PromptResponse, Tools: DropTools}, pair + `, "functions": ` + tool, ""},
		{Source{Type: PromptResponse}, pair + `, "input": "more"`, `the row has "input", which type prompt-response does not read (more of the question): use type: alpaca`},
		{Source{Type: Alpaca}, `"instruction": "a", "output": "b", "context": "more"`, `the row has "context", which type alpaca does not read (more of the question): write input: context in the entry`},
		{Source{Type: Messages}, turns + `, "input": "a", "prompt": "a", "instruction": "b"`, ""},
		{Source{Type: PromptResponse, Prompt: "input"}, `"instruction": "a", "input": "b", "response": "c"`, `the row has "instruction", which type prompt-response does not read`},
		{Source{Type: Messages}, turns + `, "history": [["a", "b"]]`, `the row has "history", which type messages does not read (turns before the prompt): put its turns`},
		{Source{Type: Messages}, turns + `, "documents": [{"title": "a", "text": "b"}]`, `the row has documents, which the chat template never reads`},
		{Source{Type: Messages}, turns + `, "Documents": [{"title": "a", "text": "b"}]`, `the row has "Documents", which type messages does not read (documents to answer from): write documents`},
		{Source{Type: Messages}, turns + `, "chat_template_kwargs": {"enable_thinking": false}`, `chat_template_kwargs: the chat template never reads the variable enable_thinking`},
		{Source{Type: Messages}, turns + `, "chat_template_kwargs": {"enable_thinking": null}`, ""},
		{Source{Type: Messages}, turns + `, "enable_thinking": false`, `the row has "enable_thinking", which type messages does not read (a variable of the chat template): put it into chat_template_kwargs`},
		{Source{Type: PromptResponse}, pair + `, "documents": [{"text": "b"}]`, `field "documents" is not supported without a chat template`},
		{Source{Type: PromptResponse}, pair + `, "reasoning": "first this, then that"`, `the row has "reasoning"`},
		{Source{Type: PromptResponse}, pair + `, "reasoning": "on"`, ""},
		{Source{Type: PromptResponse}, pair + `, "tool_calls": [{"name": "f"}]`, `the row has "tool_calls"`},
		{Source{Type: PromptResponse}, pair + `, "weight": 0.5`, `"weight" is 0.5: a row counts or does not`},
		{Source{Type: PromptResponse}, pair + `, "weight": 1, "train": "true"`, ""},
		{Source{Type: PromptResponse}, pair + `, "loss": "0"`, `"loss" is "0", which marks the row`},
		{Source{Type: Messages}, turns + `, "mask": 1`, `the row has "mask"`},
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

// TestPlaceholdersOfMedia: a mark for a picture in a question is refused where the row has no picture too, in each type
// of conversation; text about the elements of a page is not.
func TestPlaceholdersOfMedia(t *testing.T) {
	for text, isRefused := range map[string]bool{
		"<image>What is this?": true, "What is in <image> here?": true, "<video>\nDescribe": true, "Say it again. <audio>": true,
		"How do I use the <video> element here?": false, "What does `<image>` do?": false, "<audio>a</audio> plays nothing": false, "an image": false,
	} {
		quoted := fmt.Sprintf("%q", text)
		for _, c := range []struct {
			source Source
			row    string
		}{
			{Source{Type: Messages}, `{"messages": [{"role": "user", "content": ` + quoted + `}, {"role": "assistant", "content": "b"}]}`},
			{Source{Type: ShareGPT}, `{"conversations": [{"from": "human", "value": ` + quoted + `}, {"from": "gpt", "value": "b"}]}`},
			{Source{Type: PromptResponse}, `{"prompt": ` + quoted + `, "response": "b"}`},
			{Source{Type: PromptResponse}, `{"prompt": [{"role": "user", "content": ` + quoted + `}], "response": [{"role": "assistant", "content": "b"}]}`},
			{Source{Type: Alpaca}, `{"instruction": "a", "input": ` + quoted + `, "output": "b"}`},
		} {
			chat := chatOf(t, chatML)
			chat.All = true
			c.source.Path = write(t, t.TempDir(), "a.jsonl", c.row)
			_, err := prepare(t, c.source, Options{Renderer: chat})
			if isRefused != (err != nil) || err != nil && !strings.Contains(err.Error(), "stands for a picture, a film or a sound: only text") {
				t.Errorf("%s: error %v", c.row, err)
			}
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
	for _, off := range []string{`"weight": 0`, `"weight": 0.0`, `"train": false`, `"training": false`, `"loss": false`, `"loss": 0`, `"trainable": "False"`, `"Loss_Weight": "0"`} {
		on := strings.NewReplacer("false", "true", "False", "True", "0.0", "1.0", "0", "1").Replace(off)
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
		`"loss": null, "trainable": 2`:       "trainable is neither 0 nor 1",
		`"weight": 1, "loss": false`:         "weight and loss disagree",
		`"mask": true`:                       "mask is not supported: trainers read it in two ways",
		`"loss_mask": [0, 1]`:                "loss_mask is not supported",
		`"learn": false`:                     `"learn" is unknown, and has false`,
		`"learn": "False"`:                   `"learn" is unknown, and has the text False`,
		`"learn": "no"`:                      `"learn" is unknown, and has the text no`,
		`"score": 0.1`:                       `"score" is unknown, and has a number`,
		`"spans": [[0, 1]]`:                  `"spans" is unknown, and has a list`,
		`"options": {"train": false}`:        `"options" is unknown, and has an object`,
		`"images": ["a.png"]`:                "images is not supported: only text",
		`"rejected": "worse"`:                "rejected is not supported",
		`"label": 0`:                         `"label" is 0: only true or 1`,
		`"function_call": {"name": "f"}`:     "function_call is not supported: use tool_calls",
		`"toolCalls": [{"name": "f"}]`:       `"toolCalls" is not read: write tool_calls`,
		`"reasoning_content": ["a b"]`:       `"reasoning_content" is a list, not a text`,
		`"value": "other"`:                   `it has "content" and "value", which differ`,
		`"from": "human"`:                    `it has "role" and "from", which differ`,
		`"train_detail": [{"train": false}]`: "train_detail is not supported",
		`"content": [{"type": "text", "text": "b", "train": false}]`: "a part of the content: it has train",
	} {
		row := `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ` + key + `}]}`
		_, err := prepare(t, Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, chatML)})
		if err == nil || !strings.Contains(err.Error(), "message 1: "+want) {
			t.Errorf("%s: error %v, want %q", key, err, want)
		}
	}
	// A message that must not be learned is not learned as a part of the prompt either.
	row = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": 0}, {"role": "assistant", "content": "c"}]}`
	_, err = prepare(t, Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, chatML), TrainOnPrompt: true})
	if err == nil || !strings.Contains(err.Error(), "marked as one that does not count, and train_on_prompt counts all") {
		t.Errorf("train_on_prompt: %v", err)
	}
	// Keys of the row that say nothing do no harm, and neither do labels.
	row = `{"messages": [{"role": "user", "content": "a", "from": "human", "id": 3, "toxic": false, "header": {"a": "b"}, "tool_calls": [], "images": null},
		{"role": "assistant", "content": "d", "value": "d", "refusal": null, "annotations": [], "extra": {}, "timestamp": 1.5, "label": 1, "score": null}]}`
	d, err = prepare(t, Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", strings.ReplaceAll(row, "\n", " "))}, Options{Renderer: chatOf(t, chatML)})
	if err != nil || marked(d)[0] != "<user>a</s>\n<assistant>[d</s>]\n" {
		t.Errorf("labels: %v", err)
	}
	row = `{"messages": [{"role": "user", "content": "a", "score": 3}, {"role": "assistant", "content": "d", "loss": 0.3}]}`
	d, err = prepare(t, Source{Type: Messages, Ignore: []string{"Score", "loss"}, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, chatML)})
	if err != nil || marked(d)[0] != "<user>a</s>\n<assistant>[d</s>]\n" {
		t.Errorf("ignored: %v", err)
	}
}
