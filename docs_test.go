package millrace_test

import (
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the code blocks of docs/library.md")

// A code block with the place in examples/library that it comes from: a file, and a function of it.
var codeBlock = regexp.MustCompile("(?s)<!-- (examples/library/[a-z_/]+\\.go) func (\\w+) -->\n\n```go\n(.*?)```\n")

// The code blocks of docs/library.md are those of a module that the tests compile and run.
func TestLibraryDocs(t *testing.T) {
	const doc = "docs/library.md"
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	want := codeBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		blocks++
		m := codeBlock.FindStringSubmatch(block)
		code, err := sourceOf(m[1], m[2])
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(block, m[3]+"```\n") + code + "```\n"
	})
	if n := strings.Count(string(text), "```go"); n != blocks || n < 5 {
		t.Errorf("%s has %d code blocks in Go, and %d name their source; all must, and 5 at least", doc, n, blocks)
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the sources: go test . -run TestLibraryDocs -update", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o666); err != nil {
		t.Fatal(err)
	}
}

// sourceOf returns a function of a file, without its comment.
func sourceOf(path, function string) (string, error) {
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		return "", err
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, text, 0)
	if err != nil {
		return "", err
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == function {
			return string(text[files.Position(fn.Pos()).Offset:files.Position(fn.End()).Offset]) + "\n", nil
		}
	}
	return "", errors.New(path + " has no function " + function)
}
