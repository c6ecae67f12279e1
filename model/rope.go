package model

import (
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// ropeKinds are the kinds of stretching, under their names in config.json.
var ropeKinds = []string{nn.RopeDefault.String(), nn.RopeLinear.String(), nn.RopeLlama3.String()}

// readRope reads the rotary embedding in the style of transformers 4 ("rope_theta" and "rope_scaling", whose kind is
// "rope_type" or "type") or 5 ("rope_parameters" with both), for heads of a width. defaultTheta stands for an absent base.
func readRope(r *hf.ConfigReader, headDim int, defaultTheta float64) nn.RopeFrequencies {
	r.Require("partial_rotary_factor", 1.0)
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
		params.Require("partial_rotary_factor", 1.0)
		scaling = params
	}
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
	}
	return p
}
