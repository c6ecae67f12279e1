package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fixedClock is the time of golden.py.
func fixedClock() time.Time { return time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC) }

func readGolden(t testing.TB, path string) *Dict {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Dict)
}

func get[V Value](t testing.TB, d *Dict, key string) V {
	t.Helper()
	v, ok := d.Get(key)
	if !ok {
		t.Fatalf("no %q", key)
	}
	return v.(V)
}

func itemsOf(d *Dict, key string) []Value {
	if v, ok := d.Get(key); ok {
		if l, ok := v.(*List); ok {
			if l.items == nil {
				return []Value{}
			}
			return l.items
		}
	}
	return nil
}

func variablesOf(d *Dict, key string, into map[string]Value) {
	if v, ok := d.Get(key); ok {
		for i, k := range v.(*Dict).Keys() {
			into[string(k.(String))] = v.(*Dict).At(i)
		}
	}
}

// renderSource parses and renders; a template that does not parse is an error like any other.
func renderSource(source string, in Input) (Output, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return Output{}, err
	}
	return tmpl.Render(context.Background(), in)
}

// checkCase compares with what transformers gave: the text, or that there is an error.
func checkCase(t *testing.T, want *Dict, out Output, err error) bool {
	t.Helper()
	if message, ok := want.Get("error"); ok {
		if err == nil {
			t.Errorf("got %q, want the error %s", out.Text, message)
			return false
		}
		return true
	}
	text := string(get[String](t, want, "text"))
	switch {
	case err != nil:
		t.Errorf("got error %v, want %q", err, text)
		return false
	case out.Text != text:
		t.Errorf("got\n%q, want\n%q", out.Text, text)
		return false
	}
	if spans, ok := want.Get("spans"); ok {
		got := [][2]int{}
		for _, g := range out.Generations {
			got = append(got, [2]int{g.Start, g.End})
		}
		wanted := [][2]int{}
		for _, s := range spans.(*List).Items() {
			pair := s.(*List).Items()
			wanted = append(wanted, [2]int{int(pair[0].(Int)), int(pair[1].(Int))})
		}
		if fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Errorf("spans are %v, want %v", got, wanted)
			return false
		}
	}
	return true
}

func TestSnippetsAreAsInJinja(t *testing.T) {
	compareSnippets(t, readGolden(t, "testdata/snippets.json"))
}

// TestRandomSnippets compares the snippets that golden.py --random wrote, except unsupported ones.
func TestRandomSnippets(t *testing.T) {
	path := os.Getenv("TEMPLATE_RANDOM")
	if path == "" {
		t.Skip("TEMPLATE_RANDOM names no file; golden.py says how to make one")
	}
	compareSnippets(t, readGolden(t, path))
}

func compareSnippets(t *testing.T, golden *Dict) {
	in := Input{
		Messages: itemsOf(golden, "messages"), Tools: itemsOf(golden, "tools"),
		BOSToken: "<s>", EOSToken: "</s>", Extra: map[string]Value{}, Now: fixedClock,
	}
	variablesOf(golden, "variables", in.Extra)
	for i, c := range itemsOf(golden, "cases") {
		c := c.(*Dict)
		source := string(get[String](t, c, "source"))
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			out, err := renderSource(source, in)
			if !checkCase(t, c, out, err) {
				t.Logf("source: %s", source)
			}
			var e *Error
			if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Column < 1) {
				t.Errorf("the error %v has no place", err)
			}
		})
	}
}

// conversationInput is one of golden.py's conversations.
func conversationInput(t testing.TB, golden *Dict, name string) Input {
	c := get[*Dict](t, get[*Dict](t, golden, "conversations"), name)
	in := Input{Messages: itemsOf(c, "messages"), Tools: itemsOf(c, "tools"), Documents: itemsOf(c, "documents"),
		Extra: map[string]Value{}, Now: fixedClock}
	variablesOf(golden, "special", in.Extra)
	variablesOf(c, "extra", in.Extra)
	return in
}

func TestConversationsAreAsInTransformers(t *testing.T) {
	golden := readGolden(t, "testdata/conversations.json")
	compareConversations(t, golden, func(name string) string {
		source, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(source)
	})
}

// TestPublicTemplates compares what golden.py --public wrote; the file holds the templates too.
func TestPublicTemplates(t *testing.T) {
	path := os.Getenv("TEMPLATE_PUBLIC")
	if path == "" {
		t.Skip("TEMPLATE_PUBLIC names no file; golden.py says how to make one")
	}
	golden := readGolden(t, path)
	templates := get[*Dict](t, golden, "templates")
	compareConversations(t, golden, func(name string) string { return string(get[String](t, templates, name)) })
}

func compareConversations(t *testing.T, golden *Dict, source func(string) string) {
	equal, failing, all := 0, 0, 0
	parsed := map[string]*Template{}
	for _, c := range itemsOf(golden, "cases") {
		c := c.(*Dict)
		name, conversation := string(get[String](t, c, "template")), string(get[String](t, c, "conversation"))
		prompt := bool(get[Bool](t, c, "prompt"))
		all++
		t.Run(fmt.Sprintf("%s/%s/%v", name, conversation, prompt), func(t *testing.T) {
			tmpl := parsed[name]
			if tmpl == nil {
				var err error
				if tmpl, err = Parse(source(name)); err != nil {
					t.Fatal(err)
				}
				parsed[name] = tmpl
			}
			in := conversationInput(t, golden, conversation)
			in.AddGenerationPrompt = prompt
			out, err := tmpl.Render(context.Background(), in)
			if !checkCase(t, c, out, err) {
				return
			}
			if equal++; err != nil {
				failing++
			}
		})
	}
	t.Logf("%d of %d renders are equal (%d of them errors on both sides), %d templates", equal, all, failing, len(parsed))
}

// TestJSONIsAsEncodingJSON compares on what both read the same way.
func TestJSONIsAsEncodingJSON(t *testing.T) {
	data, err := os.ReadFile("testdata/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := renderSource("{{ v|tojson }}", Input{Extra: map[string]Value{"v": v}})
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(data, &a) != nil || json.Unmarshal([]byte(again.Text), &b) != nil {
		t.Fatal("not JSON")
	}
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("reading and writing JSON changed it")
	}
}
