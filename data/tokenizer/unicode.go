package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"unicode/utf8"
)

// props classifies a character as `tokenizers` does: one bit for its general category, or for being white space, and
// flags. They come from a table that was measured (testdata/unicode.py), because that library mixes Unicode tables of several
// ages, and because Go's own become newer with each Go: neither may change the ids of a text.
type props uint32

const (
	propLu props = 1 << iota
	propLl
	propLt
	propLm
	propLo
	propMn
	propMc
	propMe
	propNd
	propNl
	propNo
	propP        // all kinds of punctuation
	propS        // all kinds of symbols
	propOther    // control, format, private use, unassigned
	propNewline  // \r and \n
	propBlank    // any other \s
	propWord     // \w of Oniguruma, the engine of Split and Replace
	propRustWord // \w of Rust's regular expressions, which Whitespace and single_word use
	propPunct    // what Punctuation splits at
	propHan      // \p{Han}
)

const (
	propLetter = propLu | propLl | propLt | propLm | propLo
	propMark   = propMn | propMc | propMe
	propNumber = propNd | propNl | propNo
	propSpace  = propNewline | propBlank
	propRest   = propMark | propP | propS | propOther // [^\s\p{L}\p{N}]
)

//go:embed unicode.tab
var unicodeTab []byte

// propertyPages finds the properties of a character: its page by the upper bits, then the place on the page.
type propertyPages struct {
	page  [utf8.MaxRune>>8 + 1]uint16
	pages [][256]props
	ascii [utf8.RuneSelf]props
}

var properties = readProperties(unicodeTab)

// readProperties decodes unicode.tab; unicode.py describes it. Pages that have one set of properties all over are shared.
func readProperties(tab []byte) *propertyPages {
	sets := make([]props, tab[0])
	tab = tab[1:]
	for i := range sets {
		bits := binary.LittleEndian.Uint32(tab)
		tab = tab[4:]
		if category := bits & 15; category == 0 {
			sets[i] = propOther
		} else {
			sets[i] = propLu << (category - 1)
		}
		if bits&(1<<4) != 0 {
			sets[i] = propBlank
		}
		for flag := range 4 {
			if bits&(1<<(5+flag)) != 0 {
				sets[i] |= propWord << flag
			}
		}
	}
	p := &propertyPages{}
	uniform := map[props]uint16{}
	for r := 0; r <= utf8.MaxRune; {
		length, n := binary.Uvarint(tab)
		set := sets[tab[n]]
		tab = tab[n+1:]
		for end := r + int(length); r < end; {
			if r&255 == 0 && end-r >= 256 {
				at, ok := uniform[set]
				if !ok {
					at = p.addPage(set)
					uniform[set] = at
				}
				p.page[r>>8] = at
				r += 256
				continue
			}
			if r&255 == 0 {
				p.page[r>>8] = p.addPage(0)
			}
			p.pages[p.page[r>>8]][r&255] = set
			r++
		}
	}
	for _, r := range "\r\n" {
		at := &p.pages[p.page[0]][r]
		*at = *at&^propBlank | propNewline
	}
	copy(p.ascii[:], p.pages[p.page[0]][:])
	return p
}

func (p *propertyPages) addPage(set props) uint16 {
	var page [256]props
	for i := range page {
		page[i] = set
	}
	p.pages = append(p.pages, page)
	return uint16(len(p.pages) - 1)
}

func propsOf(r rune) props { return properties.pages[properties.page[r>>8]][r&255] }

// propsAt returns the properties and the width in bytes of the character at s[i]; s is UTF-8.
func propsAt(s string, i int) (props, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return properties.ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return propsOf(r), n
}

// run returns the end of the run of characters of set that starts at s[i], which may be empty.
func run(s string, i int, set props) int {
	for i < len(s) {
		if c := s[i]; c < utf8.RuneSelf {
			if properties.ascii[c]&set == 0 {
				return i
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if propsOf(r)&set == 0 {
			return i
		}
		i += n
	}
	return i
}
