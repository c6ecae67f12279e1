package tokenizer

import "math"

// pair is two neighbouring tokens of a word, left in the upper half.
type pair uint64

func pairOf(left, right int32) pair { return pair(uint64(uint32(left))<<32 | uint64(uint32(right))) }

// merge is what becomes of a pair: the token id, in the order of rank.
type merge struct{ rank, id int32 }

// shortWord is the length in tokens up to which looking at all pairs after each merge is faster than a heap.
const shortWord = 24

// wordCacheEntries and wordCacheBytes bound the cache of one encoder: entries, and length of a word.
const (
	wordCacheEntries = 1 << 16
	wordCacheBytes   = 64
)

// encoder is the scratch of one Encode call. Encoders are pooled, so each cache of words is used by one call at a time
// and needs no lock.
type encoder struct {
	known      map[string][]int32 // the ids of words seen before
	spans      []span
	normalized []span
	words      []func(string) // the steps of the pre-tokenizer, then the merges
	dst        []int32        // what the last step appends to
	symbols    []symbol
	heap       mergeHeap
}

// symbol is a token of the word at hand in a doubly linked list of indices; a symbol merged into its left neighbour
// has the id None.
type symbol struct{ id, prev, next int32 }

// appendWord appends the ids of one word of the pre-tokenizer.
func (t *BPE) appendWord(dst []int32, e *encoder, word string) []int32 {
	if ids, ok := e.known[word]; ok {
		return append(dst, ids...)
	}
	n := len(dst)
	dst = t.mergeWord(dst, e, word)
	if len(word) <= wordCacheBytes {
		if len(e.known) >= wordCacheEntries {
			clear(e.known)
		}
		// The key must be a copy: a part of the text would keep the text alive.
		e.known[string([]byte(word))] = append([]int32(nil), dst[n:]...)
	}
	return dst
}

func (t *BPE) mergeWord(dst []int32, e *encoder, word string) []int32 {
	if t.ignoreMerges {
		if id, ok := t.wordID[word]; ok {
			return append(dst, id)
		}
	}
	n := len(dst)
	for i := range len(word) {
		id := t.byteID[word[i]]
		if id == None {
			// An alphabet symbol without a token: the unknown token, once per byte or per run, or nothing.
			if t.unk == None || t.fuseUnk && i > 0 && t.byteID[word[i-1]] == None {
				continue
			}
			id = t.unk
		}
		dst = append(dst, id)
	}
	if len(dst)-n <= shortWord {
		return dst[:n+t.mergeShort(dst[n:])]
	}
	return dst[:n+t.mergeLong(dst[n:], e)]
}

// mergeShort applies the merges to ids in place and returns how many remain: again and again the pair of lowest rank,
// the leftmost of equals.
func (t *BPE) mergeShort(ids []int32) int {
	var ranks, tokens [shortWord]int32
	lookup := func(i int) {
		ranks[i] = math.MaxInt32
		if i+1 < len(ids) {
			if m, ok := t.merges[pairOf(ids[i], ids[i+1])]; ok {
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
		if len(ids) == 0 || ranks[best] == math.MaxInt32 {
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
func (t *BPE) mergeLong(ids []int32, e *encoder) int {
	e.symbols = e.symbols[:0]
	for i, id := range ids {
		e.symbols = append(e.symbols, symbol{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	syms := e.symbols
	syms[len(syms)-1].next = -1
	heap := e.heap[:0]
	lookup := func(i int32) (merge, bool) {
		if i < 0 || syms[i].id == None || syms[i].next < 0 {
			return merge{}, false
		}
		m, ok := t.merges[pairOf(syms[i].id, syms[syms[i].next].id)]
		return m, ok
	}
	push := func(i int32) {
		if m, ok := lookup(i); ok {
			heap.push(uint64(m.rank)<<32 | uint64(i))
		}
	}
	for i := range ids {
		push(int32(i))
	}
	for len(heap) > 0 {
		top := heap.pop()
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
	n := 0
	for _, s := range syms {
		if s.id != None {
			ids[n] = s.id
			n++
		}
	}
	return n
}

// mergeHeap is a binary heap, smallest first. Its keys are rank<<32 | position.
type mergeHeap []uint64

func (h *mergeHeap) push(key uint64) {
	*h = append(*h, key)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if s[parent] <= s[i] {
			break
		}
		s[parent], s[i] = s[i], s[parent]
		i = parent
	}
}

func (h *mergeHeap) pop() uint64 {
	s := *h
	top := s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s) {
			return top
		}
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if s[i] <= s[child] {
			return top
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
}
