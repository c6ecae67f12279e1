package template

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"
)

var generationTag = regexp.MustCompile(`(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})`)

// withoutGeneration turns generation blocks into conditions that hold, so that the text stays the same.
func withoutGeneration(source string) string {
	return generationTag.ReplaceAllStringFunc(source, func(tag string) string {
		m := generationTag.FindStringSubmatch(tag)
		if m[2] != "" {
			return m[1] + "endif" + m[3]
		}
		return m[1] + "if true" + m[3]
	})
}

func showSpans(text string, spans []Span) []string {
	shown := []string{}
	for _, s := range spans {
		shown = append(shown, fmt.Sprintf("%d:%q", s.Message, text[s.Start:s.End]))
	}
	return shown
}

// sameTurns tells whether spans agree, except for white space at the end and a part of the header.
func sameTurns(text string, found, want []Span) bool {
	var joined []Span
	for _, w := range want {
		if n := len(joined); n > 0 && joined[n-1].End == w.Start {
			joined[n-1].End = w.End
		} else {
			joined = append(joined, w)
		}
	}
	if len(joined) != len(found) {
		return false
	}
	for i, f := range found {
		w := joined[i]
		if !strings.HasSuffix(strings.TrimSpace(text[w.Start:w.End]), strings.TrimSpace(text[f.Start:f.End])) ||
			strings.TrimSpace(text[f.End:max(w.End, f.End)]) != "" || f.Start-w.Start > 40 {
			return false
		}
	}
	return true
}

