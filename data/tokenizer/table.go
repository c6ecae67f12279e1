package tokenizer

import (
	"hash/maphash"
	"math/bits"
)

// pair is two neighbouring tokens of a word, left in the upper half.
type pair uint64

func pairOf(left, right int32) pair { return pair(uint64(uint32(left))<<32 | uint64(uint32(right))) }

// merge replaces a pair by the token id. The pair of the lowest rank is merged first.
type merge struct{ rank, id int32 }

// pairTable maps pairs to merges: open addressing, at most half full. It is asked for every pair of every new word.
type pairTable struct {
	slots []pairSlot
	shift uint8
	size  int
}

type pairSlot struct {
	key pair // plus one, so that zero is an empty slot
	merge
}

func newPairTable(size int) *pairTable {
	width := max(4, bits.Len(uint(size))+1)
	return &pairTable{slots: make([]pairSlot, 1<<width), shift: uint8(64 - width)}
}

func (t *pairTable) start(p pair) uint64 { return uint64(p) * 0x9E3779B97F4A7C15 >> t.shift }

// put enters a pair; the last of equal pairs counts.
func (t *pairTable) put(p pair, m merge) {
	i := t.start(p)
	for t.slots[i].key != 0 && t.slots[i].key != p+1 {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	if t.slots[i].key == 0 {
		if t.size++; 2*t.size > len(t.slots) {
			old := t.slots
			*t = *newPairTable(2 * t.size)
			for _, s := range old {
				if s.key != 0 {
					t.put(s.key-1, s.merge)
				}
			}
			t.put(p, m)
			return
		}
	}
	t.slots[i] = pairSlot{p + 1, m}
}

func (t *pairTable) get(p pair) (merge, bool) {
	i := t.start(p)
	for {
		switch s := &t.slots[i]; s.key {
		case p + 1:
			return s.merge, true
		case 0:
			return merge{}, false
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

// trie holds the bytes of many tokens, for the search of prefixes. Its edges are in one table, from (node, byte) to
// node.
type trie struct {
	edges *pairTable
	ids   []int32 // by node; None where no token ends
}

func newTrie() *trie { return &trie{edges: newPairTable(0), ids: []int32{None}} }

func (t *trie) put(token string, id int32) {
	node := int32(0)
	for i := range len(token) {
		next, ok := t.step(node, token[i])
		if !ok {
			next = int32(len(t.ids))
			t.ids = append(t.ids, None)
			t.edges.put(pairOf(node, int32(token[i])), merge{id: next})
		}
		node = next
	}
	t.ids[node] = id
}

func (t *trie) step(node int32, c byte) (next int32, ok bool) {
	m, ok := t.edges.get(pairOf(node, int32(c)))
	return m.id, ok
}

// longest returns the longest token that s begins with, and its length; None if no token matches.
func (t *trie) longest(s string) (id int32, length int) {
	id = None
	node := int32(0)
	for i := range len(s) {
		next, ok := t.step(node, s[i])
		if !ok {
			break
		}
		node = next
		if t.ids[node] != None {
			id, length = t.ids[node], i+1
		}
	}
	return id, length
}

// Bounds of the word cache of one encoder: words, length of a word in bytes, and all their ids.
const (
	cacheSlots     = 1 << 15
	cacheWords     = cacheSlots / 4 * 3
	cacheWordBytes = 64
	cacheIDs       = 1 << 18
)

// wordCache remembers the ids of words. A full cache is emptied, so that it holds the words of the current text, and it
// allocates nothing once it has grown.
type wordCache struct {
	slots []cacheSlot
	text  []byte  // of all words
	ids   []int32 // of all words
	words int
}

type cacheSlot struct {
	hash          uint64
	text, ids     uint32 // where they start
	length, count uint16 // length zero is an empty slot
}

var cacheSeed = maphash.MakeSeed()

// get returns the ids of a word. Otherwise it returns what put wants to know.
func (c *wordCache) get(word string) (ids []int32, hash uint64, ok bool) {
	hash = maphash.String(cacheSeed, word)
	if len(c.slots) == 0 {
		return nil, hash, false
	}
	for i := hash & (cacheSlots - 1); ; i = (i + 1) & (cacheSlots - 1) {
		s := &c.slots[i]
		if s.length == 0 {
			return nil, hash, false
		}
		if s.hash == hash && string(c.text[s.text:s.text+uint32(s.length)]) == word {
			return c.ids[s.ids : s.ids+uint32(s.count)], hash, true
		}
	}
}

func (c *wordCache) put(word string, hash uint64, ids []int32) {
	if len(c.slots) == 0 {
		c.slots = make([]cacheSlot, cacheSlots)
	}
	if c.words >= cacheWords || len(c.ids)+len(ids) > cacheIDs {
		clear(c.slots)
		c.text, c.ids, c.words = c.text[:0], c.ids[:0], 0
	}
	i := hash & (cacheSlots - 1)
	for c.slots[i].length != 0 {
		i = (i + 1) & (cacheSlots - 1)
	}
	c.slots[i] = cacheSlot{hash: hash, text: uint32(len(c.text)), ids: uint32(len(c.ids)), length: uint16(len(word)), count: uint16(len(ids))}
	c.text, c.ids = append(c.text, word...), append(c.ids, ids...)
	c.words++
}
