package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is the part of a replacement field behind the colon, and what a % conversion says.
type formatSpec struct {
	fill             string
	align, sign      byte // align: < > ^ =, or 0
	isAlternate      bool
	isZeroPadded     bool
	width, precision int  // precision -1: not given
	comma            byte // , or _ or 0
	kind             byte // 0: not given
}

// maxWidth bounds widths and precisions in formats.
const maxWidth = 1 << 20

// percent is text % v.
func (s *state) percent(text string, v Value) string {
	args := []Value{v}
	if t, ok := v.(*tuple); ok {
		args = t.items
	}
	named, _ := v.(*Dict)
	used := 0
	next := func() Value {
		if used >= len(args) {
			s.fail("not enough arguments for format string")
		}
		used++
		return args[used-1]
	}
	var b []byte
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			b = append(b, text...)
			break
		}
		b, text = append(b, text[:i]...), text[i+1:]
		s.checkNesting(b, 0)
		spec := formatSpec{fill: " ", precision: -1, align: '>'}
		var from Value
		if named != nil && strings.HasPrefix(text, "(") {
			key, rest, ok := strings.Cut(text[1:], ")")
			if !ok {
				s.fail("incomplete format key")
			}
			if from, ok = named.Get(key); !ok {
				s.fail("%s", "KeyError: '"+key+"'")
			}
			text, used = rest, len(args)
		}
		text = s.percentSpec(&spec, text, next)
		if text == "" {
			s.fail("incomplete format")
		}
		spec.kind, text = text[0], text[1:]
		if spec.kind == '%' {
			b = append(b, '%')
			continue
		}
		if from == nil {
			from = next()
		}
		b = append(b, s.percentOne(spec, from)...)
	}
	if used < len(args) && named == nil {
		s.fail("not all arguments converted during string formatting")
	}
	return string(b)
}

func (s *state) percentSpec(spec *formatSpec, text string, next func() Value) string {
	for text != "" && strings.IndexByte("#0- +", text[0]) >= 0 {
		switch text[0] {
		case '#':
			spec.isAlternate = true
		case '0':
			spec.isZeroPadded = true
		case '-':
			spec.align = '<'
		default:
			spec.sign = text[0]
		}
		text = text[1:]
	}
	number := func() int {
		if strings.HasPrefix(text, "*") {
			text = text[1:]
			return s.intArg("format", next(), 0)
		}
		n, rest := s.leadingInt(text)
		text = rest
		return n
	}
	if spec.width = number(); spec.width < 0 {
		spec.align, spec.width = '<', -spec.width
	}
	if strings.HasPrefix(text, ".") {
		text = text[1:]
		spec.precision = max(number(), 0)
	}
	if spec.width > maxWidth || spec.precision > maxWidth {
		s.failLimit("a format is wider than %d", maxWidth)
	}
	return strings.TrimLeft(text, "hlL")
}

func (s *state) leadingInt(text string) (int, string) {
	n := 0
	for text != "" && isDigit(text[0]) {
		if n = n*10 + int(text[0]-'0'); n > maxWidth {
			s.failLimit("a format is wider than %d", maxWidth)
		}
		text = text[1:]
	}
	return n, text
}

func (s *state) percentOne(spec formatSpec, v Value) string {
	switch spec.kind {
	case 's', 'r', 'a':
		text := ""
		if spec.kind == 's' {
			text = s.str(v)
		} else {
			text = s.repr(v)
		}
		spec.isZeroPadded = false
		return s.formatText(spec, text)
	case 'c':
		n, isInt := v.(Int)
		if isInt && (n < 0 || !utf8.ValidRune(rune(n)) || n > utf8.MaxRune) {
			s.fail("%%c arg not in range(0x110000)")
		}
		if isInt {
			return s.formatText(spec, string(rune(n)))
		}
		return s.formatText(spec, s.textArg("%c", v))
	}
	s.checkDefined(v)
	n, ok := numberOf(v)
	if !ok {
		s.fail("%%%c format: a real number is required, not %s", spec.kind, v.typeName())
	}
	if spec.isZeroPadded && spec.align != '<' {
		spec.fill, spec.align = "0", '='
	}
	switch spec.kind {
	case 'd', 'i', 'u':
		if n.isFloat {
			whole := truncated(n.f)
			if whole == nil {
				s.fail("cannot convert float to integer")
			}
			n, _ = numberOf(whole)
		}
		spec.kind = 'd'
		return s.formatInt(spec, n)
	case 'x', 'X', 'o':
		if n.isFloat {
			s.fail("%%%c format: an integer is required, not float", spec.kind)
		}
		return s.formatInt(spec, n)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		return s.formatFloat(spec, n.asFloat())
	}
	s.fail("unsupported format character '%c'", spec.kind)
	return ""
}

// format is text.format(args): fields by place or name, attributes and items of them, conversions and formats.
func (s *state) format(text string, a arguments) string {
	auto := 0
	return s.formatFields(text, a, &auto, 0)
}

