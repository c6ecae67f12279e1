package data

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// comparedTypes finds the places of a file that take types of data apart: a switch over a Type, a case or a comparison
// with one of them, a list of types, and a map by type.
func comparedTypes(t *testing.T, name string, text any) (found []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	isNamed := func(e ast.Expr, names ...string) bool {
		if sel, ok := e.(*ast.SelectorExpr); ok && slices.Contains(names, "Type") {
			e = sel.Sel
		}
		id, ok := e.(*ast.Ident)
		return ok && slices.Contains(names, id.Name)
	}
	look := func(all ...ast.Expr) {
		for _, e := range all {
			if pair, ok := e.(*ast.KeyValueExpr); ok {
				e = pair.Key
			}
			if isNamed(e, "Text", "PromptResponse", "Alpaca", "ShareGPT", "Messages", "Preference", "Binary", "Weighted") {
				found = append(found, files.Position(e.Pos()).String())
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SwitchStmt:
			if isNamed(n.Tag, "Type") {
				found = append(found, files.Position(n.Pos()).String())
			}
		case *ast.CaseClause:
			look(n.List...)
		case *ast.BinaryExpr:
			look(n.X, n.Y)
			if lit, ok := n.Y.(*ast.BasicLit); ok && isNamed(n.X, "Type") && lit.Value != `""` {
				found = append(found, files.Position(n.Pos()).String())
			}
		case *ast.CompositeLit:
			list, isList := n.Type.(*ast.ArrayType)
			table, isTable := n.Type.(*ast.MapType)
			if isList && isNamed(list.Elt, "Type") || isTable && isNamed(table.Key, "Type") {
				look(n.Elts...)
			}
		}
		return true
	})
	return found
}

// TestTypesAreInOneTable: a new type of data is a row of types and its functions, so no other file takes types apart.
func TestTypesAreInOneTable(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) < 50 {
		t.Fatalf("%d files, error %v", len(names), err)
	}
	for _, name := range names {
		if name == "types.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, place := range comparedTypes(t, name, nil) {
			t.Errorf("%s takes types of data apart: make what differs a field of format in types.go, and look it up", place)
		}
	}
	for _, bad := range []string{
		"switch s.Type {\n}", "switch kind {\ncase Text:\n}", "switch {\ncase s.Type == Alpaca:\n}", "_ = s.Type != ShareGPT",
		`_ = s.Type == "text"`,
		"_ = []Type{Messages}", "_ = map[Type]int{PromptResponse: 1}",
	} {
		if found := comparedTypes(t, "x.go", "package x\nfunc f() {\n"+bad+"\n}"); len(found) == 0 {
			t.Errorf("%s: it is not found", bad)
		}
	}
	for _, good := range []string{`_ = s.Type == ""`, "r.Type = Messages", "_ = Record{Type: Text, Text: some}",
		"_ = len(r.Messages) == len(p.Text)"} {
		if found := comparedTypes(t, "x.go", "package x\nfunc f() {\n"+good+"\n}"); len(found) > 0 {
			t.Errorf("%s: it is found", good)
		}
	}
}

// TestTypesAreWhole: each row of types has what its flags ask for, and reads keys that entries have.
func TestTypesAreWhole(t *testing.T) {
	known := map[string]entryKey{}
	for _, k := range entryKeys {
		known[k.name] = k
	}
	for _, f := range types {
		required := 0
		for key := range f.keys {
			if k, ok := known[key]; !ok {
				t.Errorf("type %s reads %q, which is no key of an entry", f.name, key)
			} else if k.required {
				required++
			}
		}
		for column, key := range f.columns {
			if f.keys[key] == "" || known[key].of == nil {
				t.Errorf("type %s: the column %q sets %q, which an entry of the type cannot name", f.name, column, key)
			}
		}
		switch {
		case f.read == nil || required == 0:
			t.Errorf("type %s reads nothing", f.name)
		case f.isText && (f.isConversation || f.prompt != nil) || f.isConversation && f.turns == nil || f.opens &&
			f.turns == nil:
			t.Errorf("type %s contradicts itself: %+v", f.name, *f)
		}
		isUsual := false
		for _, u := range usualRows {
			isUsual = isUsual || strings.HasPrefix(u.typed, string(f.name))
		}
		if !isUsual {
			t.Errorf("type %s has no usual row by which errors name it", f.name)
		}
	}
}
