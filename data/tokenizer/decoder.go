package tokenizer

// Decoder turns ids into text: the half of a Tokenizer that what a model writes needs.
type Decoder interface {
	Decode(ids []int32, skipSpecial bool) string
	AppendBytes(dst []byte, id int32, skipSpecial bool) []byte
}

// DecoderOf returns a tokenizer's Decoder without the tables of Encode, which take most of a tokenizer's memory, and
// about the bytes that it takes itself.
func DecoderOf(t Tokenizer) (d Decoder, bytes int64) {
	p, ok := t.(*Pipeline)
	if !ok {
		return t, 0
	}
	const perString = 32 // its header, and what an allocation is rounded up by
	for i, token := range p.tokens {
		bytes += int64(len(token) + len(p.raw[i]) + 2*perString + 1)
	}
	return &Pipeline{tokens: p.tokens, raw: p.raw, special: p.special, decoders: p.decoders}, bytes
}