func (s *state) formatFields(text string, a arguments, auto *int, depth int) string {
	if depth > 2 {
		s.fail("Max string recursion exceeded")
	}
	var b []byte
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			b = append(b, text...)
			break
		}
		b = append(b, text[:i]...)
		c := text[i]
		text = text[i+1:]
		s.checkNesting(b, 0)
		if text != "" && text[0] == c {
			b, text = append(b, c), text[1:]
			continue
		}
		if c == '}' {
			s.fail("Single '}' encountered in format string")
		}
		end, open := -1, 1
		for j := 0; j < len(text) && end < 0; j++ {
			switch text[j] {
			case '{':
				open++
			case '}':
				if open--; open == 0 {
					end = j
				}
			}
		}
		if end < 0 {
			s.fail("expected '}' before end of string")
		}
		b = append(b, s.formatField(text[:end], a, auto, depth)...)
		text = text[end+1:]
	}
	return string(b)
}

func (s *state) formatField(field string, a arguments, auto *int, depth int) string {
	name, spec, _ := strings.Cut(field, ":")
	conversion := byte(0)
	if i := strings.IndexByte(name, '!'); i >= 0 {
		if len(name) != i+2 {
			s.fail("expected one character behind '!' in a format")
		}
		conversion, name = name[i+1], name[:i]
	}
	v := s.formatValue(name, a, auto)
	if strings.Contains(spec, "{") {
		spec = s.formatFields(spec, a, auto, depth+1)
	}
	switch conversion {
	case 0:
	case 's':
		v = String(s.str(v))
	case 'r':
		v = String(s.repr(v))
	default:
		s.fail("unknown conversion '%c' in a format", conversion)
	}
	return s.formatOne(v, spec)
}

// formatValue finds what a field names: 0, name, or nothing for the next one, with .attribute and [item] behind it.
func (s *state) formatValue(name string, a arguments, auto *int) Value {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	var v Value
	if first == "" {
		first = strconv.Itoa(*auto)
		*auto++
	}
	if n, err := strconv.Atoi(first); err == nil && n >= 0 {
		if n >= len(a.pos) {
			s.fail("Replacement index %d out of range for positional args tuple", n)
		}
		v = a.pos[n]
	} else if i := paramIndex(a.names, first); i >= 0 {
		v = a.named[i]
	} else {
		s.fail("%s", "KeyError: '"+first+"'")
	}
	for rest != "" {
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			v = s.attr(v, rest[1:1+end])
			rest = rest[1+end:]
			continue
		}
		key, after, ok := strings.Cut(rest[1:], "]")
		if !ok || rest[0] != '[' {
			s.fail("a field of a format is malformed")
		}
		if n, err := strconv.Atoi(key); err == nil {
			v = s.item(v, Int(n))
		} else {
			v = s.item(v, String(key))
		}
		rest = after
	}
	return v
}

func (s *state) formatOne(v Value, text string) string {
	if text == "" {
		return s.str(v)
	}
	s.checkDefined(v)
	spec := s.parseSpec(text)
	if spec.isZeroPadded && spec.align == 0 {
		spec.fill, spec.align = "0", '='
	}
	n, isNumber := numberOf(v)
	switch {
	case isNumber && (n.isFloat || spec.kind != 0 && strings.IndexByte("eEfFgG%", spec.kind) >= 0):
		if spec.align == 0 {
			spec.align = '>'
		}
		if spec.kind != 0 && strings.IndexByte("bcdoxXs", spec.kind) >= 0 {
			s.fail("Unknown format code '%c' for object of type 'float'", spec.kind)
		}
		return s.formatFloat(spec, n.asFloat())
	case isNumber:
		if spec.align == 0 {
			spec.align = '>'
		}
		return s.formatInt(spec, n)
	}
	value, ok := v.(String)
	if !ok {
		s.fail("unsupported format string passed to %s.__format__", v.typeName())
	}
	if spec.kind != 0 && spec.kind != 's' {
		s.fail("Unknown format code '%c' for object of type 'str'", spec.kind)
	}
	if spec.sign != 0 || spec.comma != 0 || spec.isAlternate || spec.align == '=' && !spec.isZeroPadded {
		s.fail("Sign, comma, # and = are not allowed in string format specifiers")
	}
	if spec.align == 0 || spec.align == '=' {
		spec.align = '<'
	}
	return s.formatText(spec, string(value))
}

func (s *state) parseSpec(text string) formatSpec {
	spec := formatSpec{fill: " ", precision: -1}
	if r, size := utf8.DecodeRuneInString(text); len(text) > size && strings.IndexByte("<>^=", text[size]) >= 0 {
		spec.fill, spec.align, text = string(r), text[size], text[size+1:]
	} else if strings.IndexByte("<>^=", text[0]) >= 0 {
		spec.align, text = text[0], text[1:]
	}
	skip := func(set string) byte {
		if text == "" || strings.IndexByte(set, text[0]) < 0 {
			return 0
		}
		c := text[0]
		text = text[1:]
		return c
	}
	spec.sign = skip("+- ")
	spec.isAlternate = skip("#") != 0
	spec.isZeroPadded = skip("0") != 0
	spec.width, text = s.leadingInt(text)
	spec.comma = skip(",_")
	if skip(".") != 0 {
		if text == "" || !isDigit(text[0]) {
			s.fail("Format specifier missing precision")
		}
		spec.precision, text = s.leadingInt(text)
	}
	spec.kind = skip("bcdeEfFgGnosxX%")
	if text != "" {
		s.fail("Invalid format specifier")
	}
	return spec
}

