package data

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/objective"
)

// TestFormsOfLabels: each way to write an answer with a label gives the tokens and the labels of the same row of
// messages.
func TestFormsOfLabels(t *testing.T) {
	asked := spokenJSON("u", "q")
	good, long := spokenJSON("u", "q", "a", "yes!"), spokenJSON("s", "S", "u", "q", "-", "r", "u", "c", "a", "yes!")
	for name, c := range map[string]struct {
		source   Source
		row      string
		want     string // messages
		isWanted bool
	}{
		"TRL, texts": {Source{}, `"prompt": "q", "completion": "yes!", "label": true`, good, true},
		"TRL, lists": {Source{}, `"prompt": ` + asked + `, "completion": ` + spokenJSON("a", "yes!") +
			`, "label": false`, good, false},
		"texts of a table": {Source{}, `"prompt": "q", "completion": "yes!", "label": "False"`, good, false},
		"a number":         {Source{}, `"prompt": "q", "response": "yes!", "label": 1`, good, true},
		"system and history": {Source{},
			`"prompt": "c", "completion": "yes!", "label": 0, "system": "S", "history": [["q", "r"]]`, long, false},
		"LLaMA-Factory, alpaca": {Source{}, `"instruction": "q", "input": "x", "output": "yes!", "kto_tag": true`,
			spokenJSON("u", "q\nx", "a", "yes!"), true},
		"LLaMA-Factory, messages": {Source{}, `"messages": ` + strings.ReplaceAll(long, `, "weight": 0`, "") +
			`, "label": false`,
			long, false},
		"LLaMA-Factory, sharegpt": {Source{},
			`"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "yes!"}], "kto_tag": true`, good, true},
		"keys of one's own": {Source{Prompt: "ask", Response: "said", Label: "good", Ignore: []string{"label"}},
			`"ask": "q", "said": "yes!", "good": true, "label": "other"`, good, true},
		"the greeting is left out": {Source{Opening: DropOpening}, `"messages": ` + spokenJSON("a", "hi", "u", "q", "a",
			"yes!") + `, "label": true`, good, true},
	} {
		t.Run(name, func(t *testing.T) {
			chat := chatOf(t, chatML)
			chat.All = true
			dir := t.TempDir()
			c.source.Type, c.source.Path = Binary, write(t, dir, "a.jsonl", "{"+c.row+"}")
			d, err := prepare(t, c.source, Options{Renderer: chat, CacheDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			want, err := prepare(t, Source{Type: Messages, Path: write(t, dir, "b.jsonl", `{"messages": `+c.want+"}")},
				Options{Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(marked(want), marked(d)); diff != "" {
				t.Error(diff)
			}
			side := map[bool]objective.Side{true: objective.Desirable, false: objective.Undesirable}[c.isWanted]
			good, bad := d.Labels()
			if d.Side(0) != side || d.Margin(0) != 0 || good+bad != 1 || good == 1 != c.isWanted {
				t.Errorf("side %d, %d good and %d bad ones", d.Side(0), good, bad)
			}
			if err := firstOf(d.Close(), want.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBadLabels: a row without a label that is one or the other, or that could be one of two, is refused in a line.
func TestBadLabels(t *testing.T) {
	good := spokenJSON("u", "q", "a", "b")
	for _, c := range []struct {
		source    Source
		row, want string
	}{
		{Source{}, `"prompt": "q", "completion": "b"`, `field "label" is missing`},
		{Source{}, `"prompt": "q", "completion": "b", "label": null`, `field "label" is missing`},
		{Source{}, `"prompt": "q", "completion": "b", "label": -1`,
			`field "label" is -1: an answer is wanted (true or 1), or it is not (false or 0)`},
		{Source{}, `"prompt": "q", "completion": "b", "label": "good"`, `field "label" is "good": an answer`},
		{Source{}, `"prompt": "q", "completion": "b", "label": true, "kto_tag": false`,
			`the row has "label" and "kto_tag", each of which can be label`},
		{Source{}, `"prompt": "q", "completion": "b", "label": true, "kto_label": true`,
			`the row has "kto_label", which type binary does not read (whether the answer is a good one): ` +
				`write label: kto_label in the entry`},
		{Source{}, `"prompt": "q", "label": true`, `field "completion" is missing`},
		{Source{}, `"completion": "b", "label": true`, `the row has no prompt, and "completion" is a text`},
		{Source{}, `"completion": ` + spokenJSON("a", "b") + `, "label": true`, `field "prompt" is missing`},
		{Source{}, `"prompt": "q", "completion": " ", "label": true`, `field "completion" is empty`},
		{Source{}, `"prompt": "q", "completion": "b", "output": "c", "label": true`,
			`the row has "completion" and "output", each of which can be response`},
		{Source{}, `"prompt": "q", "completion": "b", "label": true, "rejected": "c"`,
			`the row has "rejected", which type binary does not read`},
		{Source{}, `"prompt": "q", "completion": ` + spokenJSON("a", "b") + `, "label": true`,
			`field "prompt" is a text, and "completion" is messages`},
		{Source{}, `"messages": ` + good + `, "conversations": ` + good + `, "label": true`,
			`the row has "messages" and "conversations", and no key for the answer`},
		{Source{}, `"messages": ` + spokenJSON("u", "q") + `, "label": true`,
			`field "messages" has no message before the answer`},
		{Source{}, `"messages": ` + spokenJSON("u", "q", "a", "b", "u", "c") + `, "label": true`,
			`field "messages": its answer begins with a message whose role is user`},
		{Source{}, `"messages": ` + spokenJSON("u", "q", "a", " ") + `, "label": true`,
			`field "messages" has no answer of the assistant that counts`},
		{Source{}, `"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b", "weight": 1}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}], "label": 1`, `field "messages": message 1: weight is 1, and the message is in the prompt`},
	} {
		chat := chatOf(t, chatML)
		chat.All = true
		c.source.Type, c.source.Path = Binary, write(t, t.TempDir(), "a.jsonl", "{"+c.row+"}")
		_, err := prepare(t, c.source, Options{Renderer: chat})
		if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
}

// TestLabelsOfARun: labels come from a registry too, are counted after a split, and go with no other type.
func TestLabelsOfARun(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, registryName, `{"kto": {"file_name": "a.json", "formatting": "sharegpt", "columns": {"messages": "m", "kto_tag": "good"},
		"tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
		"alpaca": {"file_name": "b.json", "columns": {"kto_tag": "good"}},
		"both": {"file_name": "a.json", "ranking": true, "columns": {"kto_tag": "good"}}}`)
	var rows []string
	for i := range 4 {
		rows = append(rows, fmt.Sprintf(`{"m": %s, "good": %v}`, spokenJSON("u", "q", "a", fmt.Sprint(i)), i > 0))
	}
	write(t, dir, "a.json", "["+strings.Join(rows, ", ")+"]")
	write(t, dir, "b.json", `[{"instruction": "q", "output": "b", "good": "false"}]`)
	chat := chatOf(t, chatML)
	chat.All = true
	d, err := Prepare(t.Context(), []Source{{Path: dir, Name: "kto"}, {Path: dir, Name: "alpaca"}},
		Options{Tokenizer: tokenizer.Bytes(), Renderer: chat})
	if err != nil {
		t.Fatal(err)
	}
	a, b, err := d.Split(2, 7)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := a.Labels()
	more, worse := b.Labels()
	if good+more != 3 || bad+worse != 2 || good+bad != 3 {
		t.Errorf("%d and %d good ones, %d and %d bad ones", good, more, bad, worse)
	}
	if _, err := prepare(t, Source{Path: dir, Name: "both"}, Options{}); err == nil || !strings.Contains(err.Error(),
		"it has ranking and kto_tag") {
		t.Errorf("pairs with labels: %v", err)
	}
	text := Source{Type: Text, Path: write(t, dir, "c.txt", "a")}
	_, err = Prepare(t.Context(), []Source{text, {Path: dir, Name: "kto"}}, Options{Tokenizer: tokenizer.Bytes(),
		Renderer: chat})
	if err == nil || !strings.Contains(err.Error(), "which no objective reads together") {
		t.Errorf("a mixture: %v", err)
	}
	for want, needs := range map[string]objective.Needs{
		"the data are of type binary, which objective x does not read: set objective to one that tells good answers": {},
		"": {Labels: true},
	} {
		if err := CheckObjective([]Type{Binary}, "x", needs); fmt.Sprint(err) != "<nil>" && want == "" || want != "" &&
			(err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := CheckObjective([]Type{Binary}, "", objective.Needs{}); err == nil || !strings.HasPrefix(err.Error(),
		"type binary needs an objective that tells good answers") {
		t.Errorf("without an objective: %v", err)
	}
}

// TestLabelsAreEvaluatedWhole: an answer that is longer than a row is cut there, and no second answer begins.
func TestLabelsAreEvaluatedWhole(t *testing.T) {
	rows := write(t, t.TempDir(), "a.jsonl", `{"prompt": "q", "completion": "`+strings.Repeat("long", 20)+`", "label": true}
{"prompt": "q", "completion": "short", "label": false}`)
	d, err := prepare(t, Source{Type: Binary, Path: rows}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for long, want := range map[LongDocuments]int{"": 2, TruncateLong: 2, DropLong: 1} {
		l, err := NewEvalLoader(d, EvalOptions{SequenceLen: 16, LongDocuments: long})
		if err != nil {
			t.Fatal(err)
		}
		batches := NewBatches(make([]byte, batch.Bytes(64)), 1, 4, 16)
		if err := l.Next(t.Context(), batches); err != nil {
			t.Fatal(err)
		}
		if got := l.Documents(); len(got) != want {
			t.Errorf("overlong %q: %v, and there are to be %d", long, got, want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
