package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites text before the pre-tokenizer sees it. Its input and output are UTF-8.
type normalizer interface {
	normalize(s string) string
}

// unicodeForm is NFC, NFD, NFKC or NFKD.
type unicodeForm norm.Form

// normalize works around two differences between Go's package and the one that `tokenizers` uses. Go's tables are
// newer, so characters of newTo stand for themselves and nothing is reordered or composed across them; and Go cuts
// runs of more than 30 marks with a joiner (the Stream-Safe Text Format), so those are done by hand.
func (f unicodeForm) normalize(s string) string {
	form := norm.Form(f)
	if isASCII(s) {
		return s
	}
	strange, marks := false, 0
	for _, r := range s {
		if r < 0x300 {
			marks = 0
			continue
		}
		if unicode.Is(newToLibrary, r) {
			strange = true
			break
		}
		// Some decompositions end in several marks; counting every one of them as 4 never counts too few.
		if p := norm.NFKD.PropertiesString(string(r)); p.CCC() != 0 || p.TrailCCC() != 0 {
			if marks += 4; marks > 24 {
				strange = true
				break
			}
		} else {
			marks = 0
		}
	}
	if !strange {
		return form.String(s)
	}
	var b strings.Builder
	start := 0
	for i, r := range s {
		if unicode.Is(newToLibrary, r) {
			b.WriteString(normalizeByHand(form, s[start:i]))
			b.WriteRune(r)
			start = i + utf8.RuneLen(r)
		}
	}
	b.WriteString(normalizeByHand(form, s[start:]))
	return b.String()
}

// normalizeByHand is the algorithm of Unicode (chapter 3.11), with Go's tables: decompose, order marks, compose.
func normalizeByHand(form norm.Form, s string) string {
	decomposed := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decomposed = norm.NFKD
	}
	var runes []rune
	var class []uint8
	for _, r := range s {
		for _, d := range decomposed.String(string(r)) {
			runes = append(runes, d)
			class = append(class, norm.NFD.PropertiesString(string(d)).CCC())
		}
	}
	for i := 0; i < len(runes); i++ {
		end := i
		for end < len(runes) && class[end] != 0 {
			end++
		}
		if end > i {
			order := make([]int, end-i)
			for k := range order {
				order[k] = i + k
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(class[a]) - int(class[b]) })
			rs, cs := make([]rune, end-i), make([]uint8, end-i)
			for k, at := range order {
				rs[k], cs[k] = runes[at], class[at]
			}
			copy(runes[i:], rs)
			copy(class[i:], cs)
			i = end
		}
	}
	if form == norm.NFD || form == norm.NFKD {
		return string(runes)
	}
	starter, last := -1, uint8(0)
	n := 0
	for i, r := range runes {
		c := class[i]
		if starter >= 0 && (n == starter+1 || last < c) {
			if both, ok := compose(runes[starter], r); ok {
				runes[starter] = both
				continue
			}
		}
		if c == 0 {
			starter = n
		}
		last = c
		runes[n], n = r, n+1
	}
	return string(runes[:n])
}

// compose returns the character that is canonically equal to a and b, if there is one.
func compose(a, b rune) (rune, bool) {
	s := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(s)
	return r, n == len(s)
}

// newToLibrary holds the characters that have a decomposition or a combining class in Go's tables but not in the
// older ones of the library (found by asking it for each character), and U+11930, which composes to one of them.
var newToLibrary = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x07FD, 0x07FD, 1}, {0x0898, 0x089F, 1}, {0x08CA, 0x08D3, 1}, {0x09FE, 0x09FE, 1}, {0x0C3C, 0x0C3C, 1}, {0x0D3B, 0x0D3C, 1},
		{0x0EBA, 0x0EBA, 1}, {0x1715, 0x1715, 1}, {0x1ABF, 0x1ACE, 1}, {0x1DF6, 0x1DFA, 1}, {0x32FF, 0x32FF, 1}, {0xA7F2, 0xA7F4, 1},
		{0xA82C, 0xA82C, 1}, {0xAB69, 0xAB69, 1},
	},
	R32: []unicode.Range32{
		{0x10781, 0x10785, 1}, {0x10787, 0x107B0, 1}, {0x107B2, 0x107BA, 1}, {0x10D24, 0x10D27, 1}, {0x10EAB, 0x10EAC, 1},
		{0x10EFD, 0x10EFF, 1}, {0x10F46, 0x10F50, 1}, {0x10F82, 0x10F85, 1}, {0x11070, 0x11070, 1}, {0x1133B, 0x1133B, 1},
		{0x1145E, 0x1145E, 1}, {0x11839, 0x1183A, 1}, {0x11930, 0x11930, 1}, {0x11938, 0x11938, 1}, {0x1193D, 0x1193E, 1},
		{0x11943, 0x11943, 1}, {0x119E0, 0x119E0, 1}, {0x11A34, 0x11A34, 1}, {0x11A47, 0x11A47, 1}, {0x11A99, 0x11A99, 1},
		{0x11D42, 0x11D42, 1}, {0x11D44, 0x11D45, 1}, {0x11D97, 0x11D97, 1}, {0x11F41, 0x11F42, 1}, {0x16FF0, 0x16FF1, 1},
		{0x1E030, 0x1E06D, 1}, {0x1E08F, 0x1E08F, 1}, {0x1E130, 0x1E136, 1}, {0x1E2AE, 0x1E2AE, 1}, {0x1E2EC, 0x1E2EF, 1},
		{0x1E4EC, 0x1E4EF, 1}, {0x1F16C, 0x1F16C, 1}, {0x1FBF0, 0x1FBF9, 1},
	},
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// replace replaces each match with content.
type replace struct {
	matcher
	content string
}

func (r replace) normalize(s string) string {
	if l, ok := r.matcher.(literal); ok {
		return strings.ReplaceAll(s, string(l), r.content)
	}
	var b strings.Builder
	var m memo
	pos := 0
	for pos < len(s) {
		start, end := r.next(s, pos, &m)
		if start < 0 {
			break
		}
		b.WriteString(s[pos:start])
		b.WriteString(r.content)
		pos = end
	}
	if pos == 0 {
		return s
	}
	b.WriteString(s[pos:])
	return b.String()
}

// prependText puts a text in front of one that is not empty.
type prependText string

func (p prependText) normalize(s string) string {
	if s == "" {
		return s
	}
	return string(p) + s
}

// spellText is the ByteLevel normalizer.
type spellText struct{}

func (spellText) normalize(s string) string { return spelled(s) }
