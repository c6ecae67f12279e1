package template

import "slices"

func (s *state) run(body block) flow {
	for _, st := range body {
		s.work(0)
		if how := st.exec(s); how != flowNext {
			return how
		}
	}
	return flowNext
}

// runScoped runs a body whose assignments end with it.
func (s *state) runScoped(body block) flow {
	s.scope = &scope{parent: s.scope}
	how := s.run(body)
	s.scope = s.scope.parent
	return how
}

func (t *textStmt) exec(s *state) flow {
	s.write(t.text)
	return flowNext
}

func (t *printStmt) exec(s *state) flow {
	s.write(s.str(s.eval(t.value)))
	return flowNext
}

func (t *ifStmt) exec(s *state) flow {
	for i, test := range t.tests {
		if s.truth(s.eval(test)) {
			return s.run(t.bodies[i])
		}
	}
	return s.run(t.otherwise)
}

// exec goes through the items. The body's scope is emptied for each item: what it assigns does not last.
func (t *forStmt) exec(s *state) flow {
	in := s.eval(t.in)
	s.pos = t.pos
	items := s.iterate(in)
	outer := s.scope
	inner := &scope{parent: outer}
	s.scope = inner
	if t.test != nil {
		items = s.filterItems(t, items)
	}
	loop := &loopValue{items: items}
	s.loops = append(s.loops, loop)
	for loop.at = range items {
		s.work(0)
		inner.reset()
		inner.set(idLoop, loop)
		t.target.assign(s, items[loop.at])
		if s.run(t.body) == flowBreak {
			break
		}
	}
	s.loops = s.loops[:len(s.loops)-1]
	s.scope = outer
	if len(items) == 0 {
		s.runScoped(t.otherwise)
	}
	return flowNext
}

func (s *state) filterItems(t *forStmt, items []Value) []Value {
	kept := values{s: s}
	for _, item := range items {
		s.scope.reset()
		t.target.assign(s, item)
		if s.truth(s.eval(t.test)) {
			kept.add(item)
		}
	}
	return kept.list
}

func (t *setStmt) exec(s *state) flow {
	t.target.assign(s, s.eval(t.value))
	return flowNext
}

func (t *captureStmt) exec(s *state) flow {
	t.target.assign(s, s.capture(t.body))
	return flowNext
}

func (t *filterStmt) exec(s *state) flow {
	outer := s.captured
	s.captured = s.capture(t.body)
	v := s.eval(t.filters)
	s.captured = outer
	s.write(s.str(v))
	return flowNext
}

// capture runs a body and returns what it wrote.
func (s *state) capture(body block) Value {
	outer := s.beginCapture()
	s.runScoped(body)
	return s.endCapture(outer)
}

func (t *macroStmt) exec(s *state) flow {
	s.scope.set(t.id, &macro{def: t.def, scope: s.scope})
	return flowNext
}

func (t *callStmt) exec(s *state) flow {
	fn := s.eval(t.call.fn)
	args := s.args(&t.call.args)
	args.names = slices.Concat(args.names, []string{"caller"})
	args.named = s.all(args.named, []Value{&macro{def: t.def, scope: s.scope}})
	s.pos = t.call.pos
	s.write(s.str(s.call(fn, args)))
	return flowNext
}

func (t *generationStmt) exec(s *state) flow {
	if s.captures > 0 {
		s.isHidden = true
		return s.runScoped(t.body)
	}
	span := Span{Start: len(s.out), Message: s.messageAt()}
	how := s.runScoped(t.body)
	span.End = len(s.out)
	s.generations = append(grown(s, s.generations, 32), span)
	return how
}

func (t *leaveStmt) exec(*state) flow { return t.how }

func (t *nameTarget) assign(s *state, v Value) { s.scope.set(t.id, v) }

func (t *attrTarget) assign(s *state, v Value) {
	s.pos = t.pos
	n, ok := s.lookup(t.id).(*namespace)
	if !ok {
		s.fail("cannot assign attribute on non-namespace object")
	}
	s.setItem(n.attrs, String(t.name), v)
}

func (t *tupleTarget) assign(s *state, v Value) {
	s.pos = t.pos
	items := s.iterate(v)
	switch {
	case len(items) < len(t.items):
		s.fail("not enough values to unpack (expected %d, got %d)", len(t.items), len(items))
	case len(items) > len(t.items):
		s.fail("too many values to unpack (expected %d)", len(t.items))
	}
	for i, to := range t.items {
		to.assign(s, items[i])
	}
}
