package template

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// methodOf finds a method of Python's str or dict, or nil.
func methodOf(v Value, name string) methodFunc {
	switch v.(type) {
	case String:
		return stringMethod(name)
	case *Dict:
		return dictMethod(name)
	}
	return nil
}

func dictMethod(name string) methodFunc {
	switch name {
	case "keys", "values", "items":
		return func(s *state, of Value, a arguments) Value {
			s.bind(name, a)
			d := of.(*Dict)
			items := d.keys
			switch name {
			case "values":
				items = d.vals
			case "items":
				items = s.pairs(d)
			}
			return &view{"dict_" + name, items[:len(items):len(items)]}
		}
	case "get":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "key!", "default")
			d := of.(*Dict)
			if i := d.findHash(s.hash(v[0])); i >= 0 {
				return d.vals[i]
			}
			return orDefault(v[1], None{})
		}
	}
	return nil
}

func orDefault(v, d Value) Value {
	if v == nil {
		return d
	}
	return v
}

func (s *state) pairs(d *Dict) []Value {
	s.alloc(6 * valueBytes * d.Len())
	items := make([]Value, d.Len())
	for i, k := range d.keys {
		items[i] = &tuple{[]Value{k, d.vals[i]}}
	}
	return items
}

// textArg is an argument that must be a string.
func (s *state) textArg(fn string, v Value) string {
	text, ok := v.(String)
	if !ok {
		s.checkDefined(v)
		s.fail("%s() argument must be str, not %s", fn, v.typeName())
	}
	s.work(len(text))
	return string(text)
}

// intArg is an argument that must be an integer that fits; nil is the default.
func (s *state) intArg(fn string, v Value, absent int) int {
	switch v := v.(type) {
	case nil:
		return absent
	case Int:
		if v > 1<<40 || v < -1<<40 {
			s.fail("%s(): %d is out of range", fn, v)
		}
		return int(v)
	case Bool:
		if v {
			return 1
		}
		return 0
	}
	s.checkDefined(v)
	s.fail("%s(): '%s' object cannot be interpreted as an integer", fn, v.typeName())
	return 0
}

// stringMethod is one of str's methods by name, or nil.
func stringMethod(name string) methodFunc {
	switch name {
	case "upper", "lower", "title", "capitalize":
		return func(s *state, of Value, a arguments) Value {
			s.bind(name, a)
			return String(s.recase(name, string(of.(String))))
		}
	case "strip", "lstrip", "rstrip":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "chars")
			return String(s.strip(name, string(of.(String)), v[0]))
		}
	case "split":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "sep", "maxsplit")
			return s.split(string(of.(String)), v[0], s.intArg(name, v[1], -1))
		}
	case "startswith", "endswith":
		return strHasAffix(name)
	case "replace":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "old!", "new!")
			return s.replace(string(of.(String)), s.textArg(name, v[0]), s.textArg(name, v[1]))
		}
	case "format":
		return strFormat
	}
	return nil
}

// recase changes the case as Python does, with all of Unicode's special casings.
func (s *state) recase(how, text string) string {
	if s.alloc(len(text)); !isASCII(text) {
		s.alloc(caserBytes + 8*len(text)) // a caser of its own, and its buffers
	}
	switch {
	case how == "upper" && isASCII(text):
		return strings.ToUpper(text)
	case how == "upper":
		return cases.Upper(language.Und).String(text)
	case how == "lower" && isASCII(text):
		return strings.ToLower(text)
	case how == "lower":
		return cases.Lower(language.Und).String(text)
	case how == "capitalize":
		return s.titleWord(text)
	}
	// title: a letter after anything but a cased letter begins a word.
	var b []byte
	for text != "" {
		start := strings.IndexFunc(text, isCased)
		if start < 0 {
			start = len(text)
		}
		b = s.appended(b, text[:start])
		text = text[start:]
		end := strings.IndexFunc(text, func(r rune) bool { return !isCased(r) })
		if end < 0 {
			end = len(text)
		}
		b = s.appended(b, s.titleWord(text[:end]))
		text = text[end:]
	}
	return s.text(b)
}

// caserBytes is the memory that a caser takes for a text of a few characters.
const caserBytes = 1024

// titleWord lowers all but the first letter, but as part of the word: a sigma at its end has another form.
func (s *state) titleWord(word string) string {
	_, size := utf8.DecodeRuneInString(word)
	if s.alloc(2 * len(word)); !isASCII(word[:size]) {
		s.alloc(caserBytes)
	}
	return titleFirst(word[:size]) + strings.TrimPrefix(s.recase("lower", word), s.recase("lower", word[:size]))
}

