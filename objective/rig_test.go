package objective

import (
	"maps"
	"math"
	"slices"

	"pgregory.net/rapid"
)

// variant is an objective with the textbook form of its losses.
type variant struct {
	name     string
	settings Settings
	// kink is where a loss has no slope, by z; NaN: it has one everywhere.
	kink float64
}

// variants has every loss of every type, with settings drawn from their ranges.
func drawVariant(rt *rapid.T) variant {
	kind := rapid.SampledFrom(Types()).Draw(rt, "type")
	s := Settings{Type: kind}
	number := func(least, most float64, name string) float64 {
		return math.Round(rapid.Float64Range(least, most).Draw(rt, name)*64) / 64
	}
	switch kind {
	case dft:
		return variant{dft, s, math.NaN()}
	case distill:
		s.TopK, s.Share = rapid.IntRange(1, 3).Draw(rt, "top k"), new(number(1.0/64, 1, "share"))
		return variant{distill, s, math.NaN()}
	case policy:
		return variant{policy, drawPolicy(rt), math.NaN()}
	}
	if kind == reward {
		if rapid.Bool().Draw(rt, "centers") {
			s.Center = new(number(1.0/64, 1, "center"))
		}
		return variant{reward, s, math.NaN()}
	}
	s.Losses = []string{rapid.SampledFrom(Losses(kind)).Draw(rt, "loss")}
	s.Beta = number(1.0/16, 0.75, "beta")
	if len(s.smoothed()) > 0 {
		s.LabelSmoothing = number(1.0/64, 0.4, "label smoothing")
	}
	k := kindNamed(kind)
	for _, n := range numbers {
		if k.reads(n.name) && rapid.Bool().Draw(rt, "has "+n.name) {
			*n.of(&s) = new(number(1.0/64, 1, n.name))
		}
	}
	s.NLLPrompt = k.prompts && rapid.Bool().Draw(rt, "nll_prompt")
	if k.sum && rapid.Bool().Draw(rt, "adds") {
		other := rapid.SampledFrom(Losses(kind)).Draw(rt, "second loss")
		if other != s.Losses[0] && len((&Settings{Type: kind, Losses: []string{other}}).smoothed()) == 0 {
			s.Losses = append(s.Losses, other)
			s.Shares = []float64{number(0.25, 2, "share"), number(0.25, 2, "second share")}
		}
	}
	v := variant{kind + " " + s.Losses[0], s, math.NaN()}
	if slices.Contains(s.Losses, "hinge") {
		v.kink = 1
	}
	return v
}

// drawPolicy draws a loss of a policy with its settings. Answers have old log-probabilities, as all draws have.
func drawPolicy(rt *rapid.T) Settings {
	s := Settings{Type: policy, Losses: []string{rapid.SampledFrom(Losses(policy)).Draw(rt, "loss")}}
	of := policyLossNamed(s.Losses[0])
	if of.clip != nil && s.Losses[0] != "cispo" {
		s.Clip = []float64{0.125, 0.25}
	}
	if of.normalizer == byMaxTokens || !of.whole && rapid.Bool().Draw(rt, "by max_tokens") {
		s.Normalizer, s.MaxTokens = byMaxTokens, 7
	}
	if !of.readsSampler {
		s.Old = OldOfData
		if of.criticized {
			s.Gamma, s.Lambda = new(0.75), new(0.5)
			s.VFCoef, s.ClipValue = new(0.25), new(float64(rapid.IntRange(0, 1).Draw(rt, "clip_value"))/4)
		}
		if rapid.Bool().Draw(rt, "has kl") {
			s.KL = new(0.25)
			s.KLPlain = !of.whole && !of.criticized && rapid.Bool().Draw(rt, "plain")
		}
		modes := corrections
		if s.Losses[0] == "vespo" {
			modes = []string{tokenTruncate, tokenMask, noCorrection}
		}
		s.Correction = rapid.SampledFrom(modes).Draw(rt, "correction")
	}
	if rapid.Bool().Draw(rt, "has a bonus") {
		s.EntropyCoef = new(float64(rapid.IntRange(-4, 4).Draw(rt, "entropy_coef")) / 16)
	}
	return s
}

// drawStep draws sequences that an objective of such needs takes. Log-probabilities are multiples of 2^-10, so that
// small changes of them are exact in fp32.
func drawStep(rt *rapid.T, n Needs) *Step {
	groups := rapid.IntRange(1, 5).Draw(rt, "groups")
	step := &Step{}
	for g := range groups {
		switch {
		case n.Scores:
			margin := float64(rapid.IntRange(-2, 4).Draw(rt, "margin")) / 2
			for _, side := range []Side{Chosen, Rejected} {
				score := float32(rapid.IntRange(-4096, 4096).Draw(rt, "score")) / 1024
				q := scored(g, side, rapid.IntRange(0, 5).Draw(rt, "before it"), score)
				q.Margin = margin
				step.Sequences = append(step.Sequences, q)
			}
		case n.Pairs:
			step.Sequences = append(step.Sequences, drawSequence(rt, g, Chosen, n), drawSequence(rt, g, Rejected, n))
		case n.Labels:
			side := rapid.SampledFrom([]Side{Desirable, Undesirable}).Draw(rt, "side")
			step.Sequences = append(step.Sequences, drawSequence(rt, g, side, n))
			if n.Mismatched {
				step.Sequences = append(step.Sequences, drawSequence(rt, g, Mismatched, n))
			}
		default:
			step.Sequences = append(step.Sequences, drawSequence(rt, g, Alone, n))
		}
	}
	step.Whole = Count(step.Sequences)
	return step
}

