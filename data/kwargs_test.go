package data

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/data/template"
)

// thinkingTemplate asks for thoughts unless it is told not to, and writes documents.
const thinkingTemplate = `{% if documents %}{{ documents|length }} documents{% endif %}` +
	`{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}` +
	`{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}` +
	`{% if effort %}({{ effort }}){% endif %}{% endif %}`

func thinkingChat(t *testing.T) *Chat {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "chat_template.jinja", thinkingTemplate)
	write(t, dir, "tokenizer_config.json", `{"eos_token": "</s>", "effort_token": "e"}`)
	c, err := NewChat(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKwargsReachTheTemplate(t *testing.T) {
	c := thinkingChat(t)
	plain := c.Version()
	k, err := ParseKwargs(`{"enable_thinking": false, "effort": 1.0}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetKwargs(k); err != nil {
		t.Fatal(err)
	}
	if c.Version() == plain {
		t.Error("tokens of another rendering have the same version")
	}
	got, err := c.Prompt(t.Context(), []Message{{User, "hi"}})
	if want := "<user>hi</s><assistant><think></think>(1.0)"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	// A row's own win.
	row := template.NewDict(1)
	row.Set("effort", template.String("high"))
	r := Record{Type: Messages, Messages: []template.Value{message(roleUser, "hi"), message(roleAssistant, "ho")}, Kwargs: row}
	vars, err := c.variables(row)
	if err != nil || vars["effort"] != template.Value(template.String("high")) || vars["enable_thinking"] != template.Value(template.Bool(false)) {
		t.Errorf("%v, %v", vars, err)
	}
	if _, err := c.Render(t.Context(), r); err != nil {
		t.Error(err)
	}
	row.Set("efort", template.String("high"))
	if _, err := c.Render(t.Context(), r); err == nil || !strings.Contains(err.Error(), "never reads the variable efort") {
		t.Errorf("a variable of a row that is not read: %v", err)
	}
	r.Kwargs, r.Documents = nil, []template.Value{template.String("d")}
	if got, err := c.Render(t.Context(), r); err != nil || !strings.Contains(got.Segments[0].Text, "1 documents") {
		t.Errorf("documents: %+v, %v", got, err)
	}
	other := &Chat{config: c.config, sources: map[string]*template.Template{}}
	bare, _ := template.Parse(`{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}`)
	other.config.Templates = map[string]string{"default": "bare"}
	other.sources["bare"] = bare
	if _, err := other.Render(t.Context(), r); err == nil || !strings.Contains(err.Error(), "documents, which the chat template never reads") {
		t.Errorf("documents that are not read: %v", err)
	}
}

func TestKwargsThatAreRefused(t *testing.T) {
	for doc, want := range map[string]string{
		`{"enable_thinkin": false}`:         "never reads the variable enable_thinkin, which would change nothing: did you mean enable_thinking?; it reads effort, enable_thinking",
		`{"m": 1}`:                          "never reads the variable m",
		`{"messages": []}`:                  "messages has its value from the conversation",
		`{"tools": []}`:                     "tools are those of each row",
		`{"documents": []}`:                 "documents are those of each row",
		`{"add_generation_prompt": true}`:   "add_generation_prompt has its value from",
		`{"bos_token": "x"}`:                "bos_token has its value from",
		`{"effort_token": "x"}`:             "effort_token is a special token",
		`{"strftime_now": "x"}`:             "strftime_now has its value from",
		`{"namespace": 1}`:                  "namespace has its value from",
		`{"": 1}`:                           "a name is empty",
		`[1]`:                               "it is not a JSON object",
		`null`:                              "it is not a JSON object",
		`{"effort": "\ud800"}`:              "surrogate",
		`{"effort": NaN}`:                   "invalid character",
		`{"effort": 1`:                      "JSON",
		`{"effort": 1} {}`:                  "more text",
		"{\"effort\": \"\xff\"}":            "UTF-8",
		`{"effort\n": "a name of 2 lines"}`: `the variable "effort\n"`,
	} {
		k, err := ParseKwargs(doc)
		if err == nil {
			err = thinkingChat(t).SetKwargs(k)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
	if err := (Kwargs{"effort": struct{}{}}).Check(); err == nil || !strings.Contains(err.Error(), "no value of JSON") {
		t.Error(err)
	}
}

// Each value of JSON comes to the template as it does in transformers, and has one text.
func TestKwargsAreValuesOfJSON(t *testing.T) {
	const doc = `{"a": [], "b": {}, "c": [1, 1.0, 1e+30, -0.5, "\"é<\n", null, true, {"y": 1, "x": [false]}], "d": 123456789012345678901234567890}`
	k, err := ParseKwargs(doc)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"a": [], "b": {}, "c": [1, 1.0, 1e+30, -0.5, "\"é<\n", null, true, {"x": [false], "y": 1}], "d": 123456789012345678901234567890}`
	if got := k.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	again, err := ParseKwargs(k.String())
	if err != nil || again.String() != want {
		t.Errorf("%v, %v", again, err)
	}
	if got := (Kwargs{"f": 1.0, "u": uint64(1), "i": -1}).String(); got != `{"f": 1.0, "i": -1, "u": 1}` {
		t.Error(got)
	}
}
