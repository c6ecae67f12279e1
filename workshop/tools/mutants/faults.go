package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// fault is a change of a few bytes of a file.
type fault struct {
	file      string
	line, col int
	text      []byte // of the file
	from, to  int    // the bytes that are replaced
	with      string
	change    string // for people
}

func (f fault) String() string { return fmt.Sprintf("%s:%d:%d", filepath.Base(f.file), f.line, f.col) }

func (f *fault) apply() []byte {
	return bytes.Join([][]byte{f.text[:f.from], []byte(f.with), f.text[f.to:]}, nil)
}

// operators stand in for an operator.
var operators = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND}, token.AND: {token.OR}, token.OR: {token.AND},
	token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN},
	token.QUO_ASSIGN: {token.MUL_ASSIGN},
}

// faultsIn lists the faults of a package's files for this machine, tests and generated files apart.
func faultsIn(dir string) (all []fault, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if is, err := build.Default.MatchFile(dir, filepath.Base(file)); err != nil || !is {
			continue // for another system
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(tree) {
			continue
		}
		s := &search{set: set, file: file, text: text}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && !describes(f) {
				ast.Inspect(f.Body, s.visit)
			}
		}
		all = append(all, s.found...)
	}
	return all, nil
}

// describes reports whether a function only makes text for people.
func describes(f *ast.FuncDecl) bool {
	switch f.Name.Name {
	case "String", "Error", "GoString":
		return true
	}
	return false
}

// search collects the faults of a file.
type search struct {
	set   *token.FileSet
	file  string
	text  []byte
	found []fault
}

func (s *search) add(from, to token.Pos, with, change string) {
	at := s.set.Position(from)
	s.found = append(s.found, fault{file: s.file, line: at.Line, col: at.Column, text: s.text, from: at.Offset,
		to: s.set.Position(to).Offset, with: with, change: change})
}

func (s *search) source(n ast.Node) string {
	return string(s.text[s.set.Position(n.Pos()).Offset:s.set.Position(n.End()).Offset])
}

func (s *search) swap(at token.Pos, op token.Token) {
	for _, other := range operators[op] {
		s.add(at, at+token.Pos(len(op.String())), other.String(), fmt.Sprintf("%s for %s", other, op))
	}
}

func (s *search) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return !isText(n)
	case *ast.BinaryExpr:
		if !s.joinsText(n) {
			s.swap(n.OpPos, n.Op)
		}
	case *ast.IncDecStmt:
		other := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
		s.add(n.TokPos, n.TokPos+2, other, other+" for "+n.Tok.String())
	case *ast.AssignStmt:
		s.swap(n.TokPos, n.Tok)
		if n.Tok == token.ASSIGN {
			s.leaveOut(n)
		}
	case *ast.ExprStmt:
		s.leaveOut(n)
	case *ast.IfStmt:
		s.add(n.Cond.Pos(), n.Cond.End(), "!("+s.source(n.Cond)+")", "the condition is negated")
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
			s.add(n.Pos(), n.End(), fmt.Sprint(v+1), fmt.Sprintf("%d for %s", v+1, n.Value))
		}
	}
	return true
}

// leaveOut drops a statement. A variable that is only written then does not compile, and does not count.
func (s *search) leaveOut(n ast.Node) {
	if what := s.source(n); !strings.HasPrefix(what, "panic(") {
		what, _, _ = strings.Cut(what, "\n")
		s.add(n.Pos(), n.End(), "", "without "+what)
	}
}

// joinsText reports whether an operation joins strings, as far as its operands show.
func (s *search) joinsText(n *ast.BinaryExpr) bool {
	text := func(e ast.Expr) bool {
		l, ok := e.(*ast.BasicLit)
		return ok && l.Kind == token.STRING
	}
	return n.Op == token.ADD && (text(n.X) || text(n.Y))
}

// isText reports whether a call makes text for people, or stops the program.
func isText(n *ast.CallExpr) bool {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && (x.Name == "fmt" || x.Name == "errors" && f.Sel.Name == "New")
	}
	return false
}
