package template

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// methodOf finds a method of Python's str, dict, list or tuple, or nil.
func methodOf(v Value, name string) methodFunc {
	switch v.(type) {
	case String:
		return stringMethod(name)
	case *Dict:
		return dictMethod(name)
	case *List, *tuple, *rangeSpan:
		switch name {
		case "index":
			return seqIndex
		case "count":
			return seqCount
		case "copy":
			if _, ok := v.(*List); ok {
				return func(s *state, of Value, a arguments) Value {
					s.bind("copy", a)
					return of
				}
			}
		}
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
	case "copy":
		return func(s *state, of Value, a arguments) Value {
			s.bind(name, a)
			return of
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
	s.alloc(4 * valueBytes * d.Len())
	items := make([]Value, d.Len())
	for i, k := range d.keys {
		items[i] = &tuple{items: []Value{k, d.vals[i]}}
	}
	return items
}

func seqIndex(s *state, of Value, a arguments) Value {
	v := s.bind("index", a, "value!")
	for i, item := range s.iterate(of) {
		if s.equal(item, v[0], 0) {
			return Int(i)
		}
	}
	s.fail("%s is not in %s", s.repr(v[0]), of.typeName())
	return nil
}

func seqCount(s *state, of Value, a arguments) Value {
	v := s.bind("count", a, "value!")
	n := 0
	for _, item := range s.iterate(of) {
		if s.equal(item, v[0], 0) {
			n++
		}
	}
	return Int(n)
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
	case "upper", "lower", "title", "capitalize", "casefold", "swapcase":
		return func(s *state, of Value, a arguments) Value {
			s.bind(name, a)
			s.alloc(4 * len(of.(String)))
			return s.newString(recase(name, string(of.(String))))
		}
	case "strip", "lstrip", "rstrip":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "chars")
			return String(s.strip(name, string(of.(String)), v[0]))
		}
	case "split", "rsplit":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "sep", "maxsplit")
			return s.split(name, string(of.(String)), v[0], s.intArg(name, v[1], -1))
		}
	case "splitlines":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "keepends")
			return s.stringList(splitLines(string(of.(String)), v[0] != nil && s.truth(v[0])))
		}
	case "startswith", "endswith":
		return strHasAffix(name)
	case "replace":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "old!", "new!", "count")
			old, to := s.textArg(name, v[0]), s.textArg(name, v[1])
			return s.replace(string(of.(String)), old, to, s.intArg(name, v[2], -1))
		}
	case "find", "rfind", "index", "rindex", "count":
		return strFind(name)
	case "join":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "iterable!")
			var parts []string
			for i, item := range s.iterate(v[0]) {
				text, ok := item.(String)
				if !ok {
					s.fail("sequence item %d: expected str instance, %s found", i, item.typeName())
				}
				parts = append(parts, string(text))
			}
			return s.joinStrings(parts, string(of.(String)))
		}
	case "format":
		return func(s *state, of Value, a arguments) Value { return s.newString(s.format(string(of.(String)), a)) }
	case "removeprefix":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "prefix!")
			return String(strings.TrimPrefix(string(of.(String)), s.textArg(name, v[0])))
		}
	case "removesuffix":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "suffix!")
			return String(strings.TrimSuffix(string(of.(String)), s.textArg(name, v[0])))
		}
	case "partition", "rpartition":
		return strPartition(name)
	case "ljust", "rjust", "center", "zfill":
		return strJustify(name)
	case "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace", "isupper", "islower", "isascii", "istitle",
		"isidentifier", "isprintable":
		return func(s *state, of Value, a arguments) Value {
			s.bind(name, a)
			s.work(len(of.(String)))
			return Bool(isKind(name, string(of.(String))))
		}
	case "expandtabs":
		return func(s *state, of Value, a arguments) Value {
			v := s.bind(name, a, "tabsize")
			return s.expandTabs(string(of.(String)), s.intArg(name, v[0], 8))
		}
	}
	return nil
}

// recase changes the case as Python does, with all of Unicode's special casings.
func recase(how, text string) string {
	if isASCII(text) {
		switch how {
		case "upper":
			return strings.ToUpper(text)
		case "lower", "casefold":
			return strings.ToLower(text)
		}
	}
	switch how {
	case "upper":
		return cases.Upper(language.Und).String(text)
	case "lower":
		return cases.Lower(language.Und).String(text)
	case "casefold":
		return cases.Fold().String(text)
	case "capitalize":
		return titleWord(text)
	case "swapcase":
		return strings.Map(func(r rune) rune {
			if unicode.IsUpper(r) {
				return unicode.ToLower(r)
			}
			return unicode.ToUpper(r)
		}, text)
	}
	// title: a letter behind anything but a cased letter begins a word.
	var b strings.Builder
	for text != "" {
		start := strings.IndexFunc(text, isCased)
		if start < 0 {
			start = len(text)
		}
		b.WriteString(text[:start])
		text = text[start:]
		end := strings.IndexFunc(text, func(r rune) bool { return !isCased(r) })
		if end < 0 {
			end = len(text)
		}
		b.WriteString(titleWord(text[:end]))
		text = text[end:]
	}
	return b.String()
}

