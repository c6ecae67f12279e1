package hf

import "math"

// Rope is the rotary position embedding that a config asks for.
//
// With d the head dimension, pair i of d/2 turns by position * f(i), where f(i) = Theta^(-2i/d) for "default", that
// divided by Factor for "linear", and for "llama3" as Frequency computes it.
type Rope struct {
	Type   string  // "default", "linear" or "llama3"
	Theta  float64 // base of the frequencies
	Factor float64 // linear and llama3: how far positions are stretched

	// llama3 only: wavelengths longer than OriginalPositions/LowFreqFactor are stretched by Factor, those shorter than
	// OriginalPositions/HighFreqFactor are left, and between the two the change is smooth.
	LowFreqFactor, HighFreqFactor float64
	OriginalPositions             int
}

// Frequency is f(i), in radians per position, for a head dimension of headDim. The source of "llama3" is the
// reference code of Llama 3.1 (apply_scaling).
func (p Rope) Frequency(i, headDim int) float64 {
	f := math.Pow(p.Theta, -2*float64(i)/float64(headDim))
	switch p.Type {
	case "linear":
		return f / p.Factor
	case "llama3":
		return f / p.stretch(f)
	}
	return f
}

// stretch is the divisor of frequency f under llama3 scaling, between 1 and Factor.
func (p Rope) stretch(f float64) float64 {
	turns := float64(p.OriginalPositions) * f / (2 * math.Pi) // of this pair over the original context
	switch {
	case turns > p.HighFreqFactor:
		return 1
	case turns < p.LowFreqFactor:
		return p.Factor
	}
	smooth := (turns - p.LowFreqFactor) / (p.HighFreqFactor - p.LowFreqFactor)
	return 1 / ((1-smooth)/p.Factor + smooth)
}

// Rope reads the rotary embedding in the style of transformers 4 ("rope_theta" and "rope_scaling", whose kind is
// "rope_type" or "type") or 5 ("rope_parameters" with both). defaultTheta stands for an absent base.
func (r *ConfigReader) Rope(defaultTheta float64) Rope {
	r.Require("partial_rotary_factor", 1.0)
	p := Rope{Type: "default", Theta: r.positive("rope_theta", defaultTheta)}
	scaling, isOld := r.Object("rope_scaling")
	params, isNew := r.Object("rope_parameters")
	if isOld && isNew {
		r.Fail("rope_scaling", "\"rope_parameters\" is set too: keep one of the two")
	}
	if isNew {
		p.Theta = params.positive("rope_theta", p.Theta)
		if r.Has("rope_theta") {
			params.Require("rope_theta", r.FloatOr("rope_theta", 0))
		}
		params.Require("partial_rotary_factor", 1.0)
		scaling = params
	}
	if scaling == nil {
		return p
	}
	supported := []string{"default", "linear", "llama3"}
	p.Type = scaling.OneOf("rope_type", scaling.OneOf("type", "default", supported...), supported...)
	if scaling.Has("type") {
		scaling.Require("type", p.Type)
	}
	switch p.Type {
	case "linear":
		p.Factor = scaling.positive("factor", 0)
	case "llama3":
		p.Factor = scaling.positive("factor", 0)
		p.LowFreqFactor = scaling.positive("low_freq_factor", 0)
		p.HighFreqFactor = scaling.positive("high_freq_factor", 0)
		p.OriginalPositions = scaling.Size("original_max_position_embeddings")
		if r.Err() == nil && p.HighFreqFactor <= p.LowFreqFactor {
			scaling.Fail("high_freq_factor", "it must be larger than \"low_freq_factor\"")
		}
	}
	return p
}

// positive reads a number above zero; def stands for an absent one, and 0 as def for one that must be there.
func (r *ConfigReader) positive(key string, def float64) float64 {
	if !r.Has(key) && def == 0 {
		r.Fail(key, "a positive number is expected")
	}
	x := r.FloatOr(key, def)
	if r.Err() == nil && x <= 0 {
		r.Fail(key, "a positive number is expected")
	}
	return x
}
