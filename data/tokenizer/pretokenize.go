package tokenizer

import (
	"fmt"
	"strings"

	"github.com/dlclark/regexp2"
)

// A splitter is one step of the pre-tokenizer: it yields the words that piece falls into. No word is empty.
type splitter interface {
	split(piece string, yield func(word string))
}

// split makes every scanner a splitter.
func (next scanner) split(piece string, yield func(string)) {
	for i := 0; i < len(piece); {
		end := next(piece, i)
		yield(piece[i:end])
		i = end
	}
}

// digits separates numbers from the rest: each character for itself, or each run.
type digits struct{ individual bool }

func (d digits) split(piece string, yield func(string)) {
	start, inRun := 0, false
	for i := 0; i < len(piece); {
		c, n := classAt(piece, i)
		isNumber := c == number
		if i > start && (isNumber != inRun || isNumber && d.individual) {
			yield(piece[start:i])
			start = i
		}
		inRun = isNumber
		i += n
	}
	if start < len(piece) {
		yield(piece[start:])
	}
}

// prefixSpace puts a space before a piece that does not start with one.
type prefixSpace struct{}

func (prefixSpace) split(piece string, yield func(string)) {
	if !strings.HasPrefix(piece, " ") {
		piece = " " + piece
	}
	yield(piece)
}

// keep says which parts of a piece a Split step leaves in place.
type keep uint8

const (
	keepAll     keep = iota // matches and what is between them, each for itself
	keepMatches             // matches only
	keepBetween             // what is between the matches only
)

func (k keep) match(part string, yield func(string)) {
	if part != "" && k != keepBetween {
		yield(part)
	}
}

func (k keep) between(part string, yield func(string)) {
	if part != "" && k != keepMatches {
		yield(part)
	}
}

// literal splits at a fixed string.
type literal struct {
	text string
	keep keep
}

func (l literal) split(piece string, yield func(string)) {
	for {
		i := strings.Index(piece, l.text)
		if i < 0 {
			l.keep.between(piece, yield)
			return
		}
		l.keep.between(piece[:i], yield)
		l.keep.match(piece[i:i+len(l.text)], yield)
		piece = piece[i+len(l.text):]
	}
}

// expression splits at the matches of a regular expression without a scanner of its own. It uses a backtracking
// engine, since the models' expressions look ahead.
type expression struct {
	re   *regexp2.Regexp
	keep keep
}

func (e expression) split(piece string, yield func(string)) {
	// Matches are counted in characters; at walks along in bytes.
	chars, at, prev := 0, 0, 0
	toByte := func(char int) int {
		for ; chars < char; chars++ {
			at++
			for at < len(piece) && piece[at]&0xC0 == 0x80 {
				at++
			}
		}
		return at
	}
	// The engine's only error is a timeout, and none is set.
	for m, _ := e.re.FindStringMatch(piece); m != nil; m, _ = e.re.FindNextMatch(m) {
		start := toByte(m.Index)
		end := toByte(m.Index + m.Length)
		e.keep.between(piece[prev:start], yield)
		e.keep.match(piece[start:end], yield)
		prev = end
	}
	e.keep.between(piece[prev:], yield)
}

// foldedContractions is the one use of (?i) that the models make. Engines disagree on what ignoring case means
// beyond ASCII, so it is spelled out as the engine of `tokenizers` understands it.
var foldedContractions = strings.NewReplacer(
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`,
)

// compileSplit compiles an expression in the syntax of Oniguruma, which `tokenizers` uses. Where the engine here would
// accept it with another meaning, it returns an error. One difference stays: characters that are newer than Go's Unicode
// tables have no category in the engine here, so laterLetters count as neither letters nor numbers.
func compileSplit(expr string) (*regexp2.Regexp, error) {
	expr = foldedContractions.Replace(expr)
	inClass := false
	for i := 0; i < len(expr); i++ {
		switch c := expr[i]; {
		case c == '\\' && i+1 < len(expr):
			i++
			if strings.IndexByte("wWbBhHRXKgky", expr[i]) >= 0 {
				return nil, fmt.Errorf(`escape \%c in pattern %q is not supported`, expr[i], expr)
			}
		case inClass && c == '[', inClass && c == '&' && strings.HasPrefix(expr[i:], "&&"):
			return nil, fmt.Errorf("nested character class in pattern %q is not supported", expr)
		case c == '[':
			inClass = true
			// A bracket that closes at once is a member of the class.
			if strings.HasPrefix(expr[i+1:], "]") || strings.HasPrefix(expr[i+1:], "^]") {
				return nil, fmt.Errorf("bare ] in a character class of pattern %q is not supported", expr)
			}
		case c == ']':
			inClass = false
		case !inClass && c == '(' && strings.HasPrefix(expr[i:], "(?"):
			if i+2 < len(expr) && strings.IndexByte(":=!<", expr[i+2]) < 0 {
				return nil, fmt.Errorf("group (?%c in pattern %q is not supported", expr[i+2], expr)
			}
		case !inClass && (c == '+' || c == '*' || c == '?') && i+1 < len(expr) && expr[i+1] == '+':
			return nil, fmt.Errorf("possessive quantifier in pattern %q is not supported", expr)
		}
	}
	// Oniguruma's ^ and $ are those of a line.
	re, err := regexp2.Compile(expr, regexp2.Multiline)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", expr, err)
	}
	return re, nil
}
