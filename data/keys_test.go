package data

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
)

// writesAll is a template that writes everything that a row can say.
const writesAll = `{% for d in documents or [] %}<document>{{ d | tojson }}{% endfor %}{{ name }}{{ a }}{{ b }}{% for t in tools or [] %}<tool>{{ t | tojson }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>{{ m.name }}{{ m.tool_call_id }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}</s>
{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}`

// object is a JSON object that keeps no order.
type object = map[string]any

// rowsWith makes a row of each type that has objects of a place, with a value under a key of one of these.
func rowsWith(at place, name string, value any) map[Type]object {
	function := object{"name": "f", "arguments": object{"x": 1}}
	call := object{"type": "function", "id": "7", "function": function}
	answer := object{"role": "assistant", "content": "b"}
	calling := object{"role": "assistant", "content": "", "tool_calls": []any{call}}
	turn := object{"from": "gpt", "value": "b"}
	callTurn := object{"from": "function_call", "value": ""}
	part := object{"type": "text", "text": "b"}
	tool := object{"name": "f", "description": "d", "parameters": object{"type": "object", "properties": object{"x": object{}}}}
	asked := func(answers ...any) []any { return append([]any{object{"role": "user", "content": "a"}}, answers...) }
	shared := func(answers ...any) []any { return append([]any{object{"from": "human", "value": "a"}}, answers...) }
	last := object{"role": "assistant", "content": "d"}
	lastTurn := object{"from": "gpt", "value": "d"}
	question, response := object{"role": "user", "content": "c"}, object{"role": "assistant", "content": "d"}

	for _, o := range map[place][]object{inMessage: {answer, turn}, inPart: {part}, inCall: {call}, inFunction: {function}, inTool: {tool}}[at] {
		o[name] = value
	}
	text, _ := json.Marshal(call)
	callTurn["value"] = string(text)
	pair := object{"prompt": asked(), "response": []any{answer, question, response}}
	if at != inRow && at != inMessage {
		pair = object{"prompt": asked(), "response": []any{answer, calling}}
	}
	rows := map[Type]object{
		Text:           {"text": "a"},
		PromptResponse: {"prompt": "a", "response": "b"},
		Alpaca:         {"instruction": "a", "output": "b"},
		ShareGPT:       {"conversations": shared(turn, callTurn, object{"from": "observation", "value": "r"}, lastTurn)},
		Messages:       {"messages": asked(answer, calling, object{"role": "tool", "content": "r"}, last)},
		Preference:     {"prompt": "a", "chosen": "b", "rejected": "c"},
		Binary:         {"prompt": "a", "completion": "b", "label": true},
		Weighted:       {"input_ids": []int{1, 2}, "completion_mask": []int{0, 1}, "advantage": 0.75},
	}
	for _, kind := range []Type{ShareGPT, Messages} {
		rows[kind]["tools"] = []any{tool}
	}
	switch at {
	case inRow:
		for _, row := range rows {
			row[name] = value
		}
		rows["list"] = pair
		pair[name] = value
		return rows
	case inPart:
		answer["content"], turn["value"] = []any{part, object{"type": "text", "text": "!"}}, []any{part, object{"type": "text", "text": "!"}}
	case inTool:
		delete(rows, Weighted)
		for _, kind := range []Type{PromptResponse, Alpaca, Preference, Binary} {
			rows[kind]["tools"] = []any{tool}
		}
		return rows
	}
	delete(rows, Text)
	delete(rows, Alpaca)
	delete(rows, Weighted)
	rows[PromptResponse] = pair
	rows[Binary] = object{"prompt": pair["prompt"], "completion": pair["response"], "label": true}
	rows[Preference] = object{"prompt": pair["prompt"], "chosen": pair["response"], "rejected": []any{response}}
	return rows
}

// everyKind has the kinds of values that JSON has.
var everyKind = []string{`null`, `true`, `false`, `0`, `1`, `-3`, `0.5`, `1e400`, `""`, `" "`, `"x y"`, `"True"`, `"0"`, `"function"`, `"text"`,
	`[]`, `[[]]`, `[null]`, `[1]`, `["x y", "z"]`, `[["q", "r"]]`, `[{"name": "g"}]`, `{}`, `{"a": null}`, `{"name": "g"}`, `{"a": [1], "b": [2]}`,
	`"{}"`, `"[]"`, `"null"`, `"[{\"name\": \"g\"}]"`, `"{\"name\": \"g\"}"`, `"\"{\\\"name\\\": \\\"g\\\"}\""`, `"[{\"name\": "`, `"{'name': 'g'}"`}