func (s *state) formatText(spec formatSpec, text string) string {
	if spec.precision >= 0 {
		text = text[:runeOffset(text, int64(spec.precision))]
	}
	return s.pad(spec, "", text)
}

// pad fills up to the width; the sign comes before the filling where that is within the number.
func (s *state) pad(spec formatSpec, sign, text string) string {
	missing := spec.width - runeLen(sign) - runeLen(text)
	if missing <= 0 {
		return sign + text
	}
	s.alloc(missing * len(spec.fill))
	fill := func(n int) string { return strings.Repeat(spec.fill, n) }
	switch spec.align {
	case '<':
		return sign + text + fill(missing)
	case '^':
		return fill(missing/2) + sign + text + fill(missing-missing/2)
	case '=':
		return sign + fill(missing) + text
	}
	return fill(missing) + sign + text
}

func signOf(spec formatSpec, negative bool) string {
	switch {
	case negative:
		return "-"
	case spec.sign == '+' || spec.sign == ' ':
		return string(spec.sign)
	}
	return ""
}

func (s *state) formatInt(spec formatSpec, n number) string {
	z := n.asBig()
	sign := signOf(spec, z.Sign() < 0)
	abs := new(big.Int).Abs(z)
	base, prefix := 10, ""
	switch spec.kind {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	case 0, 'd', 'n':
	case 'c':
		if !z.IsInt64() || z.Int64() > utf8.MaxRune || !utf8.ValidRune(rune(z.Int64())) {
			s.fail("%%c arg not in range(0x110000)")
		}
		return s.pad(spec, "", string(rune(z.Int64())))
	default:
		s.fail("Unknown format code '%c' for object of type 'int'", spec.kind)
	}
	text := abs.Text(base)
	if spec.kind == 'X' {
		text = strings.ToUpper(text)
	}
	if spec.precision > len(text) { // % only
		s.alloc(spec.precision)
		text = strings.Repeat("0", spec.precision-len(text)) + text
	}
	text = grouped(text, spec.comma)
	if spec.isAlternate {
		sign += prefix
	}
	return s.pad(spec, sign, text)
}

// grouped puts a separator between thousands.
func grouped(digits string, sep byte) string {
	if sep == 0 {
		return digits
	}
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(sep)
		}
		b.WriteRune(c)
	}
	return b.String()
}

func (s *state) formatFloat(spec formatSpec, f float64) string {
	sign := signOf(spec, math.Signbit(f) && !math.IsNaN(f))
	f = math.Abs(f)
	kind, precision := spec.kind, spec.precision
	s.alloc(max(precision, 0) + 310)
	isPercent := kind == '%'
	if isPercent {
		kind, f = 'f', f*100
	}
	var text string
	switch {
	case math.IsNaN(f):
		text = "nan"
	case math.IsInf(f, 0):
		text = "inf"
	case kind == 0 && precision < 0:
		text = string(appendFloat(nil, f))
	case kind == 0 || kind|0x20 == 'g' || kind == 'n':
		text = formatGeneral(f, precision, spec.isAlternate)
		if kind == 0 && !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
	default:
		if precision < 0 {
			precision = 6
		}
		text = strconv.FormatFloat(f, kind|0x20, precision, 64)
	}
	if kind >= 'A' && kind <= 'Z' {
		text = strings.ToUpper(text)
	}
	if spec.comma != 0 {
		whole, rest := text, ""
		if i := strings.IndexAny(text, ".e"); i >= 0 {
			whole, rest = text[:i], text[i:]
		}
		text = grouped(whole, spec.comma) + rest
	}
	if isPercent {
		text += "%"
	}
	return s.pad(spec, sign, text)
}

// formatGeneral is %g: the given number of digits, without trailing zeros unless they are asked for, and with an
// exponent below 1e-4 or where the digits do not reach.
func formatGeneral(f float64, precision int, keepZeros bool) string {
	if precision < 0 {
		precision = 6
	}
	precision = max(precision, 1)
	text := strconv.FormatFloat(f, 'e', precision-1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	e, _ := strconv.Atoi(exponent)
	trim := func(t string) string {
		if keepZeros || !strings.Contains(t, ".") {
			return t
		}
		return strings.TrimRight(strings.TrimRight(t, "0"), ".")
	}
	if e < -4 || e >= precision {
		return trim(mantissa) + "e" + exponent
	}
	return trim(strconv.FormatFloat(f, 'f', precision-1-e, 64))
}
