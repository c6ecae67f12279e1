package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// modelJSON has the keys of all models. Vocab is {"token": id} or, for Unigram, [["token", score]]; Merges is ["a b"] or [["a", "b"]].
type modelJSON struct {
	Type                    string          `json:"type"`
	Dropout                 *float64        `json:"dropout"`
	UnkToken                *string         `json:"unk_token"`
	UnkID                   *int64          `json:"unk_id"`
	ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
	FuseUnk                 bool            `json:"fuse_unk"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	MaxInputCharsPerWord    json.RawMessage `json:"max_input_chars_per_word"` // of WordPiece
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  json.RawMessage `json:"merges"`
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (t *Pipeline) setModel(m *modelJSON, pre *preTokenizer) error {
	kind := m.Type
	if kind == "" && !isNull(m.Merges) { // early files have no type
		kind = "BPE"
	}
	var err error
	switch kind {
	case "BPE":
		t.model, err = t.newBPE(m, pre)
	case "Unigram":
		t.model, err = t.newUnigram(m)
	default:
		return fmt.Errorf("type %q is not supported: only BPE and Unigram are", kind)
	}
	if err != nil {
		return err
	}
	if b, ok := t.model.(*bpe); ok && b.byteLevel {
		return nil
	}
	if pre.byteLevel {
		t.splitters = append(t.splitters, spellBytes{})
	}
	return nil
}

// setVocab enters {"token": id}.
func (t *Pipeline) setVocab(raw json.RawMessage) (map[string]int32, error) {
	r := &jsonReader{text: raw}
	t.ids = make(map[string]int32, len(raw)/24)
	if err := r.object(func(token string) error {
		id, err := r.integer()
		if err != nil {
			return err
		}
		return t.setToken(token, id)
	}); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if len(t.ids) == 0 {
		return nil, errors.New("vocab is empty")
	}
	vocab := make(map[string]int32, len(t.ids))
	for token, id := range t.ids {
		vocab[token] = id
	}
	return vocab, nil
}

// tokenID is the id of a token that the model names.
func tokenID(vocab map[string]int32, key, token string) (int32, error) {
	id, ok := vocab[token]
	if !ok {
		return None, fmt.Errorf("%s %q is not in the vocabulary", key, token)
	}
	return id, nil
}

// fallbackTokens finds <0x00> to <0xFF>.
func fallbackTokens(vocab map[string]int32) *[256]int32 {
	var ids [256]int32
	for b := range ids {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id = None
		}
		ids[b] = id
	}
	return &ids
}

func (t *Pipeline) newBPE(j *modelJSON, pre *preTokenizer) (*bpe, error) {
	if j.Dropout != nil && *j.Dropout != 0 {
		return nil, errors.New("dropout is not supported")
	}
	if orEmpty(j.ContinuingSubwordPrefix) != "" || orEmpty(j.EndOfWordSuffix) != "" {
		return nil, errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	m := &bpe{unk: None, fuseUnk: j.FuseUnk}
	var err error
	if m.vocab, err = t.setVocab(j.Vocab); err != nil {
		return nil, err
	}
	if s := orEmpty(j.UnkToken); s != "" {
		if m.unk, err = tokenID(m.vocab, "unk_token", s); err != nil {
			return nil, err
		}
	}
	m.byteLevel = pre.byteLevel && !j.ByteFallback
	if m.byteLevel {
		for b, symbol := range alphabet {
			m.byteID[b] = None
			if id, ok := m.vocab[string(symbol)]; ok {
				m.byteID[b] = id
			}
		}
	} else {
		m.setCharacters()
	}
	if j.ByteFallback {
		m.fallback = fallbackTokens(m.vocab)
	}
	switch {
	case j.IgnoreMerges && m.byteLevel:
		m.whole = make(map[string]int32, len(m.vocab))
		for token, id := range m.vocab {
			if raw, ok := rawBytes(token); ok {
				m.whole[raw] = id
			}
		}
	case j.IgnoreMerges:
		m.whole = m.vocab
	}
	merges, err := readMerges(j.Merges)
	if err != nil {
		return nil, err
	}
	m.merges = newPairTable(len(merges))
	for rank, pair := range merges {
		left, okLeft := m.vocab[pair[0]]
		right, okRight := m.vocab[pair[1]]
		both, okBoth := m.vocab[pair[0]+pair[1]]
		if !okLeft || !okRight || !okBoth {
			return nil, fmt.Errorf("merge %d (%q %q) has a part or result that is not in the vocabulary", rank, pair[0], pair[1])
		}
		m.merges.put(pairOf(left, right), merge{rank: int32(rank), id: both})
	}
	if !pre.byteLevel {
		if c := newCutter(m, merges); c != nil {
			t.splitters = append(t.splitters, c)
		}
	}
	return m, nil
}

// readMerges reads pairs of tokens, which are written in one of two ways.
func readMerges(raw json.RawMessage) ([][2]string, error) {
	if isNull(raw) {
		return nil, nil
	}
	r := &jsonReader{text: raw}
	merges := make([][2]string, 0, len(raw)/16)
	err := r.array(func() error {
		if r.peek() == '"' {
			s, err := r.string()
			if err != nil {
				return err
			}
			left, right, ok := strings.Cut(s, " ")
			if !ok || strings.Contains(right, " ") {
				return fmt.Errorf("merge %d (%q) is not two tokens", len(merges), s)
			}
			merges = append(merges, [2]string{left, right})
			return nil
		}
		var pair [2]string
		n := 0
		if err := r.array(func() error {
			s, err := r.string()
			if n < 2 {
				pair[n] = s
			}
			n++
			return err
		}); err != nil {
			return err
		}
		if n != 2 {
			return fmt.Errorf("merge %d (%q) is not two tokens", len(merges), pair)
		}
		merges = append(merges, pair)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	return merges, nil
}

func (t *Pipeline) newUnigram(j *modelJSON) (*unigram, error) {
	m := &unigram{vocab: map[string]int32{}, pieces: newTrie(), unk: None, unkScore: math.Inf(1)}
	t.ids = map[string]int32{}
	r := &jsonReader{text: j.Vocab}
	if err := r.array(func() error {
		token, score := "", math.NaN()
		n := 0
		if err := r.array(func() (err error) {
			switch n++; n {
			case 1:
				token, err = r.string()
			case 2:
				score, err = r.number()
			}
			return err
		}); err != nil {
			return err
		}
		id := len(m.scores)
		if n != 2 {
			return fmt.Errorf("entry %d is not a token and its score", id)
		}
		if err := t.setToken(token, int64(id)); err != nil {
			return err
		}
		m.vocab[token] = int32(id)
		m.pieces.put(token, int32(id))
		m.scores = append(m.scores, score)
		m.unkScore = min(m.unkScore, score)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if len(m.scores) == 0 {
		return nil, errors.New("vocab is empty")
	}
	if j.UnkID == nil || *j.UnkID < 0 || *j.UnkID >= int64(len(m.scores)) {
		return nil, errors.New("unk_id is missing or not in the vocabulary")
	}
	m.unk = int32(*j.UnkID)
	m.unkScore -= unkPenalty
	if j.ByteFallback {
		m.fallback = fallbackTokens(m.vocab)
	}
	return m, nil
}

// jsonReader reads the large parts of a file, whose syntax encoding/json has checked, without a value for each of its parts.
type jsonReader struct {
	text []byte
	pos  int
}

// peek returns the next byte that is not white space, or 0.
func (r *jsonReader) peek() byte {
	for r.pos < len(r.text) {
		switch c := r.text[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) take(c byte) error {
	if got := r.peek(); got != c {
		return fmt.Errorf("found %q where %q should be", got, c)
	}
	r.pos++
	return nil
}

// list reads what stands between open and close, apart by commas.
func (r *jsonReader) list(open, close byte, item func() error) error {
	if err := r.take(open); err != nil {
		return err
	}
	if r.peek() == close {
		r.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if r.peek() != ',' {
			return r.take(close)
		}
		r.pos++
	}
}

func (r *jsonReader) array(item func() error) error { return r.list('[', ']', item) }

func (r *jsonReader) object(value func(key string) error) error {
	return r.list('{', '}', func() error {
		key, err := r.string()
		if err != nil {
			return err
		}
		if err := r.take(':'); err != nil {
			return err
		}
		return value(key)
	})
}

func (r *jsonReader) string() (string, error) {
	if err := r.take('"'); err != nil {
		return "", err
	}
	start := r.pos
	simple := true
	for r.pos < len(r.text) && r.text[r.pos] != '"' {
		if r.text[r.pos] == '\\' {
			simple = false
			r.pos++
		}
		r.pos++
	}
	if r.pos >= len(r.text) {
		return "", errors.New("a string has no end")
	}
	r.pos++
	if body := r.text[start : r.pos-1]; simple && utf8.Valid(body) {
		return string(body), nil
	}
	var s string
	err := json.Unmarshal(r.text[start-1:r.pos], &s)
	return s, err
}

// literal returns the characters of a number.
func (r *jsonReader) literal() string {
	r.peek()
	start := r.pos
	for r.pos < len(r.text) && strings.IndexByte("+-.0123456789eE", r.text[r.pos]) >= 0 {
		r.pos++
	}
	return string(r.text[start:r.pos])
}

func (r *jsonReader) integer() (int64, error) {
	s := r.literal()
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("an id is not a whole number (%.20q)", s)
	}
	return v, nil
}

func (r *jsonReader) number() (float64, error) {
	s := r.literal()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("a score is not a number (%.20q)", s)
	}
	return v, nil
}
