package gguf

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The stretching of rotary frequencies in metadata. llama.cpp has linear and yarn as kinds, and llama3 as a tensor of
// divisors. Of yarn's settings it reads factor, original_context_length and attn_factor for the architectures here; the
// keys that its converter writes for the others ("yarn_...") are for those who want them back. mistral3 reads the betas
// and the multiple, too.
const (
	scalingType     = "rope.scaling.type"
	scalingFactor   = "rope.scaling.factor"
	scalingOriginal = "rope.scaling.original_context_length"
	scalingAttn     = "rope.scaling.attn_factor" // of scores, in addition to nn.YaRNMagnitude
	yarnAttn        = "rope.scaling.yarn_attn_factor"
	yarnFast        = "rope.scaling.yarn_beta_fast"
	yarnSlow        = "rope.scaling.yarn_beta_slow"
	// yarnLogMultiple: what nn.YaRNMagnitude makes of it divides that of 1.
	yarnLogMultiple = "rope.scaling.yarn_log_multiplier"
)

// llama.cpp's betas of yarn, which are also the defaults of transformers.
const (
	betaFast = 32
	betaSlow = 1
)

// llama3Positions are the original positions that every published Llama 3 model has.
const llama3Positions = 8192

// ropeFreqs is the tensor of divisors that stands for the llama3 kind of rope scaling.
const ropeFreqs = "rope_freqs.weight"

// refuseRope fails for a scaling that llama.cpp computes otherwise. The one difference that published models have is a
// note.
func (m *decoder) refuseRope(r *hf.ConfigReader) {
	switch f := m.Rope; {
	case (f.Kind == nn.RopeLlama3 || f.Kind == nn.RopeLong) && !slices.Contains(m.arch.scalings, f.Kind):
		r.Fail("model_type", "GGUF files are not written of a %s with %s rope scaling: use the Hugging Face directory",
			m.arch.name, f.Kind)
	case f.Kind != nn.RopeYaRN:
	case !m.arch.ownYaRN && (f.BetaFast != betaFast || f.BetaSlow != betaSlow):
		r.Fail("model_type", "in llama.cpp \"beta_fast\" and \"beta_slow\" of yarn are always %d and %d: "+
			"use the Hugging Face directory", betaFast, betaSlow)
	case !f.Whole:
		m.notes = append(m.notes, "the model has yarn with \"truncate\": false, and llama.cpp has it with true: "+
			"some frequencies differ a little there")
	case m.arch.mixture == "gpt_oss":
		m.notes = append(m.notes, "the model has yarn with \"truncate\": true, which a GGUF file cannot say: "+
			"an import of the file takes false, which gpt-oss is published with")
	}
}

// ropeScaling adds the metadata.
func (m *decoder) ropeScaling(add func(key string, value any)) {
	switch f := m.Rope; f.Kind {
	case nn.RopeLinear:
		add(scalingType, "linear")
		add(scalingFactor, float32(f.Factor))
	case nn.RopeLong:
		add(scalingOriginal, uint32(f.OriginalPositions))
		add(scalingAttn, float32(f.Magnitude))
	case nn.RopeLlama3:
		if f.OriginalPositions != llama3Positions {
			// The tensor says all; this is for those who want the parameters back.
			add(scalingOriginal, uint32(f.OriginalPositions))
		}
	case nn.RopeYaRN:
		add(scalingType, "yarn")
		add(scalingFactor, float32(f.Factor))
		add(scalingOriginal, uint32(f.OriginalPositions))
		usual := nn.YaRNMagnitude(f.Factor, 1)
		byMultiple := f.Magnitude == 1 && m.arch.ownYaRN
		if f.Magnitude != usual && !byMultiple && m.latent == nil || m.states("attention_factor") {
			add(yarnAttn, float32(f.Magnitude))
		}
		switch {
		case m.latent != nil:
			add(yarnLogMultiple, float32(latentMultiple*m.multiple()))
		case byMultiple:
			add(yarnLogMultiple, float32(1))
		case f.Magnitude != usual:
			add(scalingAttn, float32(f.Magnitude/usual))
		}
		if m.states("beta_fast") {
			add(yarnFast, float32(f.BetaFast))
		}
		if m.states("beta_slow") {
			add(yarnSlow, float32(f.BetaSlow))
		}
	}
}

// states reports whether config.json has a key of rope scaling, which llama.cpp's converter copies only then.
func (m *decoder) states(key string) bool {
	for _, object := range []string{"rope_scaling", "rope_parameters"} {
		if scaling, ok := decoderKeys(m.config).Object(object); ok && scaling.Has(key) {
			return true
		}
	}
	return false
}

// positive reads a positive number; def if the key is absent, which for 0 is an error.
func (g *header) positive(key string, def float64) (float64, error) {
	x, ok, err := g.float(key)
	if err != nil {
		return 0, err
	}
	if !ok {
		x = def
	}
	if x <= 0 {
		return 0, fmt.Errorf("metadata %s is missing or not positive", key)
	}
	return x, nil
}

