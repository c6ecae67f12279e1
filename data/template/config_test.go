package template

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadConfig(t *testing.T) {
	for _, test := range []struct {
		json      string
		templates map[string]string
		tokens    map[string]Value
		err       string
	}{
		{`{"chat_template": "x", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "add_bos_token": true}`,
			map[string]string{"default": "x"}, map[string]Value{"bos_token": String("<s>"), "eos_token": String("</s>")}, ""},
		{`{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}`,
			map[string]string{"default": "a", "tool_use": "b"}, map[string]Value{}, ""},
		{`{"chat_template": null}`, map[string]string{}, map[string]Value{}, ""},
		{`{"chat_template": 5}`, nil, nil, "neither a text nor a list"},
		{`{"chat_template": [5]}`, nil, nil, "not an object"},
		{`{"chat_template": [{"name": "default"}]}`, nil, nil, "needs name and template"},
		{`[]`, nil, nil, "must be a JSON object"},
		{`{`, nil, nil, "JSON"},
	} {
		c, err := ReadConfig([]byte(test.json))
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: got %v, want an error with %q", test.json, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.json, err)
		}
		if diff := cmp.Diff(Config{test.templates, test.tokens}, c); diff != "" {
			t.Errorf("%s: %s", test.json, diff)
		}
	}
}

func TestSourceChoosesAsTransformers(t *testing.T) {
	both := Config{Templates: map[string]string{"default": "a", "tool_use": "b"}}
	for _, test := range []struct {
		c        Config
		hasTools bool
		want     string
		err      string
	}{
		{both, false, "a", ""},
		{both, true, "b", ""},
		{Config{Templates: map[string]string{"default": "a"}}, true, "a", ""},
		{Config{Templates: map[string]string{"tool_use": "b", "rag": "c"}}, false, "", "only rag, tool_use"},
		{Config{}, false, "", "no chat template"},
	} {
		got, err := test.c.Source(test.hasTools)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%v, %v: got %q, %v", test.c, test.hasTools, got, err)
		}
	}
}

func TestJSONRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``: "ends where a value", `{`: "key in quotes", `{"a"}`: "expected :", `{"a":1,}`: "key in quotes", `[1 2]`: "expected , or ]",
		`[1,]`: "no value begins", `"a`: "does not end", `"\x"`: "unknown escape", `"\u12"`: "four hexadecimal", `"\ud83d"`: "surrogate",
		`"\ud83dx"`: "surrogate", `"\udc00"`: "surrogate", "\"\n\"": "control character", `01`: "not a number",
		`1.`: "after the value",
		`-`:  "not a number", `1e`: "exponent", `1.5.5`: "after the value", `nul`: "no value begins",
		"\"\xff\"": "not valid UTF-8", `1 1`: "after",
		strings.Repeat("1", 5000): "digits",
	} {
		if _, err := ParseJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want an error with %q", text, err, want)
		}
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{"a\nbb {{ x.y }}", "line 2, column 8: 'x' is undefined"},
		{"a\n\n{{ 1 + }}", "line 3, column 8: expected an expression, found }}"},
		{"{% if x %}\n{% endfor %}", "line 2, column 4: No tag named 'endfor'."},
		{"\n {{ raise_exception('no ' ~ 1) }}", "line 2, column 20: no 1"},
		{"{{ 'é'|nope }}", "line 1, column 9: No filter named 'nope'."},
		{"x\r\ny\r\n{% include 'a' %}", "line 3, column 4: the tag include is not supported: write the template without it"},
	} {
		_, err := renderSource(test.source, Input{})
		if err == nil || err.Error() != "chat template: "+test.want {
			t.Errorf("%q: got %v, want %s", test.source, err, test.want)
		}
	}
	_, err := renderSource("{{ raise_exception('no') }}", Input{})
	if e, ok := err.(*Error); !ok || !e.IsRaised {
		t.Errorf("got %#v, want one that was raised", err)
	}
}

func ExampleTemplate_FindTurns() {
	t, err := Parse(`{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>` + "\n" +
		`{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := ParseJSON([]byte(`[{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	found, err := t.FindTurns(context.Background(), Input{Messages: messages.(*List).Items()}, AllTurns)
	if err != nil {
		fmt.Println(err)
		return
	}
	turn := found.Spans[0]
	fmt.Printf("%q\n%q\n", found.Text, found.Text[turn.Start:turn.End])
	// Output:
	// "<user>1+1?<end>\n<assistant>2<end>\n"
	// "2<end>"
}
