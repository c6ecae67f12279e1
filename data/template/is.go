package template

type testFunc func(s *state, in Value, a arguments) bool

// testByName finds the test whose name follows "is", or nil.
func testByName(name string) testFunc {
	switch name {
	case "==", "eq", "equalto", "!=", "ne", "in":
		op := map[string]string{"eq": "==", "equalto": "==", "ne": "!="}[name]
		if op == "" {
			op = name
		}
		return func(s *state, in Value, a arguments) bool {
			v := s.bind(name, a, "other!")
			return s.compare(op, in, v[0])
		}
	}
	is := kindTest(name)
	if is == nil {
		return nil
	}
	return func(s *state, in Value, a arguments) bool {
		s.bind(name, a)
		return is(in)
	}
}

// kindTest finds a test without arguments, or nil.
func kindTest(name string) func(Value) bool {
	switch name {
	case "defined", "undefined":
		return func(v Value) bool {
			_, missing := v.(*undefined)
			return missing == (name == "undefined")
		}
	case "none":
		return func(v Value) bool { return v == Value(None{}) }
	case "true", "false":
		return func(v Value) bool { return v == Value(Bool(name == "true")) }
	case "boolean", "string", "mapping", "float":
		return func(v Value) bool {
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
		return func(v Value) bool {
			switch v.(type) {
			case Int, bigInt:
				return true
			case Bool, Float:
				return name == "number"
			}
			return false
		}
	case "iterable":
		return func(v Value) bool {
			switch v.(type) {
			case *List, *tuple, *Dict, *view, *iterator, *undefined, String:
				return true
			}
			return false
		}
	case "sequence":
		return func(v Value) bool {
			switch v := v.(type) {
			case String, *List, *tuple, *Dict, *undefined:
				return true
			case *view:
				return v.kind == "range"
			}
			return false
		}
	}
	return nil
}
