package tokenizer

import "strconv"

// byteEOS is the only id of the byte tokenizer that is not a byte.
const byteEOS = 256

type byteTokenizer struct{}

// Bytes returns the byte tokenizer: ids 0..255 are the bytes of the text, whatever they are, and 256 ends a document.
// Its vocabulary has 257 tokens, it has no BOS, and its Template is empty.
func Bytes() Tokenizer { return byteTokenizer{} }

func (byteTokenizer) Encode(text string, _ bool) []int32 {
	ids := make([]int32, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

func (t byteTokenizer) Decode(ids []int32, skipSpecial bool) string {
	b := make([]byte, 0, len(ids))
	for _, id := range ids {
		b = t.AppendBytes(b, id, skipSpecial)
	}
	return lossy(b)
}

func (t byteTokenizer) AppendBytes(dst []byte, id int32, skipSpecial bool) []byte {
	switch {
	case id >= 0 && id < byteEOS:
		return append(dst, byte(id))
	case id == byteEOS && !skipSpecial:
		return append(dst, t.Token(id)...)
	}
	return dst
}

func (byteTokenizer) Template() (before, after []int32) { return nil, nil }

// TokenID reads what Token writes.
func (t byteTokenizer) TokenID(token string) int32 {
	if token == t.Token(byteEOS) {
		return byteEOS
	}
	if len(token) == 6 && token[:3] == "<0x" && token[5] == '>' {
		if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil && t.Token(int32(b)) == token {
			return int32(b)
		}
	}
	return None
}

// Token spells the byte 10 as "<0x0A>", and 256 as "<|endoftext|>".
func (byteTokenizer) Token(id int32) string {
	const hex = "0123456789ABCDEF"
	switch {
	case id >= 0 && id < byteEOS:
		return "<0x" + string([]byte{hex[id>>4], hex[id&15]}) + ">"
	case id == byteEOS:
		return "<|endoftext|>"
	}
	return ""
}

func (byteTokenizer) VocabSize() int { return byteEOS + 1 }
func (byteTokenizer) BOS() int32     { return None }
func (byteTokenizer) EOS() int32     { return byteEOS }
func (byteTokenizer) Hash() string   { return "bytes-1" }
