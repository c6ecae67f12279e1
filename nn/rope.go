package nn

import (
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/device"
)

// Rope are the tables of a mixer's rotary positions on the device, F32 [RopeFrequencies.Rows, HeadDim/2].
type Rope struct {
	Cos, Sin device.Mat
}

// queries are the tables of queries where they have some of their own, after those of keys.
func (r *Rope) queries() *Rope {
	n := r.Cos.Rows / 2
	return &Rope{Cos: r.Cos.RowRange(n, n), Sin: r.Sin.RowRange(n, n)}
}

// Rotated is a mixer with rotary positions.
type Rotated interface{ Rotary() RopeFrequencies }

// Rotary returns the frequencies of the block's mixer; the zero value if it has none.
func (d *Block) Rotary() (f RopeFrequencies) {
	if m, ok := d.Mixer.(Rotated); ok {
		f = m.Rotary()
	}
	return f
}

// RopeKind says how a model stretches its rotary frequencies to contexts longer than it was first trained on.
type RopeKind uint8

// The kinds, under the names of transformers: "default", "linear", "llama3", "yarn", "longrope", "proportional".
const (
	RopeDefault RopeKind = iota
	RopeLinear           // all frequencies divided by Factor
	RopeLlama3           // the low ones divided by Factor, the high ones kept, a ramp between
	RopeYaRN             // the same with another ramp, and scores that are scaled: Peng et al., "YaRN" (2023)
	RopeLong             // each divided by a number of its own: Ding et al., "LongRoPE" (2024)
	// Of a head that is rotated in part, the frequencies and the pairs are those of all of it, the frequencies divided
	// by Factor: Gemma 4, transformers (modeling_rope_utils.py).
	RopeProportional
)

// String is the name in config.json.
func (k RopeKind) String() string {
	return [...]string{"default", "linear", "llama3", "yarn", "longrope", "proportional"}[k]
}

// RopeFrequencies define the angles of the rotary positions: position times frequency.
type RopeFrequencies struct {
	HeadDim int // even
	Rotated int // columns of a head that are rotated, even; 0: all
	Theta   float64
	Kind    RopeKind
	Factor  float64 // linear, llama3, yarn, proportional
	// For llama3: wavelengths beyond OriginalPositions/LowFreqFactor are stretched by Factor, those below
	// OriginalPositions/HighFreqFactor are kept.
	LowFreqFactor, HighFreqFactor float64
	OriginalPositions             int
	// For yarn: frequencies that turn BetaFast times or more within OriginalPositions are kept, those that turn
	// BetaSlow times or less are stretched. Whole says that the ramp begins and ends at whole numbers of a frequency.
	BetaFast, BetaSlow float64
	Whole              bool
	// For longrope: what frequencies are divided by in documents of more than OriginalPositions, and in others.
	Long, Short Factors
	// For yarn and longrope: sines and cosines are multiplied by Magnitude.
	Magnitude float64
	// Queries are multiplied by 1 + QueryBeta*log(1 + floor(position/OriginalPositions)). 0: they are not.
	// Source: Meta, "Llama 4" (2025), in the form of transformers (modeling_ministral3.py).
	QueryBeta float64
}

// YaRNMagnitude is yarn's factor of sines and cosines for frequencies that are stretched by a factor, and a multiple of
// its logarithm, which is 1 where a model states none. Source: transformers (modeling_rope_utils.py), llama.cpp
// (llama-context.cpp and ggml's rope_yarn).
func YaRNMagnitude(factor, multiple float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*multiple*math.Log(factor)) + 1
}

// LongRopeMagnitude is longrope's factor of sines and cosines where a model states none: for a context that is longer
// by a factor than the original one. Source: transformers (modeling_rope_utils.py), llama.cpp's converter.
func LongRopeMagnitude(factor float64, original int) float64 {
	if factor <= 1 || original < 2 {
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(float64(original)))
}

// Factors is a list of numbers that can be compared: their shortest texts, with spaces between.
type Factors string

// NewFactors is the list of those numbers.
func NewFactors(numbers []float64) Factors {
	texts := make([]string, len(numbers))
	for i, x := range numbers {
		texts[i] = strconv.FormatFloat(x, 'g', -1, 64)
	}
	return Factors(strings.Join(texts, " "))
}

