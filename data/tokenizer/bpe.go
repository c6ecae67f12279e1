package tokenizer

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A model turns a word into ids.
type model interface {
	appendWord(dst []int32, e *encoder, word string) []int32
}

// bpe is byte-pair encoding: a word starts as its characters, or its bytes if the pre-tokenizer ends in ByteLevel,
// and again and again the pair of neighbours that was learned first becomes one.
type bpe struct {
	vocab   map[string]int32 // by spelling
	merges  *pairTable
	unk     int32
	fuseUnk bool

	byteLevel bool
	byteID    [256]int32       // with byteLevel; None where the vocabulary has no token for a byte
	whole     map[string]int32 // words that are not cut up: with ignore_merges; nil without

	plane    []int32 // tokens of one character, up to U+FFFF
	other    map[rune]int32
	fallback *[256]int32 // tokens <0x00> to <0xFF>, with byte_fallback
}

// symbol is a token of the current word in a doubly linked list of indices; a symbol merged into its left neighbour
// has the id None.
type symbol struct{ id, prev, next int32 }

// shortWord is the length in tokens up to which looking at all pairs after each merge is faster than a heap.
const shortWord = 24

func (m *bpe) appendWord(dst []int32, e *encoder, word string) []int32 {
	if id, ok := m.whole[word]; ok {
		return append(dst, id)
	}
	n := len(dst)
	if m.byteLevel {
		dst = m.appendBytes(dst, word)
	} else {
		dst = m.appendCharacters(dst, word)
	}
	if len(dst)-n <= shortWord {
		return dst[:n+m.mergeShort(dst[n:])]
	}
	return dst[:n+m.mergeLong(dst[n:], e)]
}

func (m *bpe) appendBytes(dst []int32, word string) []int32 {
	for i := range len(word) {
		id := m.byteID[word[i]]
		if id == None {
			// An alphabet symbol without a token: the unknown token, once per byte or per run, or nothing.
			if m.unk == None || m.fuseUnk && i > 0 && m.byteID[word[i-1]] == None {
				continue
			}
			id = m.unk
		}
		dst = append(dst, id)
	}
	return dst
}

// appendCharacters keeps an unknown token back until a known character or the end follows, as the library does: what
// byte fallback finds in between comes before it.
func (m *bpe) appendCharacters(dst []int32, word string) []int32 {
	pending := false
	for i, r := range word {
		id := m.character(r)
		if id != None {
			if pending {
				dst, pending = append(dst, m.unk), false
			}
			dst = append(dst, id)
			continue
		}
		if m.fallback != nil {
			if spelling := word[i : i+utf8.RuneLen(r)]; m.falls(spelling) {
				for k := range len(spelling) {
					dst = append(dst, m.fallback[spelling[k]])
				}
				continue
			}
		}
		if m.unk != None {
			if pending && !m.fuseUnk {
				dst = append(dst, m.unk)
			}
			pending = true
		}
	}
	if pending {
		dst = append(dst, m.unk)
	}
	return dst
}

func (m *bpe) character(r rune) int32 {
	if int(r) < len(m.plane) {
		return m.plane[r]
	}
	if id, ok := m.other[r]; ok {
		return id
	}
	return None
}

// falls reports whether all bytes have tokens of byte fallback.
func (m *bpe) falls(s string) bool {
	for i := range len(s) {
		if m.fallback[s[i]] == None {
			return false
		}
	}
	return true
}

// setCharacters fills plane and other.
func (m *bpe) setCharacters() {
	m.plane = make([]int32, 1<<16)
	for i := range m.plane {
		m.plane[i] = None
	}
	m.other = map[rune]int32{}
	for token, id := range m.vocab {
		r, n := utf8.DecodeRuneInString(token)
		if n != len(token) {
			continue
		}
		if int(r) < len(m.plane) {
			m.plane[r] = id
		} else {
			m.other[r] = id
		}
	}
}

// mergeShort applies the merges to ids in place and returns how many remain: again and again the pair of lowest rank,
// the leftmost of equals.
func (m *bpe) mergeShort(ids []int32) int {
	if len(ids) < 2 {
		return len(ids)
	}
	var ranks, tokens [shortWord]int32
	lookup := func(i int) {
		ranks[i] = math.MaxInt32
		if i+1 < len(ids) {
			if m, ok := m.merges.get(pairOf(ids[i], ids[i+1])); ok {
				ranks[i], tokens[i] = m.rank, m.id
			}
		}
	}
	for i := range ids {
		lookup(i)
	}
	for {
		best := 0
		for i := 1; i < len(ids); i++ {
			if ranks[i] < ranks[best] {
				best = i
			}
		}
		if ranks[best] == math.MaxInt32 {
			return len(ids)
		}
		ids[best] = tokens[best]
		copy(ids[best+1:], ids[best+2:])
		copy(ranks[best+1:], ranks[best+2:len(ids)])
		copy(tokens[best+1:], tokens[best+2:len(ids)])
		ids = ids[:len(ids)-1]
		lookup(best)
		if best > 0 {
			lookup(best - 1)
		}
	}
}