func titleFirst(letter string) string {
	if letter == "" || isASCII(letter) {
		return strings.ToUpper(letter)
	}
	return cases.Title(language.Und, cases.NoLower).String(letter)
}

func isCased(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }

func (s *state) strip(how, text string, chars Value) string {
	s.work(len(text))
	drop := isSpace
	if chars = orDefault(chars, None{}); chars != Value(None{}) {
		set := s.textArg(how, chars)
		drop = s.runeSet(set).has
	}
	if how != "rstrip" {
		text = strings.TrimLeftFunc(text, drop)
	}
	if how != "lstrip" {
		text = strings.TrimRightFunc(text, drop)
	}
	return text
}

func (s *state) split(text string, sep Value, limit int) Value {
	s.work(len(text))
	out := values{s: s}
	switch sep = orDefault(sep, None{}); {
	case sep != Value(None{}):
		by := s.textArg("split", sep)
		if by == "" {
			s.fail("empty separator")
		}
		for ; limit != 0; limit-- {
			before, after, found := strings.Cut(text, by)
			if !found {
				break
			}
			out.addText(before)
			text = after
		}
		out.addText(text)
	case limit < 0:
		for text = strings.TrimLeftFunc(text, isSpace); text != ""; text = strings.TrimLeftFunc(text, isSpace) {
			end := strings.IndexFunc(text, isSpace)
			if end < 0 {
				end = len(text)
			}
			out.addText(text[:end])
			text = text[end:]
		}
	default:
		s.fail("split by white space a number of times is not supported")
	}
	return &List{out.list}
}

// eachLine cuts a text at the ends of lines that Python knows. A text that ends with one has an empty line after it.
func eachLine(text string, show func(i int, line string)) {
	isEnd := func(r rune) bool { return strings.ContainsRune("\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029", r) }
	for i := 0; ; i++ {
		end := strings.IndexFunc(text, isEnd)
		if end < 0 {
			show(i, text)
			return
		}
		_, size := utf8.DecodeRuneInString(text[end:])
		if strings.HasPrefix(text[end:], "\r\n") {
			size = 2
		}
		show(i, text[:end])
		text = text[end+size:]
	}
}

func (s *state) replace(text, old, to string) Value {
	n := strings.Count(text, old)
	if grow := int64(len(to) - len(old)); grow > 0 && int64(n) > s.allocLeft/grow {
		s.alloc(1 << 62)
	}
	s.alloc(len(text) + n*(len(to)-len(old)))
	return String(strings.ReplaceAll(text, old, to))
}

func strHasAffix(name string) methodFunc {
	has := strings.HasPrefix
	if name == "endswith" {
		has = strings.HasSuffix
	}
	return func(s *state, of Value, a arguments) Value {
		affixes := s.bind(name, a, "prefix!")
		if several, ok := affixes[0].(*tuple); ok {
			affixes = several.items
		}
		for _, affix := range affixes {
			if has(string(of.(String)), s.textArg(name, affix)) {
				return Bool(true)
			}
		}
		return Bool(false)
	}
}

// strFormat is str.format with {}, {0} and {name}, and :d for integers: chat templates use no more of it.
func strFormat(s *state, of Value, a arguments) Value {
	text := string(of.(String))
	out := parts{s: s}
	for next := 0; ; {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			out.add(text)
			return out.joined("")
		}
		out.add(text[:i])
		if strings.HasPrefix(text[i+1:], text[i:i+1]) { // {{ is one
			out.add(text[i : i+1])
			text = text[i+2:]
			continue
		}
		field, rest, found := strings.Cut(text[i+1:], "}")
		if text[i] == '}' || !found {
			s.fail("format: single %q in the text", text[i])
		}
		text = rest
		name, spec, _ := strings.Cut(field, ":")
		if name == "" {
			name = strconv.Itoa(next)
			next++
		}
		var v Value
		if n, err := strconv.Atoi(name); err == nil && 0 <= n && n < len(a.pos) {
			v = a.pos[n]
		}
		if j := slices.Index(a.names, name); j >= 0 {
			v = a.named[j]
		}
		_, isInt := v.(Int)
		if v == nil || spec != "" && (spec != "d" || !isInt) {
			s.fail("format: {%s} is not supported or names no argument: only {}, {0}, {name}, and :d of integers are", field)
		}
		out.add(s.str(v))
	}
}
