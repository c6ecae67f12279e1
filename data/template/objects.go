package template

import (
	"slices"
	"strings"
	"unicode/utf8"
)

type (
	// callable is a function or method that a template can call.
	callable interface {
		Value
		call(*state, arguments) Value
	}
	// builtin is a global function, or a method with its receiver bound.
	builtin struct {
		name string
		fn   func(*state, arguments) Value
	}
	method struct {
		of   Value
		name string
		fn   methodFunc
	}
	methodFunc func(s *state, of Value, a arguments) Value
	macro      struct {
		def   *macroDef
		scope *scope // where it was defined
	}
	// loopValue is the variable loop.
	loopValue struct {
		items []Value
		at    int
	}
)

func (*builtin) typeName() string   { return "builtin_function_or_method" }
func (*method) typeName() string    { return "builtin_function_or_method" }
func (*macro) typeName() string     { return "Macro" }
func (*loopValue) typeName() string { return "LoopContext" }

func (b *builtin) call(s *state, a arguments) Value { return b.fn(s, a) }

func (m *method) call(s *state, a arguments) Value {
	if text, ok := m.of.(String); ok {
		s.work(len(text))
	}
	return m.fn(s, m.of, a)
}

func (s *state) call(fn Value, a arguments) Value {
	s.checkDefined(fn)
	c, ok := fn.(callable)
	if !ok {
		s.fail("'%s' object is not callable", fn.typeName())
	}
	s.enter() // {% call %} gets here without an expression
	v := c.call(s, a)
	s.depth--
	return v
}

func (m *macro) call(s *state, a arguments) Value {
	def := m.def
	inner := &scope{parent: m.scope}
	given := make([]Value, len(def.params))
	if copy(given, a.pos) < len(a.pos) {
		s.fail("macro '%s' takes not more than %d argument(s)", def.name, len(def.params))
	}
	var caller Value
	for i, name := range a.names {
		j := slices.Index(def.params, name)
		switch {
		case j >= 0 && given[j] != nil:
			s.fail("macro '%s' got multiple values for argument '%s'", def.name, name)
		case j >= 0:
			given[j] = a.named[i]
		case name == "caller" && def.usesCaller:
			caller = a.named[i]
		default:
			s.fail("macro '%s' takes no keyword argument '%s'", def.name, name)
		}
	}
	if def.usesCaller && !slices.Contains(def.params, "caller") {
		if caller == nil {
			caller = &undefined{why: "No caller defined"}
		}
		inner.set(idCaller, caller)
	}
	return s.runMacro(def, inner, given)
}

func (s *state) runMacro(def *macroDef, inner *scope, given []Value) Value {
	outer := s.scope
	s.scope = inner
	firstDefault := len(def.params) - len(def.defaults)
	for i, v := range given {
		switch {
		case v != nil:
		case i >= firstDefault:
			v = s.eval(def.defaults[i-firstDefault])
		default:
			v = &undefined{why: "parameter '" + def.params[i] + "' was not provided"}
		}
		inner.set(def.ids[i], v)
	}
	out := s.beginCapture()
	s.run(def.body)
	text := s.endCapture(out)
	s.scope = outer
	return text
}

// item is the loop's current item, or nil.
func (l *loopValue) item() Value { return l.neighbour(0) }

func (l *loopValue) neighbour(d int) Value {
	if i := l.at + d; i >= 0 && i < len(l.items) {
		return l.items[i]
	}
	return nil
}

func (l *loopValue) attr(name string) Value {
	n := len(l.items)
	orUndefined := func(v Value, why string) Value {
		if v == nil {
			return &undefined{why: why}
		}
		return v
	}
	switch name {
	case "index":
		return Int(l.at + 1)
	case "index0":
		return Int(l.at)
	case "revindex":
		return Int(n - l.at)
	case "revindex0":
		return Int(n - l.at - 1)
	case "first":
		return Bool(l.at == 0)
	case "last":
		return Bool(l.at == n-1)
	case "length":
		return Int(n)
	case "previtem":
		return orUndefined(l.neighbour(-1), "there is no previous item")
	case "nextitem":
		return orUndefined(l.neighbour(1), "there is no next item")
	}
	return nil
}

