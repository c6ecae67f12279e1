package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before anything else looks at it.
type addedToken struct {
	id                         int32
	content                    string // as it is searched for: after the normalizer if the token is normalized
	singleWord, lstrip, rstrip bool
}

// addedSet finds tokens in text, leftmost first, longest among those that start at the same byte.
type addedSet struct {
	byFirst [256][]addedToken // longest first
	size    int
}

func newAddedSet(tokens []addedToken) *addedSet {
	s := &addedSet{size: len(tokens)}
	for _, t := range tokens {
		s.byFirst[t.content[0]] = append(s.byFirst[t.content[0]], t)
	}
	for _, ts := range s.byFirst {
		slices.SortStableFunc(ts, func(a, b addedToken) int { return cmp.Compare(len(b.content), len(a.content)) })
	}
	return s
}

// A span is an added token with its id, or text between such tokens with id None.
type span struct {
	text string
	id   int32
}

// find appends the spans of text. A token that must stand as a word of its own and does not is passed over, but what
// it covers is not searched again; stripping takes white space beside the token. Both are as in `tokenizers`.
func (s *addedSet) find(dst []span, text string) []span {
	if s.size == 0 {
		return appendText(dst, text)
	}
	start := 0
	for i := 0; i < len(text); {
		t := s.at(text, i)
		if t == nil {
			i++
			continue
		}
		from, to := i, i+len(t.content)
		i = to
		if t.singleWord && (wordBefore(text[:from]) || wordAfter(text[to:])) {
			continue
		}
		if t.lstrip {
			from = len(strings.TrimRightFunc(text[:from], unicode.IsSpace))
		}
		if t.rstrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
		}
		if from > start {
			dst = appendText(dst, text[start:from])
		}
		dst = append(dst, span{id: t.id})
		start = to
	}
	if start < len(text) {
		dst = appendText(dst, text[start:])
	}
	return dst
}

func (s *addedSet) at(text string, i int) *addedToken {
	ts := s.byFirst[text[i]]
	for k := range ts {
		if strings.HasPrefix(text[i:], ts[k].content) {
			return &ts[k]
		}
	}
	return nil
}

func appendText(dst []span, text string) []span {
	if text == "" {
		return dst
	}
	return append(dst, span{text: text, id: None})
}

func wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode technical standard 18.
func isWord(r rune) bool {
	return classify(r) == letter ||
		unicode.In(r, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Join_Control, unicode.Other_Alphabetic)
}
