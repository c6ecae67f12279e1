package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filterFunc func(s *state, in Value, a arguments) Value

// filterByName finds a filter, or nil. They are Jinja's own, with tojson as transformers replaces it; those that are
// for HTML only (urlize, xmlattr, striptags), random and pprint are left out.
func filterByName(name string) filterFunc {
	switch name {
	case "upper", "lower", "capitalize":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return s.newString(recase(name, s.str(in)))
		}
	case "title":
		return filterTitle
	case "trim":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "chars")
			return String(s.strip(name, s.str(in), v[0]))
		}
	case "string":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return String(s.str(in))
		}
	case "safe":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			return String(s.str(in))
		}
	case "e", "escape", "forceescape":
		return filterEscape
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
			v := s.bind(name, a, "old!", "new!", "count")
			count := -1
			if v[2] != nil && v[2] != Value(None{}) {
				count = s.intArg(name, v[2], -1)
			}
			return s.replace(s.str(in), s.str(v[0]), s.str(v[1]), count)
		}
	case "indent":
		return filterIndent
	case "truncate":
		return filterTruncate
	case "center":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "width")
			return stringMethod("center")(s, String(s.str(in)), arguments{pos: []Value{orDefault(v[0], Int(80))}})
		}
	case "format":
		return func(s *state, in Value, a arguments) Value {
			if a.names == nil {
				return s.newString(s.percent(s.str(in), &tuple{items: a.pos}))
			}
			d := NewDict(len(a.names))
			for i, n := range a.names {
				d.Set(n, a.named[i])
			}
			return s.newString(s.percent(s.str(in), d))
		}
	case "wordcount":
		return func(s *state, in Value, a arguments) Value {
			s.bind(name, a)
			text := s.str(in)
			s.alloc(len(text))
			return Int(len(strings.FieldsFunc(text, func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r)
			})))
		}
	case "urlencode":
		return filterURLEncode
	case "int":
		return filterInt
	case "float":
		return filterFloat
	case "abs":
		return filterAbs
	case "round":
		return filterRound
	case "attr":
		return func(s *state, in Value, a arguments) Value {
			v := s.bind(name, a, "name!")
			key := s.str(v[0])
			s.checkDefined(in)
			if x := s.pythonAttr(in, key); x != nil {
				return x
			}
			return &undefined{of: in, name: key}
		}
	}
	return sequenceFilter(name)
}

// filterTitle is not str.title: a word ends only at white space and - ( { [ <.
func filterTitle(s *state, in Value, a arguments) Value {
	s.bind("title", a)
	text := s.str(in)
	s.alloc(8 * len(text)) // words are made one by one
	var b strings.Builder
	begin := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	for text != "" {
		n := strings.IndexFunc(text, begin)
		if n < 0 {
			n = len(text)
		}
		if n > 0 {
			_, size := utf8.DecodeRuneInString(text)
			b.WriteString(recase("upper", text[:size]))
			b.WriteString(recase("lower", text[size:n]))
		}
		rest := strings.TrimLeftFunc(text[n:], begin)
		b.WriteString(text[n : len(text)-len(rest)])
		text = rest
	}
	return String(b.String())
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// filterEscape gives a plain string; that Jinja would not escape it twice is not modelled.
func filterEscape(s *state, in Value, a arguments) Value {
	s.bind("escape", a)
	text := s.str(in)
	s.alloc(6 * len(text))
	return String(htmlEscaper.Replace(text))
}

// filterToJSON is json.dumps with the arguments that transformers lets through; characters stay as they are, also
// those of HTML.
func filterToJSON(s *state, in Value, a arguments) Value {
	v := s.bind("tojson", a, "ensure_ascii", "indent", "separators", "sort_keys")
	style := jsonStyle{item: ", ", key: ": "}
	style.ensureASCII = v[0] != nil && s.truth(v[0])
	style.sortKeys = v[3] != nil && s.truth(v[3])
	switch indent := orDefault(v[1], None{}).(type) {
	case None:
	case String:
		style.lines, style.indent = true, string(indent)
	default:
		n := s.intArg("tojson", indent, 0)
		s.alloc(max(n, 0))
		style.lines, style.indent = true, strings.Repeat(" ", max(n, 0))
	}
	if style.lines {
		style.item = ","
	}
	if sep := orDefault(v[2], None{}); sep != Value(None{}) {
		parts := s.iterate(sep)
		if len(parts) != 2 {
			s.fail("tojson: separators must be two strings")
		}
		style.item, style.key = s.textArg("tojson", parts[0]), s.textArg("tojson", parts[1])
	}
	return s.newString(string(s.appendJSON(nil, in, &style, 0)))
}

func filterIndent(s *state, in Value, a arguments) Value {
	v := s.bind("indent", a, "width", "first", "blank")
	text := s.textArg("indent", in) + "\n"
	indent, ok := orDefault(v[0], Int(4)).(String)
	if !ok {
		n := max(s.intArg("indent", v[0], 4), 0)
		s.alloc(n)
		indent = String(strings.Repeat(" ", n))
	}
	lines := splitLines(text, false)
	s.alloc(len(text) + (len(lines)+1)*len(indent))
	blank := v[2] != nil && s.truth(v[2])
	var b strings.Builder
	if v[1] != nil && s.truth(v[1]) {
		b.WriteString(string(indent))
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if blank || line != "" {
				b.WriteString(string(indent))
			}
		}
		b.WriteString(line)
	}
	return String(b.String())
}

