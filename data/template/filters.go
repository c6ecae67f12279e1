package template

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

type filterFunc func(s *state, in Value, a arguments) Value

// filterByName finds a filter, or nil. They are those of Jinja's that chat templates use, with tojson as transformers
// replaces it.
func filterByName(name string) filterFunc {
	switch name {
	case "upper", "lower", "capitalize":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return String(s.recase(name, s.str(in)))
		}
	case "title":
		return filterTitle
	case "trim":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "chars")
			return String(s.strip(name, s.str(in), v[0]))
		}
	case "string", "safe":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return String(s.str(in))
		}
	case "length", "count":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return Int(s.length(in))
		}
	case "default", "d":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "default_value", "boolean")
			_, missing := in.(*undefined)
			if missing || v[1] != nil && s.truth(v[1]) && !s.truth(in) {
				return orDefault(v[0], String(""))
			}
			return in
		}
	case "tojson":
		return filterToJSON
	case "replace":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "old!", "new!")
			return s.replace(s.str(in), s.str(v[0]), s.str(v[1]))
		}
	case "indent":
		return filterIndent
	case "format":
		return filterFormat
	case "int":
		return filterInt
	}
	return sequenceFilter(name)
}

// filterTitle is not str.title: a word ends only at white space and - ( { [ <.
func filterTitle(s *state, in Value, a arguments) Value {
	s.bind("title", a)
	text := s.str(in)
	s.alloc(8 * len(text)) // words are made one by one
	var b []byte
	begin := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	for text != "" {
		n := strings.IndexFunc(text, begin)
		if n < 0 {
			n = len(text)
		}
		if n > 0 {
			_, size := utf8.DecodeRuneInString(text)
			b = s.appended(b, s.recase("upper", text[:size]))
			b = s.appended(b, s.recase("lower", text[size:n]))
		}
		rest := strings.TrimLeftFunc(text[n:], begin)
		b = s.appended(b, text[n:len(text)-len(rest)])
		text = rest
	}
	return String(s.text(b))
}

// filterToJSON is json.dumps with the arguments that transformers lets through; characters stay as they are, also
// those of HTML.
func filterToJSON(s *state, in Value, a arguments) Value {
	v := s.bind("tojson", a, "ensure_ascii", "indent", "separators", "sort_keys")
	style := jsonStyle{item: ", ", key: ": "}
	style.ensureASCII = v[0] != nil && s.truth(v[0])
	style.sortKeys = v[3] != nil && s.truth(v[3])
	if indent := orDefault(v[1], None{}); indent != Value(None{}) {
		n := max(s.intArg("tojson", indent, 0), 0)
		s.alloc(n)
		style.lines, style.indent, style.item = true, strings.Repeat(" ", n), ","
	}
	if sep := orDefault(v[2], None{}); sep != Value(None{}) {
		parts := s.iterate(sep)
		if len(parts) != 2 {
			s.fail("tojson: separators must be two strings")
		}
		style.item, style.key = s.textArg("tojson", parts[0]), s.textArg("tojson", parts[1])
	}
	return String(s.text(s.appendJSON(nil, in, &style, 0)))
}

func filterIndent(s *state, in Value, a arguments) Value {
	v := s.bind("indent", a, "width", "first", "blank")
	n := max(s.intArg("indent", v[0], 4), 0)
	text := strings.TrimSuffix(s.textArg("indent", in), "\r") // Jinja adds a \n, and both are one end
	first, blank := v[1] != nil && s.truth(v[1]), v[2] != nil && s.truth(v[2])
	isIndented := func(i int, line string) bool { return i == 0 && first || i > 0 && (blank || line != "") }
	size := 0
	eachLine(text, func(i int, line string) {
		if size += len(line) + 1; isIndented(i, line) {
			size += n
		}
		if size > math.MaxInt/2 || size > int(s.allocLeft) {
			s.alloc(size)
		}
	})
	s.alloc(size)
	b := make([]byte, 0, size)
	eachLine(text, func(i int, line string) {
		if i > 0 {
			b = append(b, '\n')
		}
		if isIndented(i, line) {
			for range n {
				b = append(b, ' ')
			}
		}
		b = append(b, line...)
	})
	return String(s.text(b))
}

// filterFormat fills %s and %d, of Python's formats the ones that chat templates use.
func filterFormat(s *state, in Value, a arguments) Value {
	if a.names != nil {
		s.fail("format with named arguments is not supported")
	}
	text, rest := s.str(in), a.pos
	out := parts{s: s}
	for {
		before, after, found := strings.Cut(text, "%")
		out.add(before)
		switch {
		case !found && len(rest) > 0:
			s.fail("not all arguments converted during string formatting")
		case !found:
			return out.joined("")
		case after == "" || strings.IndexByte("sd%", after[0]) < 0:
			s.fail("format supports %%s, %%d and %%%% only, not %q", "%"+after[:min(len(after), 1)])
		case after[0] == '%':
			out.add("%")
		case len(rest) == 0:
			s.fail("not enough arguments for format string")
		default:
			v := rest[0]
			n, ok := numberOf(v)
			if after[0] == 'd' && (!ok || n.isFloat) {
				s.fail("format: %%d of a value of type '%s' is not supported", v.typeName())
			} else if after[0] == 'd' {
				v = Int(n.n) // of a truth value too
			}
			out.add(s.str(v))
			rest = rest[1:]
		}
		text = after[1:]
	}
}

// filterInt reads integers and, as Jinja does, the whole part of "42.23".
func filterInt(s *state, in Value, a arguments) Value {
	v := s.bind("int", a, "default")
	f := math.NaN()
	switch in := in.(type) {
	case String:
		if len(in) > maxIntDigits {
			s.alloc(64 * len(in)) // reading costs much more per byte than other operations
		}
		text := strings.TrimFunc(string(in), isSpace)
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return Int(n)
		}
		if strings.Trim(text, "+-.0123456789eE_") == "" {
			if strings.Contains(text, "_") {
				s.fail("int: %q has an underscore, which is not supported", text)
			}
			if read, err := strconv.ParseFloat(text, 64); err == nil {
				f = read
			}
		}
	case Bool, Int:
		n, _ := numberOf(in)
		return Int(n.n)
	case bigInt:
		return in
	case Float:
		f = float64(in)
	case *undefined:
		s.failUndefined(in)
	}
	switch {
	case math.IsNaN(f):
		return orDefault(v[0], Int(0))
	case math.Abs(f) >= 1<<63:
		s.fail("int: a number of more than 64 bits is not supported")
	}
	return Int(int64(f))
}
