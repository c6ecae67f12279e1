package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// module is this module's name.
const module = "github.com/millrace/millrace"

// pkg is a package that has tests.
type pkg struct {
	dir            string
	sources, tests []*file
	bytesOfTests   int
}

// file is a Go file.
type file struct {
	syntax  *ast.File
	imports map[string]string // paths, by the names that the file has for them
	names   []string          // of its tests, fuzzers and examples
}

// load parses the packages of the module below root that have tests, without modules of their own, and lists the
// Markdown pages. The packages with most tests come first: they take longest, so no core waits for them at the end.
func load(root fs.FS) (packages []*pkg, pages []string, err error) {
	byDir := map[string]*pkg{}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && isOutside(root, name):
			return fs.SkipDir
		case path.Ext(name) == ".md":
			pages = append(pages, name)
			return nil
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := parse(name, text)
		if err != nil {
			return err
		}
		p := byDir[path.Dir(name)]
		if p == nil {
			p = &pkg{dir: path.Dir(name)}
			byDir[p.dir] = p
		}
		if !strings.HasSuffix(name, "_test.go") {
			p.sources = append(p.sources, f)
			return nil
		}
		p.tests = append(p.tests, f)
		p.bytesOfTests += len(text)
		return nil
	})
	for _, p := range byDir {
		if len(p.tests) > 0 {
			packages = append(packages, p)
		}
	}
	slices.SortFunc(packages, func(a, b *pkg) int {
		if a.bytesOfTests != b.bytesOfTests {
			return b.bytesOfTests - a.bytesOfTests
		}
		return strings.Compare(a.dir, b.dir)
	})
	return packages, pages, err
}

// made are folders that programs fill.
var made = []string{"bin", "build", "dist"}

// isOutside reports whether a directory has no packages of the module.
func isOutside(root fs.FS, dir string) bool {
	base := path.Base(dir)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || slices.Contains(made, dir) {
		return true
	}
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

func parse(name string, text []byte) (*file, error) {
	syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &file{syntax: syntax, imports: map[string]string{}}
	for _, spec := range syntax.Imports {
		from, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		as := path.Base(from)
		if spec.Name != nil {
			as = spec.Name.Name
		}
		f.imports[as] = from
	}
	for _, d := range syntax.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && isTest(d.Name.Name) {
			f.names = append(f.names, d.Name.Name)
		}
	}
	return f, nil
}

// isTest reports whether go test chooses a function by its name.
func isTest(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz", "Example"} {
		rest, ok := strings.CutPrefix(name, prefix)
		first, _ := utf8.DecodeRuneInString(rest)
		if ok && name != "TestMain" && !unicode.IsLower(first) {
			return true
		}
	}
	return false
}

// has reports whether does is true of a part of the file.
func (f *file) has(does func(x ast.Node, imports map[string]string) bool) bool {
	found := false
	ast.Inspect(f.syntax, func(x ast.Node) bool {
		found = found || x != nil && does(x, f.imports)
		return !found
	})
	return found
}

// has reports whether does is true of a part of the package without its tests.
func (p *pkg) has(does func(x ast.Node, imports map[string]string) bool) bool {
	return slices.ContainsFunc(p.sources, func(f *file) bool { return f.has(does) })
}

// pattern chooses tests by their whole names.
func pattern(names []string) string {
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}
