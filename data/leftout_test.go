package data

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Templates that know some keys only.
const (
	// Thoughts of the last turn, under one name; gpt-oss reads the other.
	thinks = `{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content | trim }}</think>{% endif %}{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	analyses = `{% for m in messages %}<{{ m.role }}>{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	// Takes thoughts out of contents, except the last one or always.
	cutsPast   = `{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content.split('</think>')[-1] }}</s>` + "\n" + `{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	cutsAlways = `{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</s>` + "\n" + `{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	// Content that comes with a call is skipped, and tools answer in JSON.
	callsOnly = `{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% elif m.role == 'tool' %}{{ m.content | tojson }}` +
		`{% else %}{{ m.content }}{% endif %}</s>` + "\n" + `{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
)

// TestReasoningHasThreeNames: the keys that rows have for thoughts fill in for those that templates read, as in
// transformers 5.
func TestReasoningHasThreeNames(t *testing.T) {
	for _, key := range []string{"reasoning_content", "thinking", "reasoning"} {
		for template, want := range map[string]string{
			thinks:   "<user>a</s>\n<assistant>[<think>so it is</think>b</s>]\n",
			analyses: "<user>a</s>\n<assistant>[(so it is)b</s>]\n",
		} {
			row := `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "` + key + `": "so it is"}]}`
			d, err := prepare(t, Source{Type: Messages, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, template)})
			if err != nil {
				t.Errorf("%s: %v", key, err)
			} else if diff := cmp.Diff([]string{want}, marked(d)); diff != "" {
				t.Errorf("%s: %s", key, diff)
			}
		}
	}
	// A turn of sharegpt may have thoughts too. Two of them are not one: the template writes the first that it knows.
	for thoughts, want := range map[string]string{`"reasoning": "so it is"`: "", `"reasoning": "so it is", "thinking": "or so"`: `leaves out "reasoning" of message 1`} {
		row := `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", ` + thoughts + `}]}`
		d, err := prepare(t, Source{Type: ShareGPT, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chatOf(t, thinks)})
		switch {
		case want == "" && (err != nil || marked(d)[0] != "<user>a</s>\n<assistant>[<think>so it is</think>b</s>]\n"):
			t.Errorf("sharegpt: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("two thoughts: error %v, want %q", err, want)
		}
	}
}

// TestNothingIsLeftOut: a text that the template does not write is an error, whatever its key; thoughts of turns that
// others follow may be left out by a template that writes them in the last turn.
func TestNothingIsLeftOut(t *testing.T) {
	const (
		question = `{"role": "user", "content": "a"}, `
		more     = `, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}`
		calls    = `"tool_calls": [{"id": "1", "function": {"name": "fetch"}}]`
	)
	for _, c := range []struct{ template, messages, want string }{
		{thinks, question + `{"role": "assistant", "content": "b", "reasoning_content": "so"}`, ""},
		{thinks, question + `{"role": "assistant", "content": "b", "reasoning_content": "so"}` + more, ""},
		{thinks, question + `{"role": "assistant", "content": "b", "thinking": " so it is\n"}` + more, ""},
		{chatML, question + `{"role": "assistant", "content": "b", "reasoning_content": "zz"}`, `leaves out "reasoning_content" of message 1 (role assistant)`},
		{chatML, question + `{"role": "assistant", "content": "b", "thinking": "zz"}`, `leaves out "thinking" of message 1`},
		{chatML, question + `{"role": "assistant", "content": "b", "reasoning": "zz"}` + more, `leaves out "reasoning" of message 1`},
		{chatML, question + `{"role": "assistant", "content": "b", "notes": "two words"}`, `leaves out "notes" of message 1`},
		{chatML, `{"role": "user", "content": "a", "context": "two words"}, {"role": "assistant", "content": "b"}`, `leaves out "context" of message 0 (role user)`},
		{chatML, question + `{"role": "assistant", "content": "b", "name": "Mr Bot", "id": "x y", "mood": "good", "reasoning_content": ""}`, ""},
		{cutsPast, question + `{"role": "assistant", "content": "<think>zz</think>b"}` + more, ""},
		{cutsPast, question + `{"role": "assistant", "content": "<think>zz</think>b"}`, ""},
		{cutsAlways, question + `{"role": "assistant", "content": "<think>zz</think>b"}`, "leaves out what message 1 says (role assistant)"},
		{callsOnly, question + `{"role": "assistant", "content": "", ` + calls + `}, {"role": "tool", "content": "{\"x\": \"y\nz\"}"}, {"role": "assistant", "content": "b"}`, ""},
		{callsOnly, question + `{"role": "assistant", "content": "zz", ` + calls + `}`, "leaves out what message 1 says (role assistant)"},
		{cutsAlways, question + `{"role": "assistant", "content": "b", ` + calls + `}`, "leaves out the call of fetch in message 1"},
		{`{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`,
			question + `{"role": "assistant", "content": "", ` + calls + `}, {"role": "tool", "content": "zz"}, {"role": "assistant", "content": "b"}`, "leaves out what message 2 says (role tool)"},
	} {
		path := write(t, t.TempDir(), "a.jsonl", strings.ReplaceAll(`{"messages": [`+c.messages+`]}`, "\n", `\n`))
		_, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, c.template)})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.messages, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), "the chat template "+c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %v, want %q", c.messages, err, c.want)
		}
	}
}

// TestDropTools: tools that a template would leave out are an error, unless the entry drops them.
func TestDropTools(t *testing.T) {
	const (
		plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}" +
			"{{ '<assistant>' if add_generation_prompt }}"
		question = `[{"role": "user", "content": "a"}`
		answer   = `{"role": "assistant", "content": "b"}]`
		tools    = `"tools": [{"type": "function", "function": {"name": "fetch"}}]`
	)
	dir := t.TempDir()
	write(t, dir, "dataset_info.json", `{"calls": {"file_name": "a.jsonl", "formatting": "openai"}}`)
	turns := write(t, dir, "a.jsonl", `{"messages": `+question+", "+answer+", "+tools+"}")
	pair := write(t, dir, "b.jsonl", `{"prompt": `+question+`], "response": [`+answer+", "+tools+"}")
	for _, s := range []Source{
		{Type: Messages, Path: turns}, {Type: PromptResponse, Path: pair}, {Path: dir, Name: "calls"}} {
		_, err := prepare(t, s, Options{Renderer: chatOf(t, plain)})
		if err == nil || !strings.Contains(err.Error(), "tool 0 (fetch): it knows no tools; set tools: drop") {
			t.Errorf("%+v: %v", s, err)
		}
		s.Tools = DropTools
		for template, want := range map[string]string{
			plain: "<user>a</s><assistant>[b</s>]", chatML: "<user>a</s>\n<assistant>[b</s>]\n"} {
			var told []string
			note := func(line string) { told = append(told, line) }
			d, err := prepare(t, s, Options{Renderer: chatOf(t, template), Note: note})
			if err != nil || marked(d)[0] != want {
				t.Errorf("%+v: %v, %v", s, d, err)
			}
			if len(told) != 1 || !strings.HasSuffix(told[0], "rendered without their tools (tools: drop)") {
				t.Errorf("%+v: told %q", s, told)
			}
		}
	}
	err := Source{Type: Text, Path: "a", Tools: DropTools}.Validate()
	if err == nil || !strings.Contains(err.Error(), "tools is for type") {
		t.Errorf("text: %v", err)
	}
}
