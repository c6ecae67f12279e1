package template

import (
	"strings"
	"unicode/utf8"
)

// A render is charged for memory before it is made, not after: a list of the parts of a text, at 16 bytes a part, can be
// many times the text. So in this package what grows, grows here: a list of values or of texts by its add, and bytes by
// room. Each doubles its memory, and charges what it takes first. Where the size is known, alloc comes first, and then
// one make. archtest holds that no other file of the package appends to a list of values or of texts, or splits a text.

// parts are texts that an operation cuts off, or joins.
type parts struct {
	s    *state
	list []string
}

// add keeps a text.
func (p *parts) add(text string) {
	p.list = grown(p.s, p.list, valueBytes)
	p.list = append(p.list, text)
}

// joined is all texts with a separator between them.
func (p *parts) joined(sep string) Value {
	size := len(sep) * max(len(p.list)-1, 0)
	for _, text := range p.list {
		size += len(text)
		if size < 0 {
			break // and alloc fails
		}
	}
	p.s.alloc(size)
	return String(strings.Join(p.list, sep))
}

// values are items of a list that an operation makes.
type values struct {
	s    *state
	list []Value
}

// add keeps a value.
func (v *values) add(item Value) {
	v.list = grown(v.s, v.list, valueBytes)
	v.list = append(v.list, item)
}

// addText keeps a text, which takes memory as a value.
func (v *values) addText(text string) {
	v.s.alloc(valueBytes)
	v.add(String(text))
}

// grown is a list with room for one more.
func grown[T any](s *state, list []T, bytes int) []T {
	if len(list) < cap(list) {
		return list
	}
	n := max(2*len(list), 4)
	s.alloc(bytes * n)
	return append(make([]T, 0, n), list...)
}

// all is a list of the items of others.
func (s *state) all(lists ...[]Value) []Value {
	n := 0
	for _, list := range lists {
		n += len(list)
	}
	s.alloc(valueBytes * n)
	items := make([]Value, 0, n)
	for _, list := range lists {
		items = append(items, list...)
	}
	return items
}

// room is bytes with room for n more.
func (s *state) room(b []byte, n int) []byte {
	if n <= cap(b)-len(b) {
		return b
	}
	size := max(2*cap(b), len(b)+n, 64)
	s.alloc(size)
	return append(make([]byte, 0, size), b...)
}

// appended is bytes with a text after them.
func (s *state) appended(b []byte, text string) []byte { return append(s.room(b, len(text)), text...) }

// text is bytes as a text of its own.
func (s *state) text(b []byte) string {
	s.alloc(len(b))
	return string(b)
}

// runeSet is the characters of a text, for one look at each character of another.
type runeSet struct {
	ascii [2]uint64
	other map[rune]bool
}

func (s *state) runeSet(text string) *runeSet {
	set := &runeSet{}
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf:
			set.ascii[r>>6] |= 1 << (r & 63)
		case !set.other[r]:
			s.alloc(4 * valueBytes)
			if set.other == nil {
				set.other = map[rune]bool{}
			}
			set.other[r] = true
		}
	}
	return set
}

func (set *runeSet) has(r rune) bool {
	if r >= 0 && r < utf8.RuneSelf {
		return set.ascii[r>>6]>>(r&63)&1 == 1
	}
	return set.other[r]
}