// titleWord lowers all but the first letter, but as part of the word: a sigma at its end has another form.
func titleWord(word string) string {
	_, size := utf8.DecodeRuneInString(word)
	return titleFirst(word[:size]) + strings.TrimPrefix(recase("lower", word), recase("lower", word[:size]))
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
	if chars != nil {
		if _, isNone := chars.(None); !isNone {
			set := s.textArg(how, chars)
			drop = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
	}
	if how != "rstrip" {
		text = strings.TrimLeftFunc(text, drop)
	}
	if how != "lstrip" {
		text = strings.TrimRightFunc(text, drop)
	}
	return text
}

func (s *state) stringList(parts []string) Value {
	s.alloc(2 * valueBytes * len(parts))
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = String(p)
	}
	return &List{items}
}

func (s *state) split(how, text string, sep Value, limit int) Value {
	s.alloc(len(text)) // the parts share the text, but there may be one per two bytes
	if sep != nil {
		if _, isNone := sep.(None); !isNone {
			by := s.textArg(how, sep)
			if by == "" {
				s.fail("empty separator")
			}
			if how == "rsplit" {
				return s.stringList(rsplit(text, by, limit))
			}
			if limit < 0 {
				return s.stringList(strings.Split(text, by))
			}
			return s.stringList(strings.SplitN(text, by, limit+1))
		}
	}
	if limit < 0 {
		return s.stringList(strings.FieldsFunc(text, isSpace))
	}
	if how == "rsplit" {
		return s.stringList(rsplitSpace(text, limit))
	}
	var parts []string
	for text = strings.TrimLeftFunc(text, isSpace); text != "" && limit > 0; limit-- {
		i := strings.IndexFunc(text, isSpace)
		if i < 0 {
			break
		}
		parts = append(parts, text[:i])
		text = strings.TrimLeftFunc(text[i:], isSpace)
	}
	if text != "" {
		parts = append(parts, text)
	}
	return s.stringList(parts)
}

func rsplit(text, by string, limit int) []string {
	var parts []string
	for ; limit != 0; limit-- {
		i := strings.LastIndex(text, by)
		if i < 0 {
			break
		}
		parts = append(parts, text[i+len(by):])
		text = text[:i]
	}
	parts = append(parts, text)
	slices.Reverse(parts)
	return parts
}

