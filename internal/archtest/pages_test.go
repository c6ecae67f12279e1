package archtest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestPages(t *testing.T) {
	found, err := Pages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range found {
		t.Error(line)
	}
}

func TestCheckPages(t *testing.T) {
	for _, c := range []struct{ page, want string }{
		{"# A\n\ntext\n\n## B\n\ntext " +
			"[b](#b), [this](docs/b.md#two-words--more), [that](docs), [away](https://a.b/c)", ""},
		{"# A\n## B\n\ntext", ""},
		{"```\n# A\n# B\n[x](y)\n```", ""},
		{"## A\n## B\n\ntext", "a.md:2: the heading above has no text"},
		{"### A\n\n## B\n\ntext", "a.md:3: the heading above has no text"},
		{"[x](docs/c.md)", "a.md: there is no docs/c.md"},
		{"[x](docs/b.md#three)", "a.md: docs/b.md has no heading for docs/b.md#three"},
		{"# A\n\n[x](#b)", "a.md: a.md has no heading for #b"},
	} {
		found, err := Pages(fstest.MapFS{
			"a.md": {Data: []byte(c.page)}, "docs/b.md": {Data: []byte("# Two words, & more\n\ntext")}})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, strings.Join(found, "\n")); d != "" {
			t.Errorf("%q: %s", c.page, d)
		}
	}
}

// The README's tree has every folder at the root.
func TestReadmeTree(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tree, _ := strings.Cut(string(text), "\n## Inside\n")
	tree, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(tree), "```"), "```")
	var want []string
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(made, e.Name()) {
			want = append(want, e.Name()+"/")
		}
	}
	var got []string
	for line := range strings.Lines(tree) {
		names, _, _ := strings.Cut(line, "  ")
		got = append(got, regexp.MustCompile(`\S+/`).FindAllString(names, -1)...)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the folders of the root, and those of the README's tree: %s", d)
	}
}
