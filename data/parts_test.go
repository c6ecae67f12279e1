package data

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// thinkML is chatML with thoughts.
var thinkML = strings.Replace(chatML, "{{ m.content }}",
	"{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}", 1)

// TestPartsOfContent: content may be parts, of OpenAI's format and of LLaMA-Factory's v1 format.
func TestPartsOfContent(t *testing.T) {
	text := func(s string) string { return fmt.Sprintf(`{"type": "text", "value": %q}`, s) }
	const (
		call    = `{"type": "tool_call", "value": "{\"name\": \"add\", \"arguments\": {\"a\": 1}}"}`
		calls   = `{"type": "tool_call", "value": "[{\"name\": \"add\", \"arguments\": {}}]"}`
		thought = `{"type": "reasoning", "value": "so"}`
		tools   = `"[{\"name\": \"add\"}]"`
		tooled  = `<tools>{"type": "function", "function": {"name": "add"}}</tools>` + "\n"
	)
	row := func(messages ...string) string {
		return `{"messages": [` + strings.Join(messages, ", ") + `], "tools": ` + tools + `}`
	}
	message := func(role, keys string, parts ...string) string {
		return fmt.Sprintf(`{"role": %q, "content": [%s]%s}`, role, strings.Join(parts, ", "), keys)
	}
	for _, c := range []struct{ row, want string }{
		{row(message("system", "", text("S")), message("user", `, "loss_weight": 0.0`, text("a"), text("b")),
			message("assistant", `, "loss_weight": 1.0`, thought, text("c"))),
			tooled + "<system>S</s>\n<user>ab</s>\n<assistant>[<think>so</think>c</s>]\n"},
		{row(message("user", "", text("a")), message("assistant", "", thought, call),
			message("tool", "", text("3")), message("assistant", "", text("c"), call, calls)),
			tooled + "<user>a</s>\n<assistant>[<think>so</think><call>add {\"a\": 1}</s>]\n<tool>3</s>\n" +
				"<assistant>[c<call>add {\"a\": 1}<call>add {}</s>]\n"},
		{row(message("user", "", text("a")), message("assistant", `, "loss_weight": 0`, text("b")),
			message("user", "", text("c")), message("assistant", "", text("d"))),
			tooled + "<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>[d</s>]\n"},
		{row(message("user", "", `{"type": "text", "text": "a"}`, text("b")), message("assistant", "", text("c"))),
			tooled + "<user>ab</s>\n<assistant>[c</s>]\n"},
	} {
		path := write(t, t.TempDir(), "a.jsonl", c.row)
		d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, thinkML)})
		if err != nil {
			t.Errorf("%s: %v", c.row, err)
		} else if diff := cmp.Diff([]string{c.want}, marked(d)); diff != "" {
			t.Errorf("%s: %s", c.row, diff)
		}
	}
	user := func(part string) string { return message("user", "", part) }
	for _, c := range [][2]string{
		{user(`{"type": "image_url", "image_url": {"url": "x"}}`), `its type is "image_url": only text`},
		{message("user", "", `{"type": "image"}`, text("a")), `its type is "image": only text can be trained on`},
		{user(`{"type": "input_audio"}`), `its type is "input_audio": only text`},
		{user(`{"type": "video_url", "value": "x"}`), `its type is "video_url": only text`},
		{user(`{"type": "poem", "value": "x"}`), `its type is "poem": known are text`},
		{user(`{"type": "text", "words": "x"}`), `"text" is missing: it has type, words`},
		{user(`{"value": "x"}`), `"type" is missing`},
		{user(`3`), "a part of the content is not an object"},
		{user(thought), "reasoning or a tool_call, and the role is user"},
		{message("tool", "", call), "reasoning or a tool_call, and the role is tool"},
		{message("user", `, "loss_weight": 1.0`, text("a")), "loss_weight is 1, and the role is user"},
		{message("assistant", `, "loss_weight": 0.5`, text("a")), "loss_weight is neither 0 nor 1"},
		{message("assistant", "", `{"type": "tool_call", "value": "add"}`), "the function call: it is not JSON"},
		{message("assistant", "", `{"type": "tool_call"}`), `"value" is missing`},
		{message("assistant", `, "tool_calls": [{"name": "add"}]`, call), "tool_calls, and a tool_call in its content"},
		{`{"role": "user", "content": null}`, "content is missing"},
		{`{"role": "user", "content": 3}`, "neither a text nor a list of parts"},
	} {
		bad, want := c[0], c[1]
		path := write(t, t.TempDir(), "a.jsonl", row(bad, message("assistant", "", text("b"))))
		_, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, thinkML)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", bad, err, want)
		}
	}
}
