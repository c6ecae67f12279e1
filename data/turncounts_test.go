package data

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const twoTurns = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
	{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`

// TestTurnsAreCounted: turns and the tokens that end them are counted, whether rows become tokens or the cache has them.
func TestTurnsAreCounted(t *testing.T) {
	const (
		// The last turn ends in EOS, the others in a token that does not count: gpt-oss.
		endByPlace = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
		always     = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
		noEnd      = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
		blocks     = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\n{% generation %}<|end|>\n{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
	)
	pair := `{"prompt": "a", "response": "b"}`
	for name, c := range map[string]struct {
		template, row string
		kind          Type
		stops         []string
		last          bool
		want          TurnCounts // Last by the token's text below
		by            map[string]int64
		ends          []string
		ended         int64
	}{
		"by place":            {template: endByPlace, row: twoTurns, want: TurnCounts{Trained: 2}, by: map[string]int64{"": 1, "<|eos|>": 1}, ends: []string{"<|eos|>"}, ended: 1},
		"by place, last":      {template: endByPlace, row: twoTurns, last: true, want: TurnCounts{Trained: 1}, by: map[string]int64{"<|eos|>": 1}, ends: []string{"<|eos|>"}, ended: 1},
		"a base model":        {template: always, row: twoTurns, want: TurnCounts{Trained: 2}, by: map[string]int64{"<|end|>": 2}, ends: []string{"<|end|>"}, ended: 2},
		"a stop":              {template: always, row: twoTurns, stops: []string{"<|end|>"}, want: TurnCounts{Trained: 2}, by: map[string]int64{"<|end|>": 2}, ends: []string{"<|end|>"}, ended: 2},
		"blocks without end":  {template: noEnd, row: twoTurns, want: TurnCounts{Trained: 2}, by: map[string]int64{"": 2}},
		"blocks of a message": {template: blocks, row: twoTurns, want: TurnCounts{Trained: 2}, by: map[string]int64{"<|end|>": 2}, ends: []string{"<|end|>"}, ended: 2},
		"open":                {template: words, row: twoTurns, want: TurnCounts{Trained: 2}, by: map[string]int64{"": 1, "<|eos|>": 1}, ends: []string{"<|eos|>"}, ended: 1},
		"added after it":      {template: headerEnds, row: twoTurns, stops: []string{"<|user|>"}, want: TurnCounts{Trained: 2}, by: map[string]int64{"<|user|>": 2}, ends: []string{"<|user|>"}, ended: 2},
		"off":                 {template: always, row: strings.Replace(twoTurns, `"d"`, `"d", "weight": 0`, 1), want: TurnCounts{Trained: 1}, by: map[string]int64{"<|end|>": 1}, ends: []string{"<|end|>"}, ended: 1},
		"plain":               {row: pair, kind: PromptResponse, want: TurnCounts{Trained: 1}, by: map[string]int64{"<|eos|>": 1}, ends: []string{"<|eos|>"}, ended: 1},
		"text":                {row: `{"text": "b"}`, kind: Text},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tok, stops := tokensOf(t, dir, c.stops...)
			o := Options{Tokenizer: tok, CacheDir: filepath.Join(dir, "cache")}
			if c.template != "" {
				write(t, dir, "chat_template.jinja", c.template)
				chat, err := NewChat(dir, "")
				if err != nil {
					t.Fatal(err)
				}
				chat.Stops, chat.LastTurn = stops, c.last
				o.Renderer = chat
			}
			if c.kind == "" {
				c.kind = Messages
			}
			path := write(t, dir, "a.jsonl", strings.ReplaceAll(c.row, "\n", " "))
			for _, cached := range []bool{false, true} {
				var p Progress
				o.Progress = func(now Progress) { p = now }
				d, err := prepare(t, Source{Type: c.kind, Path: path}, o)
				if err != nil {
					t.Fatal(err)
				}
				got := d.Turns()
				var by map[string]int64
				for id, n := range got.Last {
					if by == nil {
						by = map[string]int64{}
					}
					by[tok.Token(id)] = n
				}
				var ends []string
				for _, id := range d.Ends() {
					ends = append(ends, tok.Token(id))
				}
				got = TurnCounts{Trained: got.Trained}
				if diff := cmp.Diff([]any{c.want, c.by, c.ends, c.ended, cached}, []any{got, by, ends, d.EndedTurns(), p.Cached}); diff != "" {
					t.Errorf("cached %v: %s", cached, diff)
				}
			}
		})
	}
}

// TestTurnLines: what the counts say to people, for templates that lose something of past turns, and for all that may
// end turns in part or not at all.
func TestTurnLines(t *testing.T) {
	const (
		// Qwen3.5: thoughts of the past are dropped, and the prompt begins thoughts.
		begins = "{% for m in messages %}<|{{ m.role }}|>{% set c = m.content %}{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content or '' }}</think>{% endif %}" +
			"{{ c }}{% for t in m.tool_calls or [] if loop.last %}({{ t.function.name }}){% endfor %}<|eos|>{% endfor %}{{ '<|assistant|><think>' if add_generation_prompt }}"
		// R1: rows without thoughts stand after a prompt that begins them.
		noThoughts = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eos|>{% endfor %}{{ '<|assistant|><think>' if add_generation_prompt }}"
		// The last turn alone ends.
		byPlace = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ '<|eos|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
		never   = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
		fine    = "2 turns of the assistant: each ends with a token at which a generation ends"
		advice  = "; train_on_last_turn: true trains the last turn of each row alone"
	)
	thinks := strings.ReplaceAll(twoTurns, `"}`, `", "reasoning_content": "so"}`)
	thinks = strings.ReplaceAll(thinks, `"a", "reasoning_content": "so"`, `"a"`)
	thinks = strings.ReplaceAll(thinks, `"c", "reasoning_content": "so"`, `"c"`)
	for name, c := range map[string]struct {
		template, row string
		last          bool
		want          []string
	}{
		"thoughts are dropped": {begins, thinks, false, []string{fine, "the chat template leaves 1 thought out of turns that others follow" + advice,
			"1 of 2 turns follow another prompt than a generation gets, such as one that begins thoughts" + advice}},
		"thoughts are dropped, last": {begins, thinks, true, []string{strings.Replace(fine, "2 turns", "1 turn", 1), "the chat template leaves 1 thought out of turns that others follow"}},
		"prompt of thoughts": {noThoughts, twoTurns, false, []string{fine,
			"2 of 2 turns follow another prompt than a generation gets, such as one that begins thoughts; chat_template_kwargs (such as enable_thinking: false) may choose the prompt that the rows have"}},
		"by place": {byPlace, twoTurns, false, []string{`1 of 2 turns of the assistant end with a token at which a generation ends (the first that does not ends with "b"): the model does not learn to stop after the others` + advice}},
		"never":    {never, twoTurns, false, []string{`no turn of the assistant ends with a token at which a generation ends: the model would not learn to stop (the first turn ends with "b"); if the tokenizer lacks`}},
		"fine":     {strings.ReplaceAll(noThoughts, "<think>", ""), twoTurns, false, []string{fine}},
	} {
		dir := t.TempDir()
		tok, _ := tokensOf(t, dir)
		write(t, dir, "chat_template.jinja", c.template)
		chat, err := NewChat(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		chat.LastTurn = c.last
		path := write(t, dir, "a.jsonl", strings.ReplaceAll(c.row, "\n", " "))
		for range 2 { // the second time, the cache has the tokens
			d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Tokenizer: tok, Renderer: chat, CacheDir: filepath.Join(dir, "cache")})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := d.TurnLines(c.last)
			for i := range min(len(got), len(c.want)) {
				if name == "never" {
					got[i] = got[i][:min(len(got[i]), len(c.want[i]))]
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if err := d.CheckEnds(); (err != nil) != (name == "never") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