// isNeutral reports whether a value under a key changes nothing, so that the row is as one without the key.
func (k *keyRule) isNeutral(kind Type, name string, v template.Value) bool {
	counts, isMark := isCounted(v)
	switch {
	case saysNothing(v) || k.does == labels || !k.concerns(kind) || kind == Text && k.remedy == onlyText:
		return true
	case k.does == marks || k.does == judges:
		return isMark && counts
	case isChoice(name) && k.at == inRow:
		return isMark
	case strings.Contains(k.says, "thoughts"):
		text, _ := v.(template.String)
		return k.at == inRow && len(strings.Fields(string(text))) == 1
	case k.entry == "role_tag":
		return name == "from" && v == template.Value(template.String("gpt"))
	case k.entry == "margin":
		n, err := strconv.ParseFloat(strings.Trim(brief(v), `"`), 64)
		return err == nil && n == 0
	case k.at == inCall && name == "type", k.at == inPart && name == "type":
		return true
	}
	return false
}

// rendered is a row as the model sees it, with what counts, or why it is refused.
func rendered(t *testing.T, chat *Chat, kind Type, row object) (string, error) {
	t.Helper()
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	if kind == "list" {
		kind = PromptResponse
	}
	s := rowReader{Source: Source{Type: kind}.withDefaults()}
	documents, _, err := s.documents(t.Context(), row0(text), Options{Tokenizer: tokenizer.Bytes(), Renderer: chat})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(documents), nil
}

func row0(text []byte) row { return row{file: "x", line: 1, data: text} }

// acceptedRow reads bytes as a row, and returns its documents; none: it is refused, by an error that names the place in
// a line.
func acceptedRow(t *testing.T, s rowReader, text string) []document {
	t.Helper()
	all, _, err := s.documents(t.Context(), row0([]byte(text)), Options{Tokenizer: tokenizer.Bytes()})
	if err == nil {
		return all
	}
	if !strings.HasPrefix(err.Error(), "x:") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v does not name the place in a line", err)
	}
	return nil
}

// TestEveryKeyWithEveryValue: a key of the table changes what is learned, or it says nothing, or the row is refused by
// a line that names the key. It holds for each name of each key, in each type, with each kind of value: a key that is
// new in the table is tested without a word here.
func TestEveryKeyWithEveryValue(t *testing.T) {
	chat := chatOf(t, writesAll)
	chat.All = true
	for i := range keyTable {
		k := &keyTable[i]
		bases := map[Type]string{}
		for typ, row := range rowsWith(k.at, "surely unknown", nil) {
			var err error
			if bases[typ], err = rendered(t, chat, typ, row); err != nil {
				t.Fatalf("%s: %v", typ, err)
			}
		}
		for n, name := range strings.Fields(k.names) {
			kinds := everyKind
			if n > 0 { // other names of one key
				kinds = []string{`false`, `"0"`, `0.5`, `"x y"`, `[1]`, `{"name": "g"}`}
			}
			for _, kind := range kinds {
				for typ, row := range rowsWith(k.at, name, json.RawMessage(kind)) {
					base := bases[typ]
					v, err := template.ParseJSON([]byte(kind))
					if err != nil {
						t.Fatal(err)
					}
					got, err := rendered(t, chat, typ, row)
					switch {
					case err != nil && (!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n")):
						t.Errorf("type %s, %s %s: %s: the line does not name it: %v", typ, k.at, name, kind, err)
					case err == nil && got == base && !k.isNeutral(typ, name, v):
						t.Errorf("type %s, %s %s: %s: it is passed over", typ, k.at, name, kind)
					case err != nil && k.does == labels:
						t.Errorf("type %s, %s %s: %s: a label is refused: %v", typ, k.at, name, kind, err)
					}
				}
			}
		}
	}
}

// TestKeysAreKnownOnce: no two keys of a place have one name, and each key of an entry that rules name exists.
func TestKeysAreKnownOnce(t *testing.T) {
	seen := map[string]bool{}
	entries := []string{"", "role_tag", "content_tag"}
	for _, e := range entryKeys {
		entries = append(entries, e.name)
	}
	for _, k := range keyTable {
		for _, name := range strings.Fields(k.names) {
			id := fmt.Sprint(k.at, " ", plainName(name))
			if seen[id] {
				t.Errorf("%s is there twice", id)
			}
			seen[id] = true
		}
		if !slices.Contains(entries, k.entry) {
			t.Errorf("%s: there is no key %q in entries", k.names, k.entry)
		}
		if k.does == refuses && k.remedy == "" {
			t.Errorf("%s: the line would not say what to do", k.names)
		}
	}
	if len(keysByName) != int(inTool)+1 {
		t.Errorf("places %v", slices.Collect(maps.Keys(keysByName)))
	}
}
