package objective

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSlopes holds the weights of every loss against differences of its value.
func TestSlopes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		if v.settings.Type == dft || v.settings.Type == distill || v.settings.Type == policy {
			rt.Skip("draws another: dft holds its probabilities, distill has slopes by logit (TestTaughtSlopes), and those of " +
				"a policy have a test of their own (TestPolicySlopes)")
		}
		o := open(rt, v.settings)
		step := drawStep(rt, o.Needs())
		if !math.IsNaN(v.kink) && nearKink(step, o.(*ofPairs).settings, v.kink) {
			rt.Skip("draws another: the loss has no slope at its kink, and differences near it are of neither side")
		}
		at := copyOf(step)
		loss := weigh(rt, o, at).Loss
		for i := range step.Sequences {
			q := &step.Sequences[i]
			if q.Side == Mismatched {
				continue
			}
			for pos, target := range q.Targets {
				if target < 0 {
					continue
				}
				moved := func(by float64) float64 {
					s := copyOf(step)
					s.Sequences[i].LogProbs[pos] += float32(by)
					return weigh(rt, o, s).Loss
				}
				central := func(h float64) float64 { return (moved(h) - moved(-h)) / (2 * h) }
				const h = 1.0 / 2048
				// Richardson's extrapolation takes the errors of second and fourth order away.
				one, two, four := central(h), central(2*h), central(4*h)
				first, second := (4*one-two)/3, (4*two-four)/3
				want := (16*first - second) / 15
				got := -float64(at.Sequences[i].Weights[pos]) / float64(step.Whole.Targets)
				if math.Abs(got-want) > 1e-6*math.Abs(want)+2e-11*(1+math.Abs(loss)) {
					rt.Fatalf("%s: sequence %d, position %d: slope %v, by differences %v", v.name, i, pos, got, want)
				}
			}
		}
	})
}

// nearKink says whether a pair has a z for which differences cross a kink.
func nearKink(s *Step, o Settings, kink float64) bool {
	tail := 1.0
	if o.LDAlpha != nil {
		tail = *o.LDAlpha
	}
	for i := 0; i < len(s.Sequences); i += 2 {
		c, r := &s.Sequences[i], &s.Sequences[i+1]
		shared := min(c.completion(), r.completion())
		reference := kindNamed(o.Type).needs.Reference
		u, v := c.scoreOf(reference, shared, tail).ratio(), r.scoreOf(reference, shared, tail).ratio()
		if math.Abs(o.Beta*(u-v)-kink) < 0.01 {
			return true
		}
	}
	return false
}

// TestFirstLoss: where the model is its reference, the loss is ln 2 to the last bit, for any number of pairs and in any
// parts.
func TestFirstLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Settings{Type: dpo, Losses: []string{rapid.SampledFrom([]string{"sigmoid", "sigmoid_norm"}).Draw(rt, "loss")}}
		if s.Losses[0] == "sigmoid" {
			s.LabelSmoothing = rapid.Float64Range(0, 0.49).Draw(rt, "label smoothing")
		}
		o := open(rt, s)
		step := drawStep(rt, o.Needs())
		for range rapid.IntRange(0, 40).Draw(rt, "more pairs") {
			step.Sequences = append(step.Sequences, step.Sequences[:2]...)
		}
		for i := range step.Sequences {
			step.Sequences[i].Reference = step.Sequences[i].LogProbs
		}
		step = copyOf(step)
		step.Whole = Count(step.Sequences)
		all := inParts(rt, o, step)
		if all.Loss != math.Ln2 {
			rt.Fatalf("%d pairs: loss %v, ln 2 is %v", step.Whole.Groups, all.Loss, math.Ln2)
		}
		if accuracy := all.Parts[2]; accuracy.Name != rewardsAccuracies || accuracy.Sum != 0 {
			rt.Fatalf("equal rewards are accurate: %v", accuracy)
		}
	})
}

// inParts weighs a step in parts, each with whole pairs, and merges the results.
func inParts(rt *rapid.T, o Objective, s *Step) (all Result) {
	size := 1
	if o.Needs().Pairs || o.Needs().Mismatched {
		size = 2
	}
	for rest := s.Sequences; len(rest) > 0; {
		n := size * rapid.IntRange(1, len(rest)/size).Draw(rt, "part")
		Merge(&all, weigh(rt, o, &Step{Sequences: rest[:n], Whole: s.Whole}))
		rest = rest[n:]
	}
	return all
}

// TestPartsAddUp: a step that is cut has the same weights, the same loss within the rounding of a tie, and the same
// metrics. kto has a divergence of each part.
func TestPartsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		o := open(rt, v.settings)
		if o.Needs().Mismatched || o.Needs().Values {
			rt.Skip("draws another: kto has a divergence of each part and ppo whitens each, so parts do not add up by " +
				"definition")
		}
		step := drawStep(rt, o.Needs())
		cut := copyOf(step)
		want, got := weigh(rt, o, step), inParts(rt, o, cut)
		if got.Loss > math.Nextafter(want.Loss, math.Inf(1)) || got.Loss < math.Nextafter(want.Loss, math.Inf(-1)) ||
			math.Abs((got.Loss-want.Loss)+(got.Rest-want.Rest)) > 1e-29*max(1, math.Abs(want.Loss)) {
			rt.Fatalf("%s: loss %v and %v in parts, %v and %v as a whole", v.name, got.Loss, got.Rest, want.Loss, want.Rest)
		}
		for i := range step.Sequences {
			if !slices.Equal(step.Sequences[i].Weights, cut.Sequences[i].Weights) {
				rt.Fatalf("%s: sequence %d has weights %v in parts, %v as a whole", v.name, i, cut.Sequences[i].Weights,
					step.Sequences[i].Weights)
			}
		}
		for i, p := range want.Parts {
			if q := got.Parts[i]; q.Name != p.Name || q.Of != p.Of || math.Abs(q.Sum-p.Sum) > 1e-10 {
				rt.Fatalf("%s: %v in parts, %v as a whole", v.name, q, p)
			}
		}
	})
}

