package tokenizer

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites text before the pre-tokenizer sees it. What it gets and returns is UTF-8.
type normalizer interface {
	normalize(s string) string
}

// unicodeForm is NFC, NFD, NFKC or NFKD.
type unicodeForm norm.Form

// normalize works around two differences between Go's package and the one that `tokenizers` uses. Go's tables are newer, so
// characters of newTo stand for themselves and nothing is reordered or composed across them; and Go cuts runs of more than 30
// marks with a joiner (the Stream-Safe Text Format), so those are done by hand.
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

// newToLibrary holds the characters that have a decomposition or a combining class in Go's tables but not in the older ones of
// the library (found by asking it for each character), and U+11930, which composes to one of them.
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

// replace puts content in the place of each match.
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

// strip removes white space at the ends.
type strip struct{ left, right bool }

func (t strip) normalize(s string) string {
	if t.left {
		s = s[run(s, 0, propSpace):]
	}
	for t.right && s != "" {
		r, n := utf8.DecodeLastRuneInString(s)
		if propsOf(r)&propSpace == 0 {
			break
		}
		s = s[:len(s)-n]
	}
	return s
}

// mapping rewrites each character by itself; -1 removes it.
type mapping func(rune) rune

func (m mapping) normalize(s string) string { return strings.Map(m, s) }

func stripAccents(r rune) rune {
	if propsOf(r)&propAccent != 0 {
		return -1
	}
	return r
}

// lowercase is Rust's, character by character: İ becomes two, and a sigma at the end of a word stays one of the middle.
type lowercase struct{}

func (lowercase) normalize(s string) string {
	if strings.ContainsRune(s, 'İ') {
		s = strings.ReplaceAll(s, "İ", "i\u0307")
	}
	return strings.Map(lower, s)
}

// lower adds to Go's table what Rust's newer one has.
func lower(r rune) rune {
	switch {
	case r < 0x1C89:
	case r == 0x1C89, r == 0xA7CC, r == 0xA7CE, r == 0xA7D2, r == 0xA7D4, r == 0xA7DA:
		return r + 1
	case r == 0xA7CB:
		return 0x264
	case r == 0xA7DC:
		return 0x19B
	case r >= 0x10D50 && r <= 0x10D65:
		return r + 0x20
	case r >= 0x16EA0 && r <= 0x16EB8:
		return r + 0x1B
	}
	return unicode.ToLower(r)
}

// nmt is the cleaning of Google's translation models.
func nmt(r rune) rune {
	switch {
	case r >= 1 && r <= 8, r == 0xB, r >= 0xE && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
		return -1
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200B && r <= 0x200F, r == 0x2028, r == 0x2029, r == 0x2581,
		r == 0xFEFF, r == 0xFFFD:
		return ' '
	}
	return r
}

// bertClean is clean_text of BertNormalizer.
func bertClean(r rune) rune {
	p := propsOf(r)
	switch {
	case r == 0 || r == 0xFFFD:
		return -1
	case p&propSpace != 0 && r != 0x85 && r != '\v' && r != '\f':
		return ' '
	case p&propControl != 0:
		return -1
	}
	return r
}

// spaceHan puts spaces around the characters of handle_chinese_chars.
type spaceHan struct{}

func (spaceHan) normalize(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B81F ||
			r >= 0x2B920 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// stripNonspacing is the strip_accents of BertNormalizer, behind NFD: another table than that of StripAccents.
func stripNonspacing(r rune) rune {
	if propsOf(r)&propBertAccent != 0 {
		return -1
	}
	return r
}

// spellText is the ByteLevel normalizer.
type spellText struct{}

func (spellText) normalize(s string) string { return spelled(s) }

// charsmap is SentencePiece's compiled normalization: a double-array trie (the format of Darts-clone) whose values are places
// in a text of replacements, each ended by a zero byte.
type charsmap struct {
	units []uint32
	texts string
}

func newCharsmap(data []byte) (charsmap, error) {
	if len(data) < 4 {
		return charsmap{}, errors.New("precompiled_charsmap is too short")
	}
	size := int(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if size%4 != 0 || size > len(data) || size == 0 {
		return charsmap{}, errors.New("precompiled_charsmap is not a trie and its texts")
	}
	m := charsmap{units: make([]uint32, size/4), texts: string(data[size:])}
	if !utf8.ValidString(m.texts) {
		return charsmap{}, errors.New("the texts of precompiled_charsmap are not UTF-8")
	}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return m, nil
}

// lookup returns the replacement of the shortest prefix of s that has one. A trie that points outside of itself has none there.
func (m charsmap) lookup(s string) (string, bool) {
	offset := func(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }
	pos := offset(m.units[0])
	for i := range len(s) {
		c := s[i]
		if pos ^= uint32(c); c == 0 || int(pos) >= len(m.units) {
			return "", false
		}
		u := m.units[pos]
		if u&(1<<31|0xFF) != uint32(c) {
			return "", false
		}
		pos ^= offset(u)
		if int(pos) >= len(m.units) {
			return "", false
		}
		if u>>8&1 == 1 {
			at := int(m.units[pos] & (1<<31 - 1))
			if at > len(m.texts) || at < len(m.texts) && !utf8.RuneStart(m.texts[at]) {
				return "", false
			}
			text, _, _ := strings.Cut(m.texts[at:], "\x00")
			return text, true
		}
	}
	return "", false
}

// normalize follows the library: a grapheme cluster of less than six bytes is replaced as a whole if any prefix of it has a
// replacement, and otherwise character by character.
func (m charsmap) normalize(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		end := cluster(s, i)
		if end-i < 6 {
			if text, ok := m.lookup(s[i:end]); ok {
				b.WriteString(text)
				i = end
				continue
			}
		}
		for i < end {
			_, n := propsAt(s, i)
			if text, ok := m.lookup(s[i : i+n]); ok {
				b.WriteString(text)
			} else {
				b.WriteString(s[i : i+n])
			}
			i += n
		}
	}
	return b.String()
}

// cluster returns the end of the grapheme cluster that starts at s[i]. Clusters of six bytes and more need not be right as long
// as they come out with six or more, so flags, families and Indic conjuncts have no rules of their own.
func cluster(s string, i int) int {
	p, n := propsAt(s, i)
	if strings.HasPrefix(s[i:], "\r\n") {
		return i + 2
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	end := i + n
	if prepended := unicode.Is(unicode.Prepended_Concatenation_Mark, r) || r == 0x0D4E; prepended && end < len(s) {
		next, m := propsAt(s, end)
		if next&(propControl|propNewline) != 0 {
			return end
		}
		end += m
	} else if p&(propControl|propNewline) != 0 || r == 0x2028 || r == 0x2029 {
		return end
	}
	for end < len(s) {
		next, m := propsAt(s, end)
		f, _ := utf8.DecodeRuneInString(s[end:])
		jamo := f >= 0x1160 && f <= 0x11FF && (r >= 0x1100 && r <= 0x11FF || r >= 0xAC00 && r <= 0xD7A3)
		if next&propAttached == 0 && !jamo && (r != 0x200D || next&propS == 0) {
			break
		}
		r = f
		end += m
	}
	return end
}
