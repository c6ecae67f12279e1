package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// A decoder is one step from tokens to text.
type decoder interface {
	// decode rewrites the spellings of a sequence of tokens. It may reuse the slice.
	decode(tokens []string) []string
	// alone returns the bytes of one token in the middle of a text.
	alone(token string) string
}

// decodeByteLevel reads spellings in the byte-level alphabet. A token with other letters in it stands for itself.
type decodeByteLevel struct{}

func (decodeByteLevel) decode(tokens []string) []string {
	var b []byte
	for _, t := range tokens {
		b = append(b, decodeByteLevel{}.alone(t)...)
	}
	return append(tokens[:0], lossy(b))
}

func (decodeByteLevel) alone(token string) string {
	if raw, ok := rawBytes(token); ok {
		return raw
	}
	return token
}

// decodeReplace is Replace.
type decodeReplace struct{ replace }

func (d decodeReplace) decode(tokens []string) []string {
	for i, t := range tokens {
		tokens[i] = d.normalize(t)
	}
	return tokens
}

func (d decodeReplace) alone(token string) string { return d.normalize(token) }

// decodeFallback turns runs of byte tokens into the text that they spell. Of a run that is not UTF-8, every byte is U+FFFD.
type decodeFallback struct{}

func (decodeFallback) decode(tokens []string) []string {
	out := tokens[:0]
	var bytes []byte
	flush := func() {
		if utf8.Valid(bytes) {
			if len(bytes) > 0 {
				out = append(out, string(bytes))
			}
		} else {
			for range bytes {
				out = append(out, "\uFFFD")
			}
		}
		bytes = bytes[:0]
	}
	for _, t := range tokens {
		if b := byteToken(t); b >= 0 {
			bytes = append(bytes, byte(b))
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

func (decodeFallback) alone(token string) string {
	if b := byteToken(token); b >= 0 {
		return string([]byte{byte(b)})
	}
	return token
}

// decodeFuse makes one token of all.
type decodeFuse struct{}

func (decodeFuse) decode(tokens []string) []string {
	return append(tokens[:0], strings.Join(tokens, ""))
}
func (decodeFuse) alone(token string) string { return token }

// decodeStrip removes up to start and stop times content from the ends of every token.
type decodeStrip struct {
	content     string
	start, stop int
}

func (d decodeStrip) decode(tokens []string) []string {
	for i, t := range tokens {
		tokens[i] = d.alone(t)
	}
	return tokens
}

func (d decodeStrip) alone(token string) string {
	for range d.start {
		rest, ok := strings.CutPrefix(token, d.content)
		if !ok {
			break
		}
		token = rest
	}
	for range d.stop {
		rest, ok := strings.CutSuffix(token, d.content)
		if !ok {
			break
		}
		token = rest
	}
	return token
}

// decodeMetaspace spells the marks as spaces again; one that was put in front of the text goes.
type decodeMetaspace struct {
	mark      string
	prepended bool
}

func (d decodeMetaspace) decode(tokens []string) []string {
	for i, t := range tokens {
		if i == 0 && d.prepended {
			tokens[i] = strings.ReplaceAll(t, d.mark, "")
		} else {
			tokens[i] = d.alone(t)
		}
	}
	return tokens
}

func (d decodeMetaspace) alone(token string) string { return strings.ReplaceAll(token, d.mark, " ") }

// joinSpaces stands where a file has no decoder.
type joinSpaces struct{}

func (joinSpaces) decode(tokens []string) []string {
	return append(tokens[:0], strings.Join(tokens, " "))
}
func (joinSpaces) alone(token string) string { return " " + token }

// aloneBytes returns what a token stands for in the middle of a text. What strips the ends of the fused text does not apply there.
func aloneBytes(steps []decoder, token string) string {
	fused := false
	for _, d := range steps {
		switch d.(type) {
		case decodeFuse:
			fused = true
		case decodeStrip:
			if fused {
				continue
			}
		}
		token = d.alone(token)
	}
	return token
}