// attr is v.name: the attribute, or else the item of that name. Of a dict, items and the other methods come first.
func (s *state) attr(v Value, name string) Value {
	if u, ok := v.(*undefined); ok {
		s.failUndefined(u)
	}
	if a := s.pythonAttr(v, name); a != nil {
		return a
	}
	if d, ok := v.(*Dict); ok {
		if x, ok := d.Get(name); ok {
			return x
		}
	}
	return &undefined{of: v, name: name}
}

// pythonAttr is getattr(v, name) as far as the sandbox lets it be seen, or nil.
func (s *state) pythonAttr(v Value, name string) Value {
	if strings.HasPrefix(name, "__") {
		return s.unsafe(v, name)
	}
	switch v := v.(type) {
	case *loopValue:
		if name == "depth" || name == "depth0" {
			s.fail("%s", unsupported("attribute", "loop."+name))
		}
		return v.attr(name)
	case *macro:
		s.fail("%s", unsupported("attribute", name+" of a macro"))
	case *namespace:
		if x, ok := v.attrs.Get(name); ok {
			return x
		}
		return nil
	}
	if isMutator(v, name) {
		return s.unsafe(v, name)
	}
	if fn := methodOf(v, name); fn != nil {
		return &method{v, name, fn}
	}
	return nil
}

// unsafe stands for an attribute that the sandbox hides.
func (s *state) unsafe(v Value, name string) Value {
	return &undefined{why: "access to attribute '" + name + "' of '" + v.typeName() + "' object is unsafe."}
}

// isMutator reports whether Jinja's immutable sandbox hides a method, and transformers with it.
func isMutator(v Value, name string) bool {
	switch v.(type) {
	case *List:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	case *Dict:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	}
	return false
}

// item is v[key]: the item, or else the attribute of that name.
func (s *state) item(v, key Value) Value {
	switch v := v.(type) {
	case *undefined:
		s.failUndefined(v)
	case *Dict:
		if text, ok := key.(String); ok {
			s.work(len(text))
			if i := v.findString(string(text)); i >= 0 {
				return v.vals[i]
			}
		} else if _, ok := hashOf(key); ok {
			if i := v.findHash(s.hash(key)); i >= 0 {
				return v.vals[i]
			}
		}
	case *List, *tuple, String:
		if n, ok := numberOf(key); ok && !n.isFloat {
			if x := s.element(v, n.n); x != nil {
				return x
			}
		}
	case *view:
		if v.kind == "range" {
			s.fail("%s", unsupported("element", "of a range"))
		}
	}
	if name, ok := key.(String); ok {
		if a := s.pythonAttr(v, string(name)); a != nil {
			return a
		}
		return &undefined{of: v, name: string(name)}
	}
	return &undefined{why: v.typeName() + " object has no element " + s.repr(key)}
}

// element is the i-th item of a sequence, from the end if i is negative, or nil.
func (s *state) element(v Value, i int64) Value {
	n := int64(s.length(v))
	if i < 0 {
		i += n
	}
	if i < 0 || i >= n {
		return nil
	}
	switch v := v.(type) {
	case *List:
		return v.items[i]
	case *tuple:
		return v.items[i]
	case String:
		if isASCII(string(v)) {
			return v[i : i+1]
		}
		for at := range string(v) {
			if i == 0 {
				_, size := utf8.DecodeRuneInString(string(v[at:]))
				return v[at : at+size]
			}
			i--
		}
	}
	return nil
}

// length is len(v).
func (s *state) length(v Value) int {
	switch v := v.(type) {
	case String:
		s.work(len(v))
		return runeLen(string(v))
	case *List:
		return len(v.items)
	case *tuple:
		return len(v.items)
	case *Dict:
		return v.Len()
	case *view:
		return len(v.items)
	case *undefined:
		return 0
	}
	s.fail("object of type '%s' has no len()", v.typeName())
	return 0
}

