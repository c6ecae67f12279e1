package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// ropeKinds are the kinds of stretching under their names in config.json. By dynamic, frequencies differ from the plain
// ones only in sequences of more than max_position_embeddings, and those are refused. By mrope, they differ in images.
// Early files have su for longrope.
var ropeKinds = []string{nn.RopeDefault.String(), nn.RopeLinear.String(), nn.RopeLlama3.String(), nn.RopeYaRN.String(),
	nn.RopeLong.String(), "dynamic", "mrope", "su"}

// defaultTheta is the base of rotary positions of families that transformers does not have.
const defaultTheta = 10000

// readRope reads the rotary embedding in the style of transformers 4 ("rope_theta" and "rope_scaling", whose kind is
// "rope_type" or "type") or 5 ("rope_parameters" with both), for heads of a width.
func readRope(r *hf.ConfigReader, headDim int) nn.RopeFrequencies {
	return ropeWith(r, headDim, r.Positive("rope_theta", defaultTheta), 0)
}

// readPartialRope does so for a family whose heads may be rotated in part.
func readPartialRope(r *hf.ConfigReader, headDim int) nn.RopeFrequencies {
	return ropeWith(r, headDim, r.Positive("rope_theta", defaultTheta), r.Positive(partialKey, 1))
}

// partialKey says which part of a head is rotated.
const partialKey = "partial_rotary_factor"

// ropeWith does so with the base that the configuration has outside of "rope_parameters", and the part of a head; 0: the
// family has no such key, and all of a head is rotated.
func ropeWith(r *hf.ConfigReader, headDim int, theta, part float64) nn.RopeFrequencies {
	p := nn.RopeFrequencies{HeadDim: headDim, Theta: theta}
	scaling, params := ropeObjects(r)
	if params != nil {
		readTheta(r, params, "rope_theta", &p)
		scaling = params
	}
	p.Rotated = rotated(r, params, headDim, part)
	if scaling != nil {
		readScaling(r, scaling, &p)
	}
	return p
}

// ropeObjects are "rope_scaling" and "rope_parameters", of which a file has at most one; nil for one that it does not
// have. An empty "rope_scaling" says nothing, as to transformers.
func ropeObjects(r *hf.ConfigReader) (scaling, params *hf.ConfigReader) {
	if of, ok := r.Object("rope_scaling"); ok && !of.IsEmpty() {
		if r.Has("rope_parameters") {
			r.Fail("rope_scaling", "\"rope_parameters\" is set too: keep one of the two")
		}
		return of, nil
	}
	params, _ = r.Object("rope_parameters")
	return nil, params
}

// readTheta reads the base from an object that has it with the kind of stretching. Where the configuration has it under
// its own key, too, the two are the same.
func readTheta(r, params *hf.ConfigReader, key string, p *nn.RopeFrequencies) {
	p.Theta = params.Positive("rope_theta", p.Theta)
	if r.Has(key) {
		params.Require("rope_theta", r.FloatOr(key, 0))
	}
}

// readScaling reads how frequencies are stretched, from an object that says so.
func readScaling(r, scaling *hf.ConfigReader, p *nn.RopeFrequencies) {
	name := scaling.OneOf("rope_type", scaling.OneOf("type", "default", ropeKinds...), ropeKinds...)
	if scaling.Has("type") {
		scaling.Require("type", name)
	}
	switch name {
	case "dynamic":
		scaling.Positive("factor", 0)
		return
	case "mrope":
		return
	case "su":
		name = nn.RopeLong.String()
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
		readYaRN(r, scaling, p)
	case nn.RopeLong:
		readLongRope(r, scaling, p)
	}
}

// readRopeByType reads rotary embeddings of layers with full attention and of others with a sliding window: in the
// style of transformers 5, "rope_parameters" has an object for each; in that of 4, "rope_scaling" is for full attention
// alone. Early versions of 5 have the latter in the form of the former. The base of a sliding window has a key of its own
// in the style of 4; "": it is the same.
func readRopeByType(r *hf.ConfigReader, headDim int, slidingKey string) (full, sliding nn.RopeFrequencies) {
	full = nn.RopeFrequencies{HeadDim: headDim, Theta: r.Positive("rope_theta", defaultTheta)}
	sliding = full
	if slidingKey != "" {
		sliding.Theta = r.Positive(slidingKey, defaultTheta)
	}
	scaling, params := ropeObjects(r)
	if scaling != nil {
		readScaling(r, scaling, &full)
	}
	keys := [...]string{"rope_theta", cmp.Or(slidingKey, "rope_theta")}
	switch byType := [...]string{"full_attention", "sliding_attention"}; {
	case params == nil:
	case params.Has(byType[0]) || params.Has(byType[1]):
		for i, to := range []*nn.RopeFrequencies{&full, &sliding} {
			if of, ok := params.Object(byType[i]); ok {
				readTheta(r, of, keys[i], to)
				readScaling(r, of, to)
			}
		}
	default:
		readTheta(r, params, "rope_theta", &full)
		if slidingKey == "" {
			sliding.Theta = full.Theta
		}
		readScaling(r, params, &full)
	}
	return full, sliding
}

