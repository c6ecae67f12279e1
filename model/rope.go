package model

import (
	"math"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// ropeKinds are the kinds of stretching, under their names in config.json.
var ropeKinds = []string{nn.RopeDefault.String(), nn.RopeLinear.String(), nn.RopeLlama3.String(), nn.RopeYaRN.String()}

// readRope reads the rotary embedding in the style of transformers 4 ("rope_theta" and "rope_scaling", whose kind is
// "rope_type" or "type") or 5 ("rope_parameters" with both), for heads of a width. defaultTheta stands for an absent base.
func readRope(r *hf.ConfigReader, headDim int, defaultTheta float64) nn.RopeFrequencies {
	return readPartialRope(r, headDim, defaultTheta, 1)
}

// readPartialRope does so for a family whose heads may be rotated in part. defaultFactor stands for an absent
// "partial_rotary_factor"; of a family whose default is 1 nothing else is supported.
func readPartialRope(r *hf.ConfigReader, headDim int, defaultTheta, defaultFactor float64) nn.RopeFrequencies {
	p := nn.RopeFrequencies{HeadDim: headDim, Theta: r.Positive("rope_theta", defaultTheta)}
	scaling, isOld := r.Object("rope_scaling")
	params, isNew := r.Object("rope_parameters")
	if isOld && isNew {
		r.Fail("rope_scaling", "\"rope_parameters\" is set too: keep one of the two")
	}
	if isNew {
		p.Theta = params.Positive("rope_theta", p.Theta)
		if r.Has("rope_theta") {
			params.Require("rope_theta", r.FloatOr("rope_theta", 0))
		}
		scaling = params
	}
	p.Rotated = rotated(r, params, headDim, defaultFactor)
	if scaling == nil {
		return p
	}
	name := scaling.OneOf("rope_type", scaling.OneOf("type", "default", ropeKinds...), ropeKinds...)
	if scaling.Has("type") {
		scaling.Require("type", name)
	}
	p.Kind = nn.RopeKind(max(slices.Index(ropeKinds, name), 0))
	switch p.Kind {
	case nn.RopeLinear:
		p.Factor = scaling.Positive("factor", 0)
	case nn.RopeLlama3:
		p.Factor = scaling.Positive("factor", 0)
		p.LowFreqFactor = scaling.Positive("low_freq_factor", 0)
		p.HighFreqFactor = scaling.Positive("high_freq_factor", 0)
		p.OriginalPositions = scaling.Size("original_max_position_embeddings")
		if r.Err() == nil && p.HighFreqFactor <= p.LowFreqFactor {
			scaling.Fail("high_freq_factor", "it must be larger than \"low_freq_factor\"")
		}
	case nn.RopeYaRN:
		readYaRN(r, scaling, &p)
	}
	return p
}

// rotated reads how many columns of a head are rotated, 0 for all, from what the keys of a config.json and, unless that
// is nil, those of its "rope_parameters" say.
func rotated(r, params *hf.ConfigReader, headDim int, defaultFactor float64) int {
	const key = "partial_rotary_factor"
	all, factor := []*hf.ConfigReader{r}, defaultFactor
	if params != nil {
		all = append(all, params)
	}
	if defaultFactor == 1 {
		for _, r := range all {
			r.Require(key, 1.0)
		}
		return 0
	}
	at := r
	for _, r := range all {
		if r.Has(key) {
			factor, at = r.Positive(key, 0), r
		}
	}
	if at == params && r.Has(key) {
		params.Require(key, r.FloatOr(key, 0))
	}
	n := int(float64(headDim) * factor)
	switch {
	case r.Err() != nil || n == headDim:
		return 0
	case factor > 1 || n < 2 || n%2 != 0:
		at.Fail(key, "of heads of width %d that is %d columns, and an even number of them is rotated", headDim, n)
	}
	return n
}

// readYaRN reads the settings of yarn. Defaults are those of transformers (modeling_rope_utils.py).
func readYaRN(r, scaling *hf.ConfigReader, p *nn.RopeFrequencies) {
	p.Factor = scaling.Positive("factor", 0)
	p.OriginalPositions = scaling.SizeOr("original_max_position_embeddings", r.SizeOr("max_position_embeddings", 0))
	p.BetaFast, p.BetaSlow = scaling.Positive("beta_fast", 32), scaling.Positive("beta_slow", 1)
	p.Whole = scaling.BoolOr("truncate", true)
	magnitude := func(by float64) float64 {
		if p.Factor <= 1 {
			return 1
		}
		return 0.1*by*math.Log(p.Factor) + 1
	}
	p.Magnitude = magnitude(1)
	if one, all := scaling.FloatOr("mscale", 0), scaling.FloatOr("mscale_all_dim", 0); one != 0 && all != 0 {
		p.Magnitude = magnitude(one) / magnitude(all)
	}
	p.Magnitude = scaling.Positive("attention_factor", p.Magnitude)
	switch {
	case r.Err() != nil:
	case p.BetaFast <= p.BetaSlow:
		scaling.Fail("beta_fast", "it must be larger than \"beta_slow\"")
	case p.Theta <= 1:
		r.Fail("rope_theta", "yarn needs one above 1")
	case !(p.Magnitude > 0) || math.IsInf(p.Magnitude, 0):
		scaling.Fail("mscale", "scores would be scaled by %g", p.Magnitude)
	}
}
