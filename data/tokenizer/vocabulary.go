package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Vocabulary has the tokens and merges of a BPE tokenizer, for writing it in another format.
type Vocabulary struct {
	Tokens []string       // by id, as the file spells them; "" for an id that is free
	Added  map[int32]bool // by id, the tokens that are found in text before it is cut: whether they are special
	Merges [][2]string    // first ones first

	ByteLevel    bool   // characters stand for bytes, as GPT-2 has it
	ByteFallback bool   // characters that the vocabulary lacks become tokens <0x00> to <0xFF>
	IgnoreMerges bool   // a word that is a token as a whole is not merged
	Unknown      string // the token of characters that cannot be spelled; "" if the tokenizer has no such token

	// PreTokenizer is the step that cuts text before the merges, as tokenizer.json has it; null if there is no such step.
	PreTokenizer json.RawMessage
}

// LoadVocabulary reads a tokenizer as [Load] does, and says what it is made of. Only BPE has a Vocabulary.
func LoadVocabulary(path string) (*Pipeline, *Vocabulary, error) {
	t, file, err := loadFile(path)
	if err != nil {
		return nil, nil, err
	}
	m, ok := t.model.(*bpe)
	if !ok {
		return nil, nil, errors.New("tokenizer: it is a Unigram: only a BPE can be taken apart")
	}
	v := &Vocabulary{Tokens: t.tokens, Added: map[int32]bool{}, ByteLevel: m.byteLevel, ByteFallback: m.fallback != nil,
		IgnoreMerges: file.Model.IgnoreMerges, Unknown: orEmpty(file.Model.UnkToken), PreTokenizer: file.PreTokenizer}
	for _, a := range file.AddedTokens {
		v.Added[int32(a.ID)] = a.Special
	}
	for _, a := range file.special {
		if id, ok := t.ids[a.Content]; ok {
			v.Added[id] = true
		}
	}
	if v.Merges, err = readMerges(file.Model.Merges); err != nil {
		return nil, nil, fmt.Errorf("tokenizer: %w", err) // it was read before
	}
	return t, v, nil
}
