package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Pipeline is a tokenizer that a tokenizer.json describes. Make one with [Load] or [Parse].
type Pipeline struct {
	tokens  []string         // by id, as the vocabulary spells them; "" for an id without token
	raw     []string         // by id, the bytes that a token stands for in the middle of a text
	ids     map[string]int32 // by spelling
	special []bool           // by id

	added           *addedSet // searched in the text as it is
	addedNormalized *addedSet // searched in normalized text
	normalizers     []normalizer
	growth          int // how many times longer they may make a text, apart from the forms of Unicode
	splitters       []splitter
	cuts            seam // where a text may be cut
	model           model
	decoders        []decoder

	before, after []int32
	bos, eos      int32
	hash          string
	class         string     // tokenizer_class of its directory, without Fast at its end; "" for none
	encoders      *sync.Pool // of *encoder
}

var _ Tokenizer = (*Pipeline)(nil)

// encoder is the scratch of one Encode call. Encoders are pooled, so each cache of words is used by one call at a time
// and needs no lock.
type encoder struct {
	cache      wordCache
	spans      []span
	normalized []span
	words      []func(word) // the steps of the pre-tokenizer, then the model
	dst        []int32      // what the last step appends to
	symbols    []symbol
	heap       mergeHeap
	best       []step
	steps      int // what the model did: looks at pairs, moves in the heap, nodes of the trie. A test holds it near linear
}

// newEncoder chains the splitters: words[i] takes a word before splitter i, and the last one its ids.
func (t *Pipeline) newEncoder() any {
	e := &encoder{words: make([]func(word), len(t.splitters)+1)}
	e.words[len(t.splitters)] = func(w word) { e.dst = t.appendWord(e.dst, e, w.text) }
	for i, s := range t.splitters {
		e.words[i] = func(w word) { s.split(w, e.words[i+1]) }
	}
	return e
}

func (t *Pipeline) appendWord(dst []int32, e *encoder, text string) []int32 {
	if len(text) > cacheWordBytes {
		return t.model.appendWord(dst, e, text)
	}
	ids, hash, ok := e.cache.get(text)
	if ok {
		return append(dst, ids...)
	}
	n := len(dst)
	dst = t.model.appendWord(dst, e, text)
	e.cache.put(text, hash, dst[n:])
	return dst
}

// Encode returns the ids of text, in which added and special tokens are recognized. Parts that are not UTF-8 are read
// as U+FFFD. A character for which the vocabulary has neither a token nor bytes nor an unknown token is left out, as
// `tokenizers` does.
func (t *Pipeline) Encode(text string, addSpecial bool) []int32 {
	return t.AppendEncode(make([]int32, 0, len(text)/3+len(t.before)+len(t.after)+1), text, addSpecial)
}

// AppendEncode appends what Encode returns. It allocates only what dst lacks, what a normalizer rewrites, and caches
// that are used again.
func (t *Pipeline) AppendEncode(dst []int32, text string, addSpecial bool) []int32 {
	e := t.encoders.Get().(*encoder)
	defer t.encoders.Put(e)
	if addSpecial {
		dst = append(dst, t.before...)
	}
	if !utf8.ValidString(text) {
		text = lossy([]byte(text))
	}
	e.dst = dst
	e.spans = t.added.find(e.spans[:0], text)
	for k, s := range e.spans {
		if s.id != None {
			e.dst = append(e.dst, s.id)
			continue
		}
		e.normalized = t.addedNormalized.find(e.normalized[:0], t.normalize(s.text))
		for i, n := range e.normalized {
			if n.id != None {
				e.dst = append(e.dst, n.id)
				continue
			}
			e.words[0](word{n.text, k == 0 && i == 0})
		}
	}
	dst = e.dst
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

// Exceeds reports whether a text has more than most bytes after the normalizer, which can make it many times as
// long. A long text is measured piece by piece, without holding what becomes of it.
func (t *Pipeline) Exceeds(text string, most int) bool {
	const (
		pieceBytes = 64 << 10
		byForms    = 12 // times that a form of Unicode can make a text longer
	)
	if len(t.normalizers) == 0 || len(text) <= most/(byForms*max(t.growth, 1)) {
		return false
	}
	for n := 0; len(text) > 0; {
		end := min(len(text), pieceBytes)
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end++
		}
		piece := text[:end]
		if n += len(t.normalize(piece)); n > most {
			return true
		}
		text = text[len(piece):]
	}
	return false
}

func (t *Pipeline) normalize(text string) string {
	for _, n := range t.normalizers {
		text = n.normalize(text)
	}
	return text
}

// Decode is the text of ids, as the file's decoder puts it together.
func (t *Pipeline) Decode(ids []int32, skipSpecial bool) string {
	if t.isByteLevel() {
		b := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			b = t.AppendBytes(b, id, skipSpecial)
		}
		return lossy(b)
	}
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if t.shows(id, skipSpecial) {
			tokens = append(tokens, t.tokens[id])
		}
	}
	for _, d := range t.decoders {
		tokens = d.decode(tokens)
	}
	return strings.Join(tokens, "")
}

// isByteLevel says that the bytes of the tokens are the bytes of the text.
func (t *Pipeline) isByteLevel() bool {
	if len(t.decoders) != 1 {
		return false
	}
	_, ok := t.decoders[0].(decodeByteLevel)
	return ok
}

func (t *Pipeline) shows(id int32, skipSpecial bool) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id] != "" && !(skipSpecial && t.special[id])
}

// AppendBytes appends the bytes that a token stands for in the middle of a text: the space that some tokenizers put
// in front of every text, and that Decode takes away, is kept.
func (t *Pipeline) AppendBytes(dst []byte, id int32, skipSpecial bool) []byte {
	if !t.shows(id, skipSpecial) {
		return dst
	}
	return append(dst, t.raw[id]...)
}

// Template returns what the post-processor puts before and after a text.
func (t *Pipeline) Template() (before, after []int32) { return t.before, t.after }

// TokenID returns the id of a token as the vocabulary spells it ("Ġthe" or "▁the" is " the").
func (t *Pipeline) TokenID(token string) int32 {
	if id, ok := t.ids[token]; ok {
		return id
	}
	return None
}

// Token returns the vocabulary's spelling of id.
func (t *Pipeline) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// VocabSize is the largest id plus one.
func (t *Pipeline) VocabSize() int { return len(t.tokens) }

// BOS is the id of the token that begins a text, or None.
func (t *Pipeline) BOS() int32 { return t.bos }

// EOS is the id of the token that ends a text, or None.
func (t *Pipeline) EOS() int32 { return t.eos }

// Hash identifies the tokenizer.
func (t *Pipeline) Hash() string { return t.hash }

// alphabet spells bytes as byte-level vocabularies do: those that print stand for themselves, the others in order for
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

// spelled writes s in the byte-level alphabet.
func spelled(s string) string {
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	for i := range len(s) {
		b.WriteRune(alphabet[s[i]])
	}
	return b.String()
}

// rawBytes returns the bytes that a byte-level spelling stands for; ok is false if it is not one.
func rawBytes(spelling string) (raw string, ok bool) {
	b := make([]byte, 0, 64)
	for _, r := range spelling {
		if r < utf8.RuneSelf && alphabet[r] == r {
			b = append(b, byte(r))
			continue
		}
		c, ok := alphabetByte[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}

// addToTemplate puts ids around what the template has so far.
func (t *Pipeline) addToTemplate(before, after []int32) {
	t.before = slices.Concat(before, t.before)
	t.after = slices.Concat(t.after, after)
}
