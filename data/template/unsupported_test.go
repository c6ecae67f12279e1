package template

import (
	"errors"
	"strings"
	"testing"
)

// TestWhatIsNotSupportedSaysSo has what Jinja and Python know and chat templates do not use. None of it may pass for
// something else: it is refused by name, and by Parse where its name tells.
func TestWhatIsNotSupportedSaysSo(t *testing.T) {
	in := Input{Extra: map[string]Value{"big": bigInt("123456789012345678901234567890"), "huge": Float(1e300),
		"l": NewList(Int(1), Int(2))}}
	for _, test := range []struct{ want, sources string }{
		{"the filter", "{{ l|sum }}\n{{ l|reverse }}\n{{ l|groupby('a') }}\n{{ 'a'|e }}\n" +
			"{% if false %}{{ 1|round }}{% endif %}"},
		{"the test", "{{ 1 is odd }}\n{{ 1 is divisibleby(2) }}\n{{ l is callable }}\n{{ 1 is eq 1 }}"},
		{"the method", "{{ 'a'.zfill(3) }}\n{{ ''.join(l) }}\n{{ l.index(1) }}\n" +
			"{% for x in l %}{{ loop.cycle(1, 2) }}{% endfor %}"},
		{"the tag", "{% with a = 1 %}{% endwith %}\n{% print 1 %}\n{% include 'a' %}\n{% do f() %}"},
		{"the operator **", "{{ 2 ** 3 }}"},
		{"the sign +", "{{ +1 }}"},
		{"the number", "{{ 1e5 }}\n{{ 0x1F }}\n{{ 1_000 }}\n{{ 9223372036854775808 }}"},
		{"the escape", `{{ '\101' }}` + "\n" + `{{ '\N{DASH}' }}`},
		{"the comma between brackets", "{{ l[1, 2] }}"},
		{"the word recursive", "{% for x in l recursive %}{% endfor %}"},
		{"the argument **", "{{ f(**l) }}"},
		{"the filter of a set block", "{% set x | upper %}a{% endset %}"},
		{"the name varargs", "{% macro m() %}{{ varargs }}{% endmacro %}"},
		{"render:the filter", "{{ l|map('abs')|list }}"},
		{"render:the test", "{{ l|select('odd')|list }}\n{{ l|selectattr('a', '>', 1)|list }}"},
		{"render:the function", "{{ cycler(1, 2) }}\n{{ joiner() }}"},
		{"render:the attribute", "{% for x in l %}{{ loop.depth }}{% endfor %}\n{% macro m() %}{% endmacro %}{{ m.name }}"},
		{"render:the arithmetic", "{{ big + 1 }}\n{{ -big }}\n{{ big < 1 }}"},
		{"render:the operator % on a text", "{{ '%s' % 1 }}"},
		{"render:the comparison of range", "{{ range(3) == range(3) }}"},
		{"render:has more than 64 bits", "{{ 9223372036854775807 + 1 }}\n{{ -9223372036854775807 - 2 }}\n" +
			"{{ 4294967296 * 4294967296 }}\n{{ 3037000500 * 3037000500 }}\n{{ (-9223372036854775807 - 1) // -1 }}"},
		{"render:of numbers with fractions", "{{ 7.5 // 2 }}\n{{ 7 % 2.5 }}"},
		{"render:between 'list' and 'list'", "{{ l < l }}"},
		{"render:cannot be printed here", "{{ range(3) }}\n{{ {}.items() }}\n{{ l|map('upper') }}\n" +
			"{% macro m() %}{% endmacro %}{{ m }}"},
		{"render:a key of type", "{{ {(1, 2): 3} }}"},
		{"render:of a range", "{{ range(3)[0] }}"},
		{"render:the slice", "{{ range(3)[1:] }}"},
		{"render:other than named arguments", "{{ dict([(1, 2)]) }}\n{{ namespace({}) is defined }}"},
		{"render:reverse or case_sensitive", "{{ l|sort(reverse=true) }}"},
		{"render:by number", "{{ l|map(attribute='a.0')|list }}"},
		{"render:int: ", "{{ huge|int }}\n{{ '12345678901234567890123'|int }}\n{{ '1_000'|int }}"},
		{"render:format", "{{ '%5.2f'|format(1.5) }}\n{{ '%(a)s'|format(a=1) }}\n{{ '%d'|format(1.5) }}\n" +
			"{{ '{:>5}'.format(1) }}\n{{ '{a.b}'.format(a=1) }}"},
		{"render:split by white space", "{{ 'a b'.split(none, 1) }}"},
		{"render:the conversion", "{{ strftime_now('%U') }}"},
	} {
		want, isRender := strings.CutPrefix(test.want, "render:")
		for _, source := range strings.Split(test.sources, "\n") {
			tmpl, err := Parse(source)
			if (err == nil) != isRender {
				t.Errorf("%s: parsing gives %v", source, err)
				continue
			}
			if err == nil {
				_, err = tmpl.Render(t.Context(), in)
			}
			var e *Error
			if !errors.As(err, &e) || e.Line != 1 || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want an error with %q", source, err, want)
			}
		}
	}
}

// TestLargeIntegersAreKept: what a message holds is printed as it is, however large.
func TestLargeIntegersAreKept(t *testing.T) {
	v, err := ParseJSON([]byte(`{"n": -123456789012345678901234567890, "m": 18446744073709551615}`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := renderSource("{{ v.n }} {{ v.m|string }} {{ v.m|int }} {{ v|tojson }} {{ [v] }} {{ {v.m: 1}[v.m] }}",
		Input{Extra: map[string]Value{"v": v}})
	want := "-123456789012345678901234567890 18446744073709551615 18446744073709551615 " +
		`{"n": -123456789012345678901234567890, "m": 18446744073709551615} ` +
		"[{'n': -123456789012345678901234567890, 'm': 18446744073709551615}] 1"
	if err != nil || out.Text != want {
		t.Errorf("got %q (%v), want %q", out.Text, err, want)
	}
}
