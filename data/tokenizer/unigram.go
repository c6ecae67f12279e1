package tokenizer

import "unicode/utf8"

// unigram gives every token a logarithmic probability and cuts a word where the sum is largest (Viterbi's algorithm).
type unigram struct {
	vocab    map[string]int32
	pieces   *trie
	scores   []float64 // by id
	unk      int32
	unkScore float64
	fallback *[256]int32 // tokens <0x00> to <0xFF>, with byte_fallback
}

// unkPenalty is the score that an unknown character has below the worst token (SentencePiece's kUnkPenalty).
const unkPenalty = 10

// step is the last token of the best way to cut what is before a position.
type step struct {
	score float64
	start int32 // where the token starts, or -1 if nothing ends here
	id    int32
}

func (m *unigram) appendWord(dst []int32, e *encoder, word string) []int32 {
	best := e.best[:0]
	for range len(word) + 1 {
		best = append(best, step{start: -1})
	}
	e.best = best
	offer := func(end int, s step) {
		if best[end].start < 0 || s.score > best[end].score {
			best[end] = s
		}
	}
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		single := false
		node := int32(0)
		k := i
		for ; k < len(word); k++ {
			next, ok := m.pieces.step(node, word[k])
			if !ok {
				break
			}
			node = next
			if id := m.pieces.ids[node]; id != None {
				offer(k+1, step{m.scores[id] + best[i].score, int32(i), id})
				single = single || k+1 == i+n
			}
		}
		e.steps += k - i + 1
		if !single {
			offer(i+n, step{m.unkScore + best[i].score, int32(i), m.unk})
		}
		i += n
	}
	// From the end backwards, neighbouring unknown tokens become one.
	from := len(dst)
	for end := len(word); end > 0; {
		start, id := int(best[end].start), best[end].id
		if id != m.unk {
			dst = append(dst, id)
			end = start
			continue
		}
		for start > 0 && best[start].id == m.unk {
			start = int(best[start].start)
		}
		dst = m.appendUnknown(dst, word[start:end])
		end = start
	}
	for i, j := from, len(dst)-1; i < j; i, j = i+1, j-1 {
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

// appendUnknown appends the ids of text that the best way leaves to the unknown token, last first. The text may still be a
// token: one so unlikely that the unknown token was better.
func (m *unigram) appendUnknown(dst []int32, text string) []int32 {
	if id, ok := m.vocab[text]; ok {
		return append(dst, id)
	}
	if m.fallback != nil {
		n := len(dst)
		for i := len(text) - 1; i >= 0; i-- {
			id := m.fallback[text[i]]
			if id == None {
				return append(dst[:n], m.unk)
			}
			dst = append(dst, id)
		}
		return dst
	}
	return append(dst, m.unk)
}
