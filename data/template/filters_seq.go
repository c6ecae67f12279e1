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
			return s.newList(append([]Value(nil), s.iterate(in)...))
		}
	case "items":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			if _, ok := in.(*undefined); ok {
				return &iterator{"generator", nil}
			}
			d, ok := in.(*Dict)
			if !ok {
				s.fail("Can only get item pairs from a mapping.")
			}
			return &iterator{"generator", s.pairs(d)}
		}
	case "join":
		return filterJoin
	case "reverse":
		return filterReverse
	case "sort":
		return filterSort
	case "dictsort":
		return filterDictSort
	case "unique":
		return filterUnique
	case "min", "max":
		return func(s *state, in Value, a arguments) Value { return s.extreme(name, in, a) }
	case "sum":
		return filterSum
	case "map":
		return filterMap
	case "select", "reject", "selectattr", "rejectattr":
		return func(s *state, in Value, a arguments) Value { return s.selected(name, in, a) }
	case "batch":
		return filterBatch
	case "slice":
		return filterSlice
	case "groupby":
		return filterGroupBy
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
	if it, ok := in.(*iterator); ok {
		s.fail("'%s' object is not reversible", it.kind)
	}
	if items := s.iterate(in); len(items) > 0 {
		return items[len(items)-1]
	}
	return &undefined{why: "No last item, sequence was empty."}
}

func filterJoin(s *state, in Value, a arguments) Value {
	v := s.bind("join", a, "d", "attribute")
	get := s.getter(orDefault(v[1], None{}), nil)
	var parts []string
	for _, item := range s.iterate(in) {
		parts = append(parts, s.str(get(item)))
	}
	return s.joinStrings(parts, s.str(orDefault(v[0], String(""))))
}

func filterReverse(s *state, in Value, a arguments) Value {
	s.bind("reverse", a)
	items := append([]Value(nil), s.iterate(in)...)
	s.alloc(valueBytes * len(items))
	for i, j := 0, len(items)-1; i < j; i, j = i+1, j-1 {
		items[i], items[j] = items[j], items[i]
	}
	switch in := in.(type) {
	case String:
		var b strings.Builder
		for _, c := range items {
			b.WriteString(string(c.(String)))
		}
		return String(b.String())
	case *iterator:
		return &List{items}
	case *List:
		return &iterator{"list_reverseiterator", items}
	case *Dict:
		return &iterator{"dict_reversekeyiterator", items}
	default:
		return &iterator{"reversed_" + in.typeName(), items}
	}
}

// getter reads an attribute such as "a.b.0" of items; None is the item itself. A default takes the place of what is
// undefined on the way.
func (s *state) getter(attribute, absent Value) func(Value) Value {
	var keys []Value
	switch attribute := attribute.(type) {
	case None:
	case String:
		s.alloc(2 * valueBytes * len(attribute))
		for _, part := range strings.Split(string(attribute), ".") {
			if n, ok := pythonInt(part, 10); ok && strings.Trim(part, "0123456789") == "" {
				keys = append(keys, n)
			} else {
				keys = append(keys, String(part))
			}
		}
	default:
		keys = []Value{attribute}
	}
	return func(v Value) Value {
		for _, k := range keys {
			s.work(0)
			v = s.item(v, k)
			if _, missing := v.(*undefined); missing && absent != nil {
				v = absent
			}
		}
		return v
	}
}

// folded is the key for comparisons that ignore case.
func folded(v Value) Value {
	if text, ok := v.(String); ok {
		return String(recase("lower", string(text)))
	}
	return v
}

// keyOf is a getter that ignores case unless the argument says otherwise. It reads several attributes with commas
// between them as a tuple where that is asked for.
func (s *state) keyOf(attribute, caseSensitive Value, several bool) func(Value) Value {
	fold := caseSensitive == nil || !s.truth(caseSensitive)
	attribute = orDefault(attribute, None{})
	parts := []Value{attribute}
	if text, ok := attribute.(String); ok && several {
		parts = nil
		for _, p := range strings.Split(string(text), ",") {
			parts = append(parts, String(p))
		}
	}
	var gets []func(Value) Value
	for _, p := range parts {
		gets = append(gets, s.getter(p, nil))
	}
	one := func(get func(Value) Value, v Value) Value {
		v = get(v)
		if fold {
			if text, ok := v.(String); ok {
				s.alloc(len(text))
			}
			v = folded(v)
		}
		return v
	}
	if len(gets) == 1 {
		return func(v Value) Value { return one(gets[0], v) }
	}
	return func(v Value) Value {
		items := make([]Value, len(gets))
		for i, get := range gets {
			items[i] = one(get, v)
		}
		return &tuple{items: items}
	}
}

