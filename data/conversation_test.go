package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
)

// chatML is a template with tools, as short as one can be.
const chatML = `{%- if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>
{% endif %}
{%- for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}</s>
{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}`

// chatOf writes a template and opens it.
func chatOf(t testing.TB, template string) *Chat {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "chat_template.jinja", template)
	c, err := NewChat(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// marked writes documents with [] around what counts.
func marked(d *Dataset) []string { return markedBy(tokenizer.Bytes(), d) }

func markedBy(tok tokenizer.Tokenizer, d *Dataset) []string {
	var out []string
	for i := range d.Len() {
		e, err := d.Example(i)
		if err != nil {
			return append(out, err.Error())
		}
		var b strings.Builder
		trained := false
		for t, id := range e.InputIDs {
			if now := e.Labels[t] != Ignore; now != trained {
				b.WriteString(map[bool]string{true: "[", false: "]"}[now])
				trained = now
			}
			b.WriteString(tok.Decode([]int32{id}, false))
		}
		if trained {
			b.WriteString("]")
		}
		out = append(out, b.String())
	}
	return out
}

func TestConversations(t *testing.T) {
	tools := `[{"name": "f", "parameters": {"b": 1, "a": 2}}]`
	const toolText = `<tools>{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}</tools>` + "\n"
	for name, c := range map[string]struct {
		source Source
		row    string
		last   bool
		want   string
	}{
		"every turn": {Source{Type: Messages}, `{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, false,
			"<system>S</s>\n<user>a</s>\n<assistant>[b</s>]\n<user>c</s>\n<assistant>[d</s>]\n"},
		"last turn": {Source{Type: Messages}, `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, true,
			"<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>[d</s>]\n"},
		"weight": {Source{Type: Messages}, `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]}`, false,
			"<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>[d</s>]\n"},
		"parts": {Source{Type: Messages, Messages: "m"}, `{"m": [{"role": "developer", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
			{"role": "user", "content": "a", "name": null}, {"role": "assistant", "content": "e"}]}`, false,
			"<system>xy</s>\n<user>a</s>\n<assistant>[e</s>]\n"},
		"calls": {Source{Type: Messages}, `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "function_call": null, "tool_calls":
			[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}}]}, {"role": "tool", "content": "r", "tool_call_id": "1"},
			{"role": "assistant", "content": "b", "tool_calls": []}], "tools": ` + tools + `}`, false,
			toolText + `<user>a</s>` + "\n" + `<assistant>[<call>f {"z": 1, "a": [2]}</s>]` + "\n<tool>r</s>\n<assistant>[b</s>]\n"},
		"sharegpt": {Source{Type: ShareGPT}, `{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"z\": 1}}"},
			{"from": "observation", "value": "r"}, {"from": "gpt", "value": "b"}], "system": "S", "tools": ` + fmt.Sprintf("%q", tools) + `}`, false,
			toolText + `<system>S</s>` + "\n" + `<user>a</s>` + "\n" + `<assistant>[<call>f {"z": 1}</s>]` + "\n<tool>r</s>\n<assistant>[b</s>]\n"},
		"tags": {Source{Type: ShareGPT, Messages: "talk", Tags: Tags{Role: "who", Content: "said", User: "Q", Assistant: "A"}},
			`{"talk": [{"who": "Q", "said": "a"}, {"who": "A", "said": "b"}], "system": "", "tools": ""}`, false, "<user>a</s>\n<assistant>[b</s>]\n"},
		"alpaca": {Source{Type: Alpaca}, `{"instruction": "c", "input": "d", "output": "e", "system": "S", "history": [["a", "b"]]}`, false,
			"<system>S</s>\n<user>a</s>\n<assistant>[b</s>]\n<user>c\nd</s>\n<assistant>[e</s>]\n"},
		"renamed alpaca": {Source{Type: Alpaca, Prompt: "q", Response: "r", Input: "x", System: "y", History: "z"}, `{"q": "c", "r": "e"}`, false,
			"<user>c</s>\n<assistant>[e</s>]\n"},
		"pair of messages": {Source{Type: PromptResponse, Response: "completion"}, `{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
			{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}],
			"tools": ` + tools + `}`, false,
			toolText + "<system>S</s>\n<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>[d</s>]\n"},
		"longer completion": {Source{Type: PromptResponse, Response: "completion", Tools: "t"}, `{"prompt": [{"role": "user", "content": "a"}], "completion":
			[{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "t": ` + tools + `}`, false,
			toolText + "<user>a</s>\n<assistant>[b</s>]\n<user>c</s>\n<assistant>[d</s>]\n"},
		"pair": {Source{Type: PromptResponse}, `{"prompt": "c", "response": "e"}`, false, "<user>c</s>\n<assistant>[e</s>]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			chat := chatOf(t, chatML)
			chat.All, chat.LastTurn = true, c.last
			c.source.Path = write(t, t.TempDir(), "a.jsonl", strings.ReplaceAll(c.row, "\n", " "))
			d, err := prepare(t, c.source, Options{Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{c.want}, marked(d)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without chat_template, only what cannot do without one is rendered with it.
func TestPlainBesideChat(t *testing.T) {
	s := Source{Type: PromptResponse, Path: write(t, t.TempDir(), "a.jsonl", `{"prompt": "c", "response": "e"}`)}
	d, err := prepare(t, s, Options{Renderer: chatOf(t, chatML)})
	if err != nil || marked(d)[0] != "c\n[e<|endoftext|>]" {
		t.Errorf("%q, %v", marked(d), err)
	}
}

func TestBadConversations(t *testing.T) {
	const turns = `[{"role": "user", "content": "zz"}, {"role": "assistant", "content": "b"}]`
	for want, c := range map[string]struct {
		source   Source
		row      string
		template string
	}{
		"no chat template: set chat_template":              {Source{Type: Messages}, `{"messages": ` + turns + `}`, ""},
		`a.jsonl:1: field "messages" is missing`:           {Source{Type: Messages}, `{"a": 1}`, chatML},
		`field "messages" is not a list of turns`:          {Source{Type: Messages}, `{"messages": []}`, chatML},
		"turn 0 is not an object":                          {Source{Type: Messages}, `{"messages": [1]}`, chatML},
		`message 0: "role" is missing: it has content`:     {Source{Type: Messages}, `{"messages": [{"content": "a"}]}`, chatML},
		`message 0: role "bot" is unknown`:                 {Source{Type: Messages}, `{"messages": [{"role": "bot", "content": "a"}]}`, chatML},
		"message 0: content is missing":                    {Source{Type: Messages}, `{"messages": [{"role": "user", "content": null}]}`, chatML},
		"only text can be trained on":                      {Source{Type: Messages}, `{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, chatML},
		"function_call is not supported":                   {Source{Type: Messages}, `{"messages": [{"role": "user", "content": "a", "function_call": {"name": "f"}}]}`, chatML},
		"no turn of the assistant that counts":             {Source{Type: Messages}, `{"messages": [{"role": "user", "content": "a"}]}`, chatML},
		"leaves out what message 0 says (role user)":       {Source{Type: Messages}, `{"messages": ` + turns + `}`, `{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}`},
		"leaves out tool 0 (f)":                            {Source{Type: Messages}, `{"messages": ` + turns + `, "tools": [{"name": "f"}]}`, `{% for m in messages %}{{ m.content }}|{% endfor %}`},
		`field "tools" is not a list`:                      {Source{Type: Messages}, `{"messages": ` + turns + `, "tools": 3}`, chatML},
		`turn 0: from "narrator" is unknown: known are a`:  {Source{Type: ShareGPT}, `{"conversations": [{"from": "narrator", "value": "a"}]}`, chatML},
		`turn 0: from "human" is unknown`:                  {Source{Type: ShareGPT, Tags: Tags{User: "u"}}, `{"conversations": [{"from": "human", "value": "a"}]}`, chatML},
		`turn 0: "value" is a number, neither a text nor`:  {Source{Type: ShareGPT}, `{"conversations": [{"from": "human", "value": 1}]}`, chatML},
		"turn 0: the function call: it is not JSON":        {Source{Type: ShareGPT}, `{"conversations": [{"from": "function_call", "value": "f(1)"}]}`, chatML},
		"turn 0: the function call: call 0: the function:": {Source{Type: ShareGPT}, `{"conversations": [{"from": "function_call", "value": "{}"}]}`, chatML},
		`field "history" is not a list of pairs`:           {Source{Type: Alpaca}, `{"instruction": "a", "output": "b", "history": [["c"]]}`, chatML},
		`a.jsonl:1: field "history" is not supported with`: {Source{Type: Alpaca}, `{"instruction": "a", "output": "b", "history": [["c", "d"]]}`, ""},
		"chat template: line 1, column 19: no":             {Source{Type: Messages}, `{"messages": ` + turns + `}`, `{{ raise_exception("no") }}`},
	} {
		var r Renderer
		if c.template != "" {
			r = chatOf(t, c.template)
		}
		c.source.Path = write(t, t.TempDir(), "a.jsonl", c.row)
		_, err := prepare(t, c.source, Options{Renderer: r})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, want)
		}
	}
}

func TestChatFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewChat(dir, ""); err == nil || !strings.Contains(err.Error(), "no chat template") {
		t.Errorf("without one: %v", err)
	}
	render := func(file string, tools bool) string {
		t.Helper()
		c, err := NewChat(dir, file)
		if err != nil {
			t.Fatal(err)
		}
		text := `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`
		if tools {
			text += `, "tools": [{"name": "f"}]`
		}
		s := Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", text+"}")}
		d, err := prepare(t, s, Options{Renderer: c})
		if err != nil {
			t.Fatal(err)
		}
		return marked(d)[0]
	}
	body := func(s string) string {
		return s + "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ tools[0].function.name if tools }}"
	}
	write(t, dir, "tokenizer_config.json", fmt.Sprintf(`{"bos_token": "^", "eos_token": {"content": "$"}, "chat_template": [{"name": "default", "template": %q},
		{"name": "tool_use", "template": %q}]}`, body("one "), body("tools ")))
	if got, want := render("", false), "one ^a$[b$]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	other := write(t, t.TempDir(), "mine.jinja", body("three "))
	if got, want := render(other, false), "three ^a$[b$]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	write(t, dir, "chat_template.jinja", body("two "))
	if got, want := render("", false), "two ^a$[b$]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	before, _ := NewChat(dir, "")
	write(t, dir, "chat_template.jinja", body("four "))
	after, _ := NewChat(dir, "")
	if before.Version() == after.Version() {
		t.Error("the template is not part of the version")
	}
	write(t, dir, "chat_template.jinja", "{% for %}")
	if _, err := NewChat(dir, ""); err == nil || !strings.Contains(err.Error(), "chat_template default") {
		t.Errorf("a broken template: %v", err)
	}
}

func TestRegistry(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "dataset_info.json", `{
		"plain": {"file_name": "a.json"},
		"renamed": {"file_name": "sub/b.jsonl", "columns": {"prompt": "q", "response": "a"}, "num_samples": 1},
		"talk": {"file_name": "c.json", "formatting": "sharegpt", "columns": {"messages": "m"}, "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
		"open": {"file_name": "d.json", "formatting": "openai"},
		"pretraining": {"file_name": "e.txt", "columns": {"prompt": "text"}},
		"images": {"file_name": "a.json", "columns": {"images": "i"}},
		"hub": {"hf_hub_url": "a/b"}, "scope": {"ms_hub_url": "a/c"}, "odd": {"file_name": "a.json", "formatting": "csv"}, "new": {"file_name": "a.json", "weird": 1},
		"gone": {"file_name": "gone.json"}, "column": {"file_name": "a.json", "columns": {"prompts": "x"}}, "nothing": {}}`)
	write(t, dir, "a.json", `[{"instruction": "p", "output": "r"}]`)
	write(t, dir, "sub/b.jsonl", "{\"q\": \"p\", \"a\": \"r\"}\n{\"q\": \"p\", \"a\": \"r\"}\n")
	write(t, dir, "c.json", `[{"m": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]}]`)
	write(t, dir, "d.json", `[{"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]}]`)
	write(t, dir, "e.txt", "one\n\n two \r\n")
	chat := chatOf(t, chatML)
	chat.All = true
	const pair = "<user>p</s>\n<assistant>[r</s>]\n"
	for name, want := range map[string][]string{"plain": {pair}, "renamed": {pair}, "talk": {pair}, "open": {pair},
		"pretraining": {"[one<|endoftext|>]", "[ two <|endoftext|>]"}} {
		for _, path := range []string{dir, filepath.Join(dir, "dataset_info.json")} {
			d, err := prepare(t, Source{Path: path, Name: name}, Options{Renderer: chat})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if diff := cmp.Diff(want, marked(d)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
	for name, want := range map[string]string{"images": "it has images",
		"hub": "a/b", "scope": "is elsewhere (a/c)",
		"odd": `formatting is "csv"`, "new": `unknown field "weird"`, "column": `columns has "prompts"`,
		"nothing": "it has no file_name", "absent": `no data set "absent"; it has `, "plian": "it has plain, ",
		"gone": "its file gone.json is not there; of the registry's files there are column, images, "} {
		_, err := prepare(t, Source{Path: dir, Name: name}, Options{Renderer: chat})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	for doc, want := range map[string]string{"[1]": "it is not an object with data sets by name", "{}": `no data set "x"; it has none`, "{": "unexpected end"} {
		path := write(t, t.TempDir(), "dataset_info.json", doc)
		if _, err := prepare(t, Source{Path: path, Name: "x"}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", doc, err, want)
		}
	}
	if _, err := prepare(t, Source{Path: t.TempDir(), Name: "x"}, Options{}); err == nil || !strings.Contains(err.Error(), "path must name LLaMA-Factory's dataset_info.json") {
		t.Errorf("without a registry: %v", err)
	}
}

// A registry names files below its own directory, whatever way: other files of the user are not read. In the hub's
// cache they may be links to the blobs of their data set.
func TestRegistryStaysInItsDirectory(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "datasets--a--b", "snapshots", strings.Repeat("0123", 10))
	private := write(t, root, "private.txt", "my diary\n")
	fake := filepath.Join(root, "snapshots", "fake") // which is no cache of the hub's
	write(t, root, "blobs/0123", "my diary\n")
	write(t, fake, "dataset_info.json", `{"x": {"file_name": "a.txt", "columns": {"prompt": "text"}}}`)
	if err := os.Symlink(filepath.Join("..", "..", "blobs", "0123"), filepath.Join(fake, "a.txt")); err != nil {
		t.Skip("this system makes no symbolic links for this user: ", err)
	}
	_, err := prepare(t, Source{Path: fake, Name: "x"}, Options{})
	if err == nil || !strings.Contains(err.Error(), "such links are not followed") {
		t.Errorf("blobs next to any snapshots: error %v", err)
	}
	write(t, root, "datasets--a--b/blobs/4567", "a blob\n")
	write(t, dir, "sub/a.txt", "one\n")
	for link, to := range map[string]string{"link.txt": private, "folder/x.txt": private, "outside": root,
		"blob.txt": filepath.Join("..", "..", "blobs", "4567"), "inside.txt": filepath.Join("sub", "a.txt")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o777),
			os.Symlink(to, filepath.Join(dir, link))); err != nil {
			t.Skip("this system makes no symbolic links for this user: ", err)
		}
	}
	for file, good := range map[string]bool{"sub/a.txt": true, "inside.txt": true, "blob.txt": true, "sub": true,
		filepath.Join(dir, "sub", "a.txt"): true, private: false, "../../../private.txt": false, "link.txt": false,
		"folder": false, "outside/private.txt": false, "folder/*": false} {
		doc, _ := json.Marshal(map[string]any{"x": map[string]any{"file_name": file,
			"columns": map[string]string{"prompt": "text"}}})
		write(t, dir, "dataset_info.json", string(doc))
		_, err := prepare(t, Source{Path: dir, Name: "x"}, Options{})
		if good && err != nil || !good && (err == nil ||
			!strings.Contains(err.Error(), "is not below the registry's directory") ||
			!strings.Contains(err.Error(), "the columns and tags of x as keys")) {
			t.Errorf("%s: error %v", file, err)
		}
	}
}

func TestSkippedRows(t *testing.T) {
	dir := t.TempDir()
	s := Source{Type: Text, BadRows: SkipBadRows, Path: write(t, dir, "a.jsonl", "{\"text\": \"one\"}\n{\"text\": 3}\nnot JSON\n{\"text\": \"two\"}\n")}
	cache := filepath.Join(dir, "cache")
	for range 2 { // the second time from the cache
		d, err := prepare(t, s, Options{CacheDir: cache})
		if err != nil {
			t.Fatal(err)
		}
		n, first := d.Skipped()
		if n != 2 || !strings.HasSuffix(first, `a.jsonl:2: field "text" is not a string, but a number: write it as a text`) || d.Len() != 2 {
			t.Errorf("skipped %d, first %q, of %d", n, first, d.Len())
		}
	}
	if err := os.WriteFile(s.Path, []byte("[1, 2]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(t, s, Options{CacheDir: cache}); err == nil || !strings.Contains(err.Error(), "all 2 rows are bad; the first: ") {
		t.Errorf("nothing is left: %v", err)
	}
	// A fault of all rows is not skipped.
	s = Source{Type: Messages, BadRows: SkipBadRows, Path: write(t, dir, "b.jsonl", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`)}
	if _, err := prepare(t, s, Options{}); err == nil || !strings.Contains(err.Error(), "set chat_template") {
		t.Errorf("without a template: %v", err)
	}
}
