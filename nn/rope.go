package nn

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
)

// Rope are the tables of a mixer's rotary positions on the device, F32 [positions, HeadDim/2].
type Rope struct {
	Cos, Sin device.Mat
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

// The kinds, under the names of transformers: "default", "linear", "llama3", "yarn".
const (
	RopeDefault RopeKind = iota
	RopeLinear           // all frequencies divided by Factor
	RopeLlama3           // the low ones divided by Factor, the high ones kept, a ramp between
	RopeYaRN             // the same with another ramp, and scores that are scaled: Peng et al., "YaRN" (2023)
)

// String is the name in config.json.
func (k RopeKind) String() string { return [...]string{"default", "linear", "llama3", "yarn"}[k] }

// RopeFrequencies define the angles of the rotary positions: position times frequency.
type RopeFrequencies struct {
	HeadDim int // even
	Rotated int // columns of a head that are rotated, even; 0: all
	Theta   float64
	Kind    RopeKind
	Factor  float64 // linear, llama3, yarn
	// For llama3: wavelengths beyond OriginalPositions/LowFreqFactor are stretched by Factor, those below
	// OriginalPositions/HighFreqFactor are kept.
	LowFreqFactor, HighFreqFactor float64
	OriginalPositions             int
	// For yarn: frequencies that turn BetaFast times or more within OriginalPositions are kept, those that turn
	// BetaSlow times or less are stretched. Whole says that the ramp begins and ends at whole numbers of a frequency.
	// Sines and cosines are multiplied by Magnitude.
	BetaFast, BetaSlow, Magnitude float64
	Whole                         bool
}

// A head of which a part is rotated. The operation rotates the pairs of columns (i, i+HeadDim/2), and models that
// rotate a part of r columns have its pairs (i, i+r/2) in their weights. So such a head has its columns in another
// order here: the first half of what is rotated, the first half of the rest, and then the second halves of both. The
// pairs of the rest have frequency 0. Scores are sums over a head's columns, so the order makes no difference to them;
// the rows of weights, of biases and of norms are put into it as they are read (model.PartlyRotated).

// width is the number of columns that are rotated.
func (f RopeFrequencies) width() int {
	if f.Rotated > 0 {
		return f.Rotated
	}
	return f.HeadDim
}

// Inverse are the HeadDim/2 frequencies in radians per position, zeros after those of what is rotated. They follow
// transformers (modeling_rope_utils.py) through fp32, with the roundings of PyTorch, which divides a number by a tensor
// as reciprocal times number; only its power function may differ, by one unit in the last place.
func (f RopeFrequencies) Inverse() []float32 { return inverse[float32](f) }

// Divisors returns the number by which each frequency was divided to stretch it, HeadDim/2 numbers from 1 to Factor.
func (f RopeFrequencies) Divisors() []float32 {
	plain, stretched := inverse[float64](RopeFrequencies{HeadDim: f.HeadDim, Rotated: f.Rotated, Theta: f.Theta}),
		inverse[float64](f)
	divisors := make([]float32, len(plain))
	for i := range divisors {
		if divisors[i] = 1; i < f.width()/2 {
			divisors[i] = float32(plain[i] / stretched[i])
		}
	}
	return divisors
}

// inverse computes the frequencies with the roundings of a type.
func inverse[F float32 | float64](f RopeFrequencies) []F {
	inv := make([]F, f.HeadDim/2)
	first, last := f.yarnRamp()
	for i := range inv[:f.width()/2] {
		exponent := F(2*i) / F(f.width())
		inv[i] = 1 / F(math.Pow(f.Theta, float64(exponent)))
		switch f.Kind {
		case RopeLinear:
			inv[i] /= F(f.Factor)
		case RopeLlama3:
			inv[i] = llama3(f, inv[i])
		case RopeYaRN:
			kept := 1 - min(max((F(i)-F(first))/F(last-first), 0), 1)
			stretched := 1 / F(F(f.Factor)*F(math.Pow(f.Theta, float64(exponent))))
			inv[i] = F(stretched*(1-kept)) + F(inv[i]*kept)
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
		return float64(f.width()) * math.Log(float64(f.OriginalPositions)/(turns*2*math.Pi)) / (2 * math.Log(f.Theta))
	}
	first, last = at(f.BetaFast), at(f.BetaSlow)
	if f.Whole {
		first, last = math.Floor(first), math.Ceil(last)
	}
	first, last = max(first, 0), min(last, float64(f.width()-1))
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

// Tables are the cosines and sines for n positions from the first one on, row-major [n, HeadDim/2]. An angle is rounded to fp32 before
// its cosine is taken, as PyTorch does.
func (f RopeFrequencies) Tables(first, n int) (cos, sin []float32) {
	inv, magnitude := f.Inverse(), slices.Repeat([]float32{1}, f.HeadDim/2)
	if f.Kind == RopeYaRN {
		for i := range f.width() / 2 {
			magnitude[i] = float32(f.Magnitude)
		}
	}
	cos, sin = make([]float32, n*len(inv)), make([]float32, n*len(inv))
	for t := range n {
		for i, v := range inv {
			s, c := math.Sincos(float64(float32(first+t) * v))
			cos[t*len(inv)+i], sin[t*len(inv)+i] = float32(c)*magnitude[i], float32(s)*magnitude[i]
		}
	}
	return cos, sin
}
