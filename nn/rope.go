package nn

import (
	"math"

	"github.com/millrace/millrace/device"
)

// Rope are the tables of the rotary positions on the device, F32 [positions, HeadDim/2].
type Rope struct {
	Cos, Sin device.Mat
}

// RopeKind is how a model stretches its rotary frequencies to contexts longer than it was first trained on.
type RopeKind uint8

// The kinds, under the names of transformers: "default", "linear", "llama3".
const (
	RopeDefault RopeKind = iota
	RopeLinear           // all frequencies divided by Factor
	RopeLlama3           // the low ones divided by Factor, the high ones kept, a ramp between
)

// RopeFrequencies define the angles of the rotary positions: position times frequency.
type RopeFrequencies struct {
	HeadDim int // even
	Theta   float64
	Kind    RopeKind
	Factor  float64 // linear, llama3
	// For llama3: wavelengths beyond OriginalPositions/LowFreqFactor are stretched by Factor, those below
	// OriginalPositions/HighFreqFactor are kept.
	LowFreqFactor, HighFreqFactor float64
	OriginalPositions             int
}

// Inverse are the HeadDim/2 frequencies in radians per position. They follow transformers (modeling_rope_utils.py)
// through fp32, with the roundings of PyTorch, which divides a number by a tensor as reciprocal times number; only its
// power function may differ, by one unit in the last place.
func (f RopeFrequencies) Inverse() []float32 {
	inv := make([]float32, f.HeadDim/2)
	for i := range inv {
		exponent := float32(2*i) / float32(f.HeadDim)
		inv[i] = 1 / float32(math.Pow(f.Theta, float64(exponent)))
		switch f.Kind {
		case RopeLinear:
			inv[i] /= float32(f.Factor)
		case RopeLlama3:
			inv[i] = f.llama3(inv[i])
		}
	}
	return inv
}

// llama3 stretches one frequency. Source: the Llama 3.1 release, as in transformers.
func (f RopeFrequencies) llama3(inv float32) float32 {
	wavelength := (1 / inv) * float32(2*math.Pi)
	original := float64(f.OriginalPositions)
	long := wavelength > float32(original/f.LowFreqFactor)
	short := wavelength < float32(original/f.HighFreqFactor)
	switch {
	case long:
		return inv / float32(f.Factor)
	case short:
		return inv
	}
	ratio := (1 / wavelength) * float32(original)
	smooth := (ratio - float32(f.LowFreqFactor)) / float32(f.HighFreqFactor-f.LowFreqFactor)
	// The conversions keep the compiler from contracting a product and a sum into one rounding.
	return float32(float32((1-smooth)*inv)/float32(f.Factor)) + float32(smooth*inv)
}

// Tables are the cosines and sines for n positions from the first one on, row-major [n, HeadDim/2]. An angle is rounded to fp32 before
// its cosine is taken, as PyTorch does.
func (f RopeFrequencies) Tables(first, n int) (cos, sin []float32) {
	inv := f.Inverse()
	cos, sin = make([]float32, n*len(inv)), make([]float32, n*len(inv))
	for t := range n {
		for i, v := range inv {
			s, c := math.Sincos(float64(float32(first+t) * v))
			cos[t*len(inv)+i], sin[t*len(inv)+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