func readTemplate(t testing.TB, name string) *Template {
	t.Helper()
	source, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(string(source))
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// TestFindTurns states for each kind of template what the model has to write.
func TestFindTurns(t *testing.T) {
	golden := readGolden(t, "testdata/conversations.json")
	own := map[string]Input{}
	for name, content := range map[string]string{"tool_call_thoughts": `"", "thinking": "well"`,
		"tool_call_said": `"well"`} {
		messages, err := ParseJSON([]byte(`[{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": ` + content + `,
			"tool_calls": [{"function": {"name": "add"}}]}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}]`))
		if err != nil {
			t.Fatal(err)
		}
		own[name] = Input{Messages: messages.(*List).Items()}
	}
	oldLlama := `{{ bos_token }}{% for m in messages %}{{ '<h>' + m.role + '</h>' + m.content + '<eot>' }}{% endfor %}{{ '<h>assistant</h>' }}`
	eosAtEnd := "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
	endByPlace := "{% for m in messages %}{{ '<' + m.role + '>' + m.content + (eos_token if loop.last and m.role == 'assistant' else '<end>') }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
	longPrompt := "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<assistant><thought>nothing comes to my mind</thought>' }}{% endif %}"
	bare := "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
	// Command-A: a preamble that ends as turns do, and the next turn is opened after every text.
	preamble := "S<eot>{% for m in messages %}<h>{{ m.role }}:{{ '<r>' if m.role == 'assistant' }}{{ m.content }}</s>{% endfor %}<h>assistant:"
	openedThenAsked := preamble + "{% if add_generation_prompt %}<r>{% endif %}"
	// No conversation without messages is rendered.
	looksAtFirst := "{{ 'T' if messages[0].role == 'system' }}{% for m in messages %}<{{ m.role }}>{{ '<think></think>' if m.role == 'assistant' and not loop.first }}" +
		"{{ m.content }}<end>\n{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
	// gpt-oss: content and thoughts of a call are dropped where an answer follows.
	dropsThoughts := "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}" +
		"{% if messages[-1].tool_calls and (m.content or m.thinking) %}({{ m.content or m.thinking }}){% endif %}!{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}<end>" +
		"{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
	for _, test := range []struct {
		template, conversation string
		turns                  Turns
		want                   []string
	}{
		{preamble, "turns", AllTurns, []string{`1:"<r>2</s>"`, `3:"<r>4</s>"`, `5:"<r>Any time.</s>"`}},
		{openedThenAsked, "turns", AllTurns, []string{`1:"2</s>"`, `3:"4</s>"`, `5:"Any time.</s>"`}},
		{openedThenAsked, "turns", LastTurn, []string{`5:"Any time.</s>"`}},
		{openedThenAsked, "ends_user", AllTurns, []string{`1:"b</s>"`}},
		{looksAtFirst, "assistant_first", AllTurns, []string{`0:"Welcome<end>"`, `2:"<think></think>b<end>"`}},
		{dropsThoughts, "tool_call_thoughts", AllTurns, []string{`1:"!add<end>"`, `3:"It is 3.<end>"`}},
		{dropsThoughts, "tool_call_said", AllTurns, []string{`1:"!add<end>"`, `3:"It is 3.<end>"`}},
		// Each turn ends in its mark; the line break after it is the template's.
		{"chatml.jinja", "turns", AllTurns, []string{`1:"2<|im_end|>"`, `3:"4<|im_end|>"`, `5:"Any time.<|im_end|>"`}},
		{"chatml.jinja", "turns", LastTurn, []string{`5:"Any time.<|im_end|>"`}},
		{"chatml.jinja", "system_turns", AllTurns, []string{`2:"2<|im_end|>"`, `4:"4<|im_end|>"`}},
		{"chatml.jinja", "spaces", AllTurns, []string{`1:"\n trailing  \n<|im_end|>"`, `3:"  x<|im_end|>"`}},
		{"chatml.jinja", "ends_user", AllTurns, []string{`1:"b<|im_end|>"`}},
		{"chatml.jinja", "one", AllTurns, []string{}},
		{"chatml.jinja", "tool_calls_two", AllTurns, []string{
			`1:"Calling.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>\n<tool_call>\n` +
				`{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call><|im_end|>"`,
			`4:"3 and rain.<|im_end|>"`}},
		// Thoughts of the past are dropped; the empty ones before the last answer are what the model has to write.
		{"thinking.jinja", "turns", AllTurns, []string{
			`1:"2<|im_end|>"`, `3:"4<|im_end|>"`, `5:"<think>\n\n</think>\n\nAny time.<|im_end|>"`}},
		{"thinking.jinja", "think", AllTurns, []string{`1:"b<|im_end|>"`, `3:"<think>\nwell\n</think>\n\nd<|im_end|>"`}},
		{"thinking.jinja", "reasoning", AllTurns, []string{`1:"b<|im_end|>"`, `3:"<think>\nso\n</think>\n\nd<|im_end|>"`}},
		{"thinking.jinja", "reasoning", LastTurn, []string{`3:"<think>\nso\n</think>\n\nd<|im_end|>"`}},
		// Tools move to the last question, and the prompt is the end of the question.
		{"inst.jinja", "turns", AllTurns, []string{`1:" 2</s>"`, `3:" 4</s>"`, `5:" Any time.</s>"`}},
		{"inst.jinja", "tools_system", AllTurns, []string{`2:" Where?</s>"`}},
		{"inst.jinja", "tool_call_none", AllTurns, []string{
			`2:"[CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}, \"id\": \"call12345\"}]</s>"`,
			`4:" It is 3.</s>"`, `6:" Welcome.</s>"`}},
		{"turns.jinja", "parts_all", AllTurns, []string{`2:"A cat.<end>"`}},
		{"turns.jinja", "system_turns", AllTurns, []string{`2:"2<end>"`, `4:"4<end>"`}},
		{"generation.jinja", "turns", AllTurns, []string{`1:"2<end>"`, `3:"4<end>"`, `5:"Any time.<end>"`}},
		{"generation.jinja", "turns", LastTurn, []string{`5:"Any time.<end>"`}},
		// The prompt after every text belongs to no turn.
		{oldLlama, "turns", AllTurns, []string{`1:"2<eot>"`, `3:"4<eot>"`, `5:"Any time.<eot>"`}},
		// A token at the end of all belongs to the last turn.
		{eosAtEnd, "turns", AllTurns, []string{`1:"2<|end|>"`, `3:"4<|end|>"`, `5:"Any time.<|end|>\n</s>"`}},
		// A mark that replaces the usual one after the last turn is the only end that a model learns.
		{endByPlace, "turns", AllTurns, []string{`1:"2"`, `3:"4"`, `5:"Any time.</s>"`}},
		// The prompt continues with text that past turns do not have.
		{longPrompt, "turns", AllTurns, []string{`1:"2<end>"`, `3:"4<end>"`, `5:"Any time.<end>"`}},
		// Where the line break is all that ends a turn, it counts.
		{bare, "turns", AllTurns, []string{`1:"2\n"`, `3:"4\n"`, `5:"Any time.\n"`}},
	} {
		var tmpl *Template
		if strings.HasSuffix(test.template, ".jinja") {
			tmpl = readTemplate(t, test.template)
		} else {
			var err error
			if tmpl, err = Parse(test.template); err != nil {
				t.Fatal(err)
			}
		}
		in, ok := own[test.conversation]
		if !ok {
			in = conversationInput(t, golden, test.conversation)
		}
		found, err := tmpl.FindTurns(context.Background(), in, test.turns)
		if err != nil {
			t.Errorf("%s %s: %v", test.template, test.conversation, err)
			continue
		}
		text, spans := found.Text, found.Spans
		if got := showSpans(text, spans); strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s %s: got\n%s, want\n%s", test.template, test.conversation, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
		out, err := tmpl.Render(context.Background(), in)
		if err != nil || out.Text != text {
			t.Errorf("%s %s: the text is not that of Render: %q, %v", test.template, test.conversation, out.Text, err)
		}
	}
}

// TestSpansAreRefusedRatherThanGuessed has templates and conversations for which no part is certain.
func TestSpansAreRefusedRatherThanGuessed(t *testing.T) {
	golden := readGolden(t, "testdata/conversations.json")
	for _, test := range []struct{ source, conversation, want string }{
		{`{% for m in messages %}{{ m.content }}{% endfor %}{{ messages|length }}`, "turns", "message 1: cannot tell"},
		{`{% for m in messages %}{{ m.content|upper }}.{{ messages|length }};{% endfor %}`, "turns", "message 1: cannot tell"},
		{`{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}{{ x }}{% endfor %}`,
			"turns", "print it directly"},
		{`{% if false %}{% generation %}{% endgeneration %}{% endif %}`, "turns", "no generation block was reached"},
		{`sys<eot>{% for m in messages %}<h>{{ m.role }}:{{ m.content }}<eot>{% endfor %}<h>assistant:{% if add_generation_prompt %}<r>{% endif %}`,
			"pair", "after the last turn"},
		{`{{ raise_exception('no') if messages|length == 2 }}{% for m in messages %}{{ m.content }};{% endfor %}`, "turns",
			"messages up to it do not render"},
	} {
		tmpl, err := Parse(test.source)
		if err != nil {
			t.Fatal(err)
		}
		found, err := tmpl.FindTurns(context.Background(), conversationInput(t, golden, test.conversation), AllTurns)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v and the error %v, want one with %q", test.source, showSpans(found.Text, found.Spans), err, test.want)
		}
	}
}

