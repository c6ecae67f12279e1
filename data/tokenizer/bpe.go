package tokenizer

import (
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// BPE is a byte-level byte-pair encoding. Make one with [Load] or [Parse].
type BPE struct {
	tokens  []string         // by id, as the vocabulary spells them; "" where there is none
	raw     []string         // by id, the bytes that a token stands for
	ids     map[string]int32 // by spelling
	special []bool           // by id

	byteID       [256]int32 // None where the vocabulary has no token for a byte
	merges       map[pair]merge
	wordID       map[string]int32 // by bytes; only with ignoreMerges
	ignoreMerges bool
	unk          int32
	fuseUnk      bool

	added           *addedSet // searched in the text as it is
	addedNormalized *addedSet // searched in normalized text
	normal          []norm.Form
	splitters       []splitter

	before, after []int32
	bos, eos      int32
	hash          string
	encoders      sync.Pool // of *encoder
}

var _ Tokenizer = (*BPE)(nil)

// Encode returns the ids of text, in which added and special tokens are recognized. Parts that are not UTF-8 are read
// as U+FFFD. A byte for which the vocabulary has neither a token nor an unknown token is left out; Load accepts such a
// vocabulary because `tokenizers` does, and MissingBytes reports it.
func (t *BPE) Encode(text string, addSpecial bool) []int32 {
	e := t.encoders.Get().(*encoder)
	defer t.encoders.Put(e)
	dst := make([]int32, 0, len(text)/3+len(t.before)+len(t.after)+1)
	if addSpecial {
		dst = append(dst, t.before...)
	}
	if !utf8.ValidString(text) {
		text = lossy([]byte(text))
	}
	e.spans = t.added.find(e.spans[:0], text)
	for _, s := range e.spans {
		if s.id != None {
			dst = append(dst, s.id)
			continue
		}
		e.normalized = t.addedNormalized.find(e.normalized[:0], t.normalize(s.text))
		for _, s := range e.normalized {
			if s.id != None {
				dst = append(dst, s.id)
				continue
			}
			e.dst = dst
			e.words[0](s.text)
			dst = e.dst
		}
	}
	if addSpecial {
		dst = append(dst, t.after...)
	}
	e.release()
	return dst
}

// release drops what holds on to the text and its ids.
func (e *encoder) release() {
	clear(e.spans)
	clear(e.normalized)
	e.dst = nil
}

func (t *BPE) normalize(text string) string {
	for _, form := range t.normal {
		text = form.String(text)
	}
	return text
}

// Decode is the text of ids.
func (t *BPE) Decode(ids []int32, skipSpecial bool) string {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = t.AppendBytes(b, id, skipSpecial)
	}
	return lossy(b)
}

// AppendBytes appends the bytes of one token.
func (t *BPE) AppendBytes(dst []byte, id int32, skipSpecial bool) []byte {
	if id < 0 || int(id) >= len(t.raw) || skipSpecial && t.special[id] {
		return dst
	}
	return append(dst, t.raw[id]...)
}

// Template returns what the file's TemplateProcessing puts before and after a text.
func (t *BPE) Template() (before, after []int32) { return t.before, t.after }

// TokenID returns the id of a token as the vocabulary spells it ("Ġthe" is " the").
func (t *BPE) TokenID(token string) int32 {
	if id, ok := t.ids[token]; ok {
		return id
	}
	return None
}

// Token returns the vocabulary's spelling of id.
func (t *BPE) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// VocabSize is the largest id plus one.
func (t *BPE) VocabSize() int { return len(t.tokens) }

// BOS is the id of the token that begins a text, or None.
func (t *BPE) BOS() int32 { return t.bos }

// EOS is the id of the token that ends a text, or None.
func (t *BPE) EOS() int32 { return t.eos }

// Hash identifies the tokenizer.
func (t *BPE) Hash() string { return t.hash }

// MissingBytes returns the bytes that can occur in UTF-8 and that Encode leaves out. It is empty for a vocabulary that
// was trained with the whole byte alphabet.
func (t *BPE) MissingBytes() []byte {
	var missing []byte
	for b, id := range t.byteID {
		neverInUTF8 := b == 0xC0 || b == 0xC1 || b >= 0xF5
		if id == None && t.unk == None && !neverInUTF8 {
			missing = append(missing, byte(b))
		}
	}
	return missing
}

// newEncoder chains the splitters: words[i] takes a word before splitter i, and the last one its ids.
func (t *BPE) newEncoder() any {
	e := &encoder{known: map[string][]int32{}, words: make([]func(string), len(t.splitters)+1)}
	e.words[len(t.splitters)] = func(word string) { e.dst = t.appendWord(e.dst, e, word) }
	for i, s := range t.splitters {
		e.words[i] = func(word string) { s.split(word, e.words[i+1]) }
	}
	return e
}

// alphabet is how byte-level vocabularies spell bytes: those that print stand for themselves, the others in order for
// the characters from U+0100 (GPT-2's bytes_to_unicode).
var alphabet, alphabetByte = func() (symbols [256]rune, bytes map[rune]byte) {
	bytes = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range symbols {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			r = next
			next++
		}
		symbols[b] = r
		bytes[r] = byte(b)
	}
	return symbols, bytes
}()

// rawBytes returns the bytes that a byte-level spelling stands for; ok is false if it is not one.
func rawBytes(spelling string) (raw string, ok bool) {
	var b strings.Builder
	b.Grow(len(spelling))
	for _, r := range spelling {
		c, ok := alphabetByte[r]
		if !ok {
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

// WithBounds returns a tokenizer that differs from t in its BOS and EOS (None for none). It returns t itself if there
// is no difference.
func (t *BPE) WithBounds(bos, eos int32) *BPE {
	if bos == t.bos && eos == t.eos {
		return t
	}
	c := &BPE{
		tokens: t.tokens, raw: t.raw, ids: t.ids, special: t.special,
		byteID: t.byteID, merges: t.merges, wordID: t.wordID, ignoreMerges: t.ignoreMerges, unk: t.unk, fuseUnk: t.fuseUnk,
		added: t.added, addedNormalized: t.addedNormalized, normal: t.normal, splitters: t.splitters,
		before: t.before, after: t.after, bos: bos, eos: eos, hash: boundsHash(t.hash, bos, eos),
	}
	c.encoders.New = c.newEncoder
	return c
}
