package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/tensor"
)

// The noise that a word may have is never above its bound.
func TestNoiseIsBounded(t *testing.T) {
	of := rand.New(rand.NewPCG(1, 2))
	words := []uint32{0, 1, math.MaxUint32}
	for bit := range 32 {
		words = append(words, ^(uint32(1) << bit), ^(uint32(1)<<bit - 1), ^(uint32(1)<<bit + 1), of.Uint32())
	}
	for _, w := range words {
		zeros := 0
		for zeros < 32 && ^w>>(31-zeros)&1 == 0 {
			zeros++
		}
		if noise, most := float32(rng.Gumbel(w)), mostNoise[zeros]; noise > most {
			t.Errorf("word %#x has the noise %v, above %v", w, noise, most)
		}
	}
}

// drawn draws tokens of rows in tiles, with the rows cut among workers.
func drawn(k *Table, logits array, draws []int32, tile, vocab int, softCap float32, rows ...int) []float32 {
	op := TokenDraws{Vocab: vocab, Draws: draws, SoftCap: softCap, Stats: make([]float32, logits.Rows*StatLen)}
	for first := 0; first < logits.Cols; first += tile {
		n := min(tile, logits.Cols-first)
		op.Logits, op.ColFirst = logits.Mat, first
		op.Logits.Data, op.Logits.Cols = logits.Mat.at(0, first), n
		if first+n == logits.Cols {
			op.Drawn = make([]float32, logits.Rows*device.DrawnFigures)
		}
		from := 0
		for _, to := range append(rows, logits.Rows) {
			k.DrawTokens(&op, from, to)
			from = to
		}
	}
	return op.Drawn
}

// Tokens do not depend on how the vocabulary is cut into tiles, on which rows a worker has, or on the level of
// instructions; their log-probabilities differ by roundings. They are those with the greatest score of all, each
// of which is computed here.
func TestDrawsDependOnLogitsAlone(t *testing.T) {
	const rows, cols, vocab = 9, 5003, 5000
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, of *rand.Rand) {
		if d != tensor.F32 {
			return
		}
		logits := newArray(tensor.F32, rows, cols, 5, normal(of))
		var draws []int32
		for r := range rows {
			var words [device.DrawWords]int32
			device.TokenDraw{Key: [2]uint32{of.Uint32(), of.Uint32()}, Text: of.Uint64(), At: of.Uint32() >> 2,
				Inverse: []float32{0, 1, 0.3}[r%3]}.Put(words[:])
			draws = append(draws, words[:]...)
		}
		want := drawn(k, logits, draws, cols, vocab, 0)
		for r := range rows {
			d, best, most := device.TokenDrawIn(draws[r*device.DrawWords:]), 0, float32(math.Inf(-1))
			for id := range vocab {
				x := float32(logits.at(r, id))
				if d.Inverse != 0 {
					n := rng.Counter{uint32(id / 4), d.At, uint32(d.Text), uint32(d.Text >> 32)}
					x = float32(float64(x*d.Inverse) + rng.Gumbel(rng.Philox4x32(d.Key, n)[id%4]))
				}
				if x > most {
					best, most = id, x
				}
			}
			if int(want[2*r]) != best {
				t.Errorf("row %d draws token %v, want %d", r, want[2*r], best)
			}
		}
		if got := drawn(k, logits, draws, cols, vocab, 0, 1, 2, 7); !slices.Equal(got, want) {
			t.Errorf("rows cut otherwise draw %v, want %v", got, want)
		}
		for _, tile := range []int{1, 37, 2044, 2049} {
			got := drawn(k, logits, draws, tile, vocab, 0)
			for i := range got {
				if i%2 == 0 && got[i] != want[i] || math.Abs(float64(got[i]-want[i])) > 2e-6 {
					t.Errorf("tiles of %d: row %d draws %v, want %v", tile, i/2, got[i&^1:][:2], want[i&^1:][:2])
				}
			}
		}
	})
}

// BenchmarkDrawTokens is of one row of a large vocabulary.
func BenchmarkDrawTokens(b *testing.B) {
	const vocab = 151_936
	of := rand.New(rand.NewPCG(3, 4))
	for _, spread := range []float64{0.01, 3} {
		logits := newArray(tensor.F32, 1, vocab, 0, func() float32 { return float32(spread * of.NormFloat64()) })
		for _, temperature := range []float64{0, 1, 0.7} {
			b.Run(fmt.Sprintf("spread %v temperature %v", spread, temperature), func(b *testing.B) {
				var words [device.DrawWords]int32
				device.TokenDraw{Key: [2]uint32{1, 2}, Inverse: device.Inverse(temperature)}.Put(words[:])
				b.SetBytes(4 * vocab)
				for range b.N {
					drawn(For(isa.Best()), logits, words[:], vocab, vocab, 0)
				}
			})
		}
	}
}