// TestSpansWithoutBlocksAreThoseOfBlocks takes the generation blocks out of a template and finds the same spans.
func TestSpansWithoutBlocksAreThoseOfBlocks(t *testing.T) {
	golden := readGolden(t, "testdata/conversations.json")
	source, err := os.ReadFile("testdata/generation.jinja")
	if err != nil {
		t.Fatal(err)
	}
	marked, err1 := Parse(string(source))
	plain, err2 := Parse(withoutGeneration(string(source)))
	if err1 != nil || err2 != nil || !marked.hasGeneration || plain.hasGeneration {
		t.Fatal(err1, err2)
	}
	for _, c := range get[*Dict](t, golden, "conversations").Keys() {
		for _, turns := range []Turns{AllTurns, LastTurn} {
			in := conversationInput(t, golden, string(c.(String)))
			want, err1 := marked.FindTurns(context.Background(), in, turns)
			got, err2 := plain.FindTurns(context.Background(), in, turns)
			if (err1 == nil) != (err2 == nil) || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: found %v (%v), marked are %v (%v)", c, showSpans(got.Text, got.Spans), err2, showSpans(want.Text, want.Spans), err1)
			}
		}
	}
}

// TestPublicSpans takes the generation blocks out of public templates and reports how often the spans are found again.
func TestPublicSpans(t *testing.T) {
	path := os.Getenv("TEMPLATE_PUBLIC")
	if path == "" {
		t.Skip("TEMPLATE_PUBLIC names no file; golden.py says how to make one")
	}
	golden := readGolden(t, path)
	templates := get[*Dict](t, golden, "templates")
	conversations := get[*Dict](t, golden, "conversations")
	for i, name := range templates.Keys() {
		source := string(templates.At(i).(String))
		marked, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		plain := marked
		if marked.hasGeneration {
			if plain, err = Parse(withoutGeneration(source)); err != nil {
				t.Fatal(err)
			}
		}
		counts := map[string]int{}
		for _, c := range conversations.Keys() {
			in := conversationInput(t, golden, string(c.(String)))
			if _, err := plain.Render(context.Background(), in); err != nil || len(assistantMessages(in.Messages)) == 0 {
				continue
			}
			turns, err := plain.FindTurns(context.Background(), in, AllTurns)
			text, found := turns.Text, turns.Spans
			if err != nil {
				counts["refused"]++
				t.Logf("%s %s: %v", name, c, err)
				continue
			}
			if !marked.hasGeneration {
				counts["found"]++
				if testing.Verbose() {
					t.Logf("%s %s: %v", name, c, showSpans(text, found))
				}
				continue
			}
			blocks, err := marked.FindTurns(context.Background(), in, AllTurns)
			want := blocks.Spans
			if err != nil {
				counts["marked refused"]++
				continue
			}
			switch {
			case fmt.Sprint(found) == fmt.Sprint(want):
				counts["equal"]++
			case sameTurns(text, found, want):
				counts["equal except header and white space at the end"]++
			default:
				counts["different"]++
				t.Logf("%s %s:\n found %v\n marks %v", name, c, showSpans(text, found), showSpans(text, want))
			}
		}
		var line []string
		for what, n := range counts {
			line = append(line, fmt.Sprintf("%d %s", n, what))
		}
		sort.Strings(line)
		t.Logf("SPANS %s: %s", name, strings.Join(line, ", "))
	}
}
