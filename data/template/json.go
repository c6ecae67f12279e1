package template

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNesting bounds the nesting of values, in JSON and in those that a template builds.
const maxNesting = 500

// maxIntDigits is Python's own limit on the digits of an integer that is read or printed.
const maxIntDigits = 4300

// ParseJSON reads one JSON value as Python's json.loads does: objects keep their order and a repeated key its first
// place with the last value; 1 is an Int, 1.0 a Float; NaN and Infinity are read. Unlike Python it refuses
// invalid UTF-8 and halves of surrogate pairs, which no tokenizer could encode.
func ParseJSON(data []byte) (Value, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("JSON: the text is not valid UTF-8")
	}
	r := jsonReader{text: string(data)}
	v, err := r.value(0)
	if err == nil {
		if r.space(); r.pos < len(r.text) {
			err = errors.New("there is more text after the value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("JSON: byte %d: %w", r.pos, err)
	}
	return v, nil
}

type jsonReader struct {
	text string
	pos  int
}

func (r *jsonReader) space() {
	for r.pos < len(r.text) {
		switch r.text[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

func (r *jsonReader) skip(word string) bool {
	if strings.HasPrefix(r.text[r.pos:], word) {
		r.pos += len(word)
		return true
	}
	return false
}

func (r *jsonReader) value(depth int) (Value, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("values are nested deeper than %d", maxNesting)
	}
	r.space()
	if r.pos >= len(r.text) {
		return nil, errors.New("the text ends where a value is expected")
	}
	switch c := r.text[r.pos]; {
	case c == '{':
		return r.object(depth)
	case c == '[':
		return r.array(depth)
	case c == '"':
		s, err := r.str()
		return String(s), err
	case r.skip("true"):
		return Bool(true), nil
	case r.skip("false"):
		return Bool(false), nil
	case r.skip("null"):
		return None{}, nil
	case r.skip("NaN"):
		return Float(nan), nil
	case r.skip("Infinity"):
		return Float(inf), nil
	case r.skip("-Infinity"):
		return Float(-inf), nil
	case c == '-' || isDigit(c):
		return r.number()
	}
	return nil, errors.New("no value begins like this")
}

func (r *jsonReader) object(depth int) (Value, error) {
	d := NewDict(4)
	r.pos++
	for r.space(); !r.skip("}"); r.space() {
		if d.Len() > 0 {
			if !r.skip(",") {
				return nil, errors.New("expected , or }")
			}
			r.space()
		}
		if r.pos >= len(r.text) || r.text[r.pos] != '"' {
			return nil, errors.New("expected a key in quotes")
		}
		key, err := r.str()
		if err != nil {
			return nil, err
		}
		if r.space(); !r.skip(":") {
			return nil, errors.New("expected :")
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		d.Set(key, v)
	}
	return d, nil
}

func (r *jsonReader) array(depth int) (Value, error) {
	var items []Value
	r.pos++
	for r.space(); !r.skip("]"); r.space() {
		if len(items) > 0 && !r.skip(",") {
			return nil, errors.New("expected , or ]")
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	return &List{items}, nil
}

func (r *jsonReader) number() (Value, error) {
	start := r.pos
	digits := func() int {
		from := r.pos
		for r.pos < len(r.text) && isDigit(r.text[r.pos]) {
			r.pos++
		}
		return r.pos - from
	}
	r.skip("-")
	whole := r.pos
	if n := digits(); n == 0 || n > 1 && r.text[whole] == '0' {
		return nil, errors.New("this is not a number of JSON")
	}
	isFloat := false
	if r.pos+1 < len(r.text) && r.text[r.pos] == '.' {
		r.pos++
		if isFloat = true; digits() == 0 {
			return nil, errors.New("expected digits after the point")
		}
	}
	if r.pos < len(r.text) && (r.text[r.pos] == 'e' || r.text[r.pos] == 'E') {
		r.pos++
		if isFloat = true; !r.skip("+") {
			r.skip("-")
		}
		if digits() == 0 {
			return nil, errors.New("expected digits in the exponent")
		}
	}
	text := r.text[start:r.pos]
	if isFloat {
		f, _ := strconv.ParseFloat(text, 64) // out of range gives an infinity, as in Python
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Int(n), nil
	}
	if len(text) > maxIntDigits {
		return nil, fmt.Errorf("an integer has more than %d digits", maxIntDigits)
	}
	return bigInt(text), nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (r *jsonReader) str() (string, error) {
	r.pos++
	start := r.pos
	var b []byte
	for r.pos < len(r.text) {
		switch c := r.text[r.pos]; {
		case c == '"':
			s := r.text[start:r.pos]
			if r.pos++; b != nil {
				return string(append(b, s...)), nil
			}
			return s, nil
		case c < ' ':
			return "", errors.New("a control character in a string must be escaped")
		case c == '\\':
			b = append(b, r.text[start:r.pos]...)
			var err error
			if b, err = r.escape(b); err != nil {
				return "", err
			}
			start = r.pos
		default:
			r.pos++
		}
	}
	return "", errors.New("a string does not end")
}

// escape reads an escape at the reader's place and appends what it stands for; b is not nil afterwards.
func (r *jsonReader) escape(b []byte) ([]byte, error) {
	if b == nil {
		b = []byte{}
	}
	if r.pos+1 >= len(r.text) {
		return nil, errors.New("a string does not end")
	}
	c := r.text[r.pos+1]
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		r.pos += 2
		return append(b, "\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return nil, fmt.Errorf("unknown escape \\%c", c)
	}
	one, err := r.unit()
	if err != nil {
		return nil, err
	}
	if !utf16.IsSurrogate(one) {
		return utf8.AppendRune(b, one), nil
	}
	if strings.HasPrefix(r.text[r.pos:], `\u`) {
		two, err := r.unit()
		if err != nil {
			return nil, err
		}
		if full := utf16.DecodeRune(one, two); full != utf8.RuneError {
			return utf8.AppendRune(b, full), nil
		}
	}
	return nil, errors.New("half of a surrogate pair is not a character")
}

// unit reads \uXXXX.
func (r *jsonReader) unit() (rune, error) {
	if r.pos+6 > len(r.text) {
		return 0, errors.New("expected four hexadecimal digits after \\u")
	}
	n, err := strconv.ParseUint(r.text[r.pos+2:r.pos+6], 16, 32)
	if err != nil {
		return 0, errors.New("expected four hexadecimal digits after \\u")
	}
	r.pos += 6
	return rune(n), nil
}
