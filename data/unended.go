package data

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
)

// Unended describes a conversation whose template writes nothing after the assistant's last turn.
//
// A model learns to stop if it learns, after its content, a token at which a generation ends. In a turn that others
// follow, the next token serves if it ends a generation (<|user|> of GLM, which its generation_config.json lists), or
// if it precedes questions only where a turn of the assistant comes first (<|assistant_end|> of Apertus, <|end|> of
// Apriel). After the last turn the token that would come next is added; if no token would, or no generation ends at it,
// EOS is added. LLaMA-Factory (efficient_eos) and TRL's training templates do the same.
type Unended struct {
	template.Unended
	Stops []int32 // ids that end a generation in addition to the tokenizer's EOS
	// IsLast says whether the text ends with a turn that counts.
	IsLast bool
}

// errOpened refuses a template that continues after a turn that it has not ended.
var errOpened = errors.New("the chat template ends the last turn with no token, and writes more text after it: put {% generation %} into the template")

// end makes the tokens that end turns a part of the turns. isEnded says whether the last turn has such a token, or
// needs none; otherwise it needs EOS.
func (u *Unended) end(tok tokenizer.Tokenizer, r Rendered) (ended Rendered, isEnded bool, err error) {
	segments := slices.Clone(r.Segments)
	last, isEnded := 0, false
	for i := range segments {
		if !segments[i].Target {
			continue
		}
		last, isEnded = i, false
		if i+1 < len(segments) && !segments[i+1].Target {
			rest := segments[i+1].Text
			n, stops := u.ending(tok, rest)
			segments[i].Text, segments[i+1].Text = segments[i].Text+rest[:n], rest[n:]
			isEnded = stops
		}
	}
	r.Segments = segments
	switch {
	case isEnded || !u.IsLast:
		return r, true, nil
	case u.closes(tok):
		return r, true, nil
	case last+1 < len(segments) && !blank(segments[last+1].Text):
		return r, false, errOpened
	}
	n, stops := u.ending(tok, u.Next)
	if n > 0 {
		r.Segments = append(r.Segments, Segment{u.Next[:n], true})
	}
	if k := len(r.Turns); k > 0 && r.Turns[k-1] == last { // what is added at the end is of the last turn
		r.Turns = slices.Clone(r.Turns)
		r.Turns[k-1] = len(r.Segments) - 1
	}
	return r, stops, nil
}

// closes reports whether a generation ends at the last token of what closes a call of a tool.
func (u *Unended) closes(tok tokenizer.Tokenizer) bool {
	ids := tok.Encode(strings.TrimSpace(u.Tail), false)
	return len(ids) > 0 && (ids[len(ids)-1] == tok.EOS() || slices.Contains(u.Stops, ids[len(ids)-1]))
}

// ending counts the bytes at the front of a text that are white space and the token that ends the turn before it, and
// says whether a generation ends there.
func (u *Unended) ending(tok tokenizer.Tokenizer, text string) (n int, stops bool) {
	id, n, isSpecial := frontToken(tok, text)
	switch {
	case n == 0:
		return 0, false
	case id == tok.EOS() || slices.Contains(u.Stops, id):
		return n, true
	case isSpecial && u.Header != "" && !strings.Contains(u.Header, tok.Token(id)):
		return n, false
	}
	return 0, false
}

// frontToken is the token at the front of a text, and how many bytes it takes with the white space before it; 0 if no
// token's own text is there.
func frontToken(tok tokenizer.Tokenizer, text string) (id int32, n int, isSpecial bool) {
	front := strings.TrimLeft(text, " \t\r\n")
	ids := tok.Encode(beginning(front), false)
	if len(ids) == 0 {
		return 0, 0, false
	}
	token := tok.Token(ids[0])
	if token == "" || !strings.HasPrefix(front, token) {
		return 0, 0, false
	}
	return ids[0], len(text) - len(front) + len(token), tok.Decode(ids[:1], true) == ""
}

// beginning is enough of a text to find a token at its front.
func beginning(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	n := most
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