func drawSequence(rt *rapid.T, group int, side Side, n Needs) Sequence {
	prompt, length := rapid.IntRange(0, 3).Draw(rt, "prompt"), rapid.IntRange(1, 6).Draw(rt, "length")
	q := Sequence{Group: group, Side: side}
	logp := func() float32 { return -float32(rapid.IntRange(16, 4096).Draw(rt, "log-probability")) / 1024 }
	for t := range prompt + length + 1 {
		inPrompt, target, weight, p, ref := t < prompt, int32(t), float32(1), logp(), logp()
		switch {
		case t == prompt+length, inPrompt && !n.Prompts: // the last token predicts nothing
			target, weight, p, ref = -1, 0, 0, 0
		case inPrompt:
			weight = 0
		}
		q.Targets, q.Weights = append(q.Targets, target), append(q.Weights, weight)
		q.LogProbs = append(q.LogProbs, p)
		if n.Rollouts {
			if t == 0 {
				q.Rollout = &Rollout{Advantage: float64(rapid.IntRange(-8, 8).Draw(rt, "advantage")) / 4}
			}
			of := q.Rollout
			of.Old = append(of.Old, min(p+float32(rapid.IntRange(-512, 512).Draw(rt, "old"))/1024, 0))
			of.Sampler = append(of.Sampler, min(p+float32(rapid.IntRange(-512, 512).Draw(rt, "sampler"))/1024, 0))
			if rapid.IntRange(0, 9).Draw(rt, "known") == 0 {
				of.Sampler[t] = UnknownLogProb
			}
			if n.Values {
				value := float32(rapid.IntRange(-2048, 2048).Draw(rt, "value")) / 1024
				q.Values, q.ValueSlopes = append(q.Values, value), append(q.ValueSlopes, 77)
				of.Values = append(of.Values, value+float32(rapid.IntRange(-512, 512).Draw(rt, "old value"))/1024)
				of.Reward = of.Advantage
			}
			if n.Entropies {
				x := float32(rapid.IntRange(0, 4096).Draw(rt, "entropy")) / 1024
				q.Entropies, q.EntropySlopes = append(q.Entropies, x), append(q.EntropySlopes, 77)
			}
		}
		if n.Reference {
			q.Reference = append(q.Reference, ref)
		}
	}
	if n.TopK > 0 {
		q.Top = &Top{K: n.TopK, Slopes: make([]float32, len(q.Targets)*(n.TopK+1))}
		for _, target := range q.Targets {
			for i := range n.TopK {
				q.Top.IDs = append(q.Top.IDs, 1000*int32(i+1)+target) // no target is one of them
				q.Top.Teacher, q.Top.Student = append(q.Top.Teacher, logp()-2), append(q.Top.Student, logp()-2)
			}
			q.Top.IDs, q.Top.Student = append(q.Top.IDs, target), append(q.Top.Student, 0)
		}
	}
	return q
}

// copyOf copies a step, with weights as they were.
func copyOf(s *Step) *Step {
	c := &Step{Sequences: slices.Clone(s.Sequences), Whole: s.Whole}
	for i := range c.Sequences {
		q := &c.Sequences[i]
		q.LogProbs, q.Weights, q.Targets = slices.Clone(q.LogProbs), slices.Clone(q.Weights), slices.Clone(q.Targets)
		q.Reference = slices.Clone(q.Reference)
		q.Values, q.ValueSlopes = slices.Clone(q.Values), slices.Clone(q.ValueSlopes)
		q.Entropies, q.EntropySlopes = slices.Clone(q.Entropies), slices.Clone(q.EntropySlopes)
		if q.Rollout != nil {
			of := *q.Rollout
			q.Rollout = &of
		}
		if q.Top != nil {
			q.Top = &Top{q.Top.K, q.Top.IDs, q.Top.Teacher, q.Top.Student, slices.Clone(q.Top.Slopes)}
		}
	}
	return c
}

func open(t rapid.TB, s Settings) Objective {
	t.Helper()
	o, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func weigh(t rapid.TB, o Objective, s *Step) Result {
	t.Helper()
	r, err := o.Weigh(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sequence makes a completion without a prompt.
func sequence(group int, side Side, logProbs, reference []float32) Sequence {
	q := Sequence{Group: group, Side: side, LogProbs: logProbs, Reference: reference}
	for range logProbs {
		q.Targets, q.Weights = append(q.Targets, 1), append(q.Weights, 1)
	}
	return q
}

// scored makes a document whose score is at a position, and one more position after it.
func scored(group int, side Side, at int, score float32) Sequence {
	q := Sequence{Group: group, Side: side, LogProbs: slices.Repeat([]float32{77}, at+2),
		Targets: slices.Repeat([]int32{-1}, at+2), Weights: slices.Repeat([]float32{1}, at+2)}
	q.LogProbs[at], q.Targets[at] = score, 5
	return q
}

// single makes a step of a pair of completions with these sums of log-ratios, each of one token for each step of
// lengths.
func single(u, v float64, lu, lv int) *Step {
	fill := func(x float64, n int) []float32 { return slices.Repeat([]float32{float32(x / float64(n))}, n) }
	s := &Step{Sequences: []Sequence{sequence(7, Chosen, fill(u, lu), make([]float32, lu)),
		sequence(7, Rejected, fill(v, lv), make([]float32, lv))}}
	s.Whole = Count(s.Sequences)
	return s
}

func near(a, b, relative float64) bool {
	return a == b || math.Abs(a-b) <= relative*max(math.Abs(a), math.Abs(b))
}

func sameMetrics(a, b map[string]float64) bool {
	return maps.EqualFunc(a, b, func(x, y float64) bool { return near(x, y, 1e-14) })
}
