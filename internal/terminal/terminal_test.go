package terminal

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for s, want := range map[string]string{
		"plain\ttext\n":          "plain\ttext\n",
		"häß 水":                  "häß 水",
		"\x1b[31mred":            `\x1b[31mred`,
		"a\rb\x7f\x00":           `a\x0db\x7f\x00`,
		"caf\xe9":                `caf\xe9`,
		"\u009b2J":               `\u009b2J`,
		"invoice\u202efdp.exe":   `invoice\u202efdp.exe`,
		"\xff\x1b\u2067 end\r\n": `\xff\x1b\u2067 end\x0d` + "\n",
	} {
		if got := Text(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

type drawer struct{ strings.Builder }

func (d *drawer) Draw(text string) { d.WriteString("<" + text + ">") }

func TestDraw(t *testing.T) {
	var plain strings.Builder
	var d drawer
	Draw(&plain, EraseLine+"a")
	Draw(&d, EraseLine+"a")
	if plain.String() != "\r\x1b[Ka" || d.String() != "<\r\x1b[Ka>" {
		t.Errorf("%q, %q", plain.String(), d.String())
	}
}
