package data

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/objective"
)

// spokenJSON writes messages as JSON, of texts by role: "u" of the user, "a" of the assistant, "-" of the assistant in
// a prompt, where it does not count, and "s" of the system.
func spokenJSON(texts ...string) string {
	var all []string
	for i := 0; i < len(texts); i += 2 {
		role, mark := map[string]string{"u": "user", "a": "assistant", "-": "assistant", "s": "system"}[texts[i]], ""
		if texts[i] == "-" {
			mark = `, "weight": 0`
		}
		all = append(all, fmt.Sprintf(`{"role": %q, "content": %q%s}`, role, texts[i+1], mark))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// TestFormsOfPairs: each way to write a pair gives the tokens and the labels of the two sides as rows of messages.
func TestFormsOfPairs(t *testing.T) {
	const tools = `[{"name": "f", "parameters": {"b": 1}}]`
	asked, good, bad := spokenJSON("u", "q"), spokenJSON("u", "q", "a", "yes!"), spokenJSON("u", "q", "a", "yes?")
	long := [2]string{spokenJSON("s", "S", "u", "q", "-", "r", "u", "c", "a", "yes!"), spokenJSON("s", "S", "u", "q",
		"-", "r", "u", "c", "a", "yes?")}
	for name, c := range map[string]struct {
		source Source
		row    string
		sides  [2]string // messages
	}{
		"texts": {Source{}, `"prompt": "q", "chosen": "yes!", "rejected": "yes?"`, [2]string{good, bad}},
		"texts and system": {Source{},
			`"prompt": "c", "chosen": "yes!", "rejected": "yes?", "system": "S", "history": [["q", "r"]]`, long},
		"lists": {Source{}, `"prompt": ` + spokenJSON("s", "S", "u", "q", "a", "r", "u", "c") + `, "chosen": ` +
			spokenJSON("a", "yes!") +
			`, "rejected": ` + spokenJSON("a", "yes?"), long},
		"lists of several answers": {Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b", "u", "c", "a",
			"d") +
			`, "rejected": ` + spokenJSON("a", "b", "u", "e", "a", "f"),
			[2]string{spokenJSON("u", "q", "a", "b", "u", "c", "a", "d"), spokenJSON("u", "q", "a", "b", "u", "e", "a", "f")}},
		"whole conversations": {Source{}, `"chosen": ` + good + `, "rejected": ` + bad, [2]string{good, bad}},
		"conversations in texts": {Source{}, fmt.Sprintf(`"chosen": %q, "rejected": %q`, good, bad), [2]string{good,
			bad}},
		"longer conversations": {Source{}, `"chosen": ` + strings.ReplaceAll(long[0], `, "weight": 0`, "") +
			`, "rejected": ` + strings.ReplaceAll(long[1], `, "weight": 0`, ""), long},
		"one is longer": {Source{}, `"chosen": ` + good + `, "rejected": ` + spokenJSON("u", "q", "a",
			"yes!", "u", "c", "a", "d"), [2]string{good, spokenJSON("u", "q", "a", "yes!", "u", "c", "a", "d")}},
		"UltraFeedback, binarized": {Source{}, `"prompt": "q", "prompt_id": "7", "messages": ` + good +
			`, "score_chosen": 8.0, "score_rejected": 7.5, "chosen": ` + good + `, "rejected": ` + bad, [2]string{good, bad}},
		"a prompt list of whole ones": {Source{}, `"prompt": ` + asked + `, "chosen": ` + good + `, "rejected": ` + bad,
			[2]string{good, bad}},
		"whole ones and a system": {Source{}, `"system": "S", "chosen": ` + good + `, "rejected": ` + bad,
			[2]string{spokenJSON("s", "S", "u", "q", "a", "yes!"), spokenJSON("s", "S", "u", "q", "a", "yes?")}},
		"LLaMA-Factory, alpaca": {Source{}, `"instruction": "q", "input": "", "chosen": "yes!", "rejected": "yes?"`,
			[2]string{good, bad}},
		"LLaMA-Factory, alpaca's input": {Source{},
			`"instruction": "q", "input": "x", "chosen": "yes!", "rejected": "yes?"`, [2]string{spokenJSON("u", "q\nx", "a",
				"yes!"), spokenJSON("u", "q\nx", "a", "yes?")}},
		"LLaMA-Factory, sharegpt": {Source{},
			`"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "q"}, {"from": "gpt", ` +
				`"value": "r"}, ` +
				`{"from": "human", "value": "c"}], "chosen": {"from": "gpt", "value": "yes!"}, "rejected": {"from": "gpt", ` +
				`"value": "yes?"}`, long},
		"LLaMA-Factory, tags": {Source{Tags: Tags{Role: "who", Content: "said", User: "Q", Assistant: "A"}, Messages: "talk"},
			`"talk": [{"who": "Q", "said": "q"}], "chosen": {"who": "A", "said": "yes!"}, "rejected": {"who": "A", "said": "yes?"}`, [2]string{good, bad}},
		"Axolotl, chatml.intel": {Source{}, `"system": "", "question": "q", "chosen": "yes!", "rejected": "yes?"`,
			[2]string{good, bad}},
		"Axolotl, chatml.argilla": {Source{Chosen: "chosen_response", Rejected: "rejected_response"},
			`"instruction": "q", "chosen_response": "yes!", "rejected_response": "yes?"`, [2]string{good, bad}},
		"Axolotl, chat_template": {Source{}, `"messages": ` + asked +
			`, "chosen": {"role": "assistant", "content": "yes!"}, "rejected": {"role": "assistant", "content": "yes?"}`,
			[2]string{good, bad}},
		"Axolotl, fields": {Source{Messages: "m", Chosen: "c", Rejected: "r"}, `"m": ` + asked +
			`, "c": {"role": "assistant", "content": "yes!"}, "r": {"role": "assistant", "content": "yes?"}`, [2]string{good,
			bad}},
		"OpenAI": {Source{}, `"input": {"messages": ` + asked +
			`, "tools": [], "parallel_tool_calls": true}, "preferred_output": ` + spokenJSON("a", "yes!") +
			`, "non_preferred_output": ` + spokenJSON("a", "yes?"), [2]string{good, bad}},
		"ms-swift": {Source{}, `"messages": ` + good + `, "rejected_response": "yes?"`, [2]string{good, bad}},
		"ms-swift, several turns": {Source{}, `"messages": ` + spokenJSON("s", "S", "u", "q", "-", "r", "u", "c", "a",
			"yes!") + `, "rejected_response": "yes?"`, long},
		"ms-swift, messages": {Source{}, `"messages": ` + good + `, "rejected_messages": ` + bad, [2]string{good, bad}},
		"ms-swift, an answer as a message": {Source{}, `"messages": ` + good + `, "rejected_response": ` +
			spokenJSON("a", "yes?"), [2]string{good, bad}},
		"sharegpt with a rejected answer": {Source{}, `"conversations": [{"from": "human", "value": "q"}, ` +
			`{"from": "gpt", "value": "yes!"}], "rejected": "yes?"`, [2]string{good, bad}},
		"keys of one's own": {Source{Prompt: "ask", Chosen: "better", Rejected: "worse",
			Ignore: []string{"chosen"}}, `"ask": "q", "better": "yes!", "worse": "yes?", "chosen": "no"`, [2]string{good, bad}},
		"other keys are left out": {Source{Ignore: []string{"messages"}},
			`"prompt": "q", "messages": [{"role": "user", "content": "z"}], "chosen": "yes!", "rejected": "yes?"`,
			[2]string{good, bad}},
		"the greeting is left out": {Source{Opening: DropOpening}, `"chosen": ` + spokenJSON("a", "hi", "u", "q", "a",
			"yes!") + `, "rejected": ` + spokenJSON("a", "hi", "u", "q", "a", "yes?"), [2]string{good, bad}},
		"a mark within the answer": {Source{}, `"prompt": ` + asked +
			`, "chosen": [{"role": "assistant", "content": "b", "weight": 0}, {"role": "user", "content": "c"}, {"role": ` +
			`"assistant", "content": "d"}], "rejected": ` +
			spokenJSON("a", "e"), [2]string{spokenJSON("u", "q", "-", "b", "u", "c", "a", "d"),
			spokenJSON("u", "q", "a", "e")}},
		"OpenAI, tools of the input": {Source{}, `"input": {"messages": ` + asked + `, "tools": ` + tools +
			`}, "preferred_output": ` + spokenJSON("a", "yes!") + `, "non_preferred_output": ` + spokenJSON("a", "yes?"),
			[2]string{good + `, "tools": ` + tools, bad + `, "tools": ` + tools}},
	} {
		t.Run(name, func(t *testing.T) {
			chat := chatOf(t, chatML)
			chat.All = true
			dir := t.TempDir()
			c.source.Type, c.source.Path = Preference, write(t, dir, "a.jsonl", "{"+c.row+"}")
			d, err := prepare(t, c.source, Options{Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			rows := fmt.Sprintf("{\"messages\": %s}\n{\"messages\": %s}", c.sides[0], c.sides[1])
			want, err := prepare(t, Source{Type: Messages, Path: write(t, dir, "b.jsonl", rows)}, Options{Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(marked(want), marked(d)); diff != "" {
				t.Error(diff)
			}
			if d.Side(0) != objective.Chosen || d.Side(1) != objective.Rejected || want.Side(1) != objective.Alone {
				t.Errorf("sides %d and %d", d.Side(0), d.Side(1))
			}
		})
	}
}

// TestPlainPairs: texts without a chat template have the tokens of type prompt-response, or alpaca, and both sides end.
func TestPlainPairs(t *testing.T) {
	for row, want := range map[string][]string{
		`"prompt": "q", "chosen": "yes!", "rejected": "yes?"`: {"q\n|yes!<|endoftext|>", "q\n|yes?<|endoftext|>"},
		`"instruction": "q", "chosen": "b", "rejected": "c"`: {alpacaPrompt("q", "") + "|b<|endoftext|>",
			alpacaPrompt("q", "") + "|c<|endoftext|>"},
	} {
		d, err := prepare(t, Source{Type: Preference, Path: write(t, t.TempDir(), "a.jsonl", "{"+row+"}")}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, show(d)); diff != "" {
			t.Error(diff)
		}
	}
}

// TestBadPairs: a row that is no pair, or that could be one of two, is refused in a line that says what to do.
func TestBadPairs(t *testing.T) {
	asked, good, bad := spokenJSON("u", "q"), spokenJSON("u", "q", "a", "b"), spokenJSON("u", "q", "a", "c")
	for _, c := range []struct {
		source    Source
		row, want string
	}{
		{Source{}, `"prompt": "q", "chosen": "b"`,
			`field "rejected" is missing: the row has chosen, prompt; name the one to take`},
		{Source{}, `"prompt": "q", "response": "b"`,
			`field "chosen" is missing: the row has prompt, response; such rows are of type prompt-response`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": null`,
			`field "rejected" is missing: the row has chosen, prompt, rejected, and a pair has two sides`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": " "`, `field "rejected" is empty`},
		{Source{}, `"prompt": "q", "chosen": "", "rejected": "c"`, `field "chosen" is empty`},
		{Source{}, `"prompt": "q", "chosen": 3, "rejected": "c"`, `field "chosen" is not a string`},
		{Source{}, `"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"`,
			`the row has no prompt, and "chosen" is a text: write what it answers under "prompt"`},
		{Source{}, `"prompt": "q", "question": "r", "chosen": "b", "rejected": "c"`,
			`the row has "prompt" and "question", each of which can be the prompt: list one`},
		{Source{}, `"prompt": "q", "input": "x", "chosen": "b", "rejected": "c"`,
			`the row has "prompt" and "input": put both into one text`},
		{Source{}, `"prompt": "q", "context": "x", "chosen": "b", "rejected": "c"`,
			`the row has "context", which type preference does not read (more of the question): write input: ` +
				`context in the entry`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": "c", "rejected_response": "d"`,
			`the row has "rejected" and "rejected_response", each of which can be rejected`},
		{Source{}, `"messages": ` + asked + `, "rejected_response": "d"`,
			`field "messages" does not end with an answer, and the row has no other chosen one`},
		{Source{}, `"messages": [], "rejected_response": "d"`, `field "messages" is no list of messages`},
		{Source{}, `"messages": ` + good + `, "rejected_messages": []`, `field "rejected_messages" is no list of messages`},
		{Source{}, `"messages": ` + good + `, "rejected_messages": {}`, `field "rejected_messages"`},
		{Source{}, `"messages": ` + good + `, "rejected_response": 7`, `field "rejected_response"`},
		{Source{}, `"messages": ` + good + `, "rejected_response": "d", "rejected_messages": ` + bad,
			`the row has "rejected_response" and "rejected_messages", each of which can be rejected`},
		{Source{}, `"messages": ` + good + `, "rejected_messages": ` + spokenJSON("u", "z", "a", "c"),
			`"chosen" and "rejected_messages" begin with different messages`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": "c", "preferred_output": "d"`,
			`the row has "chosen" and "preferred_output", each of which can be chosen`},
		{Source{}, `"prompt": "q", "chosen": "b", "non_preferred_output": "c"`,
			`the row has "chosen" and "non_preferred_output", which are of two forms`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": ` + spokenJSON("a", "c"),
			`one of "chosen" and "rejected" is a text, and the other one is not`},
		{Source{}, `"prompt": "q", "chosen": ` + spokenJSON("a", "b") + `, "rejected": ` + spokenJSON("a", "c"),
			`field "prompt" is a text, and "chosen" is messages`},
		{Source{}, `"prompt": ` + asked + `, "chosen": "b", "rejected": "c"`,
			`field "prompt" is a list of messages, and "chosen" is a text`},
		{Source{}, `"prompt": ` + asked + `, "messages": ` + asked + `, "chosen": ` + spokenJSON("a", "b") +
			`, "rejected": ` + spokenJSON("a", "c"), `the row has "prompt" and "messages", each of which can be the prompt`},
		{Source{}, `"prompt": "other", "chosen": ` + good + `, "rejected": ` + bad,
			`field "prompt" is not how "chosen" and "rejected" begin`},
		{Source{}, `"messages": ` + spokenJSON("u", "z") + `, "chosen": ` + good + `, "rejected": ` + bad,
			`field "messages" is not how`},
		{Source{}, `"chosen": ` + good + `, "rejected": ` + spokenJSON("u", "z", "a", "c"),
			`"chosen" and "rejected" begin with different messages`},
		{Source{}, `"chosen": ` + spokenJSON("s", "S", "u", "q", "a", "b") + `, "rejected": ` + spokenJSON("s", "S", "u",
			"z", "a", "c"), `field "chosen": its answer begins with a message whose role is user`},
		{Source{}, `"chosen": ` + spokenJSON("u", "q", "a", "b", "u", "z") + `, "rejected": ` + spokenJSON("u", "q", "a",
			"b", "u", "y"), `field "chosen": its answer begins with a message whose role is user`},
		{Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b") + `, "rejected": ` + spokenJSON("a", " "),
			`field "rejected" has no answer of the assistant that counts`},
		{Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b") + `, "rejected": []`,
			`field "rejected" is no list of messages, but a list`},
		{Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b") + `, "rejected": [3]`,
			`field "rejected": message 0 is not an object`},
		{Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b") +
			`, "rejected": {"role": "bot", "content": "c"}`, `field "rejected": message 0: role "bot" is unknown`},
		{Source{}, `"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r", "weight": 1}, {"role": "user", "content": "t"}], "chosen": ` + spokenJSON("a", "b") + `, "rejected": ` + spokenJSON("a", "c"), `field "prompt": message 1: weight is 1, and the message is in the prompt`},
		{Source{}, `"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r", "weight": 1}, {"role": "user", "content": "t"}, {"role": "assistant", "content": "b"}], "rejected": ` + spokenJSON("u", "q", "a", "r", "u", "t", "a", "c"), `field "chosen": message 1: weight is 1, and the message is in the prompt`},
		{Source{}, `"history": [["a", "b"]], "chosen": ` + good + `, "rejected": ` + bad,
			`the row has "history", and its answers are messages`},
		{Source{}, `"input": {"messages": ` + asked + `, "max_tokens": 7}, "preferred_output": ` + spokenJSON("a", "b") +
			`, "non_preferred_output": ` + spokenJSON("a", "c"),
			`field "input" has "max_tokens", and can have messages and tools`},
		{Source{}, `"input": {"tools": [{"name": "f"}]}, "preferred_output": ` + spokenJSON("a", "b") +
			`, "non_preferred_output": ` + spokenJSON("a", "c"), `field "input" is an object without messages`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": "c", "margin": "high"`,
			`field "margin" is not a number of 64 bits, but a text`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": "c", "margin": 1e999`, `field "margin"`},
		{Source{Margin: "gap"}, `"prompt": "q", "chosen": "b", "rejected": "c"`, `field "gap" is missing`},
		{Source{Margin: scoresMargin}, `"prompt": "q", "chosen": "b", "rejected": "c", "score_chosen": 3`,
			`field "score_rejected" is missing`},
		{Source{Margin: scoresMargin},
			`"prompt": "q", "chosen": "b", "rejected": "c", "score_chosen": 3, "score_rejected": 1, "margin": 7`,
			`the row has "margin", which type preference does not read`},
		{Source{}, `"prompt": "q", "chosen": "b", "rejected": "c", "label": false`, `"label" is false`},
		{Source{}, `"prompt": "<image>q", "chosen": "b", "rejected": "c"`, `the question has <image>`},
		{Source{}, `"prompt": ` + asked + `, "chosen": ` + spokenJSON("a", "b") + `, "rejected": ` + spokenJSON("a", "c",
			"u", "<image>", "a", "d"), `the question has <image>`},
	} {
		chat := chatOf(t, chatML)
		chat.All = true
		c.source.Type, c.source.Path = Preference, write(t, t.TempDir(), "a.jsonl", "{"+c.row+"}")
		_, err := prepare(t, c.source, Options{Renderer: chat})
		if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
}

// TestPromptOfPairDiffers: a template that drops thoughts of the past makes another prompt of a conversation that ends
// in an answer than of one that waits for it. The two sides would answer what no one asks.
func TestPromptOfPairDiffers(t *testing.T) {
	const dropsPast = `{%- for m in messages %}<{{ m.role }}>{% if m.reasoning_content and loop.index0 + 2 >= messages | length %}(` +
		`{{ m.reasoning_content }}){% endif %}{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	chat := chatOf(t, dropsPast)
	prompt := `[{"role": "user", "content": "q"}, {"role": "assistant", "content": "r", "reasoning_content": "because of it"}, ` +
		`{"role": "user", "content": "c"}]`
	row := `{"prompt": ` + prompt + `, "chosen": ` + spokenJSON("a", "b") + `, "rejected": ` + spokenJSON("a", "d") + `}`
	_, err := prepare(t, Source{Type: Preference, Path: write(t, t.TempDir(), "a.jsonl", row)}, Options{Renderer: chat})
	if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: the chat template writes the prompt in another way") {
		t.Errorf("error %v", err)
	}
	row = strings.ReplaceAll(row, `, "reasoning_content": "because of it"`, "")
	if _, err = prepare(t, Source{Type: Preference, Path: write(t, t.TempDir(), "a.jsonl", row)},
		Options{Renderer: chat}); err != nil {
		t.Errorf("without thoughts: %v", err)
	}
}

// TestMarginsAndEqualPairs: margins reach the documents of their pairs, from the rows, from the cache and after a
// split; pairs with equal sides are counted, and not kept.
func TestMarginsAndEqualPairs(t *testing.T) {
	rows := `{"prompt": "q", "chosen": "b", "rejected": "c", "margin": 0.5}
{"prompt": "q", "chosen": "same", "rejected": "same", "margin": 7}
{"prompt": "q", "chosen": "long", "rejected": "c", "margin": -2}
{"prompt": "q", "chosen": "b", "rejected": "longer"}
`
	s := Source{Type: Preference, Path: write(t, t.TempDir(), "a.jsonl", rows)}
	scored := Source{Type: Preference, Margin: scoresMargin, Path: write(t, t.TempDir(), "b.csv",
		"prompt,chosen,rejected,score_chosen,score_rejected\nq,b,c,8.5,3\n")}
	cache := t.TempDir()
	var sums []string
	for _, dir := range []string{"", cache, cache} {
		d, err := Prepare(t.Context(), []Source{s, scored}, Options{Tokenizer: tokenizer.Bytes(), CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		var margins []float64
		for i := range d.Len() {
			margins = append(margins, d.Margin(i))
		}
		if diff := cmp.Diff([]float64{0.5, 0.5, -2, -2, 0, 0, 5.5, 5.5}, margins); diff != "" {
			t.Error(diff)
		}
		if d.EqualPairs() != 1 || d.EqualLine() != "1 pair left out whose sides have the same tokens" ||
			d.Turns().Trained != 8 {
			t.Errorf("%d equal pairs: %q; %d turns", d.EqualPairs(), d.EqualLine(), d.Turns().Trained)
		}
		a, b, err := d.Split(1, 3)
		if err != nil {
			t.Fatal(err)
		}
		margins = nil
		for _, part := range []*Dataset{a, b} {
			for i := range part.Len() {
				margins = append(margins, part.Margin(i))
				if want := []objective.Side{objective.Chosen, objective.Rejected}[i%2]; part.Side(i) != want {
					t.Errorf("document %d of a part is side %d", i, part.Side(i))
				}
			}
			if part.EqualPairs() != 1 {
				t.Errorf("a part has %d equal pairs", part.EqualPairs())
			}
		}
		slices.Sort(margins)
		if diff := cmp.Diff([]float64{-2, -2, 0, 0, 0.5, 0.5, 5.5, 5.5}, margins); diff != "" {
			t.Error(diff)
		}
		sums = append(sums, d.Fingerprint())
		if err := firstOf(b.Close(), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if sums[0] != sums[1] || sums[0] != sums[2] {
		t.Errorf("fingerprints %v", sums)
	}
	s.Path = write(t, t.TempDir(), "a.jsonl", strings.ReplaceAll(rows, "0.5", "0.25"))
	if d, err := prepare(t, s, Options{}); err != nil || d.Fingerprint() == sums[0] {
		t.Errorf("another margin: %v, %v", d, err)
	}
	s.Path = write(t, t.TempDir(), "a.jsonl", `{"prompt": "q", "chosen": "same", "rejected": "same"}`)
	if _, err := prepare(t, s, Options{}); err == nil || !strings.Contains(err.Error(),
		"1 pair left out whose sides have the same tokens: nothing is left") {
		t.Errorf("equal pairs alone: %v", err)
	}
}

// TestPairsOfARegistry: LLaMA-Factory's sets with ranking become pairs, in each of its formats.
func TestPairsOfARegistry(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, registryName, `{
		"alpaca": {"file_name": "a.json", "ranking": true, "columns": {"prompt": "ask", "query": "more", "chosen": "good", "rejected": "bad"}},
		"usual": {"file_name": "d.json", "ranking": true},
		"sharegpt": {"file_name": "b.json", "ranking": true, "formatting": "sharegpt", "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}},
		"tagged": {"file_name": "c.json", "formatting": "sharegpt", "columns": {"messages": "m", "chosen": "chosen", "rejected": "rejected"}, "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
		"openai": {"file_name": "c.json", "ranking": true, "formatting": "openai", "columns": {"messages": "m"}, "tags": {"role_tag": "role"}},
		"wrong": {"file_name": "c.json", "ranking": true, "columns": {"response": "x"}}}`)
	write(t, dir, "a.json", `[{"ask": "q", "more": "x", "good": "b", "bad": "c"}]`)
	write(t, dir, "b.json",
		`[{"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "b"}, "rejected": `+
			`{"from": "gpt", "value": "c"}}]`)
	write(t, dir, "c.json",
		`[{"m": [{"role": "user", "content": "q"}], "chosen": {"role": "assistant", "content": "b"}, "rejected": `+
			`{"role": "assistant", "content": "c"}}]`)
	write(t, dir, "d.json", `[{"instruction": "q", "input": "", "chosen": "b", "rejected": "c"}]`)
	chat := chatOf(t, chatML)
	chat.All = true
	for _, name := range []string{"alpaca", "usual", "sharegpt", "tagged", "openai"} {
		want := []string{"<user>q</s>\n<assistant>[b</s>]\n", "<user>q</s>\n<assistant>[c</s>]\n"}
		if name == "alpaca" {
			want = []string{"<user>q\nx</s>\n<assistant>[b</s>]\n", "<user>q\nx</s>\n<assistant>[c</s>]\n"}
		}
		d, err := prepare(t, Source{Path: dir, Name: name}, Options{Renderer: chat})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, marked(d)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, err := prepare(t, Source{Path: dir, Name: "wrong"}, Options{Renderer: chat}); err == nil ||
		!strings.Contains(err.Error(), `columns has "response"`) {
		t.Errorf("a column that no pair has: %v", err)
	}
}

// TestPairsAlone: a run has pairs, or it has none, and its objective fits; the lines come before any row is read.
func TestPairsAlone(t *testing.T) {
	dir := t.TempDir()
	pairs := Source{Type: Preference, Path: write(t, dir, "a.jsonl", `{"prompt": "q", "chosen": "b", "rejected": "c"}`)}
	texts := Source{Type: Text, Path: write(t, dir, "b.jsonl", `broken`)}
	_, err := Prepare(t.Context(), []Source{pairs, texts}, Options{Tokenizer: tokenizer.Bytes()})
	if err == nil || !strings.Contains(err.Error(), "datasets has type preference ("+filepath.Join(dir,
		"a.jsonl")+") and type text") {
		t.Errorf("a mixture: %v", err)
	}
	_, err = prepare(t, pairs, Options{TrainOnPrompt: true})
	if err == nil || !strings.Contains(err.Error(),
		"train_on_prompt counts prompts, and type preference says itself what counts: remove it") {
		t.Errorf("train_on_prompt: %v", err)
	}
	_, err = prepare(t, Source{Type: Preference, Path: write(t, dir, "c.jsonl", "broken")},
		Options{Check: func(all []Type) error {
			return CheckObjective(all, "", objective.Needs{})
		}})
	if err == nil || !strings.HasPrefix(err.Error(), "type preference needs an objective") {
		t.Errorf("no objective: %v", err)
	}
	two, one := []Type{Preference, Preference}, []Type{Text}
	for _, c := range []struct {
		types []Type
		name  string
		needs objective.Needs
		want  string
	}{
		{two, "", objective.Needs{},
			"type preference needs an objective that compares two answers: set objective: {type: dpo}; to train on one"},
		{two, "kto", objective.Needs{Labels: true},
			"the data are of type preference, which objective kto does not read: " +
				"set objective to one that compares two answers"},
		{two, "dpo", objective.Needs{Pairs: true}, ""},
		{one, "dpo", objective.Needs{Pairs: true},
			"objective dpo compares two answers, and the data are of type text: they must be of type preference"},
		{one, "", objective.Needs{}, ""},
		{one, "dft", objective.Needs{}, ""},
	} {
		if err := CheckObjective(c.types, c.name, c.needs); c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("objective %q: %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzPairs reads bytes as a row of a pair, and as one of an answer with a label: what is accepted has one prompt and a
// target after it, on each side.
func FuzzPairs(f *testing.F) {
	for _, row := range []string{
		`{"prompt": "q", "chosen": "b", "rejected": "c", "margin": 1}`,
		`{"chosen": ` + spokenJSON("u", "q", "a", "yes!") + `, "rejected": ` + spokenJSON("u", "q", "a", "yes?") + `}`,
		`{"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "b"}, "rejected": {"from": "gpt", "value": "c"}}`,
		`{"input": {"messages": ` + spokenJSON("u", "q") + `, "tools": []}, "preferred_output": ` + spokenJSON("a", "b") +
			`, "non_preferred_output": ` + spokenJSON("a", "c") + `}`,
		`{"system": "s", "question": "q", "history": [["a", "b"]], "chosen": "b", "rejected": "c"}`,
		`{"instruction": "q", "input": "x", "chosen": "b", "rejected": "c"}`,
		`{"messages": ` + spokenJSON("u", "q", "a", "b") + `, "label": false}`,
		`{"instruction": "q", "output": "b", "kto_tag": "True"}`,
		`{"chosen": "[{\"role\": \"user\"}]", "rejected": {"role": ["a"], "content": ["b"]}}`,
	} {
		f.Add(row)
	}
	chats := []*Chat{chatOf(f, chatML), chatOf(f, words), chatOf(f, nextEnds), chatOf(f, thinks)}
	for _, chat := range chats {
		chat.All = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i := range 2 * len(chats) {
			chat, kind := chats[i/2], []Type{Preference, Binary}[i%2]
			s := rowReader{Source: Source{Type: kind, Opening: []string{"", DropOpening}[i/2%2]}.withDefaults()}
			documents, _, err := s.documents(t.Context(), row0([]byte(text)), Options{Tokenizer: tokenizer.Bytes(),
				Renderer: chat})
			switch {
			case err != nil:
				if !strings.HasPrefix(err.Error(), "x:") {
					t.Fatalf("error %v does not name the place", err)
				}
				continue
			case len(documents) == 0 && kind == Preference:
				continue
			case len(documents) != kind.format().group():
				t.Fatalf("%d documents", len(documents))
			}
			first := 1 << 30 // of the tokens, that one side counts
			for _, d := range documents {
				if err := checkExample(d.Example); err != nil {
					t.Fatal(err)
				}
				at := slices.IndexFunc(d.Labels, func(l int32) bool { return l != Ignore })
				if at < 1 {
					t.Fatalf("the first target is at %d", at)
				}
				first = min(first, at)
			}
			if a, b := documents[0].InputIDs[:first], documents[len(documents)-1].InputIDs[:first]; !slices.Equal(a, b) {
				t.Fatalf("the prompts are %v and %v", a, b)
			}
		}
	})
}