// iterate lists what a loop over v goes through; the result must not be changed.
func (s *state) iterate(v Value) []Value {
	switch v := v.(type) {
	case *List:
		return v.items
	case *tuple:
		return v.items
	case *Dict:
		return v.keys
	case *view:
		return v.items
	case *iterator:
		return v.take()
	case *undefined:
		return nil
	case String:
		return s.characters(string(v))
	}
	s.fail("'%s' object is not iterable", v.typeName())
	return nil
}

func (s *state) characters(text string) []Value {
	s.alloc(2 * valueBytes * len(text))
	items := make([]Value, 0, len(text))
	for i, r := range text {
		items = append(items, String(text[i:i+utf8.RuneLen(r)]))
	}
	return items
}

// slice is v[from:to:step]; None stands for what was left out.
func (s *state) slice(v, from, to, step Value) Value {
	s.checkDefined(v)
	switch v.(type) {
	case String, *List, *tuple:
	case *view:
		s.fail("%s", unsupported("slice", "of "+v.typeName()))
	default:
		s.fail("'%s' object cannot be sliced", v.typeName())
	}
	n := int64(s.length(v))
	start, end, by, ok := s.sliceBounds(n, from, to, step)
	if !ok {
		s.fail("slice indices must be integers or None, and the step not zero")
	}
	count := int64(0)
	if by > 0 && end > start {
		count = (end-start-1)/by + 1
	} else if by < 0 && start > end {
		count = (start-end-1)/-by + 1
	}
	switch v := v.(type) {
	case String:
		return s.sliceString(string(v), start, by, count)
	case *tuple:
		return &tuple{s.sliceItems(v.items, start, by, count)}
	case *List:
		return &List{s.sliceItems(v.items, start, by, count)}
	}
	return nil
}

// sliceBounds is Python's slice.indices.
func (s *state) sliceBounds(n int64, from, to, step Value) (start, end, by int64, ok bool) {
	index := func(v Value, absent int64) (int64, bool) {
		if v == Value(None{}) {
			return absent, true
		}
		n, ok := numberOf(v)
		return n.n, ok && !n.isFloat
	}
	by, ok3 := index(step, 1)
	low, high := int64(0), n
	if by < 0 {
		low, high = -1, n-1
		by = max(by, -1<<62)
	}
	clamp := func(v Value, absent int64) (int64, bool) {
		if _, isNone := v.(None); isNone {
			return absent, true
		}
		i, ok := index(v, 0)
		if i < 0 {
			i += n
		}
		return min(max(i, low), high), ok
	}
	first, last := low, high
	if by < 0 {
		first, last = high, low
	}
	start, ok1 := clamp(from, first)
	end, ok2 := clamp(to, last)
	return start, end, by, ok1 && ok2 && ok3 && by != 0
}

func (s *state) sliceItems(items []Value, start, by, count int64) []Value {
	if by == 1 {
		return items[start : start+count : start+count] // values are immutable, so the part may be shared
	}
	s.alloc(valueBytes * int(count))
	out := make([]Value, count)
	for i := range out {
		out[i] = items[start+int64(i)*by]
	}
	return out
}

func (s *state) sliceString(text string, start, by, count int64) Value {
	s.work(len(text))
	if count == 0 {
		return String("")
	}
	if by == 1 {
		if isASCII(text) {
			return String(text[start : start+count])
		}
		return String(text[runeOffset(text, start):runeOffset(text, start+count)])
	}
	s.alloc(5 * len(text))
	runes := []rune(text)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[start+int64(i)*by]
	}
	return String(string(out))
}

// runeOffset is the byte at which the n-th code point begins.
func runeOffset(text string, n int64) int {
	for at := range text {
		if n == 0 {
			return at
		}
		n--
	}
	return len(text)
}
