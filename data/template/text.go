package template

import (
	"context"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// str is Python's str(v), but an undefined value is empty, as Jinja prints it.
func (s *state) str(v Value) string {
	switch v := v.(type) {
	case String:
		s.work(len(v))
		return string(v)
	case *undefined:
		return ""
	case Int:
		return strconv.FormatInt(int64(v), 10)
	}
	return s.text(s.appendRepr(nil, v, 0))
}

// repr is Python's repr(v).
func (s *state) repr(v Value) string {
	return s.text(s.appendRepr(nil, v, 0))
}

// numberRoom is more than any number, or word such as None, takes as text.
const numberRoom = 512

func (s *state) appendRepr(b []byte, v Value, depth int) []byte {
	s.work(0)
	s.checkNesting(depth)
	b = s.room(b, numberRoom)
	switch v := v.(type) {
	case None:
		return append(b, "None"...)
	case Bool:
		if v {
			return append(b, "True"...)
		}
		return append(b, "False"...)
	case Int:
		return strconv.AppendInt(b, int64(v), 10)
	case bigInt:
		return s.appended(b, string(v))
	case Float:
		return appendFloat(b, float64(v))
	case String:
		return s.appendQuoted(b, string(v))
	case *List:
		return append(s.room(s.appendItems(append(b, '['), v.items, depth), 1), ']')
	case *tuple:
		b = s.room(s.appendItems(append(b, '('), v.items, depth), 2)
		if len(v.items) == 1 {
			b = append(b, ',')
		}
		return append(b, ')')
	case *Dict:
		b = append(b, '{')
		for i, k := range v.keys {
			if i > 0 {
				b = s.appended(b, ", ")
			}
			b = s.appendRepr(b, k, depth+1)
			b = s.appended(b, ": ")
			b = s.appendRepr(b, v.vals[i], depth+1)
		}
		return s.appended(b, "}")
	case *undefined:
		return append(b, "Undefined"...)
	}
	s.fail("a value of type '%s' cannot be printed here", v.typeName())
	return nil
}

func (s *state) checkNesting(depth int) {
	if depth > maxNesting {
		s.failLimit("values are nested deeper than %d", maxNesting)
	}
}

func (s *state) appendItems(b []byte, items []Value, depth int) []byte {
	for i, item := range items {
		if i > 0 {
			b = s.appended(b, ", ")
		}
		b = s.appendRepr(b, item, depth+1)
	}
	return b
}

// appendFloat writes the shortest decimal that reads back, with an exponent below 1e-4 and from 1e16 on.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	for _, c := range b[start:] {
		if c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

// appendQuoted is the repr of a string: in single quotes unless it has them and no double ones.
func (s *state) appendQuoted(b []byte, text string) []byte {
	s.work(2 * len(text))
	quote := byte('\'')
	if strings.IndexByte(text, '\'') >= 0 && strings.IndexByte(text, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for _, r := range text {
		b = s.room(b, 12) // of the longest escape, and the last quote
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r < 0x100:
			b = appendHex(append(b, `\x`...), uint32(r), 2)
		case r < 0x10000:
			b = appendHex(append(b, `\u`...), uint32(r), 4)
		default:
			b = appendHex(append(b, `\U`...), uint32(r), 8)
		}
	}
	return append(b, quote)
}

func appendHex(b []byte, n uint32, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b = append(b, "0123456789abcdef"[n>>shift&15])
	}
	return b
}

// jsonStyle has the arguments of json.dumps.
type jsonStyle struct {
	ensureASCII, sortKeys bool
	indent                string
	lines                 bool // one item per line, indented
	item, key             string
}

