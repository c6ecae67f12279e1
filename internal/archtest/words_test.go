package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestPlainWords(t *testing.T) {
	found, err := PlainWords(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range found {
		t.Error(line)
	}
}

// Each habit is found once, and ordinary English is not.
func TestHabits(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"a.go", "// The step continues after the disk.", ""},
		{"a.go", "// The disk is\n// behind.", `a.go:2: "behind"`},
		{"docs/a.md", "Training goes on.", `"goes on"`},
		{"docs/a.md", "It cargoes on; the mandate amends a mendicant.", ""},
		{"a.sh", "# Nobody reads it", `"Nobody"`},
		{"a.md", "There are none.", `"are none"`},
		{"data/template/a.go", "// x is none", ""},
		{"a.go", "// What is read is checked.", `"// What is`},
		{"a.md", "What is read is checked.", `"What is`},
		{"a.md", "What is a part?", ""},
		{"a.md", "Nothing. What the plan has decided.", `What the`},
		{"a.go", "// length is that of a piece.", `"// length is that"`},
		{"a.go", "// Rates are those of a group.", `"// Rates are those"`},
		{"a.go", "// length is the length of a piece that is read.", ""},
		{"a.txt", "behind", ""},
		{"testdata/a.md", "behind", ""},
	} {
		found, err := PlainWords(fstest.MapFS{c.file: &fstest.MapFile{Data: []byte(c.text)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(found, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %q: %q", c.file, c.text, got)
		}
	}
}

// The literals hide no line from a pattern: each alternative of each habit is found in both cases.
func TestLiterals(t *testing.T) {
	for _, text := range []string{
		"behind", "go on", "goes on", "going on", "gone on", "went on", "so many", "anew", "for ever", "mend", "mends",
		"mended", "mending", "whoever", "nobody", "somebody", "but for", "as ever", "in work", "at hand", "in hand",
		"to it come", "to it comes", "come to be", "comes to be", "hence", "thus", "upon", "lest", "thereof", "whereof",
		"whence", "beside", "lie", "lies", "lay", "leave again as", "leaves again as", "in the place of", "is had",
		"are had", "is none", "are none", "was none", "were none", "// x is that",
	} {
		for _, line := range []string{text, strings.ToUpper(text[:1]) + text[1:], strings.ToUpper(text)} {
			for i := range habits {
				h := &habits[i]
				if want, got := h.pattern.FindString(line), h.find(line, strings.ToLower(line)); got != want {
					t.Errorf("%q: found %q, want %q", line, got, want)
				}
			}
		}
	}
}