// checkRopes refuses what tables of rotary positions cannot hold. A micro-batch has one place for each of its positions
// (Model.Rotary), so all rotated blocks agree in which documents are long; and a second table is for long documents or
// for queries.
func (s *Spec) checkRopes(r *hf.ConfigReader) {
	key := "rope_parameters"
	if r.Has("rope_scaling") {
		key = "rope_scaling"
	}
	var lengths []int // of the longest documents that are not long, by rotated blocks; 0: none is long
	for l := range s.Blocks {
		f := s.Blocks[l].Rotary()
		switch {
		case f == nn.RopeFrequencies{}:
		case f.Kind != nn.RopeLong:
			lengths = append(lengths, 0)
		case f.QueryBeta != 0:
			r.Fail(key, "longrope is not supported together with \"llama_4_scaling_beta\"")
		default:
			lengths = append(lengths, f.OriginalPositions)
		}
	}
	if len(slices.Compact(lengths)) > 1 {
		r.Fail(key, "longrope is supported only where all layers that are rotated have it, with the same original "+
			"length")
	}
}

// rotated reads how many columns of a head are rotated, 0 for all, from what the keys of a config.json and, unless that
// is nil, those of its "rope_parameters" say. part is that of the former; 0: the family has no such key.
func rotated(r, params *hf.ConfigReader, headDim int, part float64) int {
	if part == 0 {
		r.Require(partialKey, 1.0)
		if params != nil {
			params.Require(partialKey, 1.0)
		}
		return 0
	}
	at := r
	if params != nil && params.Has(partialKey) {
		part, at = params.Positive(partialKey, 0), params
		if r.Has(partialKey) {
			params.Require(partialKey, r.Positive(partialKey, 0))
		}
	}
	n := int(float64(headDim) * part)
	switch {
	case r.Err() != nil || n == headDim:
		return 0
	case part > 1:
		at.Fail(partialKey, "more than 1 cannot be rotated of a head")
	case n < 2 || n%2 != 0:
		at.Fail(partialKey, "of heads of width %d that is %d columns, and an even number of them is rotated", headDim, n)
	}
	return n
}

// readYaRN reads the settings of yarn. Defaults are those of transformers (modeling_rope_utils.py).
func readYaRN(r, scaling *hf.ConfigReader, p *nn.RopeFrequencies) {
	positions := r.SizeOr("max_position_embeddings", 0)
	p.OriginalPositions = scaling.SizeOr("original_max_position_embeddings", positions)
	p.Factor = scaling.Positive("factor", float64(positions)/float64(max(p.OriginalPositions, 1)))
	p.BetaFast, p.BetaSlow = scaling.Positive("beta_fast", 32), scaling.Positive("beta_slow", 1)
	p.Whole = scaling.BoolOr("truncate", !scaling.IsNull("truncate"))
	p.Magnitude = nn.YaRNMagnitude(p.Factor, 1)
	if one, all := scaling.FloatOr("mscale", 0), scaling.FloatOr("mscale_all_dim", 0); one != 0 && all != 0 {
		p.Magnitude = nn.YaRNMagnitude(p.Factor, one) / nn.YaRNMagnitude(p.Factor, all)
	}
	p.Magnitude = scaling.Positive("attention_factor", p.Magnitude)
	switch {
	case r.Err() != nil:
	case p.BetaFast < p.BetaSlow:
		scaling.Fail("beta_fast", "it must not be smaller than \"beta_slow\"")
	case p.Theta <= 1:
		r.Fail("rope_theta", "yarn needs one above 1")
	case !(p.Magnitude > 0) || math.IsInf(p.Magnitude, 0):
		scaling.Fail("mscale", "scores would be scaled by %g", p.Magnitude)
	}
}

// readLongRope reads the settings of longrope. Defaults are those of transformers (modeling_rope_utils.py), for which
// the original length next to the kind counts less than that of the whole configuration.
func readLongRope(r, scaling *hf.ConfigReader, p *nn.RopeFrequencies) {
	const original = "original_max_position_embeddings"
	positions := r.SizeOr("max_position_embeddings", 0)
	p.OriginalPositions = r.SizeOr(original, scaling.SizeOr(original, positions))
	p.Factor = scaling.Positive("factor", float64(positions)/float64(max(p.OriginalPositions, 1)))
	p.Magnitude = scaling.Positive("attention_factor", nn.LongRopeMagnitude(p.Factor, p.OriginalPositions))
	read := func(key string) nn.Factors {
		factors := scaling.FloatsOr(key, nil)
		if n := p.Width() / 2; r.Err() == nil && len(factors) != n {
			scaling.Fail(key, "%d numbers are expected, one for each frequency", n)
		}
		if slices.ContainsFunc(factors, func(x float64) bool { return x <= 0 }) {
			scaling.Fail(key, "all of them must be positive")
		}
		return nn.NewFactors(factors)
	}
	p.Short, p.Long = read("short_factor"), read("long_factor")
}
