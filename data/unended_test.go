package data

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
)

// Templates that end no turn, each in the way of a family.
const (
	// The next header ends a turn: GLM.
	headerEnds = "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{% for c in m.tool_calls %}(call {{ c.function.name }}){% endfor %}" +
		"{% else %}{{ '<|observation|>' if m.role == 'tool' else '<|user|>' }}\n{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
	// The next message ends the turn of the assistant: Apertus.
	nextEnds = "{% set ns = namespace(open=false) %}{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}{% set ns.open = true %}" +
		"{% else %}{{ '<|end|>' if ns.open }}{% set ns.open = false %}<|user|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
	// All turns but the last end: Apriel, Qwen 1.
	lastIsOpen = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' and not loop.last %}{{ '\n<|end|>\n' }}{% endif %}{% endfor %}" +
		"{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
	// Every message but the last ends in the same token.
	sameEnd = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if not loop.last or add_generation_prompt %}<|end|>\n{% endif %}{% endfor %}" +
		"{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
	// No token at all: Falcon.
	words = "{% for m in messages %}{{ '\n\n' if not loop.first }}{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}\n\nassistant: {% endif %}"
	// Ends in EOS.
	ended = "{% for m in messages %}<|{{ m.role }}|>{{ m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

// tokensOf is a tokenizer with tokens for these templates, and the ids of some.
func tokensOf(t *testing.T, dir string, names ...string) (tok tokenizer.Tokenizer, ids []int32) {
	t.Helper()
	write(t, dir, "tokenizer.json", string(readFile(t, filepath.Join("tokenizer", "testdata", "smollm2.json"))))
	write(t, dir, "tokenizer_config.json", `{"eos_token": "<|eos|>", "added_tokens_decoder": {
		"562": {"content": "<|user|>", "special": true}, "563": {"content": "<|assistant|>", "special": true},
		"564": {"content": "<|observation|>", "special": true}, "565": {"content": "<|end|>", "special": true}}}`)
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		ids = append(ids, tok.TokenID(name))
	}
	return tok, ids
}

