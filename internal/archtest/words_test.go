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