// rope reads the rotary embedding's scaling. The llama3 kind is stored as a tensor of divisors, rope_freqs.weight; it
// is turned back into its parameters if the published ones give the same divisors.
func (g *header) rope(theta float64, f *tensorReader, m *stated) error {
	arch := m.arch.name + "."
	m.rope.HeadDim, m.rope.Theta = m.headDim, theta
	kind, ok, err := g.text(arch + scalingType)
	if err != nil {
		return err
	}
	switch {
	case !ok || kind == "none":
	case kind == "linear":
		factor, err := g.positive(arch+scalingFactor, 0)
		if err != nil {
			return err
		}
		if factor != 1 {
			m.rope.Kind, m.rope.Factor = nn.RopeLinear, factor
		}
	case kind == "yarn":
		if err := g.yarn(m); err != nil {
			return err
		}
	default:
		return fmt.Errorf("metadata %s is %s: none, linear and yarn are supported", arch+scalingType,
			terminal.Quote(kind))
	}
	if err := g.longRope(f, m); err != nil {
		return err
	}
	if m.arch.ownHeads {
		return g.proportional(f, m)
	}
	t, ok := g.tensors[ropeFreqs]
	if !ok {
		return nil
	}
	if m.rope.Kind != nn.RopeDefault || m.rope.Rotated > 0 {
		return fmt.Errorf("it has both %s rope scaling and rope_freqs.weight: this is not supported", m.rope.Kind)
	}
	if want := (tensor.Shape{m.headDim / 2}); !t.dims.Equal(want) {
		return fmt.Errorf("tensor rope_freqs.weight has shape %v, expected is %v", t.dims, want)
	}
	divisors := make([]float32, t.elems)
	if err := f.read(t, divisors, 0); err != nil {
		return err
	}
	original := llama3Positions
	if key := arch + scalingOriginal; g.has(key) {
		if original, err = g.size(key); err != nil {
			return err
		}
	}
	p, ok := llama3FromDivisors(divisors, theta, original)
	if !ok {
		return fmt.Errorf("tensor rope_freqs.weight is not the llama3 rope scaling with the published parameters "+
			"(low_freq_factor 1, high_freq_factor 4, %d original positions): use the model's Hugging Face directory",
			original)
	}
	m.rope = p
	return nil
}

// yarn reads its settings.
func (g *header) yarn(m *stated) (err error) {
	p, arch := &m.rope, m.arch.name+"."
	p.Kind, p.OriginalPositions = nn.RopeYaRN, m.positions
	if p.Factor, err = g.positive(arch+scalingFactor, 0); err != nil {
		return err
	}
	if key := arch + scalingOriginal; g.has(key) {
		if p.OriginalPositions, err = g.size(key); err != nil {
			return err
		}
	}
	if p.BetaFast, err = g.positive(arch+yarnFast, betaFast); err != nil {
		return err
	}
	if p.BetaSlow, err = g.positive(arch+yarnSlow, betaSlow); err != nil {
		return err
	}
	if m.arch.latent {
		return g.latentYaRN(m)
	}
	usual := nn.YaRNMagnitude(p.Factor, 1)
	if multiple, ok, err := g.float(arch + yarnLogMultiple); err != nil {
		return err
	} else if ok && multiple > 0 {
		usual /= nn.YaRNMagnitude(p.Factor, multiple)
	}
	relative, err := g.positive(arch+scalingAttn, 1)
	if err != nil {
		return err
	}
	if err := checkF32(arch+scalingAttn, relative*usual); err != nil {
		return err
	}
	if p.Magnitude, err = g.positive(arch+yarnAttn, relative*usual); err != nil {
		return err
	}
	if g.has(arch+scalingAttn) && !(math.Abs(p.Magnitude-relative*usual) <= 1e-5*p.Magnitude) {
		return fmt.Errorf("metadata %s is %g and %s is %g, which is not the same scaling of scores for a factor of %g",
			arch+yarnAttn, p.Magnitude, arch+scalingAttn, relative, p.Factor)
	}
	return nil
}

// llama3FromDivisors finds the scaling whose divisors those are, to the accuracy of fp32 arithmetic. Divisors that
// are all one are no scaling.
func llama3FromDivisors(divisors []float32, theta float64, original int) (nn.RopeFrequencies, bool) {
	p := nn.RopeFrequencies{HeadDim: 2 * len(divisors), Theta: theta}
	if largest := slices.Max(divisors); largest != 1 {
		p.Kind, p.Factor, p.LowFreqFactor, p.HighFreqFactor = nn.RopeLlama3, float64(largest), 1, 4
		p.OriginalPositions = original
	}
	for i, want := range p.Divisors() {
		if !(math.Abs(float64(divisors[i]-want)) <= 1e-5*float64(want)) { // also when one is NaN
			return p, false
		}
	}
	return p, true
}

// scalingConfig is rope_scaling in the style of transformers 4; nil if nothing is stretched.
func (m *stated) scalingConfig() map[string]any {
	p := m.rope
	c := map[string]any{"rope_type": p.Kind.String(), "factor": shortestF32(p.Factor)}
	switch p.Kind {
	case nn.RopeDefault:
		if m.modelType == "gpt_oss" { // of which transformers stretches the frequencies where the key is absent
			return map[string]any{"rope_type": p.Kind.String()}
		}
		return nil
	case nn.RopeLong:
		return m.longConfig()
	case nn.RopeLlama3:
		c["low_freq_factor"], c["high_freq_factor"] = p.LowFreqFactor, p.HighFreqFactor
		c["original_max_position_embeddings"] = p.OriginalPositions
	case nn.RopeYaRN:
		c["factor"], c["beta_fast"], c["beta_slow"] = floatF32(p.Factor), floatF32(p.BetaFast), floatF32(p.BetaSlow)
		c["original_max_position_embeddings"] = p.OriginalPositions
		if m.arch.latent {
			c["mscale"], c["mscale_all_dim"] = m.latent.multiple, m.latent.multiple
		} else if p.Magnitude != nn.YaRNMagnitude(p.Factor, 1) {
			c["attention_factor"] = floatF32(p.Magnitude)
		}
		if m.modelType == "gpt_oss" { // the file cannot say it, and every published model has it
			c["truncate"] = false
		}
	}
	return c
}
