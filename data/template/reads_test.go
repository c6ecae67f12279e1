package template

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestVariablesThatATemplateReads(t *testing.T) {
	for source, want := range map[string]bool{
		`{{ x }}`:        true,
		`{{ messages }}`: false,
		`{% if x is defined and x is false %}a{% endif %}`: true,
		`{% set x = 1 %}{{ x }}`:                           false,
		`{% set x = x or 1 %}{{ x }}`:                      true,
		`{{ x }}{% set x = 1 %}`:                           true,
		`{% if a %}{% set x = 1 %}{% endif %}{{ x }}`:      true, // where a is not true
		`{% for x in messages %}{{ x.role }}{% endfor %}`:  false,
		`{% for a, x in messages %}{{ x }}{% endfor %}`:    false,
		`{% for x in messages %}{% endfor %}{{ x }}`:       true,
		`{% for m in messages if x %}{% endfor %}`:         true,
		`{% for m in x %}{% endfor %}`:                     true,
		`{% for m in [] %}{% else %}{{ x }}{% endfor %}`:   true,
		`{% for m in messages %}{{ loop.x }}{% endfor %}`:  false,
		`{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}`:  false,
		`{% macro f(a=x) %}{{ a }}{% endmacro %}`:          true,
		`{% macro f() %}{{ x }}{% endmacro %}`:             true,
		`{% macro x() %}{% endmacro %}{{ x() }}`:           false,
		`{% call(a) f() %}{{ x }}{% endcall %}`:            true,
		`{% call(x) f() %}{{ x }}{% endcall %}`:            false,
		`{% set ns = namespace(x=1) %}{{ ns.x }}`:          false,
		`{% set ns = namespace(a=x) %}`:                    true,
		`{% set x.a = 1 %}`:                                true,
		`{% set a %}{{ x }}{% endset %}`:                   true,
		`{% set x %}a{% endset %}{{ x }}`:                  false,
		`{{ messages[x:] }}`:                               true,
		`{{ messages[0][x] }}`:                             true,
		`{{ messages[0].x }}`:                              false,
		`{{ "x" }}`:                                        false,
		`{{ {"x": 1} }}{{ {"a": x} }}`:                     true,
		`{{ a(x=1) }}`:                                     false,
		`{{ a(*x) }}`:                                      true,
		`{{ a|default(x) }}`:                               true,
		`{{ a is eq(x) }}`:                                 true,
		`{{ [1, (2, not x)] }}`:                            true,
		`{{ a if b else x }}`:                              true,
		`{{ 1 < x }}{{ a ~ b }}`:                           true,
		`{{ -x }}`:                                         true,
		`{% filter replace("a", x) %}a{% endfilter %}`:     true,
		`{% generation %}{{ x }}{% endgeneration %}`:       true,
		`{# {{ x }} #}{% raw %}{{ x }}{% endraw %}`:        false,
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if got := tmpl.Reads("x"); got != want {
			t.Errorf("%s: reads x is %v, want %v", source, got, want)
		}
	}
}

// A variable that a template does not read changes no text.
func TestVariablesThatAreNotReadChangeNothing(t *testing.T) {
	golden := readGolden(t, "testdata/snippets.json")
	in := Input{Messages: itemsOf(golden, "messages"), Tools: itemsOf(golden, "tools"), Now: fixedClock,
		Extra: map[string]Value{}}
	variablesOf(golden, "variables", in.Extra)
	var sources []string
	for _, c := range itemsOf(golden, "cases") {
		sources = append(sources, string(get[String](t, c.(*Dict), "source")))
	}
	for _, family := range readFamilies(t) {
		sources = append(sources, family.source)
	}
	paths, _ := filepath.Glob("testdata/*.jinja")
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, string(source))
	}
	unread := 0
	for _, source := range sources {
		tmpl, err := Parse(source)
		if err != nil {
			continue
		}
		want, wantErr := tmpl.Render(context.Background(), in)
		for _, name := range tmpl.names {
			if tmpl.Reads(name) {
				continue
			}
			unread++
			with := in
			with.Extra = map[string]Value{}
			for k, v := range in.Extra {
				with.Extra[k] = v
			}
			with.Extra[name] = String("another value")
			got, err := tmpl.Render(context.Background(), with)
			if got.Text != want.Text || (err == nil) != (wantErr == nil) {
				t.Errorf("%s changes what %s renders: %q, %v", name, source, got.Text, err)
			}
		}
	}
	if unread < 100 {
		t.Errorf("%d variables are not read", unread)
	}
}
