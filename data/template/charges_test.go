package template

import (
	"context"
	"errors"
	"go/ast"
	goparser "go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// namesIn are the texts of the cases in functions of this package: the names of filters and of methods.
func namesIn(t *testing.T, functions ...string) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		f, err := goparser.ParseFile(gotoken.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.Contains(" "+strings.Join(functions, " ")+" ", " "+fn.Name.Name+" ") {
				continue
			}
			for _, st := range fn.Body.List {
				if sw, ok := st.(*ast.SwitchStmt); ok {
					for _, c := range sw.Body.List {
						for _, x := range c.(*ast.CaseClause).List {
							name, err := strconv.Unquote(x.(*ast.BasicLit).Value)
							if err != nil {
								t.Fatal(err)
							}
							names = append(names, name)
						}
					}
				}
			}
		}
	}
	return names
}

// Every filter and every method of a text makes at most four times the memory that it may, on texts of one repeated
// character, or of a few, whatever it is asked to do.
func TestMemoryIsChargedFirst(t *testing.T) {
	filters, methods := namesIn(t, "filterByName", "sequenceFilter"), namesIn(t, "stringMethod")
	if len(filters) < 25 || len(methods) < 10 {
		t.Fatalf("the names are %v and %v", filters, methods)
	}
	calls := map[string]bool{"t ~ t": true, "t + t": true, "t * 1000": true, "[t] * 1000": true, "t|list|map('upper')|list": true,
		"[t, t, t]|string": true, "{t: t}|string": true, "[t]|tojson(indent=1000000)": true, "t|list|tojson": true, "t[::-1]": true,
		"strftime_now(t)": true, "t in t": true, "t|list|string": true, "[t, t]|join(t)": true, "t|list|join(t)": true,
		"range(90000)|list|string": true, "t|list + t|list": true, "[[t]]|tojson(indent=100000, separators=(t, t))": true,
		"t|list|tojson(separators=(t, t))": true, "t.split(t[0])|map('upper')|join(t)": true, "t|unique|list": true}
	args := []string{"", "()", "(t)", "(t, t)", "('a')", "('a', t)", "('', t)", "(t[0])", "(t[0], t)", "(0)", "(0, true, true)",
		"(50)", "(9999, true, true)", "('b', 'bbbb')", "(t[0], 'bb')", "(1, 2, 3, 4, 5)", "('ab', 'a')"}
	var texts []string
	for _, c := range []string{"a", "\n", " ", "%", "%%", "{", "{{", "{}", "é", "ß", "ΐ", "İ", "'", "\"", "\x00", "\U000e0001", "é ",
		"a ", "a\n", "%F", "%d", "-a"} {
		texts = append(texts, strings.Repeat(c, 75_000/len(c)))
	}
	if testing.Short() {
		texts = texts[:14]
		args = args[:10]
	}
	for _, a := range args {
		for _, name := range filters {
			calls["t|"+name+a] = true
		}
		for _, name := range methods {
			if a != "" {
				calls["t."+name+a] = true
			}
		}
	}
	limits := Limits{AllocBytes: 1 << 18, OutputBytes: 1 << 18}
	done := 0
	for call := range calls {
		for _, body := range []string{"{% set x = " + call + " %}", "{% set x %}{{ " + call + " }}{% endset %}"} {
			tmpl, err := Parse(body)
			if err != nil {
				continue // a name such as a test's cannot be called so
			}
			for _, text := range texts {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := tmpl.Render(context.Background(), Input{Extra: map[string]Value{"t": String(text)}, Limits: limits})
				runtime.ReadMemStats(&after)
				if err == nil || errors.Is(err, ErrLimit) {
					done++
				}
				if made := after.TotalAlloc - before.TotalAlloc; made > uint64(4*limits.AllocBytes) {
					t.Errorf("%s of %.4q...: %d bytes, %d may be made: %v", body, text, made, limits.AllocBytes, err)
				}
			}
		}
	}
	if done < len(calls)*len(texts)/2 {
		t.Errorf("%d of %d renders did their work", done, 2*len(calls)*len(texts))
	}
}

// Steps grow with the bytes that an operation handles, and not with their square: a text of twice the length takes at
// most about twice the steps, for each filter and each method of texts.
func TestStepsAreLinear(t *testing.T) {
	const n = 6000
	steps := func(tmpl *Template, text string) (int64, error) {
		ctx := ShareSteps(context.Background())
		left := ctx.Value(stepsKey{}).(*int64)
		before := *left
		_, err := tmpl.Render(ctx, Input{Extra: map[string]Value{"t": String(text)}})
		return before - *left, err
	}
	var calls []string
	for _, name := range namesIn(t, "filterByName", "sequenceFilter") {
		calls = append(calls, "|"+name)
	}
	for _, name := range namesIn(t, "stringMethod") {
		calls = append(calls, "."+name)
	}
	compared := 0
	for _, call := range calls {
		for _, arg := range []string{"", "()", "('a')", "('a', 'b')", "(t[0])", "(50)", "(t)"} {
			if call == "|join" && arg == "(t)" {
				continue // its result grows with the square
			}
			for _, c := range []string{"a", "a b\n", "{%", "é", "-a"} {
				tmpl, err := Parse("{% set x = t" + call + arg + " %}{% set x = t" + call + arg + " %}")
				if err != nil {
					continue
				}
				one, errOne := steps(tmpl, strings.Repeat(c, n/len(c)))
				two, errTwo := steps(tmpl, strings.Repeat(c, 2*n/len(c)))
				if errOne != nil || errTwo != nil {
					continue
				}
				if compared++; two > 2*one+one/2+64 {
					t.Errorf("t%s%s of %q: %d steps, and %d for twice the text", call, arg, c, one, two)
				}
			}
		}
	}
	if compared < 300 {
		t.Errorf("%d calls were compared", compared)
	}
}

// What grows in a render grows by the types of parts.go, which charge for it first; and a set of characters is searched
// in one step.
func TestNothingGrowsUncharged(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	grows := regexp.MustCompile(`strings\.(Split|Fields|Builder)|bytes\.Buffer|\[\](Value|string)\(nil\)|` +
		`var [a-z]+ \[\](Value|string)\b|strings\.(ContainsRune|ContainsAny|IndexAny|Trim|TrimLeft|TrimRight)\([a-z]+, [a-z]|` +
		`strings\.ContainsRune\([a-z]`)
	seen := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasSuffix(file, "_test.go") || file == "parts.go" || !strings.Contains(string(source), "*state)"):
			continue // of no render
		case strings.HasPrefix(file, "parse") || file == "json.go" || file == "lex.go":
			continue // of the template's text, and of JSON, which are bounded before
		}
		seen++
		for i, line := range strings.Split(string(source), "\n") {
			if at := grows.FindString(line); at != "" {
				t.Errorf("%s:%d: %s: use the types of parts.go", file, i+1, at)
			}
		}
	}
	if seen < 8 {
		t.Errorf("%d files were read", seen)
	}
}

// A set of characters may be as long as the text.
func TestStripOfALongSet(t *testing.T) {
	tmpl, err := Parse(`{% set a = 'b' * 400000 %}{% set c = 'a' * 400000 + 'b' %}{{ a.strip(c)|length }}` +
		`{{ 'xéabcéx'|trim('xé') }}{{ 'xéabc'.lstrip('éx') }}{{ 'aéx'.rstrip('éx') }}`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := tmpl.Render(context.Background(), Input{})
	if want := "0abcabca"; err != nil || out.Text != want {
		t.Errorf("%q, error %v; want %q", out.Text, err, want)
	}
}
