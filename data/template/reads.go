package template

import (
	"fmt"
	"slices"
)

// Reads reports whether the template looks at a variable that it has not given a value itself, as jinja2.meta's
// find_undeclared_variables says of it. A value for another variable would change nothing. It is true as well where
// the template reads a variable after it was assigned in a branch that may not be taken.
func (t *Template) Reads(variable string) bool {
	id := slices.Index(t.names, variable)
	if id < 0 {
		return false
	}
	s := &readSearch{of: int32(id)}
	s.block(t.body)
	return s.isRead
}

// Variables are the names that the template reads and that a render does not give a value, sorted: what it can be told
// with [Input.Extra].
func (t *Template) Variables() []string {
	var all []string
	for _, name := range t.names {
		if !IsGiven(name) && t.Reads(name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// readSearch looks for a place where a variable is read.
type readSearch struct {
	of      int32
	isBound bool // the template has given it a value
	isRead  bool
}

// within searches where assignments do not last.
func (s *readSearch) within(search func()) {
	was := s.isBound
	search()
	s.isBound = was
}

func (s *readSearch) block(body block) {
	for _, st := range body {
		s.stmt(st)
	}
}

func (s *readSearch) stmt(st stmt) {
	switch st := st.(type) {
	case *textStmt, *leaveStmt:
	case *printStmt:
		s.exprs(st.value)
	case *ifStmt:
		for i, test := range st.tests {
			s.exprs(test)
			s.within(func() { s.block(st.bodies[i]) })
		}
		s.within(func() { s.block(st.otherwise) })
	case *forStmt:
		s.exprs(st.in)
		s.within(func() {
			s.target(st.target)
			s.exprs(st.test)
			s.bind(idLoop)
			s.block(st.body)
		})
		s.within(func() { s.block(st.otherwise) })
	case *setStmt:
		s.exprs(st.value)
		s.target(st.target)
	case *captureStmt:
		s.within(func() { s.block(st.body) })
		s.target(st.target)
	case *macroStmt:
		s.bind(st.id)
		s.macro(st.def)
	case *callStmt:
		s.exprs(st.call)
		s.macro(st.def)
	case *filterStmt:
		s.within(func() { s.block(st.body) })
		s.exprs(st.filters)
	case *generationStmt:
		s.within(func() { s.block(st.body) })
	default:
		panic(fmt.Sprintf("template: a statement %T", st))
	}
}

func (s *readSearch) macro(def *macroDef) {
	s.exprs(def.defaults...)
	s.within(func() {
		for _, id := range append([]int32{idCaller}, def.ids...) {
			s.bind(id)
		}
		s.block(def.body)
	})
}

func (s *readSearch) bind(id int32) { s.isBound = s.isBound || id == s.of }

func (s *readSearch) target(to target) {
	switch to := to.(type) {
	case *nameTarget:
		s.bind(to.id)
	case *attrTarget:
		s.read(to.id)
	case *tupleTarget:
		for _, item := range to.items {
			s.target(item)
		}
	default:
		panic(fmt.Sprintf("template: a target %T", to))
	}
}

func (s *readSearch) read(id int32) { s.isRead = s.isRead || id == s.of && !s.isBound }

// exprs searches expressions, of which those that are not there are nil.
func (s *readSearch) exprs(all ...expr) {
	for _, e := range all {
		switch e := e.(type) {
		case nil, *constExpr:
		case *nameExpr:
			s.read(e.id)
		case *condExpr:
			s.exprs(e.test, e.then, e.otherwise)
		case *orExpr:
			s.exprs(e.a, e.b)
		case *andExpr:
			s.exprs(e.a, e.b)
		case *notExpr:
			s.exprs(e.a)
		case *compareExpr:
			s.exprs(e.first)
			for _, op := range e.ops {
				s.exprs(op.to)
			}
		case *arithExpr:
			s.exprs(e.a, e.b)
		case *concatExpr:
			s.exprs(e.parts...)
		case *signExpr:
			s.exprs(e.a)
		case *attrExpr:
			s.exprs(e.of)
		case *itemExpr:
			s.exprs(e.of, e.key)
		case *sliceExpr:
			s.exprs(e.from, e.to, e.step)
		case *callExpr:
			s.exprs(e.fn)
			s.args(&e.args)
		case *filterExpr:
			s.exprs(e.in)
			s.args(&e.args)
		case *testExpr:
			s.exprs(e.in)
			s.args(&e.args)
		case *listExpr:
			s.exprs(e.items...)
		case *tupleExpr:
			s.exprs(e.items...)
		case *dictExpr:
			s.exprs(e.keys...)
			s.exprs(e.vals...)
		default:
			panic(fmt.Sprintf("template: an expression %T", e))
		}
	}
}

func (s *readSearch) args(a *callArgs) {
	s.exprs(a.pos...)
	s.exprs(a.named...)
	s.exprs(a.spread)
}