func filterTruncate(s *state, in Value, a arguments) Value {
	v := s.bind("truncate", a, "length", "killwords", "end", "leeway")
	text := s.textArg("truncate", in)
	length, leeway := s.intArg("truncate", v[0], 255), s.intArg("truncate", v[3], 5)
	end := s.textArg("truncate", orDefault(v[2], String("...")))
	if length < runeLen(end) || leeway < 0 {
		s.fail("truncate: the length must be at least that of the end, and the leeway not negative")
	}
	if runeLen(text) <= length+leeway {
		return in
	}
	cut := text[:runeOffset(text, int64(length-runeLen(end)))]
	if v[1] == nil || !s.truth(v[1]) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	s.alloc(len(cut) + len(end))
	return String(cut + end)
}

func filterURLEncode(s *state, in Value, a arguments) Value {
	s.bind("urlencode", a)
	quote := func(v Value, query bool) string {
		text := s.str(v)
		s.alloc(3 * len(text))
		var b strings.Builder
		for i := 0; i < len(text); i++ {
			c := text[i]
			switch {
			case isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
				b.WriteByte(c)
			case c == ' ' && query:
				b.WriteByte('+')
			default:
				b.WriteString("%" + strings.ToUpper(string(appendHex(nil, uint32(c), 2))))
			}
		}
		return b.String()
	}
	if _, isText := in.(String); isText || !isIterable(in) {
		return String(quote(in, false))
	}
	items := s.iterate(in)
	if d, ok := in.(*Dict); ok {
		items = s.pairs(d)
	}
	var parts []string
	for _, item := range items {
		pair := s.iterate(item)
		if len(pair) != 2 {
			s.fail("urlencode needs pairs")
		}
		parts = append(parts, quote(pair[0], true)+"="+quote(pair[1], true))
	}
	return s.joinStrings(parts, "&")
}

// filterInt reads integers and, as Jinja does, the whole part of "42.23".
func filterInt(s *state, in Value, a arguments) Value {
	v := s.bind("int", a, "default", "base")
	absent, base := orDefault(v[0], Int(0)), s.intArg("int", v[1], 10)
	switch in := in.(type) {
	case String:
		s.workDigits(string(in))
		if n, ok := pythonInt(string(in), base); ok {
			return n
		}
		if f, ok := pythonFloat(string(in)); ok {
			if n := truncated(f); n != nil {
				return n
			}
		}
	case Bool, Int, *bigInt:
		n, _ := numberOf(in)
		return normalized(n.asBig())
	case Float:
		if n := truncated(float64(in)); n != nil {
			return n
		}
		if math.IsInf(float64(in), 0) {
			s.fail("cannot convert float infinity to integer")
		}
	case *undefined:
		s.failUndefined(in)
	}
	return absent
}

// workDigits counts the reading of a number, which costs much more per byte than other operations.
func (s *state) workDigits(text string) {
	if len(text) > maxIntDigits {
		s.alloc(64 * len(text))
	}
}

