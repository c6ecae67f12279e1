package template

import (
	"sort"
	"strings"
)

// sequenceFilter finds a filter of sequences, or nil. What Jinja computes lazily is computed at once here, but what
// comes out behaves as Python's: a generator is true even if it is empty, has no length, and can be read once.
func sequenceFilter(name string) filterFunc {
	switch name {
	case "first":
		return filterFirst
	case "last":
		return filterLast
	case "list":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return &List{s.all(s.iterate(in))}
		}
	case "items":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			if _, ok := in.(*undefined); ok {
				return &iterator{}
			}
			d, ok := in.(*Dict)
			if !ok {
				s.fail("Can only get item pairs from a mapping.")
			}
			return &iterator{s.pairs(d)}
		}
	case "join":
		return filterJoin
	case "sort":
		return filterSort
	case "dictsort":
		return filterDictSort
	case "unique":
		return filterUnique
	case "map":
		return filterMap
	case "select", "reject", "selectattr", "rejectattr":
		return func(s *state, in Value, a arguments) Value { return s.selected(name, in, a) }
	}
	return nil
}

func filterFirst(s *state, in Value, a arguments) Value {
	s.bind("first", a)
	if it, ok := in.(*iterator); ok && len(it.items) > 0 { // the rest is still to be read
		v := it.items[0]
		it.items = it.items[1:]
		return v
	}
	if items := s.iterate(in); len(items) > 0 {
		return items[0]
	}
	return &undefined{why: "No first item, sequence was empty."}
}

func filterLast(s *state, in Value, a arguments) Value {
	s.bind("last", a)
	if _, ok := in.(*iterator); ok {
		s.fail("'generator' object is not reversible")
	}
	if items := s.iterate(in); len(items) > 0 {
		return items[len(items)-1]
	}
	return &undefined{why: "No last item, sequence was empty."}
}

func filterJoin(s *state, in Value, a arguments) Value {
	v := s.bind("join", a, "d", "attribute")
	get := s.getter(orDefault(v[1], None{}))
	out := parts{s: s}
	for _, item := range s.iterate(in) {
		s.work(0)
		out.add(s.str(get(item)))
	}
	return out.joined(s.str(orDefault(v[0], String(""))))
}

// getter reads an attribute such as "a.b" of items; None is the item itself.
func (s *state) getter(attribute Value) func(Value) Value {
	if attribute == Value(None{}) {
		return func(v Value) Value { return v }
	}
	text := s.textArg("attribute", attribute)
	keys := parts{s: s}
	for rest, more := text, true; more; {
		var key string
		key, rest, more = strings.Cut(rest, ".")
		keys.add(key)
	}
	return func(v Value) Value {
		for _, k := range keys.list {
			s.work(0)
			if strings.Trim(k, "0123456789") == "" {
				s.fail("an attribute by number is not supported: %q", text)
			}
			v = s.item(v, String(k))
		}
		return v
	}
}

// folded is the key for comparisons that ignore case.
func (s *state) folded(v Value) Value {
	if text, ok := v.(String); ok {
		return String(s.recase("lower", string(text)))
	}
	return v
}

// sortBy sorts indices by the keys that they name; equal ones keep their order.
func (s *state) sortBy(order []int, keys []Value) {
	sort.SliceStable(order, func(i, j int) bool { return s.ordered("<", keys[order[i]], keys[order[j]]) })
}

func (s *state) sorted(items, keys []Value) *List {
	s.alloc(5 * valueBytes * len(items))
	order, out := make([]int, len(items)), make([]Value, len(items))
	for i := range items {
		order[i], keys[i] = i, s.folded(keys[i])
	}
	s.sortBy(order, keys)
	for i, j := range order {
		out[i] = items[j]
	}
	return &List{out}
}

func filterSort(s *state, in Value, a arguments) Value {
	v := s.bind("sort", a, "reverse", "case_sensitive", "attribute")
	if v[0] != nil || v[1] != nil {
		s.fail("sort with reverse or case_sensitive is not supported")
	}
	get := s.getter(orDefault(v[2], None{}))
	items := s.iterate(in)
	s.alloc(valueBytes * len(items))
	keys := make([]Value, len(items))
	for i, item := range items {
		s.work(0)
		keys[i] = get(item)
	}
	return s.sorted(items, keys)
}

func filterDictSort(s *state, in Value, a arguments) Value {
	s.bind("dictsort", a)
	s.checkDefined(in)
	d, ok := in.(*Dict)
	if !ok {
		s.fail("dictsort needs a mapping, not %s", in.typeName())
	}
	return s.sorted(s.pairs(d), s.all(d.keys))
}

func filterUnique(s *state, in Value, a arguments) Value {
	v := s.bind("unique", a, "case_sensitive", "attribute")
	if v[0] != nil {
		s.fail("unique with case_sensitive is not supported")
	}
	get := s.getter(orDefault(v[1], None{}))
	seen := map[any]bool{}
	kept := values{s: s}
	for _, item := range s.iterate(in) {
		h := s.hash(s.folded(get(item)))
		s.work(0)
		if !seen[h] {
			s.alloc(8 * valueBytes)
			seen[h] = true
			kept.add(item)
		}
	}
	return &iterator{kept.list}
}

func filterMap(s *state, in Value, a arguments) Value {
	if !s.truth(in) {
		return &iterator{}
	}
	var fn func(Value) Value
	if len(a.pos) == 0 {
		fn = s.getter(s.bind("map", a, "attribute!")[0])
	} else {
		name := s.textArg("map", a.pos[0])
		filter := filterByName(name)
		if filter == nil {
			s.fail("%s", unknown("filter", name))
		}
		rest := arguments{a.pos[1:], a.names, a.named}
		fn = func(v Value) Value { return filter(s, v, rest) }
	}
	items := s.iterate(in)
	s.alloc(valueBytes * len(items))
	out := make([]Value, len(items))
	for i, item := range items {
		s.work(0)
		out[i] = fn(item)
	}
	return &iterator{out}
}

// selected is select, reject, selectattr and rejectattr.
func (s *state) selected(name string, in Value, a arguments) Value {
	if !s.truth(in) {
		return &iterator{}
	}
	get := func(v Value) Value { return v }
	rest := a.pos
	if strings.HasSuffix(name, "attr") {
		if len(rest) == 0 {
			s.fail("Missing parameter for attribute name")
		}
		get, rest = s.getter(rest[0]), rest[1:]
	}
	holds := s.truth
	if len(rest) > 0 {
		testName := s.textArg(name, rest[0])
		test := testByName(testName)
		if test == nil {
			s.fail("%s", unknown("test", testName))
		}
		args := arguments{rest[1:], a.names, a.named}
		holds = func(v Value) bool { return test(s, v, args) }
	}
	want := strings.HasPrefix(name, "select")
	kept := values{s: s}
	for _, item := range s.iterate(in) {
		s.work(0)
		if holds(get(item)) == want {
			kept.add(item)
		}
	}
	return &iterator{kept.list}
}
