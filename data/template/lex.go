package template

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokPrintBegin // {{
	tokPrintEnd
	tokBlockBegin // {%
	tokBlockEnd
	tokName
	tokString
	tokNumber
	tokOp
)

type token struct {
	kind tokenKind
	text string // of data, names and operators; the decoded text of a string
	num  Value  // of a number
	pos  int    // in the source
}

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "text"
	case tokPrintBegin:
		return "{{"
	case tokPrintEnd:
		return "}}"
	case tokBlockBegin:
		return "{%"
	case tokBlockEnd:
		return "%}"
	case tokString:
		return "a string"
	case tokNumber:
		return "a number"
	}
	return t.text
}

// lexer cuts a source into tokens, with trim_blocks and lstrip_blocks on, as transformers has them:
//
//   - the newline after a block or a comment goes, unless the tag ends in +%};
//   - white space between the beginning of a line and a block or comment goes, unless the tag begins with {%+;
//   - a minus takes all white space on its side.
type lexer struct {
	src    string
	pos    int
	tokens []token
	open   []byte // brackets that wait for their end
	// isLineStart says whether the last tag took the newline after it, so that the next text begins a line.
	isLineStart bool
}

// syntaxError is a fault that Parse turns into an Error with a line.
type syntaxError struct {
	pos int
	msg string
}

func failAt(pos int, format string, args ...any) {
	panic(syntaxError{pos, fmt.Sprintf(format, args...)})
}

// normalizeSource makes all line ends \n and drops the last one, as Jinja does.
func normalizeSource(src string) string {
	if strings.IndexByte(src, '\r') >= 0 {
		src = strings.ReplaceAll(src, "\r\n", "\n")
		src = strings.ReplaceAll(src, "\r", "\n")
	}
	return strings.TrimSuffix(src, "\n")
}

// lex panics with a syntaxError.
func lex(src string) []token {
	l := &lexer{src: src, isLineStart: true}
	for l.pos < len(src) {
		l.data()
	}
	l.emit(token{kind: tokEOF, pos: len(src)})
	return l.tokens
}

func (l *lexer) emit(t token) { l.tokens = append(l.tokens, t) }

// data reads text up to the next tag, and the tag.
func (l *lexer) data() {
	start, at := l.pos, l.pos
	for {
		i := strings.IndexByte(l.src[at:], '{')
		if i < 0 || at+i+1 >= len(l.src) {
			l.emit(token{kind: tokData, text: l.src[start:], pos: start})
			l.pos = len(l.src)
			return
		}
		at += i
		if strings.IndexByte("{%#", l.src[at+1]) >= 0 {
			break
		}
		at++
	}
	text, tag := l.src[start:at], l.src[at+1]
	l.pos = at + 2
	sign := l.sign()
	l.text(start, text, sign, tag != '{')
	l.isLineStart = false
	switch {
	case tag == '#':
		l.comment(at)
	case tag == '{':
		l.emit(token{kind: tokPrintBegin, pos: at})
		l.expression(tokPrintEnd, at)
	case l.raw(at):
	default:
		l.emit(token{kind: tokBlockBegin, pos: at})
		l.expression(tokBlockEnd, at)
	}
}

func (l *lexer) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.pos++
		return l.src[l.pos-1]
	}
	return 0
}

// text emits what stands before a tag without the white space that the tag takes.
func (l *lexer) text(start int, text string, sign byte, isBlock bool) {
	if sign == '-' {
		text = strings.TrimRightFunc(text, isSpace)
	} else if sign != '+' && isBlock {
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.isLineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
			text = text[:line]
		}
	}
	if text != "" {
		l.emit(token{kind: tokData, text: text, pos: start})
	}
}

