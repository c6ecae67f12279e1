package data

import (
	"strings"
	"testing"
)

// A conversation without a question has no opening: opening: drop keeps it whole, and is no advice where a template
// refuses it.
func TestNoQuestion(t *testing.T) {
	const takesAll = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{{ '<assistant>' if " +
		"add_generation_prompt }}"
	row := write(t, t.TempDir(), "a.jsonl", `{"messages": [{"role": "assistant", "content": "b"}]}`)
	for _, drop := range []string{"", DropOpening} {
		s := Source{Type: Messages, Path: row, Opening: drop}
		d, err := prepare(t, s, Options{Renderer: chatOf(t, takesAll)})
		if err != nil || marked(d)[0] != "<assistant>[b</s>]" {
			t.Errorf("opening %q: %v, %v", drop, d, err)
		}
		_, err = prepare(t, s, Options{Renderer: chatOf(t, "{{ raise_exception('ask') }}")})
		if err == nil || !strings.Contains(err.Error(), ": ask; correct it") {
			t.Errorf("opening %q: error %v", drop, err)
		}
	}
}

// TestDropOpening: a template may refuse conversations that do not begin with a question. The error says what to do,
// and opening: drop leaves out the turns before it.
func TestDropOpening(t *testing.T) {
	const asks = "{% set said = messages|rejectattr('role', 'equalto', 'system')|list %}" +
		"{{ raise_exception('ask') if said[0].role != 'user' }}" +
		"{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}" +
		"{{ '<assistant>' if add_generation_prompt }}"
	const rest = `{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}, ` +
		`{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]`
	const greeting = `{"role": "assistant", "content": "Hi."}, `
	const want = "<user>a</s><assistant>b</s><user>c</s><assistant>[d</s>]"
	const system = `{"role": "system", "content": "S"}, `
	turns := strings.NewReplacer("role", "from", "content", "value", "user", "human", "assistant", "gpt").Replace(rest)
	for _, c := range []struct {
		kind      Type
		row, want string
	}{
		{Messages, `{"messages": [` + greeting + rest + `}`, want},
		{Messages, `{"messages": [` + system + greeting + greeting + rest + `}`, "<system>S</s>" + want},
		{Messages, `{"messages": [` + rest + `}`, want},
		{ShareGPT, `{"conversations": [{"from": "gpt", "value": "Hi."}, ` + turns + `}`, want},
		{PromptResponse, `{"prompt": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "a"}], ` +
			`"response": [{"role": "assistant", "content": "b"}]}`, "<user>a</s><assistant>[b</s>]"},
	} {
		s := Source{Type: c.kind, Path: write(t, t.TempDir(), "a.jsonl", c.row)}
		_, err := prepare(t, s, Options{Renderer: chatOf(t, asks)})
		refused := err != nil && strings.Contains(err.Error(), "ask; the conversation does not begin with a question:")
		if strings.Contains(c.row, "Hi.") && !refused {
			t.Errorf("%s: error %v", c.row, err)
		}
		s.Opening = DropOpening
		var told []string
		note := func(line string) { told = append(told, line) }
		d, err := prepare(t, s, Options{Renderer: chatOf(t, asks), Note: note})
		if err != nil || marked(d)[0] != c.want {
			t.Errorf("%s: %v, %v", c.row, d, err)
			continue
		}
		if len(told) != 1 || !strings.HasSuffix(told[0], "before the first question are left out (opening: drop)") {
			t.Errorf("%s: told %q", c.row, told)
		}
	}
	for _, bad := range []Source{
		{Type: Messages, Path: "a", Opening: "keep"}, {Type: Alpaca, Path: "a", Opening: DropOpening}} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "opening is") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