// mergeLong does what mergeShort does, in n log n.
func (m *bpe) mergeLong(ids []int32, e *encoder) int {
	e.symbols = e.symbols[:0]
	for i, id := range ids {
		e.symbols = append(e.symbols, symbol{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	syms := e.symbols
	syms[len(syms)-1].next = -1
	heap := e.heap[:0]
	steps := 0
	lookup := func(i int32) (merge, bool) {
		steps++
		if i < 0 || syms[i].id == None || syms[i].next < 0 {
			return merge{}, false
		}
		return m.merges.get(pairOf(syms[i].id, syms[syms[i].next].id))
	}
	push := func(i int32) {
		if m, ok := lookup(i); ok {
			steps += heap.push(uint64(m.rank)<<32 | uint64(i))
		}
	}
	for i := range ids {
		push(int32(i))
	}
	for len(heap) > 0 {
		top, moves := heap.pop()
		steps += moves
		i := int32(uint32(top))
		m, ok := lookup(i)
		if !ok || uint64(m.rank) != top>>32 {
			continue // One of the two has been merged with another neighbour since.
		}
		gone := syms[i].next
		syms[i].id, syms[i].next = m.id, syms[gone].next
		syms[gone].id = None
		if next := syms[i].next; next >= 0 {
			syms[next].prev = i
		}
		push(i)
		push(syms[i].prev)
	}
	e.heap = heap
	e.steps += steps
	n := 0
	for _, s := range syms {
		if s.id != None {
			ids[n] = s.id
			n++
		}
	}
	return n
}

// mergeHeap is a binary heap, smallest first. Its keys are rank<<32 | position. Push and pop return how far keys moved.
type mergeHeap []uint64

func (h *mergeHeap) push(key uint64) (moves int) {
	*h = append(*h, key)
	s := *h
	for i := len(s) - 1; i > 0; moves++ {
		parent := (i - 1) / 2
		if s[parent] <= s[i] {
			break
		}
		s[parent], s[i] = s[i], s[parent]
		i = parent
	}
	return moves
}

func (h *mergeHeap) pop() (top uint64, moves int) {
	s := *h
	top = s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	for i := 0; ; moves++ {
		child := 2*i + 1
		if child >= len(s) {
			return top, moves
		}
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if s[i] <= s[child] {
			return top, moves
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
}

// wordMark spells a space in vocabularies that come from SentencePiece.
const wordMark = "▁"

// cutter cuts a word before each wordMark where no merge can reach across: where no merge has a left side that ends
// in the character before the mark and a right side that begins with the mark. Merges on the two sides then do not
// see each other, so that the ids stay the same, while a text that no pre-tokenizer cuts (Llama 2, Gemma) becomes
// words short enough to be remembered.
type cutter struct {
	reaches map[rune]bool // characters before a mark that a merge may join with it
}

// newCutter returns nil where the tokens of a word are not those of its characters, so that the argument above does
// not hold.
func newCutter(m *bpe, merges [][2]string) *cutter {
	mark, _ := utf8.DecodeRuneInString(wordMark)
	if m.byteLevel || m.whole != nil || m.plane[mark] == None {
		return nil
	}
	c := &cutter{reaches: map[rune]bool{}}
	isStrange := func(token string) bool {
		id := m.vocab[token]
		return id == m.unk || m.fallback != nil && byteToken(token) >= 0
	}
	for _, pair := range merges {
		if isStrange(pair[0]) || isStrange(pair[1]) {
			return nil
		}
		if strings.HasPrefix(pair[1], wordMark) {
			r, _ := utf8.DecodeLastRuneInString(pair[0])
			c.reaches[r] = true
		}
	}
	return c
}

func (c *cutter) split(piece word, yield func(word)) {
	s := piece.text
	start := 0
	for i := 0; ; {
		at := strings.Index(s[i:], wordMark)
		if at < 0 {
			break
		}
		i += at
		if r, _ := utf8.DecodeLastRuneInString(s[:i]); i > start && !c.reaches[r] {
			yield(piece.from(start, i))
			start = i
		}
		i += len(wordMark)
	}
	if start < len(s) {
		yield(piece.from(start, len(s)))
	}
}

// byteToken returns the byte that a token like <0x0A> stands for, or -1.
func byteToken(token string) int {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return -1
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	if err != nil {
		return -1
	}
	return int(b)
}