// end reads the end of a tag if it is here: -%} with the white space after it, +%} alone, %} with one newline.
func (l *lexer) end(mark string, trims, plus bool) bool {
	rest := l.src[l.pos:]
	switch {
	case strings.HasPrefix(rest, mark):
		l.pos += len(mark)
		if trims && strings.HasPrefix(l.src[l.pos:], "\n") {
			l.pos++
		}
	case len(rest) > len(mark) && rest[0] == '-' && rest[1:1+len(mark)] == mark:
		rest = rest[1+len(mark):]
		l.pos = len(l.src) - len(strings.TrimLeftFunc(rest, isSpace))
	case plus && len(rest) > len(mark) && rest[0] == '+' && rest[1:1+len(mark)] == mark:
		l.pos += 1 + len(mark)
	default:
		return false
	}
	l.isLineStart = l.src[l.pos-1] == '\n'
	return true
}

func (l *lexer) comment(at int) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		failAt(at, "a comment does not end: #} is missing")
	}
	if before := l.src[l.pos : l.pos+i]; strings.HasSuffix(before, "-") || strings.HasSuffix(before, "+") {
		i--
	}
	l.pos += i
	l.end("#}", true, true)
}

// raw reads a raw block if the tag at this position begins one.
func (l *lexer) raw(at int) bool {
	word, rest := cutWord(l.src[l.pos:])
	if word != "raw" {
		return false
	}
	before := l.pos
	l.pos = len(l.src) - len(rest)
	if !l.end("%}", false, false) {
		l.pos = before
		return false
	}
	for start, from := l.pos, l.pos; ; {
		i := strings.Index(l.src[from:], "{%")
		if i < 0 {
			failAt(at, "a raw block does not end: {%% endraw %%} is missing")
		}
		tag := from + i
		l.pos = tag + 2
		sign := l.sign()
		word, rest := cutWord(l.src[l.pos:])
		l.pos = len(l.src) - len(rest)
		wasLineStart := l.isLineStart
		if word == "endraw" && l.end("%}", true, true) {
			isLineStart := l.isLineStart
			l.isLineStart = wasLineStart
			l.text(start, l.src[start:tag], sign, true)
			l.isLineStart = isLineStart
			return true
		}
		from = tag + 2
	}
}

// cutWord skips white space, reads letters, and skips white space again.
func cutWord(s string) (word, rest string) {
	s = strings.TrimLeftFunc(s, isSpace)
	n := 0
	for n < len(s) && 'a' <= s[n] && s[n] <= 'z' {
		n++
	}
	return s[:n], strings.TrimLeftFunc(s[n:], isSpace)
}

// expression reads the tokens of a tag up to its end.
func (l *lexer) expression(end tokenKind, at int) {
	mark := "%}"
	if end == tokPrintEnd {
		mark = "}}"
	}
	l.open = l.open[:0]
	for {
		if l.pos >= len(l.src) {
			failAt(at, "a tag does not end: %s is missing", mark)
		}
		pos := l.pos
		// Within brackets }} is two brackets: {{ {'a': {}} }}.
		if len(l.open) == 0 && l.end(mark, end == tokBlockEnd, end == tokBlockEnd) {
			l.emit(token{kind: end, pos: pos})
			return
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.pos += size
		case r < utf8.RuneSelf && isDigit(byte(r)):
			l.number()
		case r == '_' || unicode.IsLetter(r):
			l.name()
		case r == '"' || r == '\'':
			l.str(byte(r))
		default:
			l.operator(r)
		}
	}
}

func (l *lexer) name() {
	start := l.pos
	for l.pos < len(l.src) {
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.Mn, r) && !unicode.Is(unicode.Mc, r) {
			break
		}
		l.pos += size
	}
	l.emit(token{kind: tokName, text: l.src[start:l.pos], pos: start})
}

func (l *lexer) digits() {
	for l.pos < len(l.src) && isDigit(l.src[l.pos]) {
		l.pos++
	}
}