// TestOrder: pairs in another order have their weights, and the loss differs by its rounding.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		o := open(rt, v.settings)
		step := drawStep(rt, o.Needs())
		size := len(step.Sequences) / step.Whole.Groups
		other := copyOf(step)
		order := rapid.Permutation(slices.Collect(slices.Chunk(slices.Clone(other.Sequences), size))).Draw(rt, "order")
		other.Sequences = slices.Concat(order...)
		want, got := weigh(rt, o, step), weigh(rt, o, other)
		if !near(got.Loss, want.Loss, 1e-15) && !(o.Needs().Values && math.Abs(got.Loss-want.Loss) < 1e-12) {
			rt.Fatalf("%s: loss %v in another order, it was %v", v.name, got.Loss, want.Loss)
		}
		if o.Needs().Mismatched || o.Needs().Values {
			rt.Skip("the loss is compared; a sum in another order is in all weights of kto and ppo, whose last bits may differ")
		}
		for i := range step.Sequences {
			q := &step.Sequences[i]
			at := slices.IndexFunc(other.Sequences, func(p Sequence) bool { return p.Group == q.Group && p.Side == q.Side })
			if !slices.Equal(other.Sequences[at].Weights, q.Weights) {
				rt.Fatalf("%s: sequence %d has weights %v, in another order %v", v.name, i, q.Weights, other.Sequences[at].Weights)
			}
		}
	})
}

// TestEvaluation: without weights the loss and the metrics are the same, and nothing is written. The loss of dft is
// then the negative log-likelihood.
func TestEvaluation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		v.settings.NLLPrompt = false
		o := open(rt, v.settings)
		step := drawStep(rt, o.Needs())
		held := copyOf(step)
		for i := range held.Sequences {
			q := &held.Sequences[i]
			q.Weights, q.ValueSlopes, q.EntropySlopes = nil, nil, nil
		}
		if n := Count(held.Sequences); n != held.Whole {
			rt.Fatalf("%s: counts %+v without weights, %+v with", v.name, n, held.Whole)
		}
		want, got := weigh(rt, o, step), weigh(rt, o, held)
		if nll := want.Metrics()[nllLoss]; v.settings.Type == dft && near(got.Loss, nll, 1e-15) {
			want.Loss = got.Loss
		}
		if got.Loss != want.Loss || !slices.Equal(got.Parts, want.Parts) {
			rt.Fatalf("%s: %v without weights, %v with", v.name, got, want)
		}
		for i, q := range held.Sequences {
			if q.Weights != nil {
				rt.Fatalf("sequence %d has weights", i)
			}
		}
	})
}

// TestNoTargetNoWeight: positions without a target, and all of mismatched documents, have the weight 0.
func TestNoTargetNoWeight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		o := open(rt, v.settings)
		step := drawStep(rt, o.Needs())
		before := copyOf(step)
		for i := range step.Sequences { // of a batch before
			for pos, target := range step.Sequences[i].Targets {
				if target < 0 {
					step.Sequences[i].Weights[pos] = 3
				}
			}
		}
		weigh(rt, o, step)
		for i := range step.Sequences {
			q, was := &step.Sequences[i], &before.Sequences[i]
			for pos, w := range q.Weights {
				ofPrompt := was.Weights[pos] == 0 && !(v.settings.NLLPrompt && q.Side == Chosen)
				if w != 0 && (q.Targets[pos] < 0 || q.Side == Mismatched || ofPrompt) {
					rt.Fatalf("%s: sequence %d: position %d has the weight %v", v.name, i, pos, w)
				}
			}
		}
	})
}

// TestDFT: a token's weight is its probability.
func TestDFT(t *testing.T) {
	o := open(t, Settings{Type: dft})
	step := &Step{Sequences: []Sequence{sequence(0, Alone, []float32{-1, -2}, nil),
		sequence(1, Alone, []float32{-0.5}, nil)}}
	step.Whole = Count(step.Sequences)
	r := weigh(t, o, step)
	if want := (1*math.Exp(-1) + 2*math.Exp(-2) + 0.5*math.Exp(-0.5)) / 3; !near(r.Loss, want, 1e-15) {
		t.Errorf("loss %v, want %v", r.Loss, want)
	}
	if got := step.Sequences[0].Weights; got[0] != float32(math.Exp(-1)) || got[1] != float32(math.Exp(-2)) {
		t.Errorf("weights %v", got)
	}
	if got := r.Metrics()[nllLoss]; !near(got, 3.5/3, 1e-15) {
		t.Errorf("nll_loss %v", got)
	}
	if n := o.Needs(); n != (Needs{}) {
		t.Errorf("it needs %+v", n)
	}
}