func (s *state) appendJSON(b []byte, v Value, style *jsonStyle, depth int) []byte {
	s.work(0)
	s.checkNesting(depth)
	b = s.room(b, numberRoom)
	switch v := v.(type) {
	case None:
		return append(b, "null"...)
	case Bool:
		return strconv.AppendBool(b, bool(v))
	case Int:
		return strconv.AppendInt(b, int64(v), 10)
	case bigInt:
		return s.appended(b, string(v))
	case Float:
		return appendJSONFloat(b, float64(v))
	case String:
		return s.appendJSONString(b, string(v), style.ensureASCII)
	case *List:
		return s.appendJSONItems(b, v.items, style, depth)
	case *tuple:
		return s.appendJSONItems(b, v.items, style, depth)
	case *Dict:
		return s.appendJSONDict(b, v, style, depth)
	}
	s.fail("Object of type %s is not JSON serializable", v.typeName())
	return nil
}

func appendJSONFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	return appendFloat(b, f)
}

func (s *state) appendJSONItems(b []byte, items []Value, style *jsonStyle, depth int) []byte {
	b = append(b, '[')
	for i, item := range items {
		if i > 0 {
			b = s.appended(b, style.item)
		}
		b = style.newline(s, b, depth+1)
		b = s.appendJSON(b, item, style, depth+1)
	}
	if len(items) > 0 {
		b = style.newline(s, b, depth)
	}
	return s.appended(b, "]")
}

func (s *state) appendJSONDict(b []byte, d *Dict, style *jsonStyle, depth int) []byte {
	s.alloc(8 * d.Len())
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if style.sortKeys {
		s.sortBy(order, d.keys)
	}
	b = append(b, '{')
	for n, i := range order {
		if n > 0 {
			b = s.appended(b, style.item)
		}
		b = style.newline(s, b, depth+1)
		switch k := d.keys[i].(type) {
		case String:
			b = s.appendJSONString(b, string(k), style.ensureASCII)
		case None, Bool, Int, bigInt, Float:
			b = s.appended(s.appendJSON(s.appended(b, `"`), k, style, depth+1), `"`)
		default:
			s.fail("keys must be str, int, float, bool or None, not %s", k.typeName())
		}
		b = s.appended(b, style.key)
		b = s.appendJSON(b, d.vals[i], style, depth+1)
	}
	if len(order) > 0 {
		b = style.newline(s, b, depth)
	}
	return s.appended(b, "}")
}

func (j *jsonStyle) newline(s *state, b []byte, depth int) []byte {
	if !j.lines {
		return b
	}
	b = s.appended(b, "\n")
	for range depth {
		b = s.appended(b, j.indent)
	}
	return b
}

func (s *state) appendJSONString(b []byte, text string, ensureASCII bool) []byte {
	s.work(2 * len(text))
	b = s.appended(b, `"`)
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < 0x7f || !ensureASCII) {
			i++
			continue
		}
		b = s.room(s.appended(b, text[start:i]), 12) // of the longest escape
		size := 1
		switch short := strings.IndexByte("\"\\\b\f\n\r\t", c); {
		case short >= 0:
			b = append(b, '\\', `"\bfnrt`[short])
		case c < ' ':
			b = appendHex(append(b, `\u`...), uint32(c), 4)
		default:
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			if r >= 0x10000 {
				hi, lo := utf16.EncodeRune(r)
				b = appendHex(append(b, `\u`...), uint32(hi), 4)
				r = lo
			}
			b = appendHex(append(b, `\u`...), uint32(r), 4)
		}
		i += size
		start = i
	}
	return s.appended(s.appended(b, text[start:]), `"`)
}

// appendJSONString and appendQuoted are those of a render, for texts that no render makes and that are bounded before.
func appendJSONString(b []byte, text string, ensureASCII bool) []byte {
	return unlimited().appendJSONString(b, text, ensureASCII)
}

func appendQuoted(b []byte, text string) []byte { return unlimited().appendQuoted(b, text) }

// unlimited is the state of no render, which counts and ends nothing.
func unlimited() *state {
	return &state{ctx: context.Background(), allocLeft: math.MaxInt64, stepsLeft: math.MaxInt64}
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r)
}
