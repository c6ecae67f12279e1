package template

import "strings"

// eval evaluates an expression; all evaluation of parts goes through it, so that depth and steps are counted.
func (s *state) eval(e expr) Value {
	s.work(0)
	s.enter()
	v := e.eval(s)
	s.depth--
	return v
}

func (s *state) enter() {
	if s.depth++; s.depth > s.limits.Depth {
		s.failLimit("expressions and calls are nested deeper than %d: does a macro call itself?", s.limits.Depth)
	}
}

func (e *constExpr) eval(*state) Value { return e.v }

func (e *nameExpr) eval(s *state) Value {
	s.pos = e.pos
	return s.lookup(e.id)
}

func (e *condExpr) eval(s *state) Value {
	switch {
	case s.truth(s.eval(e.test)):
		return s.eval(e.then)
	case e.otherwise != nil:
		return s.eval(e.otherwise)
	}
	return &undefined{why: "the inline if-expression evaluated to false and no else section was defined"}
}

func (e *orExpr) eval(s *state) Value {
	if v := s.eval(e.a); s.truth(v) {
		return v
	}
	return s.eval(e.b)
}

func (e *andExpr) eval(s *state) Value {
	if v := s.eval(e.a); !s.truth(v) {
		return v
	}
	return s.eval(e.b)
}

func (e *notExpr) eval(s *state) Value { return Bool(!s.truth(s.eval(e.a))) }

func (e *compareExpr) eval(s *state) Value {
	left := s.eval(e.first)
	for _, op := range e.ops {
		right := s.eval(op.to)
		s.pos = e.pos
		if !s.compare(op.op, left, right) {
			return Bool(false)
		}
		left = right
	}
	return Bool(true)
}

func (s *state) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return s.equal(a, b, 0)
	case "!=":
		return !s.equal(a, b, 0)
	case "in":
		return s.contains(b, a)
	case "not in":
		return !s.contains(b, a)
	}
	return s.ordered(op, a, b)
}

func (e *arithExpr) eval(s *state) Value {
	a := s.eval(e.a)
	b := s.eval(e.b)
	s.pos = e.pos
	return s.arith(e.op, a, b)
}

func (e *concatExpr) eval(s *state) Value {
	var short [4]string
	texts, size := short[:0], 0
	for _, part := range e.parts {
		text := s.str(s.eval(part))
		size += len(text)
		texts = append(texts, text)
	}
	s.alloc(size)
	return String(strings.Join(texts, ""))
}

func (e *signExpr) eval(s *state) Value {
	v := s.eval(e.a)
	s.pos = e.pos
	return s.negate(v)
}

func (e *attrExpr) eval(s *state) Value {
	v := s.eval(e.of)
	s.pos = e.pos
	return s.attr(v, e.name)
}

func (e *itemExpr) eval(s *state) Value {
	v := s.eval(e.of)
	if slice, ok := e.key.(*sliceExpr); ok {
		part := func(x expr) Value {
			if x == nil {
				return None{}
			}
			return s.eval(x)
		}
		from, to, step := part(slice.from), part(slice.to), part(slice.step)
		s.pos = e.pos
		return s.slice(v, from, to, step)
	}
	key := s.eval(e.key)
	s.pos = e.pos
	return s.item(v, key)
}

func (e *sliceExpr) eval(s *state) Value {
	s.fail("a slice stands only within brackets") // the parser makes no other
	return nil
}

func (e *callExpr) eval(s *state) Value {
	fn := s.eval(e.fn)
	args := s.args(&e.args)
	s.pos = e.pos
	return s.call(fn, args)
}

func (e *filterExpr) eval(s *state) Value {
	var in Value
	if e.in == nil {
		in = s.captured
	} else {
		in = s.eval(e.in)
	}
	args := s.args(&e.args)
	s.pos = e.pos
	if e.fn == nil {
		s.fail("%s", unknown("filter", e.name))
	}
	return e.fn(s, in, args)
}

func (e *testExpr) eval(s *state) Value {
	in := s.eval(e.in)
	args := s.args(&e.args)
	s.pos = e.pos
	if e.fn == nil {
		s.fail("%s", unknown("test", e.name))
	}
	return Bool(e.fn(s, in, args))
}

func (s *state) evalAll(list []expr) []Value {
	if len(list) == 0 {
		return nil
	}
	s.alloc(valueBytes * len(list))
	items := make([]Value, len(list))
	for i, e := range list {
		items[i] = s.eval(e)
	}
	return items
}

func (e *listExpr) eval(s *state) Value { return &List{s.evalAll(e.items)} }

func (e *tupleExpr) eval(s *state) Value { return &tuple{s.evalAll(e.items)} }

func (e *dictExpr) eval(s *state) Value {
	d := NewDict(len(e.keys))
	for i := range e.keys {
		key := s.eval(e.keys[i])
		v := s.eval(e.vals[i])
		s.pos = e.pos
		s.setItem(d, key, v)
	}
	return d
}

func (s *state) setItem(d *Dict, key, v Value) {
	s.alloc(4 * valueBytes)
	d.set(key, s.hash(key), v)
}

func (s *state) hash(key Value) any {
	h, ok := hashOf(key)
	if !ok {
		s.fail("a key of type '%s' is not supported", key.typeName())
	}
	if text, ok := h.(string); ok {
		s.work(len(text))
	}
	return h
}

// arguments holds the arguments of one call.
type arguments struct {
	pos   []Value
	names []string
	named []Value
}

func (s *state) args(a *callArgs) arguments {
	var args arguments
	if a.pos != nil {
		args.pos = s.evalAll(a.pos)
	}
	if a.names != nil {
		args.names, args.named = a.names, s.evalAll(a.named)
	}
	if a.spread != nil {
		args.pos = s.all(args.pos, s.iterate(s.eval(a.spread)))
	}
	return args
}

// bind gives the arguments to parameters by place and by name; one that was not given is nil. A parameter whose name
// ends in ! must be given.
func (s *state) bind(fn string, a arguments, params ...string) []Value {
	if len(a.pos) > len(params) {
		s.fail("%s() takes at most %d arguments (%d given)", fn, len(params), len(a.pos))
	}
	out := make([]Value, len(params))
	copy(out, a.pos)
next:
	for i, name := range a.names {
		for j, p := range params {
			if strings.TrimSuffix(p, "!") == name {
				if out[j] != nil {
					s.fail("%s() got multiple values for argument '%s'", fn, name)
				}
				out[j] = a.named[i]
				continue next
			}
		}
		s.fail("%s() got an unexpected keyword argument '%s'", fn, name)
	}
	for j, p := range params {
		if out[j] == nil && strings.HasSuffix(p, "!") {
			s.fail("%s() missing required argument '%s'", fn, strings.TrimSuffix(p, "!"))
		}
	}
	return out
}

// truth is Python's bool(v).
func (s *state) truth(v Value) bool {
	switch v := v.(type) {
	case Bool:
		return bool(v)
	case String:
		return v != ""
	case None, *undefined:
		return false
	case Int:
		return v != 0
	case Float:
		return v != 0
	case *List:
		return len(v.items) > 0
	case *tuple:
		return len(v.items) > 0
	case *Dict:
		return v.Len() > 0
	case *view:
		return len(v.items) > 0
	}
	return true
}
