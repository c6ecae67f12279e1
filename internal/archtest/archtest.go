// Package archtest holds the laws of the code base that a compiler does not check, and a test that applies them.
//
// [Check] parses the sources of a tree and lists the violations of these laws:
//
//   - A package imports only packages of lower levels; levels.go has the table. Packages of one driver are a family and
//     import each other; packages that only tests import (storetest) may import their own level.
//   - Only programs, tests, internal/drivers and train's rehearse*.go link device drivers; only programs and the root
//     package import internal/drivers; only tests and *_standin.go import the workshop.
//   - What a public package exports mentions no type of an internal one ([CheckAPI]).
//   - There is no init function and no cgo: one place says what a program consists of.
//   - Goroutines of the product are started by internal/fault, so that a panic on one ends the program with the right status.
//   - Every package has a doc comment, and a name that says what it is.
//   - Third-party modules are in the table; some are for tests only, some for one tree only.
//   - No test uses a clock, except the tests that clocks.go lists with a reason.
//   - Prose keeps to plain words; words.go lists the refused habits.
//   - internal/ has only what the program links, and the floor ([Buildings]).
//   - Names that belong to one subject are selected in its files only; owned.go has the table.
//   - The program's rooms keep to their budgets of lines ([Budgets]); budget.go has the table.
//
// Tests may import anything but modules that the table lacks. It reads files instead of asking the go command, so that
// the go command sees which files the test's result depends on and does not answer from its cache.
package archtest

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Check parses all Go files below the module's root and returns the violations, one line each, sorted.
func Check(root fs.FS) ([]string, error) {
	module, err := moduleOf(root)
	if err != nil {
		return nil, err
	}
	c := &checker{module: module, documented: map[string]bool{}}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && name != "." && isLeftOut(name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return c.file(name, text)
	})
	if err != nil {
		return nil, err
	}
	for pkg, has := range c.documented {
		if !has {
			c.report("%s: the package has no doc comment", pkg)
		}
	}
	sort.Strings(c.found)
	return slices.Compact(c.found), nil
}

// moduleOf is the name of the module.
func moduleOf(root fs.FS) (string, error) {
	mod, err := fs.ReadFile(root, "go.mod")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	module, ok := strings.CutPrefix(first, "module ")
	if !ok {
		return "", fmt.Errorf("go.mod does not start with its module's name")
	}
	return strings.TrimSpace(module), nil
}

// isLeftOut reports whether a directory has no packages of the project.
func isLeftOut(dir string) bool {
	base := path.Base(dir)
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata"
}

type checker struct {
	module     string
	documented map[string]bool // by package
	found      []string
}

func (c *checker) report(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *checker) file(name string, text []byte) error {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if isIgnored(f) {
		return nil
	}
	pkg := path.Dir(name)
	isTest := strings.HasSuffix(name, "_test.go")
	if !isTest {
		c.documented[pkg] = c.documented[pkg] || f.Doc != nil
	}
	if _, ok := levelOf(pkg); !ok {
		c.report("%s: the package has no level: add it to levels in internal/archtest/levels.go", pkg)
		return nil
	}
	for _, word := range bannedNames {
		if strings.Contains(path.Base(pkg), word) || strings.Contains(f.Name.Name, word) {
			c.report("%s: a package name with %q does not say what the package is", pkg, word)
		}
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !isTest {
			c.report("%s: init runs where the reader does not see it: call the function where it is needed",
				files.Position(fn.Pos()))
		}
	}
	if !isTest && !isTestSupport(pkg) && pkg != starter && !within(pkg, "benchmarks") {
		ast.Inspect(f, func(n ast.Node) bool {
			if what := startsGoroutine(n); what != "" {
				c.report("%s: %s: start goroutines by internal/fault: a panic on others ends the program with status 2", files.Position(n.Pos()), what)
			}
			return true
		})
	}
	if isTest || isTestSupport(pkg) {
		c.refuseClocks(name, f, files)
	} else {
		c.refuseOwned(name, f, files)
	}
	for _, spec := range f.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if why := c.refuse(name, pkg, imported, isTest || isTestSupport(pkg), isTest); why != "" {
			c.report("%s: %s imports %s: %s", files.Position(spec.Pos()), pkg, imported, why)
		}
	}
	return nil
}

// startsGoroutine names the call that starts a goroutine without a handler for panics; it is empty for other nodes.
func startsGoroutine(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "go"
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok {
			switch name := x.Name + "." + n.Sel.Name; name {
			case "sync.WaitGroup", "time.AfterFunc", "context.AfterFunc", "runtime.AddCleanup", "runtime.SetFinalizer":
				return name
			}
		}
	}
	return ""
}

// refuse says why a file must not import something; it is empty where it may.
func (c *checker) refuse(file, pkg, imported string, forTests, isTest bool) string {
	if imported == "C" {
		return "there is no cgo here; device/cuda shows how to call a library without it"
	}
	target, ours := strings.CutPrefix(imported, c.module+"/")
	if imported == c.module {
		target, ours = rootPackage, true
	}
	if !ours {
		return refuseModule(pkg, imported, forTests)
	}
	if isTest || slices.Contains(bottom, target) && !slices.Contains(bottom, pkg) {
		return ""
	}
	from, _ := levelOf(pkg)
	to, known := levelOf(target)
	isOneFamily := slices.ContainsFunc(families, func(f []string) bool { return withinAny(pkg, f) && withinAny(target, f) })
	switch {
	case !known:
		return "it has no level: add it to levels in internal/archtest/levels.go"
	case isTestSupport(target) && !isTestSupport(pkg) && !within(pkg, "examples"):
		return "it is for tests"
	case within(target, workshop) && !within(pkg, workshop) && !strings.HasSuffix(file, "_standin.go"):
		return "only tests and files *_standin.go import the workshop"
	case to == programs && from == programs && !within(target, pkg):
		return "programs do not import each other"
	case to > from:
		return fmt.Sprintf("level %d imports only lower levels, and it is on %d", from, to)
	case to == from && from != programs && !isOneFamily && !isTestSupport(pkg):
		return fmt.Sprintf("both are on level %d", from)
	case withinAny(target, drivers) && !isOneFamily && from != programs && pkg != driverList && !isTestSupport(pkg) &&
		pkg != rehearsal:
		return "only programs, tests, " + driverList + " and " + rehearsal + " link drivers"
	case target == driverList && from != programs && pkg != rootPackage:
		return "only programs and the root package open devices by name"
	}
	return ""
}

func refuseModule(pkg, imported string, forTests bool) string {
	if head, _, _ := strings.Cut(imported, "/"); !strings.Contains(head, ".") {
		return "" // the standard library
	}
	for module, rule := range modules {
		switch {
		case !within(imported, module):
		case rule.testsOnly && !forTests:
			return "this module is for tests"
		case rule.trees != nil && !withinAny(pkg, rule.trees):
			return "only " + strings.Join(rule.trees, ", ") + " may"
		default:
			return ""
		}
	}
	return "the module is not in internal/archtest/levels.go, which lists what this project depends on"
}

// isIgnored is true of files that belong to no build.
func isIgnored(f *ast.File) bool {
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			break
		}
		for _, line := range group.List {
			if expr, err := constraint.Parse(line.Text); err == nil && expr.String() == "ignore" {
				return true
			}
		}
	}
	return false
}
