package template

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unicode/utf8"
)

// checkError fails on what only a bug can cause: an error without a place, or one of the runtime.
func checkError(t *testing.T, err error) {
	t.Helper()
	var e *Error
	var broken runtime.Error
	if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Column < 1 || errors.As(err, &broken)) {
		t.Fatal(err)
	}
}

func addSeeds(f *testing.F) (in Input) {
	golden := readGolden(f, "testdata/snippets.json")
	for _, c := range itemsOf(golden, "cases") {
		f.Add(string(get[String](f, c.(*Dict), "source")))
	}
	for _, source := range hostile {
		f.Add(source)
	}
	for _, family := range readFamilies(f) {
		f.Add(family.source)
	}
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	in = Input{Messages: itemsOf(golden, "messages"), Tools: itemsOf(golden, "tools"), BOSToken: "<s>", EOSToken: "</s>",
		Extra: map[string]Value{}, Now: fixedClock,
		Limits: Limits{OutputBytes: 1 << 20, AllocBytes: 4 << 20, Steps: 20_000}}
	variablesOf(golden, "variables", in.Extra)
	return in
}

// FuzzRender parses and renders any source: an error has a place, and a text is valid and within its limit.
func FuzzRender(f *testing.F) {
	in := addSeeds(f)
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if len(source) <= maxSource && utf8.ValidString(source) { // otherwise the error is of the whole source
			checkError(t, err)
		}
		if err != nil {
			return
		}
		out, err := tmpl.Render(context.Background(), in)
		checkError(t, err)
		if int64(len(out.Text)) > in.Limits.OutputBytes || !utf8.ValidString(out.Text) {
			t.Fatalf("%d bytes: %q", len(out.Text), out.Text)
		}
		for _, g := range out.Generations {
			if g.Start < 0 || g.End < g.Start || g.End > len(out.Text) {
				t.Fatalf("span %v of %d bytes", g, len(out.Text))
			}
		}
		again, err2 := tmpl.Render(context.Background(), in)
		if (err == nil) != (err2 == nil) || again.Text != out.Text {
			t.Fatalf("two renders differ: %q (%v), %q (%v)", out.Text, err, again.Text, err2)
		}
	})
}

// FuzzSpans looks for spans of any template: those that it finds are within the text and in order.
func FuzzSpans(f *testing.F) {
	in := addSeeds(f)
	tooled := in
	tooled.Messages = familyInput(f, []string{"answer", "question", "saidCall", "result", "thought"}).Messages
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		for _, in := range []Input{in, tooled} {
			found, err := tmpl.FindTurns(context.Background(), in, AllTurns)
			var broken runtime.Error
			if errors.As(err, &broken) {
				t.Fatal(err)
			}
			if tmpl.hasGeneration {
				return // the template's own, which may be anything
			}
			end := 0
			for _, s := range found.Spans {
				if s.Start < end || s.End < s.Start || s.End > len(found.Text) {
					t.Fatalf("span %v after %d of %d bytes", s, end, len(found.Text))
				}
				end = s.End
			}
		}
	})
}

// FuzzJSON reads anything; what it reads, it writes so that it reads the same.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a": [1, 1.0, -0.0, 1e400, NaN, "\ud83d\ude00\u0000", null, true], "a": {}}`, `"\ud83d"`, `01`, `[1,]`,
		`123456789012345678901234567890`, `-Infinity`, " [\n] ", `{"a" : "\/"}`} {
		f.Add([]byte(seed))
	}
	tmpl, err := Parse("{{ v|tojson }}")
	if err != nil {
		f.Fatal(err)
	}
	render := func(t *testing.T, v Value) string {
		out, err := tmpl.Render(context.Background(), Input{Extra: map[string]Value{"v": v}})
		if err != nil {
			t.Fatal(err)
		}
		return out.Text
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseJSON(data)
		if err != nil {
			return
		}
		text := render(t, v)
		again, err := ParseJSON([]byte(text))
		if err != nil {
			t.Fatalf("%q is not read again: %v", text, err)
		}
		if text2 := render(t, again); text2 != text {
			t.Fatalf("%q became %q", text, text2)
		}
	})
}
