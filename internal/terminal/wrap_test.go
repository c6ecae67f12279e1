package terminal

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"short\n", "short\n"},
		{"no break in it, but exactly.", "no break in it, but\n  exactly."},
		{"  12 MiB  of weights, and more\nnext\n", "  12 MiB  of weights,\n    and more\nnext\n"},
		{"averyveryverylongwordthatstays whole\n", "averyveryverylongwordthatstays\n  whole\n"},
		{"ends with a space at     \n", "ends with a space at     \n"},
		{"\n\n", "\n\n"},
	} {
		if got := Wrap(c.text, 22); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	if text := "a text that is longer than that\n"; Wrap(text, 0) != text || Wrap(text, 19) != text {
		t.Error("no terminal, and lines are broken")
	}
}

// No word is lost or moved, and a line that is too long has one word.
func TestWrapKeepsWords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringMatching(`( {0,3}[a-zé]{1,30}\n?){0,20}`).Draw(rt, "text")
		columns := rapid.IntRange(20, 60).Draw(rt, "columns")
		got := Wrap(text, columns)
		if a, b := strings.Fields(text), strings.Fields(got); strings.Join(a, " ") != strings.Join(b, " ") {
			rt.Fatalf("%q became %q", text, got)
		}
		for line := range strings.Lines(got) {
			if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > columns &&
				strings.Contains(strings.TrimSpace(line), " ") {
				rt.Fatalf("%q is longer than %d", line, columns)
			}
		}
	})
}
