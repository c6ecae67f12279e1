package template

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// hostile templates try to run forever or to exhaust the memory. Each must end in an error of limits, soon.
var hostile = map[string]string{
	"output":             `{% for i in range(100000) %}{% for j in range(100000) %}0123456789{% endfor %}{% endfor %}`,
	"steps":              `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
	"steps in a filter":  `{% for i in range(100000) %}{% if range(100000)|select('string')|list %}{% endif %}{% endfor %}`,
	"recursion":          `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
	"mutual recursion":   `{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}`,
	"caller recursion":   `{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}`,
	"fork":               `{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}`,
	"range":              `{{ range(1000000000) }}`,
	"negative range":     `{{ range(0, -1000000000, -1) }}`,
	"repeat":             `{{ 'ab' * 1000000000000 }}`,
	"repeat a list":      `{{ [1, 2] * 1000000000000 }}`,
	"repeat the largest": `{{ 'ab' * 9223372036854775807 }}`,
	"doubling":           `{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
	"doubling by ~":      `{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
	"doubling a list":    `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
	"doubling captures": `{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}` +
		`{% set ns.s = x %}{% endfor %}`,
	"billion laughs": `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}`,
	"laughs as JSON": `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}`,
	"laughs compared": `{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}` +
		`{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}`,
	"nesting": `{% set ns = namespace(s=[]) %}{% for i in range(10000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}`,
	"nested equal": `{% set ns = namespace(a=[], b=[]) %}{% for i in range(10000) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}` +
		`{{ ns.a == ns.b }}`,
	"replace":          `{% set ns = namespace(s='aa') %}{% for i in range(100) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}`,
	"replace filter":   `{% set ns = namespace(s='aa') %}{% for i in range(100) %}{% set ns.s = ns.s|replace('', ns.s) %}{% endfor %}`,
	"join":             `{% set ns = namespace(s='aa') %}{% for i in range(100) %}{% set ns.s = ns.s|join(ns.s) %}{% endfor %}`,
	"indent":           `{{ 'a\nb'|indent(100000000000) }}`,
	"indent of JSON":   `{{ [1]|tojson(indent=100000000000) }}`,
	"deep JSON indent": `{{ [[[[[[[[1]]]]]]]]|tojson(indent=50000000) }}`,
	"separators":       `{{ range(100000)|list|tojson(separators=('x' * 1000000, '')) }}`,
	"split":            `{% set s = 'a ' * 10000000 %}{% for i in range(10000) %}{% set x = s.split() %}{% endfor %}`,
	"upper":            `{% set s = 'a ' * 10000000 %}{% for i in range(10000) %}{% set x = s|upper %}{% endfor %}`,
	"search":           `{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'ab' in s %}{% endif %}{% endfor %}`,
	"comparison":       `{% set s = 'a' * 10000000 %}{% set r = 'a' * 10000000 %}{% for i in range(100000) %}{% if s == r %}{% endif %}{% endfor %}`,
	"order":            `{% set s = 'a' * 10000000 %}{% set r = 'a' * 10000000 %}{% for i in range(100000) %}{% if s < r %}{% endif %}{% endfor %}`,
	"element":          `{% set s = 'ä' * 10000000 %}{% for i in range(100000) %}{% if s[-1] == 'x' %}{% endif %}{% endfor %}`,
	"keys":             `{% set s = 'a' * 10000000 %}{% set d = {s: 1} %}{% for i in range(1000000) %}{% for j in range(100000) %}{{ d[s] }}{% endfor %}{% endfor %}`,
	"many scopes":      `{% for i in range(100000) %}{% set a = range(100000)|map('string')|join(',') %}{% endfor %}`,
	"strftime":         `{% for i in range(100000) %}{% set x = strftime_now('%A' * 1000000) %}{% endfor %}`,
	"title":            `{% set s = 'a ' * 10000000 %}{% for i in range(100000) %}{% set x = s|title %}{% endfor %}`,
	"strip":            `{% set s = ' ' * 10000000 %}{% for i in range(100000) %}{% set x = s.strip() %}{% endfor %}`,
	"startswith":       `{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = s.startswith(s) %}{% endfor %}`,
	"int":              `{% set s = '1' * 10000000 %}{% for i in range(100000) %}{% set x = s|int %}{% endfor %}`,
	"spread":           `{% macro m(a, b) %}{{ a }}{% endmacro %}{% for i in range(100000) %}{{ m(*[1, range(100000)|list]) }}{% endfor %}`,
	"many ranges":      `{% for i in range(100000) %}{% set x = range(100000) %}{% endfor %}`,
	"formats":          `{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = '{}'.format(s) %}{% set y = '%s'|format(s) %}{% endfor %}`,
	"fields":           `{% set s = '{0}' * 1000000 %}{% for i in range(100000) %}{% set x = s.format('') %}{% endfor %}`,
}

// TestHostileTemplatesEnd gives each a fraction of the default limits, so that the test is quick, and looks at the
// memory that was taken in all.
func TestHostileTemplatesEnd(t *testing.T) {
	limits := Limits{OutputBytes: 4 << 20, AllocBytes: 32 << 20, Steps: 500_000}
	for name, source := range hostile {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out, err := tmpl.Render(context.Background(), Input{Limits: limits})
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrLimit) {
				t.Errorf("%s: got %d bytes and the error %v, want ErrLimit", name, len(out.Text), err)
			}
			if made := after.TotalAlloc - before.TotalAlloc; made > 1<<30 {
				t.Errorf("%s: allocated %d MiB in all, where %d MiB are the limit", name, made>>20, limits.AllocBytes>>20)
			}
		})
	}
}

func TestEachLimitIsNamed(t *testing.T) {
	for _, test := range []struct {
		limits       Limits
		source, want string
	}{
		{Limits{OutputBytes: 10}, `{% for i in range(11) %}x{% endfor %}`, "writes more than 10 bytes"},
		{Limits{AllocBytes: 1000}, `{{ 'x' * 1001 }}`, "makes more than 1000 bytes"},
		{Limits{Steps: 100}, `{% for i in range(101) %}{% endfor %}`, "more than 100 steps"},
		{Limits{Depth: 20}, `{% macro m(n) %}{{ m(n - 1) if n }}{% endmacro %}{{ m(20) }}`, "nested deeper than 20"},
		{Limits{}, `{{ range(100001) }}`, "Range too big"},
	} {
		_, err := renderSource(test.source, Input{Limits: test.limits})
		if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want a limit that says %q", test.source, err, test.want)
		}
		if _, err := renderSource(strings.ReplaceAll(test.source, "1", "0"), Input{Limits: test.limits}); errors.Is(err, ErrLimit) &&
			test.limits != (Limits{}) && test.limits.Depth == 0 {
			t.Errorf("%s: below the limit there is the error %v", test.source, err)
		}
	}
}

// looked is a context that ends after a number of calls of its Err.
type looked struct {
	context.Context
	left int
}

func (l *looked) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestContextStopsARender(t *testing.T) {
	tmpl, err := Parse(`{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, limits := &looked{context.Background(), 10}, Limits{Steps: 100 * checkEvery}
	if _, err = tmpl.Render(ctx, Input{Limits: limits}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	ctx = &looked{context.Background(), 101}
	if _, err = tmpl.Render(ctx, Input{Limits: limits}); !errors.Is(err, ErrLimit) {
		t.Errorf("with few looks at the context: %v", err)
	}
}

func TestSourcesThatAreTooDeepOrTooLarge(t *testing.T) {
	deep := 20_000
	for name, source := range map[string]string{
		"brackets":    "{{ " + strings.Repeat("(", deep) + strings.Repeat(")", deep) + " }}",
		"lists":       "{{ " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + " }}",
		"dicts":       "{{ " + strings.Repeat("{1:", deep) + strings.Repeat("}", deep) + " }}",
		"nots":        "{{ " + strings.Repeat("not ", deep) + "1 }}",
		"signs":       "{{ " + strings.Repeat("- ", deep) + "1 }}",
		"ifs":         strings.Repeat("{% if 1 %}", deep) + strings.Repeat("{% endif %}", deep),
		"elses":       "{{ " + strings.Repeat("1 if 0 else ", deep/2) + "1 }}",
		"calls":       "{{ " + strings.Repeat("f(", deep) + strings.Repeat(")", deep) + " }}",
		"subscripts":  "{{ " + strings.Repeat("a[", deep) + strings.Repeat("]", deep) + " }}",
		"targets":     "{% set " + strings.Repeat("(", deep) + "a" + strings.Repeat(")", deep) + " = 1 %}",
		"filter args": "{{ " + strings.Repeat("a|f(", deep) + strings.Repeat(")", deep) + " }}",
		"tests":       "{{ " + strings.Repeat("a is f(", deep) + strings.Repeat(")", deep) + " }}",
		"size":        strings.Repeat("x", maxSource+1),
	} {
		if _, err := Parse(source); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// Long chains are no deeper for the parser, but they are for the evaluation.
	for name, source := range map[string]string{
		"sum":     "{{ 1" + strings.Repeat(" + 1", deep) + " }}",
		"filters": "{{ 'a'" + strings.Repeat("|upper", deep) + " }}",
		"calls":   "{{ a" + strings.Repeat("()", deep) + " }}",
		"items":   "{{ a" + strings.Repeat("[0]", deep) + " }}",
		"ors":     "{{ 0" + strings.Repeat(" or 0", deep) + " }}",
	} {
		if _, err := renderSource(source, Input{}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := ParseJSON([]byte(strings.Repeat("[", deep))); err == nil {
		t.Error("JSON: no error")
	}
}

// TestSourceIsUTF8: a source of other bytes is refused, which filters would cut at places that are none.
func TestSourceIsUTF8(t *testing.T) {
	for _, source := range []string{"{{ 'ab\xe3'|list }}", "\xff"} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
			t.Errorf("%q: %v", source, err)
		}
	}
}