// sortBy sorts indices by the keys that they name; equal ones keep their order, also in reverse.
func (s *state) sortBy(order []int, keys []Value, reverse bool) {
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return s.ordered("<", keys[order[j]], keys[order[i]], 0)
		}
		return s.ordered("<", keys[order[i]], keys[order[j]], 0)
	})
}

func (s *state) sorted(items []Value, key func(Value) Value, reverse bool) []Value {
	s.alloc(5 * valueBytes * len(items))
	order, keys, out := make([]int, len(items)), make([]Value, len(items)), make([]Value, len(items))
	for i, item := range items {
		order[i], keys[i] = i, key(item)
	}
	s.sortBy(order, keys, reverse)
	for i, j := range order {
		out[i] = items[j]
	}
	return out
}

func filterSort(s *state, in Value, a arguments) Value {
	v := s.bind("sort", a, "reverse", "case_sensitive", "attribute")
	key := s.keyOf(v[2], v[1], true)
	return &List{s.sorted(s.iterate(in), key, v[0] != nil && s.truth(v[0]))}
}

func filterDictSort(s *state, in Value, a arguments) Value {
	v := s.bind("dictsort", a, "case_sensitive", "by", "reverse")
	s.checkDefined(in)
	d, ok := in.(*Dict)
	if !ok {
		s.fail("dictsort needs a mapping, not %s", in.typeName())
	}
	place := Int(0)
	switch s.str(orDefault(v[1], String("key"))) {
	case "key":
	case "value":
		place = 1
	default:
		s.fail(`You can only sort by either "key" or "value"`)
	}
	return &List{s.sorted(s.pairs(d), s.keyOf(place, v[0], false), v[2] != nil && s.truth(v[2]))}
}

func filterUnique(s *state, in Value, a arguments) Value {
	v := s.bind("unique", a, "case_sensitive", "attribute")
	key := s.keyOf(v[1], v[0], false)
	seen := map[any]bool{}
	var kept []Value
	for _, item := range s.iterate(in) {
		h := s.hash(key(item))
		s.alloc(4 * valueBytes)
		if !seen[h] {
			seen[h] = true
			kept = append(kept, item)
		}
	}
	return &iterator{"generator", kept}
}

func (s *state) extreme(name string, in Value, a arguments) Value {
	v := s.bind(name, a, "case_sensitive", "attribute")
	key := s.keyOf(v[1], v[0], false)
	var best, bestKey Value
	for _, item := range s.iterate(in) {
		k := key(item)
		if best == nil || name == "min" && s.ordered("<", k, bestKey, 0) || name == "max" && s.ordered(">", k, bestKey, 0) {
			best, bestKey = item, k
		}
	}
	if best == nil {
		return &undefined{why: "No aggregated item, sequence was empty."}
	}
	return best
}

func filterSum(s *state, in Value, a arguments) Value {
	v := s.bind("sum", a, "attribute", "start")
	get := s.getter(orDefault(v[0], None{}), nil)
	total := orDefault(v[1], Int(0))
	if _, ok := total.(String); ok {
		s.fail("sum() can't sum strings")
	}
	for _, item := range s.iterate(in) {
		total = s.arith("+", total, get(item))
	}
	return total
}

