package main

import "go/ast"

// long chooses the tests that do more without -short, one in each number of turns: functions that ask testing.Short, or
// call one of their package that does.
func long(packages []*pkg, turns, turn int) []string {
	var chosen, names []string
	for _, p := range packages {
		asks := p.asking()
		before := len(names)
		for _, f := range p.tests {
			for _, name := range f.names {
				if asks[name] && turnOf(name, turns) == turn {
					names = append(names, name)
				}
			}
		}
		if len(names) > before {
			chosen = append(chosen, "./"+p.dir)
		}
	}
	return append([]string{"-run=" + pattern(names)}, chosen...)
}

// asking has the functions of a package's tests that ask testing.Short, by themselves or through others.
func (p *pkg) asking() map[string]bool {
	asks := map[string]bool{}
	for {
		before := len(asks)
		for _, f := range p.tests {
			for _, d := range f.syntax.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if ok && !asks[fn.Name.Name] && calls(fn, func(from, name string) bool {
					return from == "testing" && name == "Short" || from == "" && name != fn.Name.Name && asks[name]
				}) {
					asks[fn.Name.Name] = true
				}
			}
		}
		if len(asks) == before {
			return asks
		}
	}
}

// calls reports whether a function calls one of a package, or one of its own package, for which is is true.
func calls(fn *ast.FuncDecl, is func(from, name string) bool) bool {
	found := false
	ast.Inspect(fn, func(x ast.Node) bool {
		call, ok := x.(*ast.CallExpr)
		if !ok {
			return !found
		}
		switch f := call.Fun.(type) {
		case *ast.Ident:
			found = found || is("", f.Name)
		case *ast.SelectorExpr:
			if of, ok := f.X.(*ast.Ident); ok {
				found = found || is(of.Name, f.Sel.Name)
			}
		}
		return !found
	})
	return found
}
