package template

type testFunc func(s *state, in Value, a arguments) bool

// testByName finds what stands behind is, or nil.
func testByName(name string) testFunc {
	switch name {
	case "==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=", "ge", "in":
		op := map[string]string{"eq": "==", "equalto": "==", "ne": "!=", "lt": "<", "lessthan": "<", "le": "<=",
			"gt": ">", "greaterthan": ">", "ge": ">="}[name]
		if op == "" {
			op = name
		}
		return func(s *state, in Value, a arguments) bool {
			v := s.bind(name, a, "other!")
			return s.compare(op, in, v[0])
		}
	case "odd", "even":
		return func(s *state, in Value, a arguments) bool {
			s.bind(name, a)
			want := Value(Int(0))
			if name == "odd" {
				want = Int(1)
			}
			return s.equal(s.arith("%", in, Int(2)), want, 0)
		}
	case "divisibleby":
		return func(s *state, in Value, a arguments) bool {
			v := s.bind(name, a, "num!")
			return s.equal(s.arith("%", in, v[0]), Int(0), 0)
		}
	case "sameas":
		return func(s *state, in Value, a arguments) bool {
			v := s.bind(name, a, "other!")
			return in == v[0]
		}
	}
	is := kindTest(name)
	if is == nil {
		return nil
	}
	return func(s *state, in Value, a arguments) bool {
		s.bind(name, a)
		return is(s, in)
	}
}

// kindTest finds a test without arguments, or nil.
func kindTest(name string) func(*state, Value) bool {
	switch name {
	case "defined", "undefined":
		return func(_ *state, v Value) bool {
			_, missing := v.(*undefined)
			return missing == (name == "undefined")
		}
	case "none":
		return func(_ *state, v Value) bool { return v == Value(None{}) }
	case "true", "false":
		return func(_ *state, v Value) bool { return v == Value(Bool(name == "true")) }
	case "boolean", "string", "mapping", "float":
		return func(_ *state, v Value) bool {
			switch v.(type) {
			case Bool:
				return name == "boolean"
			case String:
				return name == "string"
			case *Dict:
				return name == "mapping"
			case Float:
				return name == "float"
			}
			return false
		}
	case "integer", "number":
		return func(_ *state, v Value) bool {
			switch v.(type) {
			case Int, *bigInt:
				return true
			case Bool, Float:
				return name == "number"
			}
			return false
		}
	case "iterable":
		return func(_ *state, v Value) bool { return isIterable(v) }
	case "sequence":
		return func(_ *state, v Value) bool {
			switch v.(type) {
			case String, *List, *tuple, *Dict, *rangeSpan, *undefined:
				return true
			}
			return false
		}
	case "callable":
		return func(_ *state, v Value) bool {
			switch v.(type) {
			case callable, *undefined: // Python finds that it could be called, if only to fail
				return true
			}
			return false
		}
	case "upper", "lower":
		return func(s *state, v Value) bool { return isKind("is"+name, s.str(v)) }
	case "escaped":
		return func(*state, Value) bool { return false }
	case "filter", "test":
		return func(s *state, v Value) bool {
			text := s.textArg(name, v)
			if name == "filter" {
				return filterByName(text) != nil
			}
			return testByName(text) != nil
		}
	}
	return nil
}