func filterMap(s *state, in Value, a arguments) Value {
	if !s.truth(in) {
		return &iterator{"generator", nil}
	}
	var fn func(Value) Value
	if len(a.pos) == 0 && a.has("attribute") {
		v := s.bind("map", a, "attribute", "default")
		absent := v[1]
		if absent == Value(None{}) {
			absent = nil
		}
		fn = s.getter(v[0], absent)
	} else {
		if len(a.pos) == 0 {
			s.fail("map requires a filter argument")
		}
		name := s.textArg("map", a.pos[0])
		filter := filterByName(name)
		if filter == nil {
			s.fail("No filter named '%s'.", name)
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
	return &iterator{"generator", out}
}

// selected is select, reject, selectattr and rejectattr.
func (s *state) selected(name string, in Value, a arguments) Value {
	if !s.truth(in) {
		return &iterator{"generator", nil}
	}
	get := func(v Value) Value { return v }
	rest := a.pos
	if strings.HasSuffix(name, "attr") {
		if len(rest) == 0 {
			s.fail("Missing parameter for attribute name")
		}
		get, rest = s.getter(rest[0], nil), rest[1:]
	}
	holds := s.truth
	if len(rest) > 0 {
		testName := s.textArg(name, rest[0])
		test := testByName(testName)
		if test == nil {
			s.fail("No test named '%s'.", testName)
		}
		args := arguments{rest[1:], a.names, a.named}
		holds = func(v Value) bool { return test(s, v, args) }
	}
	want := strings.HasPrefix(name, "select")
	var kept []Value
	for _, item := range s.iterate(in) {
		s.work(0)
		if holds(get(item)) == want {
			kept = append(kept, item)
		}
	}
	s.alloc(valueBytes * len(kept))
	return &iterator{"generator", kept}
}

func filterBatch(s *state, in Value, a arguments) Value {
	v := s.bind("batch", a, "linecount!", "fill_with")
	size := s.intArg("batch", v[0], 0)
	items := s.iterate(in)
	s.alloc(4 * valueBytes * len(items))
	var out, row []Value
	for _, item := range items {
		if len(row) == size && len(row) > 0 {
			out, row = append(out, &List{row}), nil
		}
		row = append(row, item)
	}
	if len(row) > 0 {
		if fill := orDefault(v[1], None{}); fill != Value(None{}) && len(row) < size {
			s.alloc(valueBytes * (size - len(row)))
			for len(row) < size {
				row = append(row, fill)
			}
		}
		out = append(out, &List{row})
	}
	return &iterator{"generator", out}
}

func filterSlice(s *state, in Value, a arguments) Value {
	v := s.bind("slice", a, "slices!", "fill_with")
	n := s.intArg("slice", v[0], 0)
	items := s.iterate(in)
	if n <= 0 {
		s.fail("slice: the number of slices must be positive")
	}
	s.alloc(valueBytes * (len(items) + min(n, 1<<50)*3))
	var out []Value
	at := 0
	for i := range n {
		size := len(items) / n
		isLong := i < len(items)%n
		if isLong {
			size++
		}
		part := append([]Value(nil), items[at:at+size]...)
		if fill := orDefault(v[1], None{}); fill != Value(None{}) && !isLong {
			part = append(part, fill)
		}
		out = append(out, &List{part})
		at += size
	}
	return &iterator{"generator", out}
}

func filterGroupBy(s *state, in Value, a arguments) Value {
	v := s.bind("groupby", a, "attribute!", "default", "case_sensitive")
	absent := v[1]
	if absent == Value(None{}) {
		absent = nil
	}
	get := s.getter(v[0], absent)
	key := func(item Value) Value {
		k := get(item)
		if v[2] == nil || !s.truth(v[2]) {
			k = folded(k)
		}
		return k
	}
	var out []Value
	var members []Value
	var current Value
	flush := func() {
		if members != nil {
			s.alloc(4 * valueBytes)
			out = append(out, &tuple{items: []Value{get(members[0]), &List{members}}, isGroup: true})
		}
	}
	for _, item := range s.sorted(s.iterate(in), key, false) {
		k := key(item)
		if members == nil || !s.equal(k, current, 0) {
			flush()
			members, current = nil, k
		}
		members = append(members, item)
	}
	flush()
	return &List{out}
}

// groupPart is an attribute of what groupby makes.
func groupPart(t *tuple, name string) (Value, bool) {
	switch {
	case !t.isGroup:
	case name == "grouper":
		return t.items[0], true
	case name == "list":
		return t.items[1], true
	}
	return nil, false
}
