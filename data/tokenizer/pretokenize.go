package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// A word is a piece of text on its way through the pre-tokenizer. First says that it begins where the whole text
// begins, which Metaspace asks.
type word struct {
	text  string
	first bool
}

// A splitter is one step of the pre-tokenizer: it yields the words that a piece falls into. No word is empty.
type splitter interface {
	split(piece word, yield func(word))
}

// from is the part of w from byte i to byte j.
func (w word) from(i, j int) word { return word{w.text[i:j], w.first && i == 0} }

// A matcher finds matches in a text.
type matcher interface {
	// next returns the first match that starts at byte i or later; start is -1 without a match. Matches are not empty.
	// The memo belongs to s.
	next(s string, i int, m *memo) (start, end int)
}

func (scan scanner) next(s string, i int, _ *memo) (start, end int) {
	for i < len(s) {
		if end := scan(s, i); end > i {
			return i, end
		}
		i++
		for i < len(s) && !utf8.RuneStart(s[i]) {
			i++
		}
	}
	return -1, -1
}

// literal matches a fixed string.
type literal string

func (l literal) next(s string, i int, _ *memo) (start, end int) {
	start = strings.Index(s[i:], string(l))
	if start < 0 {
		return -1, -1
	}
	return i + start, i + start + len(l)
}

// of returns a scanner of single characters.
func of(set props) scanner {
	return func(s string, i int) int {
		if p, n := propsAt(s, i); p&set != 0 {
			return i + n
		}
		return i
	}
}

// behavior says what becomes of a match: SplitDelimiterBehavior of `tokenizers`.
type behavior uint8

const (
	isolated           behavior = iota // a word of its own
	removed                            // nothing
	mergedWithPrevious                 // part of the word before it
	mergedWithNext                     // part of the word after it
	contiguous                         // one word with adjacent matches
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious, "MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

// split is the step that Split, Punctuation, Digits and others are made of. With invert, what is between the matches
// counts as matches and the other way round.
type split struct {
	matcher
	behavior behavior
	invert   bool
	seams    seam // where it cuts, whatever else the text has
	inner    bool // it cuts only around what is at no seam
}

func (s split) split(piece word, yield func(word)) {
	if scan, ok := s.matcher.(scanner); ok && s.behavior == isolated {
		scan.isolate(piece, yield)
		return
	}
	j := joiner{piece: piece, behavior: s.behavior}
	var m memo
	pos := 0
	for pos < len(piece.text) {
		start, end := s.next(piece.text, pos, &m)
		if start < 0 {
			break
		}
		if start > pos {
			j.add(pos, start, s.invert, yield)
		}
		j.add(start, end, !s.invert, yield)
		pos = end
	}
	if pos < len(piece.text) {
		j.add(pos, len(piece.text), s.invert, yield)
	}
	if j.end > j.start {
		yield(piece.from(j.start, j.end))
	}
}

// isolate yields the matches and what is between them, each for itself.
func (scan scanner) isolate(piece word, yield func(word)) {
	s := piece.text
	start := 0 // of what has not matched
	for i := 0; i < len(s); {
		end := scan(s, i)
		if end == i {
			_, n := propsAt(s, i)
			i += n
			continue
		}
		if i > start {
			yield(piece.from(start, i))
		}
		yield(piece.from(i, end))
		start, i = end, end
	}
	if start < len(s) {
		yield(piece.from(start, len(s)))
	}
}

// joiner puts matches and what is between them together as a behavior says. It holds the last part back, since the
// next one may join it.
type joiner struct {
	piece      word
	behavior   behavior
	start, end int
	wasMatch   bool
}

func (j *joiner) add(start, end int, isMatch bool, yield func(word)) {
	joins := false
	switch j.behavior {
	case removed:
		if !isMatch {
			yield(j.piece.from(start, end))
		}
		return
	case mergedWithPrevious:
		joins = isMatch && !j.wasMatch
	case mergedWithNext:
		joins = j.wasMatch && !isMatch
	case contiguous:
		joins = isMatch == j.wasMatch
	}
	j.wasMatch = isMatch
	if joins && j.end > j.start {
		j.end = end
		return
	}
	if j.end > j.start {
		yield(j.piece.from(j.start, j.end))
	}
	j.start, j.end = start, end
}

// prefixSpace puts a space before a piece that does not start with one.
type prefixSpace struct{}

func (prefixSpace) split(piece word, yield func(word)) {
	if !strings.HasPrefix(piece.text, " ") {
		piece.text = " " + piece.text
	}
	yield(piece)
}

// spellBytes replaces every byte by its letter in the byte-level alphabet. A BPE that ends in it works on the bytes
// themselves.
type spellBytes struct{}

func (spellBytes) split(piece word, yield func(word)) {
	piece.text = spelled(piece.text)
	yield(piece)
}

// prepend is Metaspace's prepend_scheme.
type prepend uint8

const (
	prependAlways prepend = iota
	prependFirst          // only at the start of the whole text
	prependNever
)

// metaspace spells spaces as a mark, puts one in front, and starts a word at each.
type metaspace struct {
	mark   string
	scheme prepend
	words  bool // start words; otherwise the piece stays whole
}

func (m metaspace) split(piece word, yield func(word)) {
	s := strings.ReplaceAll(piece.text, " ", m.mark)
	if !strings.HasPrefix(s, m.mark) && (m.scheme == prependAlways || m.scheme == prependFirst && piece.first) {
		s = m.mark + s
	}
	piece.text = s
	if !m.words {
		yield(piece)
		return
	}
	start := 0
	for start < len(s) {
		end := len(s)
		if i := strings.Index(s[start+1:], m.mark); i >= 0 {
			end = start + 1 + i
		}
		yield(piece.from(start, end))
		start = end
	}
}

// scanWhitespaceStep scans the pattern `\w+|[^\w\s]+` of the Whitespace step, in Rust's reading.
func scanWhitespaceStep(s string, i int) int {
	p, n := propsAt(s, i)
	switch {
	case p&propRustWord != 0:
		return run(s, i+n, propRustWord)
	case p&propSpace != 0:
		return i
	}
	for i += n; i < len(s); i += n {
		if p, n = propsAt(s, i); p&(propRustWord|propSpace) != 0 {
			break
		}
	}
	return i
}

// scanDigit scans one character that Rust calls numeric. Its tables are a little newer than those of the expressions.
func scanDigit(s string, i int) int {
	p, n := propsAt(s, i)
	if p&propNumber != 0 {
		return i + n
	}
	if n == 4 {
		if r, _ := utf8.DecodeRuneInString(s[i:]); r >= 0x11DE0 && r <= 0x11DE9 || r >= 0x16FF4 && r <= 0x16FF6 {
			return i + n
		}
	}
	return i
}