// Numbers parses the numbers of the list.
func (f Factors) Numbers() []float64 {
	texts := strings.Fields(string(f))
	numbers := make([]float64, len(texts))
	for i, text := range texts {
		numbers[i], _ = strconv.ParseFloat(text, 64) // as NewFactors wrote it
	}
	return numbers
}

// A mixer may need two tables, one after the other: position p of the second one is row n+p, where n is the number of
// positions of each.
//
// By longrope, long documents have other frequencies than short ones. transformers chooses by the longest document of a
// forward pass, and so for all documents that are packed together. Here each document has the frequencies that it would
// have alone, so that packing changes nothing: Place puts its positions into one of the tables. Where no document can
// be long there is one table.
//
// Where queries are scaled by position they have a table of their own, of scaled sines and cosines: scaling and
// rotating are one multiplication, and their gradient is, too.

// Rows is the number of rows of the tables for documents of at most n positions.
func (f RopeFrequencies) Rows(n int) int { return n * len(f.tables(n)) }

// tables are the frequencies of each table.
func (f RopeFrequencies) tables(n int) []RopeFrequencies {
	long, scaled := f, f
	long.Short = long.Long
	f.QueryBeta = 0
	switch {
	case f.IsLong(n):
		return []RopeFrequencies{f, long}
	case scaled.QueryBeta != 0:
		return []RopeFrequencies{f, scaled}
	}
	return []RopeFrequencies{f}
}

// Place turns positions in their documents, which begin and end at those rows of the micro-batch, into rows of the
// tables for documents of at most n positions.
func (f RopeFrequencies) Place(positions, start, end []int32, n int) {
	if !f.IsLong(n) {
		return
	}
	for t := range positions {
		if f.IsLong(int(end[t] - start[t])) {
			positions[t] += int32(n)
		}
	}
}

// IsLong reports whether a document of n positions has the frequencies of long ones.
func (f RopeFrequencies) IsLong(n int) bool { return f.Kind == RopeLong && n > f.OriginalPositions }

// A head of which a part is rotated. The operation rotates the pairs of columns (i, i+HeadDim/2), and models that
// rotate a part of r columns have its pairs (i, i+r/2) in their weights. So such a head has its columns in another
// order here: the first half of what is rotated, the first half of the rest, and then the second halves of both. The
// pairs of the rest have frequency 0. Scores are sums over a head's columns, so the order makes no difference to them;
// the rows of weights, of biases and of norms are put into it as they are read (model.PartlyRotated). By proportional,
// models have the operation's own pairs, of which the first r/2 are rotated, and columns stay where they are.

// Width is the number of columns of a head that are rotated.
func (f RopeFrequencies) Width() int {
	if f.Rotated > 0 {
		return f.Rotated
	}
	return f.HeadDim
}

// span is the number of columns over which frequencies fall from 1 to 1/Theta.
func (f RopeFrequencies) span() int {
	if f.Kind == RopeProportional {
		return f.HeadDim
	}
	return f.Width()
}

// Inverse are the HeadDim/2 frequencies in radians per position, zeros after those of what is rotated. They follow
// transformers (modeling_rope_utils.py) through fp32, with the roundings of PyTorch, which divides a number by a tensor
// as reciprocal times number; only its power function may differ, by one unit in the last place.
func (f RopeFrequencies) Inverse() []float32 { return inverse[float32](f) }

// Divisors returns the number by which each frequency was divided to stretch it, HeadDim/2 numbers from 1 to Factor.
func (f RopeFrequencies) Divisors() []float32 {
	unstretched := RopeFrequencies{HeadDim: f.HeadDim, Rotated: f.Rotated, Theta: f.Theta}
	if f.Kind == RopeProportional {
		unstretched.Kind, unstretched.Factor = f.Kind, 1
	}
	plain, stretched := inverse[float64](unstretched), inverse[float64](f)
	divisors := make([]float32, len(plain))
	for i := range divisors {
		if divisors[i] = 1; i < f.Width()/2 {
			divisors[i] = float32(plain[i] / stretched[i])
		}
	}
	return divisors
}

