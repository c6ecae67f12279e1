package device

import "math"

// TokenDraw says how a row of logits draws its token: see HeadOps.DrawTokens. Token i has word i mod 4 of Philox4x32-10
// under Key, at the counter {i/4, At, Text} of 32, 32 and 64 bits, low word first. So what is drawn depends on the
// names of the row and on its logits, and not on the rows that it shares a pass with, nor on how the vocabulary is cut.
type TokenDraw struct {
	Key  [2]uint32
	Text uint64 // the number of the text
	At   uint32 // the place of the token in what the text draws, below 2^30
	// Inverse is 1/temperature (see [Inverse]). At 0 nothing is random: the likeliest token is drawn, at temperature 1.
	Inverse float32
}

// DrawWords is the number of I32 that hold a TokenDraw, and DrawnFigures that of F32 that come of one.
const (
	DrawWords    = 6
	DrawnFigures = 2
)

// MaxDrawVocab bounds the vocabulary that tokens are drawn of: fp32 has the ids below it.
const MaxDrawVocab = 1 << 24

// Inverse is TokenDraw.Inverse of a temperature from 0 on. Below 1e-30 that is 1e30, so that products with logits stay
// finite.
func Inverse(temperature float64) float32 {
	if temperature == 0 {
		return 0
	}
	return float32(1 / max(temperature, 1e-30))
}

// Put writes the draw to DrawWords words.
func (d TokenDraw) Put(to []int32) {
	to[0], to[1] = int32(d.Key[0]), int32(d.Key[1])
	to[2], to[3] = int32(uint32(d.Text)), int32(d.Text>>32)
	to[4], to[5] = int32(d.At), int32(math.Float32bits(d.Inverse))
}

// TokenDrawIn reads what Put has written.
func TokenDrawIn(words []int32) TokenDraw {
	return TokenDraw{Key: [2]uint32{uint32(words[0]), uint32(words[1])},
		Text: uint64(uint32(words[3]))<<32 | uint64(uint32(words[2])), At: uint32(words[4]),
		Inverse: math.Float32frombits(uint32(words[5]))}
}

// Words names the random words of tokens from token first on, a multiple of DrawTogether, as those of parameters.
func (d TokenDraw) Words(first int) Draw {
	return Draw{Key: d.Key, Part: d.Text, First: uint64(d.At)<<34 + uint64(first)}
}