// number reads digits, and a fraction if there is one; Jinja's other ways to write numbers are refused.
func (l *lexer) number() {
	start := l.pos
	l.digits()
	isFloat := false
	afterPoint := start > 0 && l.src[start-1] == '.' // a.0.1 is two elements
	if at := l.pos; !afterPoint && at+1 < len(l.src) && l.src[at] == '.' && isDigit(l.src[at+1]) {
		l.pos++
		l.digits()
		isFloat = true
	}
	if l.pos < len(l.src) && (l.src[l.pos] == '_' || 'a' <= l.src[l.pos]|0x20 && l.src[l.pos]|0x20 <= 'z') {
		failAt(start, "%s", unsupported("number", "with "+l.src[l.pos:l.pos+1]))
	}
	text := l.src[start:l.pos]
	if isFloat {
		f, _ := strconv.ParseFloat(text, 64) // out of range is an infinity
		l.emit(token{kind: tokNumber, num: Float(f), pos: start})
		return
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case len(text) > 1 && text[0] == '0' && n != 0:
		failAt(start, "a number must not begin with 0")
	case err != nil:
		failAt(start, "%s", unsupported("number", "of more than 64 bits"))
	}
	l.emit(token{kind: tokNumber, num: Int(n), pos: start})
}

func (l *lexer) operator(r rune) {
	rest := l.src[l.pos:]
	op := ""
	for _, two := range [...]string{"//", "**", "==", "!=", "<=", ">="} {
		if strings.HasPrefix(rest, two) {
			op = two
		}
	}
	if op == "" && r < utf8.RuneSelf && strings.IndexByte("+-/*%~[](){}<>=.:|,;", byte(r)) >= 0 {
		op = rest[:1]
	}
	if op == "" {
		failAt(l.pos, "unexpected character %q", r)
	}
	switch c := op[0]; c {
	case '(', '[', '{':
		l.open = append(l.open, map[byte]byte{'(': ')', '[': ']', '{': '}'}[c])
	case ')', ']', '}':
		n := len(l.open)
		if n == 0 {
			failAt(l.pos, "unexpected %q", op)
		}
		if l.open[n-1] != c {
			failAt(l.pos, "unexpected %q, expected %q", op, string(l.open[n-1]))
		}
		l.open = l.open[:n-1]
	}
	l.emit(token{kind: tokOp, text: op, pos: l.pos})
	l.pos += len(op)
}

// str reads a string with Python's escapes; one that Python does not know stays as it is.
func (l *lexer) str(quote byte) {
	start := l.pos
	l.pos++
	var b strings.Builder
	for {
		if l.pos >= len(l.src) {
			failAt(start, "a string does not end")
		}
		c := l.src[l.pos]
		l.pos++
		if c == quote {
			break
		}
		if c != '\\' {
			b.WriteByte(c)
			continue
		}
		l.escape(&b, start)
	}
	l.emit(token{kind: tokString, text: b.String(), pos: start})
}

func (l *lexer) escape(b *strings.Builder, start int) {
	if l.pos >= len(l.src) {
		failAt(start, "a string does not end")
	}
	c := l.src[l.pos]
	l.pos++
	if i := strings.IndexByte(`\'"abfnrtv`, c); i >= 0 {
		b.WriteByte("\\'\"\a\b\f\n\r\t\v"[i])
		return
	}
	hex := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	switch {
	case c == '\n':
	case hex > 0:
		if l.pos+hex > len(l.src) {
			failAt(start, "a string does not end")
		}
		n, err := strconv.ParseUint(l.src[l.pos:l.pos+hex], 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) {
			failAt(l.pos-2, "\\%c must be followed by %d hexadecimal digits that name a character", c, hex)
		}
		l.pos += hex
		b.WriteRune(rune(n))
	case '0' <= c && c <= '7', c == 'N':
		failAt(l.pos-2, "%s", unsupported("escape", `\`+string(c)))
	default:
		b.WriteByte('\\')
		b.WriteByte(c)
	}
}