func truncated(f float64) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	n, _ := big.NewFloat(f).Int(nil)
	return normalized(n)
}

// pythonInt is int(text, base): white space around, single underscores within, and a prefix of the base.
func pythonInt(text string, base int) (Value, bool) {
	text = strings.TrimFunc(text, isSpace)
	sign, digits := "", text
	if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
		sign, digits = strings.TrimPrefix(text[:1], "+"), text[1:]
	}
	if len(digits) > 2 && digits[0] == '0' {
		if of := map[byte]int{'b': 2, 'o': 8, 'x': 16}[digits[1]|0x20]; of > 0 && (of == base || base == 0) {
			digits, base = strings.TrimPrefix(digits[2:], "_"), of
		}
	}
	if base == 0 {
		if base = 10; strings.HasPrefix(digits, "0") && strings.Trim(digits, "0_") != "" {
			return nil, false
		}
	}
	if base < 2 || base > 36 || digits == "" || digits[0] == '+' || digits[0] == '-' ||
		strings.HasPrefix(digits, "_") || strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return nil, false
	}
	n, err := parseInt(sign+strings.ReplaceAll(digits, "_", ""), base)
	return n, err == nil
}

// pythonFloat is float(text).
func pythonFloat(text string) (float64, bool) {
	text = strings.TrimFunc(text, isSpace)
	if strings.ContainsAny(text, "xXpP") || strings.Contains(text, "__") || strings.HasPrefix(text, "_") ||
		strings.HasSuffix(text, "_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterFloat(s *state, in Value, a arguments) Value {
	v := s.bind("float", a, "default")
	if text, ok := in.(String); ok {
		s.workDigits(string(text))
		if f, ok := pythonFloat(string(text)); ok {
			return Float(f)
		}
	}
	if n, ok := numberOf(in); ok {
		f := n.asFloat()
		if math.IsInf(f, 0) && !n.isFloat {
			s.fail("int too large to convert to float")
		}
		return Float(f)
	}
	s.checkDefined(in)
	return orDefault(v[0], Float(0))
}

func filterAbs(s *state, in Value, a arguments) Value {
	s.bind("abs", a)
	n, ok := numberOf(in)
	switch {
	case !ok:
		s.failOperand("abs()", in)
	case n.isFloat:
		return Float(math.Abs(n.f))
	}
	return normalized(new(big.Int).Abs(n.asBig()))
}

func filterRound(s *state, in Value, a arguments) Value {
	v := s.bind("round", a, "precision", "method")
	digits := s.intArg("round", v[0], 0)
	how := s.textArg("round", orDefault(v[1], String("common")))
	n, ok := numberOf(in)
	if !ok {
		s.failOperand("round()", in)
	}
	if digits < -400 || digits > 400 {
		s.fail("round: a precision of %d is out of range", digits)
	}
	switch how {
	case "common":
		if !n.isFloat {
			return roundInt(n.asBig(), digits)
		}
		return Float(roundFloat(n.f, digits))
	case "ceil", "floor":
		f := n.asFloat() * math.Pow(10, float64(digits))
		if how == "ceil" {
			f = math.Ceil(f)
		} else {
			f = math.Floor(f)
		}
		whole := truncated(f)
		if whole == nil {
			s.fail("round: the number is not finite")
		}
		if digits < 0 {
			return s.arith("/", whole, Float(math.Pow(10, float64(digits))))
		}
		return s.arith("/", whole, s.arith("**", Int(10), Int(digits)))
	}
	s.fail("method must be common, ceil or floor")
	return nil
}

// roundFloat rounds the decimal that the number really is, half to even, as CPython does.
func roundFloat(f float64, digits int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || digits > 330 {
		return f
	}
	if digits >= 0 {
		g, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return g
	}
	unit := math.Pow(10, float64(-digits))
	return math.RoundToEven(f/unit) * unit
}

func roundInt(n *big.Int, digits int) Value {
	if digits >= 0 {
		return normalized(n)
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	q, r := new(big.Int).DivMod(n, unit, new(big.Int))
	switch c := new(big.Int).Lsh(r, 1).Cmp(unit); {
	case c > 0, c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return normalized(q.Mul(q, unit))
}