// TestTurnsEnd: where a template writes nothing after a turn, a model learns the token at which a generation ends,
// once.
func TestTurnsEnd(t *testing.T) {
	const (
		one = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`
		two = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`
		asks = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}`
		off  = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 0}]}`
		calls = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
			{"role": "tool", "content": "r"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "2", "function": {"name": "g"}}]}]}`
		spelled = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<|eos|>"}]}`
	)
	glm := []string{"<|eos|>", "<|user|>", "<|observation|>"}
	for name, c := range map[string]struct {
		template string
		stops    []string
		row      string
		last     bool
		want     string
	}{
		"header, last":           {headerEnds, glm, one, false, "<|user|>\na<|assistant|>\n[b<|user|>]"},
		"header, two":            {headerEnds, glm, two, false, "<|user|>\na<|assistant|>\n[b<|user|>]\nc<|assistant|>\n[d<|user|>]"},
		"header, last of two":    {headerEnds, glm, two, true, "<|user|>\na<|assistant|>\nb<|user|>\nc<|assistant|>\n[d<|user|>]"},
		"header, then question":  {headerEnds, glm, asks, false, "<|user|>\na<|assistant|>\n[b<|user|>]\nc"},
		"header, last is off":    {headerEnds, glm, off, false, "<|user|>\na<|assistant|>\n[b<|user|>]\nc<|assistant|>\nd"},
		"header, calls":          {headerEnds, glm, calls, false, "<|user|>\na<|assistant|>\n[(call f)<|observation|>]\nr<|assistant|>\n[(call g)<|observation|>]"},
		"header is no stop":      {headerEnds, nil, two, false, "<|user|>\na<|assistant|>\n[b]<|user|>\nc<|assistant|>\n[d<|eos|>]"},
		"next, last":             {nextEnds, []string{"<|end|>"}, one, false, "<|user|>a<|assistant|>[b<|end|>]"},
		"next, two":              {nextEnds, []string{"<|end|>"}, two, false, "<|user|>a<|assistant|>[b<|end|>]<|user|>c<|assistant|>[d<|end|>]"},
		"next is no stop":        {nextEnds, nil, two, false, "<|user|>a<|assistant|>[b<|end|>]<|user|>c<|assistant|>[d<|end|><|eos|>]"},
		"open last":              {lastIsOpen, []string{"<|end|>"}, two, false, "<|user|>\na<|assistant|>\n[b\n<|end|>]\n<|user|>\nc<|assistant|>\n[d\n<|end|>]"},
		"same end":               {sameEnd, []string{"<|end|>"}, two, false, "<|user|>\na<|end|>\n<|assistant|>\n[b<|end|>]\n<|user|>\nc<|end|>\n<|assistant|>\n[d<|end|>]"},
		"words":                  {words, nil, two, false, "user: a\n\nassistant:[ b]\n\nuser: c\n\nassistant:[ d<|eos|>]"},
		"ended":                  {ended, glm, two, false, "<|user|>a<|eos|><|assistant|>[b<|eos|>]<|user|>c<|eos|><|assistant|>[d<|eos|>]"},
		"ended as content ends":  {ended, nil, spelled, false, "<|user|>a<|eos|><|assistant|>[b<|eos|><|eos|>]"},
		"ended, then a question": {ended, nil, asks, false, "<|user|>a<|eos|><|assistant|>[b<|eos|>]<|user|>c<|eos|>"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tok, stops := tokensOf(t, dir, c.stops...)
			write(t, dir, "chat_template.jinja", c.template)
			chat, err := NewChat(dir, "")
			if err != nil {
				t.Fatal(err)
			}
			chat.LastTurn, chat.Stops = c.last, stops
			path := write(t, dir, "a.jsonl", strings.ReplaceAll(c.row, "\n", " "))
			d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Tokenizer: tok, Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{c.want}, markedBy(tok, d)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTurnsEndWhateverTheySay: how turns end is a property of the template. Where it moves thoughts, strips texts, or
// writes them in another form, turns end as those of plain answers do, and a row cannot change that.
func TestTurnsEndWhateverTheySay(t *testing.T) {
	const (
		prompt = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
		header = "{% for m in messages %}{% if m.role != 'assistant' %}{{ '<|observation|>' if m.role == 'tool' else '<|user|>' }}\n{{ m.content }}{% else %}<|assistant|>"
		calls  = "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}\n{{ k }}: {{ v if v is string else v | tojson }}{% endfor %}\n</tool_call>{% endfor %}{% endif %}{% endfor %}" + prompt
		// GLM-4.5 and 4.6: thoughts move to the front of the turn, from either place.
		moves = header + "{% set thoughts = m.reasoning_content or '' %}{% set content = m.content or '' %}{% if not thoughts and '</think>' in content %}" +
			"{% set thoughts = content.split('</think>')[0].split('<think>')[-1] %}{% set content = content.split('</think>')[-1] %}{% endif %}" +
			"{{ '\n<think>' ~ thoughts.strip() ~ '</think>' if thoughts }}{{ '\n' ~ content.strip() if content.strip() }}" + calls
		// The same, and the empty thoughts where a turn has no others, in other tags.
		renames = header + "{% set content = m.content or '' %}{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% else %}[THINK]{{ content.split('</think>')[0].split('<think>')[-1] if '</think>' in content }}[/THINK]{% endif %}" +
			"{{ content.split('</think>')[-1] | trim }}" + calls
		// GLM-4.7: past thoughts are dropped.
		drops = header + "{% set content = m.content or '' %}{% set thoughts = m.reasoning_content or (content.split('</think>')[0].split('<think>')[-1] if '</think>' in content) or '' %}" +
			"{% if loop.last and thoughts %}<think>{{ thoughts }}</think>{% else %}</think>{% endif %}{{ content.split('</think>')[-1].strip() }}" + calls
	)
	call := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"id": "%d", "type": "function", "function": {"name": "f", "arguments": {"x": "v%d", "n": %d}}}`, i, i, i))
		}
		return `, "tool_calls": [` + strings.Join(all, ", ") + `]`
	}
	turns := map[string]string{}
	for _, content := range []string{"", "5", "<think>5</think>", " 5\\n\\n", "<|assistant|>5", "5<|user|>", "<think>\\nso\\n</think>\\n\\n5", "<think></think>5", "a</think>5", "<think>so</think>"} {
		for _, thoughts := range []string{"", `, "reasoning_content": "well, so"`, `, "reasoning_content": ""`, `, "thinking": " so "`} {
			for n := range 3 {
				if strings.TrimPrefix(content, "<think>so</think>") == "" && n == 0 {
					continue // nothing is said
				}
				turns[fmt.Sprintf("%q %s %d calls", content, thoughts, n)] = `{"role": "assistant", "content": "` + content + `"` + thoughts + map[bool]string{true: call(n)}[n > 0] + `}`
			}
		}
	}
	for name, template := range map[string]string{"moves": moves, "renames": renames, "drops": drops, "words": words + "{# #}"} {
		dir := t.TempDir()
		tok, stops := tokensOf(t, dir, "<|user|>", "<|observation|>")
		write(t, dir, "chat_template.jinja", template)
		chat, err := NewChat(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		chat.Stops = stops
		rendered := 0
		for turn, message := range turns {
			for _, past := range []string{"", `, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}`, `, {"role": "tool", "content": "c"}, {"role": "assistant", "content": "d"}`} {
				path := write(t, dir, "a.jsonl", `{"messages": [{"role": "user", "content": "2+3?"}, `+message+past+`]}`)
				d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Tokenizer: tok, Renderer: chat})
				if err != nil {
					if !strings.Contains(err.Error(), "leaves out") {
						t.Errorf("%s: %s: %v", name, turn, err)
					}
					continue
				}
				rendered++
				want := d.Turns().Trained
				if name == "words" { // past turns cannot end
					want = 1
				}
				if got := d.EndedTurns(); got < want {
					t.Errorf("%s: %s: %d of %d turns end: %s", name, turn, got, want, markedBy(tok, d))
				}
			}
		}
		if rendered < 40 {
			t.Errorf("%s: only %d conversations were rendered", name, rendered)
		}
	}
}

// TestTurnsThatCannotEnd: where no token can end the last turn, that is said.
func TestTurnsThatCannotEnd(t *testing.T) {
	dir := t.TempDir()
	row := write(t, dir, "a.jsonl", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`)
	tok, _ := tokensOf(t, dir)
	write(t, dir, "tokenizer_config.json", `{}`)
	noEOS, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		template, want string
		tok            tokenizer.Tokenizer
	}{
		{words, "no end-of-text token: set eos_token", noEOS},
		{"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ", "ends the last turn with no token", tok},
	} {
		write(t, dir, "chat_template.jinja", c.template)
		chat, err := NewChat(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = prepare(t, Source{Type: Messages, Path: row}, Options{Tokenizer: c.tok, Renderer: chat})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.template, err, c.want)
		}
	}
}
