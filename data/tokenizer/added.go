package tokenizer

import (
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
	tokens  []addedToken
	first   [256]bool // whether a token starts with a byte
	indices *trie     // of tokens, by content
	longest int       // of the tokens, in bytes
}

func newAddedSet(tokens []addedToken) *addedSet {
	s := &addedSet{tokens: tokens, indices: newTrie()}
	for i, t := range tokens {
		s.first[t.content[0]] = true
		s.longest = max(s.longest, len(t.content))
		s.indices.put(t.content, int32(i))
	}
	return s
}

// A span is an added token with its id, or text between such tokens with id None.
type span struct {
	text string
	id   int32
}

// find appends the spans of text. A token that must be a word of its own and is not is skipped, but its span is not
// searched again; stripping takes white space around the token. Both are as in `tokenizers`.
func (s *addedSet) find(dst []span, text string) []span {
	if len(s.tokens) == 0 {
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
	if !s.first[text[i]] {
		return nil
	}
	if k, _ := s.indices.longest(text[i:]); k != None {
		return &s.tokens[k]
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
	return n > 0 && propsOf(r)&propRustWord != 0
}

func wordAfter(s string) bool {
	if s == "" {
		return false
	}
	p, _ := propsAt(s, 0)
	return p&propRustWord != 0
}
