// Package tokenizer turns text into token ids and back.
//
// Two tokenizers implement [Tokenizer]: [Pipeline], read from a Hugging Face tokenizer.json by [Load] or [Parse], and
// [Bytes], which needs no file. A pipeline has the steps of its file, in this order: added tokens are found in the
// text; a normalizer rewrites the text between them; a pre-tokenizer cuts that into words; the model (BPE on bytes or
// characters, Unigram) turns each word into ids; a post-processor puts BOS and the like around them. A decoder leads
// back.
//
// The kinds of steps are those of models that generate text: BPE as Llama, Qwen, Mistral, Gemma, gpt-oss, DeepSeek and
// others have it, and Unigram, which some models of Llama's architecture have. Steps for encoders (WordPiece,
// BertNormalizer, Precompiled, the marks of CLIP's words and others) are refused by name.
//
// Invariants:
//   - the ids are those of the `tokenizers` library (0.22.2) for the same file and text; what this package cannot reproduce is
//     an error from Load that names the feature, never an approximation. reference.sh compares the two;
//   - what characters are letters, digits or white space comes from a table measured on that library, so that neither
//     Go's Unicode version nor the machine changes ids;
//   - every method may be called by several goroutines at once;
//   - ids are in [0, VocabSize);
//   - no file makes loading or encoding run forever: sizes are bounded, and the time of an expression is linear in the text.
package tokenizer

import "unicode/utf8"

// None is the id of a token that a tokenizer does not have.
const None int32 = -1

// Tokenizer turns text into token ids, and ids into text. It is safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of text. With addSpecial they stand between the two halves of Template. Text that is
	// not UTF-8 is read as [Pipeline.Encode] or [Bytes] says.
	Encode(text string, addSpecial bool) []int32
	// Decode is the inverse of Encode. Bytes that do not form UTF-8 come out as U+FFFD, ids outside the vocabulary as
	// nothing. With skipSpecial, special tokens are left out.
	Decode(ids []int32, skipSpecial bool) string
	// AppendBytes appends the bytes that id stands for: Decode without the repair, for printing as tokens arrive.
	AppendBytes(dst []byte, id int32, skipSpecial bool) []byte
	// Template returns the ids that the model expects before and after every text (for instance a beginning-of-text
	// token). The caller must not change them.
	Template() (before, after []int32)
	// TokenID returns the id of the token that the vocabulary spells so, or None.
	TokenID(token string) int32
	// Token returns the vocabulary's spelling of id, or "" for an id that it does not have.
	Token(id int32) string
	// VocabSize is the largest id plus one.
	VocabSize() int
	// BOS and EOS are the ids of the tokens that begin and end a text, or None.
	BOS() int32
	EOS() int32
	// Hash identifies the mapping from text to ids, BOS and EOS included: tokens kept under one Hash stay valid.
	Hash() string
}

// lossy returns b as a string in which every maximal part of b that is not UTF-8 is one U+FFFD. This is the
// substitution of the Unicode standard (chapter 3.9) and of Rust, so that decoded text equals that of `tokenizers`;
// strings.ToValidUTF8 would fold neighbouring parts into one.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = malformed(b)
			out = append(out, "\uFFFD"...)
		} else {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return string(out)
}

// malformed returns the length of the ill-formed part at the front of b: the longest prefix of some well-formed
// sequence (Unicode table 3-7), at least one byte.
func malformed(b []byte) int {
	lo, hi, want := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 1
	case c >= 0xE0 && c <= 0xEF:
		want = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	}
	n := 1
	for n <= want && n < len(b) && b[n] >= lo && b[n] <= hi {
		lo, hi = 0x80, 0xBF
		n++
	}
	return n
}