func rsplitSpace(text string, limit int) []string {
	var parts []string
	for text = strings.TrimRightFunc(text, isSpace); text != "" && limit > 0; limit-- {
		i := strings.LastIndexFunc(text, isSpace)
		if i < 0 {
			break
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		parts = append(parts, text[i+size:])
		text = strings.TrimRightFunc(text[:i], isSpace)
	}
	if text != "" {
		parts = append(parts, text)
	}
	slices.Reverse(parts)
	return parts
}

func isLineEnd(r rune) bool {
	switch r {
	case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

func splitLines(text string, keepEnds bool) []string {
	var lines []string
	for text != "" {
		i := strings.IndexFunc(text, isLineEnd)
		if i < 0 {
			return append(lines, text)
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		if strings.HasPrefix(text[i:], "\r\n") {
			size = 2
		}
		if keepEnds {
			lines = append(lines, text[:i+size])
		} else {
			lines = append(lines, text[:i])
		}
		text = text[i+size:]
	}
	return lines
}

func (s *state) replace(text, old, to string, count int) Value {
	n := count
	if most := strings.Count(text, old); n < 0 || n > most {
		n = most
	}
	if n == 0 {
		s.work(len(text))
		return String(text)
	}
	if grow := int64(len(to) - len(old)); grow > 0 && int64(n) > s.allocLeft/grow {
		s.alloc(1 << 62)
	}
	s.alloc(len(text) + n*(len(to)-len(old)))
	return String(strings.Replace(text, old, to, n))
}

func (s *state) joinStrings(parts []string, sep string) Value {
	size := len(sep) * max(len(parts)-1, 0)
	for _, p := range parts {
		size += len(p)
	}
	s.alloc(size)
	return String(strings.Join(parts, sep))
}

// within cuts text to the part that a method's start and end name, and says how many code points come before it.
func (s *state) within(text string, start, end Value) (part string, before int, ok bool) {
	if start == nil && end == nil {
		return text, 0, true
	}
	s.work(len(text))
	n := int64(runeLen(text))
	from, to, _, ok := s.sliceBounds(n, orDefault(start, None{}), orDefault(end, None{}), None{})
	if !ok {
		s.fail("slice indices must be integers or None")
	}
	if i, isInt := start.(Int); isInt && int64(i) > n || from > to {
		return "", 0, false
	}
	return text[runeOffset(text, from):runeOffset(text, to)], int(from), true
}

func strHasAffix(name string) methodFunc {
	has := strings.HasPrefix
	if name == "endswith" {
		has = strings.HasSuffix
	}
	return func(s *state, of Value, a arguments) Value {
		v := s.bind(name, a, "prefix!", "start", "end")
		part, _, ok := s.within(string(of.(String)), v[1], v[2])
		if !ok {
			return Bool(false)
		}
		if several, isTuple := v[0].(*tuple); isTuple {
			for _, item := range several.items {
				if has(part, s.textArg(name, item)) {
					return Bool(true)
				}
			}
			return Bool(false)
		}
		return Bool(has(part, s.textArg(name, v[0])))
	}
}

func strFind(name string) methodFunc {
	return func(s *state, of Value, a arguments) Value {
		v := s.bind(name, a, "sub!", "start", "end")
		part, before, ok := s.within(string(of.(String)), v[1], v[2])
		sub := s.textArg(name, v[0])
		s.work(len(part))
		if name == "count" {
			if !ok {
				return Int(0)
			}
			return Int(strings.Count(part, sub))
		}
		i := -1
		if ok && (name == "find" || name == "index") {
			i = strings.Index(part, sub)
		} else if ok {
			i = strings.LastIndex(part, sub)
		}
		switch {
		case i >= 0:
			return Int(before + runeLen(part[:i]))
		case strings.HasSuffix(name, "index"):
			s.fail("substring not found")
		}
		return Int(-1)
	}
}

func strPartition(name string) methodFunc {
	return func(s *state, of Value, a arguments) Value {
		v := s.bind(name, a, "sep!")
		text, sep := string(of.(String)), s.textArg(name, v[0])
		if sep == "" {
			s.fail("empty separator")
		}
		s.work(len(text))
		i := strings.Index(text, sep)
		if name == "rpartition" {
			i = strings.LastIndex(text, sep)
		}
		parts := []Value{String(text), String(""), String("")}
		switch {
		case i >= 0:
			parts = []Value{String(text[:i]), String(sep), String(text[i+len(sep):])}
		case name == "rpartition":
			slices.Reverse(parts)
		}
		return &tuple{items: parts}
	}
}

func strJustify(name string) methodFunc {
	return func(s *state, of Value, a arguments) Value {
		v := s.bind(name, a, "width!", "fillchar")
		text, fill := string(of.(String)), " "
		if v[1] != nil {
			if fill = s.textArg(name, v[1]); runeLen(fill) != 1 {
				s.fail("The fill character must be exactly one character long")
			}
		}
		missing := s.intArg(name, v[0], 0) - s.length(of)
		if missing <= 0 {
			return of
		}
		s.alloc(len(text) + missing*len(fill))
		left := 0
		switch name {
		case "rjust":
			left = missing
		case "center":
			left = missing/2 + missing&s.intArg(name, v[0], 0)&1 // where CPython puts the odd one
		case "zfill":
			sign := 0
			if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
				sign = 1
			}
			return String(text[:sign] + strings.Repeat("0", missing) + text[sign:])
		}
		return String(strings.Repeat(fill, left) + text + strings.Repeat(fill, missing-left))
	}
}

// isKind is str.isdigit and its like, by Unicode's categories.
func isKind(name, text string) bool {
	switch name {
	case "isascii":
		return isASCII(text)
	case "isupper", "islower":
		cased := false
		for _, r := range text {
			if isCased(r) {
				cased = true
				if unicode.IsUpper(r) != (name == "isupper") {
					return false
				}
			}
		}
		return cased
	case "istitle":
		return recase("title", text) == text && strings.IndexFunc(text, isCased) >= 0
	case "isprintable":
		return strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	}
	for i, r := range text {
		ok := false
		switch name {
		case "isdigit", "isdecimal":
			ok = unicode.IsDigit(r)
		case "isnumeric":
			ok = unicode.IsNumber(r)
		case "isalpha":
			ok = unicode.IsLetter(r)
		case "isalnum":
			ok = unicode.IsLetter(r) || unicode.IsNumber(r)
		case "isspace":
			ok = isSpace(r)
		case "isidentifier":
			ok = r == '_' || unicode.IsLetter(r) || i > 0 && unicode.IsDigit(r)
		}
		if !ok {
			return false
		}
	}
	return text != ""
}

func (s *state) expandTabs(text string, size int) Value {
	if size > 0 && strings.Count(text, "\t") > int(s.allocLeft)/size {
		s.alloc(1 << 62)
	}
	s.alloc(len(text) + strings.Count(text, "\t")*max(size, 0))
	var b strings.Builder
	column := 0
	for _, r := range text {
		switch {
		case r == '\t':
			if size > 0 {
				n := size - column%size
				b.WriteString(strings.Repeat(" ", n))
				column += n
			}
		case r == '\n' || r == '\r':
			column = 0
			b.WriteRune(r)
		default:
			column++
			b.WriteRune(r)
		}
	}
	return String(b.String())
}
