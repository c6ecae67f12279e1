package main

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
)

// words chooses the tests of files that name a page of the tree, or open its root as a file system, from which a test
// reads all pages.
func words(packages []*pkg, pages []string) []string {
	var chosen, names []string
	for _, p := range packages {
		before := len(names)
		for _, f := range p.tests {
			if f.has(func(x ast.Node, _ map[string]string) bool { return namesPage(x, p.dir, pages) || opensRoot(x, p.dir) }) {
				names = append(names, f.names...)
			}
		}
		if len(names) > before {
			chosen = append(chosen, "./"+p.dir)
		}
	}
	return append([]string{"-run=" + pattern(names)}, chosen...)
}

// namesPage is true of the path of a page from the package or from the root, and of the name of a page alone. README.md
// is the name of many files that are no pages of the tree.
func namesPage(x ast.Node, dir string, pages []string) bool {
	text := literal(x)
	if path.Ext(text) != ".md" {
		return false
	}
	return slices.ContainsFunc(pages, func(page string) bool {
		return page == path.Join(dir, text) || path.Base(page) == path.Base(text) && path.Base(page) != "README.md"
	})
}

// opensRoot is true of a call of os.DirFS with the path of the root.
func opensRoot(x ast.Node, dir string) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	text := literal(call.Args[0])
	return ok && f.Sel.Name == "DirFS" && text != "" && path.Join(dir, text) == "."
}

// literal is the text of a literal, and empty for other nodes.
func literal(x ast.Node) string {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(lit.Value)
	return text
}
