package demo

import (
	"encoding/json"
	"regexp"
	"strings"
)

// words cuts ASCII text into words, as GPT-2 does except for spaces before a word. A token never has parts of two
// words.
var words = regexp.MustCompile(`'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+`)

// learnTokenizer returns a tokenizer.json of byte pair encoding for an ASCII text: the 256 bytes, the most frequent
// pairs, and endOfText. The vocabulary is smaller than asked for where the text has too few pairs that occur twice.
//
// Source: Sennrich, Haddow, Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.
func learnTokenizer(text string, vocabulary int) ([]byte, error) {
	tokens := alphabet()
	pairs := countPairs(text)
	var merges []string
	for len(tokens) < vocabulary-1 {
		p, times := pairs.mostFrequent()
		if times < 2 {
			break
		}
		left, right := tokens[p[0]], tokens[p[1]]
		pairs.merge(p, len(tokens))
		merges = append(merges, left+" "+right)
		tokens = append(tokens, left+right)
	}
	ids := map[string]int{endOfText: len(tokens)}
	for id, token := range tokens {
		ids[token] = id
	}
	type object = map[string]any
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return json.Marshal(object{
		"version": "1.0",
		"added_tokens": []object{{"id": len(tokens), "content": endOfText, "special": true, "normalized": false,
			"single_word": false, "lstrip": false, "rstrip": false}},
		"pre_tokenizer": byteLevel, // use_regex: GPT-2's words, which llama.cpp knows
		"decoder":       byteLevel,
		"model":         object{"type": "BPE", "vocab": ids, "merges": merges},
	})
}

// pair is two neighbouring tokens, by id.
type pair [2]int

// pairCounts counts each pair in a text, whose words are kept once each.
type pairCounts struct {
	words  [][]int // tokens of each word
	counts []int   // of the words in the text
	pairs  map[pair]int
	where  map[pair][]int // words that have, or had, the pair
}

func countPairs(text string) *pairCounts {
	c := &pairCounts{pairs: map[pair]int{}, where: map[pair][]int{}}
	index := map[string]int{}
	for _, word := range words.FindAllString(text, -1) {
		i, known := index[word]
		if !known {
			i = len(c.words)
			index[word] = i
			ids := make([]int, len(word))
			for j := range ids {
				ids[j] = int(word[j])
			}
			c.words, c.counts = append(c.words, ids), append(c.counts, 0)
		}
		c.counts[i]++
	}
	for i := range c.words {
		c.add(i, 1)
	}
	return c
}

// add counts the pairs of a word, sign times.
func (c *pairCounts) add(word, sign int) {
	ids := c.words[word]
	for j := range len(ids) - 1 {
		p := pair{ids[j], ids[j+1]}
		c.pairs[p] += sign * c.counts[word]
		if sign > 0 {
			c.where[p] = append(c.where[p], word)
		}
	}
}

// mostFrequent returns the pair that occurs most often; of equals, the one with the lowest ids, so that a text has
// one tokenizer.
func (c *pairCounts) mostFrequent() (best pair, times int) {
	for p, n := range c.pairs {
		if n > times || n == times && (p[0] < best[0] || p[0] == best[0] && p[1] < best[1]) {
			best, times = p, n
		}
	}
	return best, times
}

// merge replaces a pair by a new token in all words, from the left.
func (c *pairCounts) merge(p pair, token int) {
	for _, word := range c.where[p] {
		ids := c.words[word]
		merged := make([]int, 0, len(ids))
		for j := 0; j < len(ids); j++ {
			if j+1 < len(ids) && (pair{ids[j], ids[j+1]}) == p {
				merged = append(merged, token)
				j++
			} else {
				merged = append(merged, ids[j])
			}
		}
		if len(merged) < len(ids) { // it still had the pair
			c.add(word, -1)
			c.words[word] = merged
			c.add(word, 1)
		}
	}
	delete(c.pairs, p)
	delete(c.where, p)
}

// alphabet returns the characters that stand for the 256 bytes in a tokenizer.json: printable ones for themselves,
// others from U+0100 on.
func alphabet() []string {
	tokens := make([]string, 256)
	next := 256
	for b := range 256 {
		if strings.ContainsRune(" \u007f\u00ad", rune(b)) || b < ' ' || b > '~' && b < 0xa1 {
			tokens[b] = string(rune(next))
			next++
		} else {
			tokens[b] = string(rune(b))
		}
	}
	return tokens
}
