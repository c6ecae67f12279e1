package archtest

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
)

// CheckAPI type-checks the public packages of a tree and lists, a line each, what they export that has a type of an
// internal package in its signature, its exported fields or its exported methods: a program in another module could
// neither name it nor make one.
//
// Bodies of functions are left out, and so are other modules: a name from there has no type. So it
// takes a fraction of a second and reads nothing but the tree.
func CheckAPI(root fs.FS) ([]string, error) {
	module, err := moduleOf(root)
	if err != nil {
		return nil, err
	}
	l := &loader{root: root, module: module, files: token.NewFileSet(), loaded: map[string]*types.Package{}}
	var found []string
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case name != "." && isLeftOut(name), isInternal(name):
			return fs.SkipDir
		case name != "." && isModule(root, name):
			return fs.SkipDir
		}
		p, err := l.load(name)
		if err != nil || p == nil || p.Name() == "main" {
			return err
		}
		m := &mentions{module: module, pkg: p, seen: map[types.Type]bool{}}
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				m.object(o)
			}
		}
		found = append(found, m.found...)
		return nil
	})
	sort.Strings(found)
	return slices.Compact(found), err
}

// isModule reports whether a directory is a module of its own.
func isModule(root fs.FS, dir string) bool {
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

// isInternal reports whether only this module may import a package.
func isInternal(pkg string) bool { return slices.Contains(strings.Split(pkg, "/"), "internal") }

// loader type-checks the packages of a tree, each once.
type loader struct {
	root   fs.FS
	module string
	files  *token.FileSet
	loaded map[string]*types.Package
}

// Import loads a package for the type checker. One that is not of the module is empty.
func (l *loader) Import(name string) (*types.Package, error) {
	if name == "unsafe" {
		return types.Unsafe, nil
	}
	dir, ours := ".", name == l.module
	if !ours {
		dir, ours = strings.CutPrefix(name, l.module+"/")
	}
	if ours {
		p, err := l.load(dir)
		if p == nil && err == nil {
			err = fmt.Errorf("%s has no package", dir)
		}
		return p, err
	}
	if l.loaded[name] == nil {
		p := types.NewPackage(name, path.Base(name))
		p.MarkComplete()
		l.loaded[name] = p
	}
	return l.loaded[name], nil
}

// load type-checks the package in a directory, as it is built for linux/amd64; nil means that there is no package.
func (l *loader) load(dir string) (*types.Package, error) {
	if p, ok := l.loaded[dir]; ok {
		return p, nil
	}
	entries, err := fs.ReadDir(l.root, dir)
	if err != nil {
		return nil, err
	}
	var sources []*ast.File
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || !l.isBuilt(dir, e.Name()) {
			continue
		}
		text, err := fs.ReadFile(l.root, name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(l.files, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		sources = append(sources, f)
	}
	if len(sources) == 0 {
		l.loaded[dir] = nil
		return nil, nil
	}
	// Names from outside of the module have no type, which is an error each.
	config := types.Config{Importer: l, IgnoreFuncBodies: true, Error: func(error) {},
		Sizes: types.SizesFor("gc", "amd64")}
	p, _ := config.Check(path.Join(l.module, dir), l.files, sources, nil)
	l.loaded[dir] = p
	return p, nil
}

// isBuilt reports whether a file belongs to the build.
func (l *loader) isBuilt(dir, name string) bool {
	c := build.Context{GOOS: "linux", GOARCH: "amd64", Compiler: "gc", ReleaseTags: build.Default.ReleaseTags,
		JoinPath: path.Join, OpenFile: func(name string) (io.ReadCloser, error) { return l.root.Open(name) }}
	built, err := c.MatchFile(dir, name)
	return err == nil && built
}

// mentions finds internal types in what a package exports.
type mentions struct {
	module string
	pkg    *types.Package
	seen   map[types.Type]bool
	found  []string
}

// object looks at an exported object of the package.
func (m *mentions) object(o types.Object) {
	what := path.Join(path.Dir(m.pkg.Path()), m.pkg.Name())
	what = strings.TrimPrefix(strings.TrimPrefix(what, m.module), "/") + "." + o.Name()
	if t, ok := o.(*types.TypeName); ok {
		m.declared(what, t.Type())
		return
	}
	m.use(what, o.Type())
}

// declared looks at a type of the package: at what it is made of, and at its exported methods.
func (m *mentions) declared(what string, t types.Type) {
	if m.seen[t] {
		return
	}
	m.seen[t] = true
	if alias, ok := t.(*types.Alias); ok {
		m.constraints(what, alias.TypeParams())
		m.use(what, alias.Rhs())
		return
	}
	named, ok := t.(*types.Named)
	if !ok {
		return
	}
	m.constraints(what, named.TypeParams())
	m.use(what, named.Underlying())
	for method := range named.Methods() {
		if method.Exported() {
			m.use(what+"."+method.Name(), method.Type())
		}
	}
}

// constraints looks at what bounds the parameters of a generic type or function.
func (m *mentions) constraints(what string, params *types.TypeParamList) {
	for p := range params.TypeParams() {
		m.use(what, p.Constraint())
	}
}

// use looks at a type that something exported is made of.
func (m *mentions) use(what string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		m.name(what, t.Obj(), t)
		for arg := range t.TypeArgs().Types() {
			m.use(what, arg)
		}
	case *types.Named:
		m.name(what, t.Obj(), t)
		for arg := range t.TypeArgs().Types() {
			m.use(what, arg)
		}
	case *types.Pointer:
		m.use(what, t.Elem())
	case *types.Slice:
		m.use(what, t.Elem())
	case *types.Array:
		m.use(what, t.Elem())
	case *types.Chan:
		m.use(what, t.Elem())
	case *types.Map:
		m.use(what, t.Key())
		m.use(what, t.Elem())
	case *types.Signature:
		m.constraints(what, t.TypeParams())
		for p := range t.Params().Variables() {
			m.use(what, p.Type())
		}
		for r := range t.Results().Variables() {
			m.use(what, r.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() || f.Embedded() {
				m.use(what+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for method := range t.ExplicitMethods() {
			if method.Exported() {
				m.use(what+"."+method.Name(), method.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			m.use(what, e)
		}
	case *types.Union:
		for term := range t.Terms() {
			m.use(what, term.Type())
		}
	}
}

// name looks at a type that has a name. What other public packages export is looked at there; what this one does not
// export is part of what uses it.
func (m *mentions) name(what string, o *types.TypeName, t types.Type) {
	switch {
	case o.Pkg() == nil:
	case within(o.Pkg().Path(), m.module) && isInternal(o.Pkg().Path()):
		name := strings.TrimPrefix(o.Pkg().Path(), m.module+"/") + "." + o.Name()
		m.found = append(m.found, fmt.Sprintf("%s: programs in other modules cannot name %s", what, name))
	case o.Pkg() == m.pkg && !o.Exported():
		m.declared(what, t)
	}
}
