package data

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
)

// encodeJoined encodes segments as one text and says which tokens have a byte of a target: the rule of transformers'
// return_assistant_tokens_mask. after is, for each segment that is a target, the place after its last token.
func encodeJoined(tok tokenizer.Tokenizer, segments []Segment) (ids []int32, targets []bool, after []int) {
	var all strings.Builder
	for _, s := range segments {
		all.WriteString(s.Text)
	}
	text := all.String()
	ids = tok.Encode(text, false)
	targets = make([]bool, len(ids))
	ends := tokenEnds(tok, text, ids)
	after = make([]int, len(segments))
	from, token := 0, 0 // the segment's first byte, and the first token that ends after it
	for i, s := range segments {
		to := from + len(s.Text)
		if s.Target && to > from {
			first, last := 0, 0
			if ends != nil {
				for token < len(ids) && ends[token] <= from {
					token++
				}
				first, last = token, token
				for last < len(ids) && (last == 0 || ends[last-1] < to) {
					last++
				}
			} else {
				first, last = tokensBefore(tok, text[:from], ids, false), tokensBefore(tok, text[:to], ids, true)
			}
			for t := first; t < last; t++ {
				targets[t] = true
			}
			after[i] = last
		}
		from = to
	}
	return ids, targets, after
}

// tokenEnds returns the offset in text after each token, or nil where the tokens do not spell the text byte by byte, as
// after a normalizer.
func tokenEnds(tok tokenizer.Tokenizer, text string, ids []int32) []int {
	ends := make([]int, len(ids))
	var spelled []byte
	at := 0
	for i, id := range ids {
		spelled = tok.AppendBytes(spelled[:0], id, false)
		if !strings.HasPrefix(text[at:], string(spelled)) {
			return nil
		}
		at += len(spelled)
		ends[i] = at
	}
	if at != len(text) {
		return nil
	}
	return ends
}

// tokensBefore counts the tokens of a text that its beginning has, by encoding the beginning alone. A token that
// reaches over the end counts if whole is set.
func tokensBefore(tok tokenizer.Tokenizer, beginning string, ids []int32, whole bool) int {
	part := tok.Encode(beginning, false)
	n := 0
	for n < len(part) && n < len(ids) && part[n] == ids[n] {
		n++
	}
	if whole && n < len(part) && n < len(ids) {
		n++
	}
	return n
}

// cut makes segments of a text and the spans of it that are targets, which are in order and do not overlap.
func cut(text string, spans []template.Span) []Segment {
	var all []Segment
	at := 0
	for _, s := range spans {
		if s.Start > at {
			all = append(all, Segment{text[at:s.Start], false})
		}
		all = append(all, Segment{text[s.Start:s.End], true})
		at = s.End
	}
	if at < len(text) {
		all = append(all, Segment{text[at:], false})
	}
	return slices.DeleteFunc(all, func(s Segment) bool { return s.Text == "" })
}