// inverse computes the frequencies with the roundings of a type.
func inverse[F float32 | float64](f RopeFrequencies) []F {
	inv := make([]F, f.HeadDim/2)
	first, last := f.yarnRamp()
	var factors []float64
	if f.Kind == RopeLong {
		factors = f.Short.Numbers()
	}
	for i := range inv[:f.Width()/2] {
		exponent := F(2*i) / F(f.span())
		inv[i] = 1 / F(math.Pow(f.Theta, float64(exponent)))
		switch f.Kind {
		case RopeLinear, RopeProportional:
			inv[i] /= F(f.Factor)
		case RopeLlama3:
			inv[i] = llama3(f, inv[i])
		case RopeYaRN:
			kept := 1 - min(max((F(i)-F(first))/F(last-first), 0), 1)
			stretched := 1 / F(F(f.Factor)*F(math.Pow(f.Theta, float64(exponent))))
			inv[i] = F(stretched*(1-kept)) + F(inv[i]*kept)
		case RopeLong:
			inv[i] = 1 / F(F(factors[i])*F(math.Pow(f.Theta, float64(exponent))))
		}
	}
	return inv
}

// yarnRamp returns between which frequencies, counted from the highest, yarn goes from kept to stretched ones.
func (f RopeFrequencies) yarnRamp() (first, last float64) {
	if f.Kind != RopeYaRN {
		return 0, 1
	}
	at := func(turns float64) float64 {
		return float64(f.Width()) * math.Log(float64(f.OriginalPositions)/(turns*2*math.Pi)) / (2 * math.Log(f.Theta))
	}
	first, last = at(f.BetaFast), at(f.BetaSlow)
	if f.Whole {
		first, last = math.Floor(first), math.Ceil(last)
	}
	first, last = max(first, 0), min(last, float64(f.Width()-1))
	if first == last {
		last += 0.001 // as transformers has it
	}
	return first, last
}

// llama3 stretches one frequency. Source: the Llama 3.1 release, as in transformers.
func llama3[F float32 | float64](f RopeFrequencies, inv F) F {
	wavelength := (1 / inv) * F(2*math.Pi)
	original := float64(f.OriginalPositions)
	long := wavelength > F(original/f.LowFreqFactor)
	short := wavelength < F(original/f.HighFreqFactor)
	switch {
	case long:
		return inv / F(f.Factor)
	case short:
		return inv
	}
	ratio := (1 / wavelength) * F(original)
	smooth := (ratio - F(f.LowFreqFactor)) / F(f.HighFreqFactor-f.LowFreqFactor)
	// The conversions keep the compiler from contracting a product and a sum into one rounding.
	return F(F((1-smooth)*inv)/F(f.Factor)) + F(smooth*inv)
}

// Tables are the cosines and sines of n rows from the first one on, of the tables for documents of at most positions:
// row-major [n, HeadDim/2]. An angle is rounded to fp32 before its cosine is taken, as PyTorch does.
func (f RopeFrequencies) Tables(positions, first, n int) (cos, sin []float32) {
	half := f.HeadDim / 2
	cos, sin = make([]float32, 0, n*half), make([]float32, 0, n*half)
	for i, table := range f.tables(positions) {
		inv, from := table.Inverse(), i*positions
		for row := max(first, from); row < min(first+n, from+positions); row++ {
			scale := table.queryScale(row - from)
			for j, v := range inv {
				s, c := math.Sincos(float64(float32(row-from) * v))
				by := scale
				if j < f.Width()/2 {
					by *= table.magnitude()
				}
				cos, sin = append(cos, float32(c)*by), append(sin, float32(s)*by)
			}
		}
	}
	return cos, sin
}

// magnitude returns the factor of sines and cosines.
func (f RopeFrequencies) magnitude() float32 {
	if f.Kind == RopeYaRN || f.Kind == RopeLong {
		return float32(f.Magnitude)
	}
	return 1
}

// queryScale returns the factor of a position's queries.
func (f RopeFrequencies) queryScale(position int) float32 {
	if f.QueryBeta == 0 {
		return 1
	}
	past := math.Log(1 + float64(position/f.OriginalPositions))
	return float32(1 + float64(f.QueryBeta*past))
}
