package tokenizer

import "unicode/utf8"

// A seam is a kind of place at which pre-tokenizers cut, whatever else the text has.
type seam uint8

const (
	seamSpace seam = 1 << iota // between an ASCII letter and a space with another one after it
	seamLine                   // between a line break with no white space before it, and a letter
)

// seamsOf is at which seams an expression that models use cuts: no alternative of it crosses one, none looks further
// back, and white space, whose matches look ahead, is not before the one and alone in the other.
var seamsOf = map[string]seam{
	gpt2Expr: seamSpace | seamLine, llama3Expr: seamSpace | seamLine, qwen2Expr: seamSpace | seamLine,
	gpt4oExpr: seamSpace | seamLine, tekkenExpr: seamSpace | seamLine, deepseekExpr: seamSpace | seamLine,
}

// seams lists the seams at which the ids of both sides do not depend on each other, apart from added tokens.
func (t *Pipeline) seams() seam {
	for _, n := range t.normalizers {
		if _, ok := n.(unicodeForm); !ok { // forms combine no character of a seam with what is on the other side
			return 0
		}
	}
	all := seamSpace | seamLine
	for _, s := range t.splitters {
		switch s := s.(type) {
		case prefixSpace:
			all = seamSpace // the right side starts with one
		case metaspace:
			if !s.words {
				return 0
			}
			return all & seamSpace
		case split:
			if s.seams != 0 {
				return all & s.seams
			}
			if !s.inner {
				return 0
			}
		default:
			return 0
		}
	}
	return 0
}

// Cut returns a place after byte from, as late as possible, where a text may be cut: the ids of the two sides, each
// without Template, are those of the whole, whatever follows. Neither side is blank. It is 0 where none is known.
func (t *Pipeline) Cut(text string, from int) int {
	if t.cuts == 0 {
		return 0
	}
	longest := max(t.added.longest, t.addedNormalized.longest)
	// Forms of Unicode make a text shorter by less than that.
	around := 16*longest + 2*utf8.UTFMax
	tries := 100
	for i := len(text) - around; i > max(from, around) && tries > 0; i-- {
		if !t.cuts.at(text, i) {
			continue
		}
		tries--
		left, right := wholeRunes(text, i-around, i), wholeRunes(text, i, i+around)
		if !t.added.touches(left, right) && !t.addedNormalized.touches(t.normalize(left), t.normalize(right)) {
			return i
		}
	}
	return 0
}

// at reports whether a seam of these kinds is before byte i.
func (k seam) at(text string, i int) bool {
	switch {
	case text[i] == ' ':
		return k&seamSpace != 0 && isASCIILetter(text[i-1]) && isASCIILetter(text[i+1])
	case text[i-1] == '\n' && k&seamLine != 0:
		last, _ := utf8.DecodeLastRuneInString(text[:i-1])
		next, _ := utf8.DecodeRuneInString(text[i:])
		return (isInk(last) || last == '。') &&
			(next < utf8.RuneSelf && isASCIILetter(byte(next)) || isIdeograph(next))
	}
	return false
}

// wholeRunes is about text[from:to], without parts of characters at its ends.
func wholeRunes(text string, from, to int) string {
	for from < to && !utf8.RuneStart(text[from]) {
		from++
	}
	for from < to && to < len(text) && !utf8.RuneStart(text[to]) {
		to--
	}
	return text[from:to]
}

// isInk is true for ASCII characters that are seen, and for ideographs.
func isInk(r rune) bool { return r > ' ' && r < 0x7F || isIdeograph(r) }

// isIdeograph is true for common letters that no form of Unicode changes.
func isIdeograph(r rune) bool { return r >= 0x4E00 && r <= 0x9FA5 }

// touches reports whether a token reaches from left to right, or to what is next to the border: it could take white
// space from the other side, or ask whether a word is there.
func (s *addedSet) touches(left, right string) bool {
	text := left + right
	for i := max(0, len(left)-s.longest); i <= min(len(left)+1, len(text)-1); i++ {
		if t := s.at(text, i); t != nil && i+len(t.content) >= len(left)-1 {
			return true
		}
	}
	return false
}

// Cut is [Pipeline.Cut], between any two characters that are seen.
func (byteTokenizer) Cut(text string, from int) int {
	for i := len(text) - utf8.UTFMax; i > max(from, 0); i-- {
		last, _ := utf8.DecodeLastRuneInString(text[:i])
		next, _ := utf8.DecodeRuneInString(text[i:])
		if isInk(last) && isInk(next) {
			return i
		}
	}
	return 0
}
