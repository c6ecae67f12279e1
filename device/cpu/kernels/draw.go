package kernels

import (
	"math"
	"math/bits"
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
)

// TokenDraws are rows that draw a token each, of a vocabulary that is seen tile by tile: see device.HeadOps.DrawTokens.
type TokenDraws struct {
	Logits          Mat       // [rows, tile columns], F32
	ColFirst, Vocab int       // the vocabulary index of the tile's first column, and where padding begins
	Draws           []int32   // [rows*device.DrawWords]
	Stats           []float32 // [rows*StatLen]
	Drawn           []float32 // [rows*device.DrawnFigures]; nil: more tiles come

	SoftCap float32 // as in CrossEntropy
}

// The statistics of a row that draws: the maximum of x, the sum of exp(x - maximum), and of the token that is drawn x
// and the id.
const (
	drawMax = iota
	drawSum
	drawX
	drawID
)

// drawRun is the number of tokens whose words are made at once: the first of these may be of three tokens before.
const drawRun = wordsPiece - device.DrawTogether

// drawScratch has a run of logits, capped and scaled, and its words.
type drawScratch struct {
	x     [drawRun]float32
	words [wordsPiece]uint32
}

var drawBuffers = sync.Pool{New: func() any { return new(drawScratch) }}

// DrawTokens takes one tile into the rows [row0, row1). The sums are those of LSEUpdate where x is the logit, and cut
// into runs of drawRun columns where it is not. A score is x plus noise in float64, rounded once.
func (t *Table) DrawTokens(a *TokenDraws, row0, row1 int) {
	check(a.Logits.has(row1, a.Logits.Cols) && kind(a.Logits.DType) == 0 && len(a.Stats) >= row1*StatLen &&
		len(a.Draws) >= row1*device.DrawWords && (a.Drawn == nil || len(a.Drawn) >= row1*device.DrawnFigures),
		"DrawTokens: shape or type")
	scratch := drawBuffers.Get().(*drawScratch)
	defer drawBuffers.Put(scratch)
	for r := row0; r < row1; r++ {
		s, d := a.Stats[r*StatLen:][:StatLen], device.TokenDrawIn(a.Draws[r*device.DrawWords:])
		if a.ColFirst == 0 {
			s[drawMax], s[drawSum], s[drawX], s[drawID] = -math.MaxFloat32, 0, float32(math.Inf(-1)), 0
		}
		if n := min(a.Logits.Cols, a.Vocab-a.ColFirst); n > 0 {
			t.drawRow(a, r, n, s, d, scratch)
		}
		if a.Drawn != nil {
			id, logProb := float32(-1), float32(0)
			if sum := s[drawSum]; sum > 0 && sum <= math.MaxFloat32 {
				id, logProb = s[drawID], float32(float64(s[drawX])-float64(s[drawMax])-math.Log(float64(sum)))
			}
			a.Drawn[r*device.DrawnFigures], a.Drawn[r*device.DrawnFigures+1] = id, logProb
		}
	}
}

// drawRow takes the first n columns of a row in.
func (t *Table) drawRow(a *TokenDraws, r, n int, s []float32, d device.TokenDraw, scratch *drawScratch) {
	scale := d.Inverse
	if scale == 0 {
		scale = 1
	}
	plain := scale == 1 && a.SoftCap == 0
	m := s[drawMax]
	for c := 0; c < n; c += piece {
		most := [1]float32{t.max(a.Logits.at(r, c), min(piece, n-c))}
		t.scaleLogits(most[:], most[:], scale, a.SoftCap)
		if most[0] > m {
			m = most[0]
		}
	}
	sum := s[drawSum]
	if s[drawMax] != m {
		sum = float32(sum * Exp(s[drawMax]-m))
	}
	if plain {
		for c := 0; c < n; c += piece {
			more, _ := t.sumExp(a.Logits.at(r, c), min(piece, n-c), m)
			sum += more
		}
	}
	best := tokenScore(s[drawX], int(s[drawID]), d)
	for c := 0; c < n; c += drawRun {
		x := floats(a.Logits.at(r, c), min(drawRun, n-c))
		if !plain {
			t.scaleLogits(scratch.x[:len(x)], x, scale, a.SoftCap)
			x = scratch.x[:len(x)]
			more, _ := t.sumExp(F32(x).Data, len(x), m)
			sum += more
		}
		at := -1
		if first := a.ColFirst + c; d.Inverse == 0 {
			at, best = likelier(x, best)
		} else {
			skip := first % device.DrawTogether
			t.words(&scratch.words, skip+len(x), d.Words(first-skip))
			at, best = likelierNoised(x, scratch.words[skip:][:len(x)], best)
		}
		if at >= 0 {
			s[drawX], s[drawID] = x[at], float32(a.ColFirst+c+at)
		}
	}
	s[drawMax], s[drawSum] = m, sum
}

// scaleLogits writes logits, capped if there is a cap, times scale; to may be x.
func (t *Table) scaleLogits(to, x []float32, scale, softCap float32) {
	if softCap != 0 {
		t.SoftCap(to, x, 1, softCap)
		x = to
	}
	for i, v := range x {
		to[i] = v * scale
	}
}

// likelier finds the first of the numbers that are greater than best and than all others; -1 where there is no such
// number.
func likelier(x []float32, best float32) (at int, most float32) {
	at = -1
	for i, v := range x {
		if v > best {
			at, best = i, v
		}
	}
	return at, best
}

// likelierNoised is likelier of numbers with the noise of their words. It makes the noise of those alone that may be
// greater.
func likelierNoised(x []float32, words []uint32, best float32) (at int, most float32) {
	at = -1
	words = words[:len(x)]
	for i, v := range x {
		if v+mostNoise[bits.LeadingZeros32(^words[i])] <= best {
			continue
		}
		if score := noised(v, words[i]); score > best {
			at, best = i, score
		}
	}
	return at, best
}

// noised is the score of a token: rounding is monotone, so no score is above that of a greater x or of more noise.
func noised(x float32, word uint32) float32 { return float32(float64(x) + rng.Gumbel(word)) }

// tokenScore is the score of the token that is drawn so far.
func tokenScore(x float32, id int, d device.TokenDraw) float32 {
	if d.Inverse == 0 || math.IsInf(float64(x), -1) {
		return x
	}
	var w [device.DrawTogether]uint32
	words(w[:], d.Words(id-id%device.DrawTogether))
	return noised(x, w[id%device.DrawTogether])
}

// mostNoise bounds the noise of words, by the zeros that lead their complements. With u as in rng.Gumbel, 1 - u is at
// least 2^-(zeros+1), and -log u is more than that.
var mostNoise = func() (most [33]float32) {
	for zeros := range most {
		most[zeros] = float32(float64(zeros+1) * math.Ln2 * (1 + 1e-6))
	}
	return most
}()
