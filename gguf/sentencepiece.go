package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/terminal"
)

// Tokenizers of SentencePiece's kind have no merges in a file. Each token has a score, and llama.cpp joins the
// neighbours whose union has the highest one.

// metaspace stands for a space in vocabularies as SentencePiece has them.
const metaspace = "▁"

func isByteToken(token string) bool {
	return len(token) == 6 && strings.HasPrefix(token, "<0x") && strings.HasSuffix(token, ">") &&
		strings.Trim(token[3:5], "0123456789ABCDEFabcdef") == ""
}

// sentencePieceScores give llama.cpp the order of merges: it joins the neighbours whose union has the highest score.
// What no merge makes comes after all that one does.
func sentencePieceScores(parts *tokenizer.Vocabulary, rows int) []float32 {
	rank := make(map[string]int, len(parts.Merges))
	for i, m := range parts.Merges {
		if _, seen := rank[m[0]+m[1]]; !seen {
			rank[m[0]+m[1]] = i
		}
	}
	scores := make([]float32, rows)
	for id := range scores {
		scores[id] = -float32(len(parts.Merges))
		if id < len(parts.Tokens) {
			if r, ok := rank[parts.Tokens[id]]; ok {
				scores[id] = -float32(r)
			}
		}
	}
	return scores
}

// Limits of a tokenizer of SentencePiece's kind. Usual are 2 ways in which a token can be joined from two others, and
// tokens of up to 16 characters, or 31 spaces.
const (
	maxPieceBytes  = 1 << 10
	maxPieceMerges = 8 // for each token
)

// sentencePiece reads what only such a tokenizer has.
func (g *header) sentencePiece(t *tokens) error {
	prefixed, err := g.boolean("tokenizer.ggml.add_space_prefix", true)
	if err != nil {
		return err
	}
	if squeezes, err := g.boolean("tokenizer.ggml.remove_extra_whitespaces", false); err != nil {
		return err
	} else if squeezes {
		return fmt.Errorf("metadata tokenizer.ggml.remove_extra_whitespaces is true, which is not supported: " +
			"use the model's Hugging Face directory")
	}
	v, ok := g.meta["tokenizer.ggml.scores"]
	if !ok || v.typ != typeArray || v.elem != typeF32 || v.n != int64(len(t.tokens)) {
		return fmt.Errorf("metadata tokenizer.ggml.scores is missing or not a list of %d fp32 numbers", len(t.tokens))
	}
	scores := make([]float32, v.n)
	for i := range scores {
		scores[i] = math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))
		if x := float64(scores[i]); math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("token %d has the score %v: a number is expected", i, x)
		}
	}
	t.setPieces(prefixed)
	t.addBOSByDefault = true
	t.merges, err = t.mergesOf(scores, t.longerFirst)
	return err
}

// mergedPieces reads what Gemma 4 has: a vocabulary of SentencePiece's kind, whose merges are in the file.
func (g *header) mergedPieces(t *tokens) (err error) {
	t.setPieces(false)
	t.addBOSByDefault = true
	t.merges, err = g.strings("tokenizer.ggml.merges")
	return err
}

// setPieces makes the parts of tokenizer.json that tokenizers of SentencePiece's kind have.
func (t *tokens) setPieces(prefixed bool) {
	const toMark = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	decoder := `{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}`
	t.parts = parts{normalizer: toMark, preTokenizer: jsonNone, byteFallback: true}
	if prefixed {
		t.parts.normalizer = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + toMark + `]}`
		decoder += `,{"type":"Strip","content":" ","start":1,"stop":0}`
	}
	t.parts.decoder = `{"type":"Sequence","decoders":[` + decoder + `]}`
	for i, s := range t.tokens {
		// Files have the runs of spaces that are tokens, as Gemma's, with spaces.
		if t.types[i] == tokenUserDefined && strings.Trim(s, " ") == "" {
			t.tokens[i] = strings.ReplaceAll(s, " ", metaspace)
		}
		if t.types[i] == tokenUnknown && t.unk == nil {
			t.unk = &i
		}
	}
}

// join is a way to make a token of two others, by their ids.
type join struct{ left, right, both int32 }

// mergesOf finds the merges that join tokens in the order of their scores. Merges of one score are in the order of
// transformers (convert_slow_tokenizer.py): by the ids of their parts, or, since Gemma, the longer part first. That
// matters for runs of one character. Tokens that users defined have the score 0, as in SentencePiece; converters give
// them one that means nothing.
func (t *tokens) mergesOf(scores []float32, longerFirst bool) ([]string, error) {
	ids := make(map[string]int32, len(t.tokens))
	for i, s := range t.tokens {
		if t.filler(i) {
			continue
		}
		ids[s] = int32(i)
		if t.types[i] != tokenNormal {
			continue
		}
		if len(s) > maxPieceBytes {
			return nil, fmt.Errorf("token %d has %d bytes, more than %d: the file is damaged", i, len(s), maxPieceBytes)
		}
		if strings.Contains(s, " ") {
			return nil, fmt.Errorf("token %d is %s: such tokenizers have %s for a space", i, terminal.Quote(s),
				metaspace)
		}
	}
	var all []join
	for i, s := range t.tokens {
		switch {
		case t.types[i] == tokenUserDefined && len(s) <= maxPieceBytes && !strings.Contains(s, " "):
			scores[i] = 0
		case t.types[i] != tokenNormal:
			continue
		}
		first := len(all)
		for cut := range s {
			left, okLeft := ids[s[:cut]]
			if right, ok := ids[s[cut:]]; ok && okLeft {
				all = append(all, join{left, right, int32(i)})
			}
		}
		slices.SortFunc(all[first:], func(a, b join) int {
			return cmp.Or(cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
		})
		if len(all) > maxPieceMerges*len(t.tokens) {
			return nil, fmt.Errorf("the tokens can be joined in more than %d ways: the file is damaged",
				maxPieceMerges*len(t.tokens))
		}
	}
	if len(all) > 1 && !slices.ContainsFunc(all, func(j join) bool { return scores[j.both] != scores[all[0].both] }) {
		return nil, fmt.Errorf("metadata tokenizer.ggml.scores has one score for all tokens, and so no order of " +
			"merges: use the model's Hugging Face directory")
	}
	slices.SortStableFunc(all, func(a, b join) int {
		order := cmp.Compare(scores[b.both], scores[a.both])
		if !longerFirst || order != 0 {
			return order
		}
		characters := func(id int32) int { return utf8.RuneCountInString(t.tokens[id]) }
		return cmp.Or(cmp.Compare(characters(b.left), characters(a.left)),
			cmp.Compare(characters(b.right), characters(a.right)))
	})
	merges := make([]string, len(all))
	for i, j := range all {
		merges[i] = t.tokens[j.left] + " " + t.tokens[j.right]
	}
	return merges, nil
}
