package objective

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// pairStep has a prompt, a mask, lengths of 1 to 3 and a position without a target.
func pairStep() *Step {
	s := &Step{Sequences: []Sequence{
		{Group: 4, Side: Chosen, Targets: []int32{5, 6, 7, -1}, LogProbs: []float32{-9, -1, -2, 0},
			Reference: []float32{-8, -1.5, -2.5, 0}, Weights: []float32{0, 1, 1, 0}},
		{Group: 4, Side: Rejected, Targets: []int32{5, 8, -1, -1}, LogProbs: []float32{-9, -4, 0, 0},
			Reference: []float32{-8, -3, 0, 0}, Weights: []float32{0, 1, 0, 0}},
	}}
	s.Whole = Count(s.Sequences)
	return s
}

func TestCount(t *testing.T) {
	s := pairStep()
	if want := (Counts{Groups: 1, Targets: 5, Chosen: 2, ChosenAll: 3}); s.Whole != want {
		t.Errorf("%+v, want %+v", s.Whole, want)
	}
	singles := []Sequence{sequence(0, Desirable, make([]float32, 2), nil),
		sequence(1, Undesirable, make([]float32, 3), nil), sequence(2, Mismatched, make([]float32, 4), nil),
		sequence(3, Alone, make([]float32, 5), nil)}
	for i := range singles {
		singles[i].LogProbs = nil
	}
	got := Count(singles)
	if want := (Counts{Groups: 3, Targets: 14, Chosen: 2, ChosenAll: 2, Desirable: 1, Undesirable: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got.Add(s.Whole); got != Count(append(slices.Clone(singles), s.Sequences...)) {
		t.Errorf("sum of counts %+v", got)
	}
}

// TestPairMetrics computes a pair by hand.
func TestPairMetrics(t *testing.T) {
	u, v := 1.0, -1.0 // -3 against -4, and -4 against -3
	for _, x := range []struct {
		s                        Settings
		loss, chosen, rejected   float64
		logpChosen, logpRejected float64
		nll                      float64
	}{
		{Settings{Type: dpo, Losses: []string{"sppo_hard"}, Beta: 0.5}, 0, 0.5 * u, 0.5 * v, -3, -4, 0},
		{Settings{Type: dpo, Losses: []string{"sigmoid_norm"}, Beta: 0.5}, -logS(0.5 * (u/2 - v)),
			0.5 * u, 0.5 * v, -3, -4, 0},
		{Settings{Type: dpo, Losses: []string{"bco_pair", "sft"}, Shares: []float64{2, 3}, Beta: 0.5},
			2*(-logS(0.5)-logS(0.5)) + 3*1.5, 0.5 * u, 0.5 * v, -3, -4, 1.5},
		{Settings{Type: dpo, Losses: []string{"sppo_hard"}, Beta: 0.5, NLL: new(2.0)}, 3, 0.5 * u, 0.5 * v, -3, -4, 1.5},
		{Settings{Type: dpo, Shares: []float64{2}, Beta: 0.5}, -2 * logS(1), 0.5 * u, 0.5 * v, -3, -4, 0},
		{Settings{Type: cpo, Beta: 0.5}, -logS(0.5) + 1.5, -1.5, -2, -3, -4, 1.5},
		{Settings{Type: cpo, Losses: []string{"ipo"}, Beta: 0.5, NLL: new(0.0)}, 1.5 * 1.5, -0.75, -2, -1.5, -4, 0},
		{Settings{Type: simpo}, -logS(2*(-1.5+4) - 1), -3, -8, -1.5, -4, 0},
		{Settings{Type: simpo, NLL: new(1.0)}, -logS(2*(-1.5+4)-1) + 1.5, -3, -8, -1.5, -4, 1.5},
		{Settings{Type: orpo, NLLPrompt: true}, -0.1*logS(2.5-math.Log(1-math.Exp(-1.5))+math.Log(1-math.Exp(-4))) + 4,
			-0.15, -0.4, -1.5, -4, 4},
	} {
		step := pairStep()
		r := weigh(t, open(t, x.s), step)
		if !near(r.Loss, x.loss, 1e-14) {
			t.Errorf("%+v: loss %v, want %v", x.s, r.Loss, x.loss)
		}
		want := map[string]float64{"rewards/chosen": x.chosen, "rewards/rejected": x.rejected, "rewards/accuracies": 1,
			"rewards/margins": x.chosen - x.rejected, "logps/chosen": x.logpChosen, "logps/rejected": x.logpRejected}
		if x.nll != 0 {
			want["nll_loss"] = x.nll
		}
		if got := r.Metrics(); !sameMetrics(got, want) {
			t.Errorf("%+v: metrics %v, want %v", x.s, got, want)
		}
	}
}

// TestPairWeights has the weights of one pair of two: -k * Targets, of the whole step.
func TestPairWeights(t *testing.T) {
	step := pairStep()
	step.Whole = Counts{Groups: 2, Targets: 10, Chosen: 8, ChosenAll: 11}
	weigh(t, open(t, Settings{Type: dpo, Beta: 0.5, NLL: new(2.0)}), step)
	side := 0.5 * s(-1) / 2 * 10 // z is 0.5*(1+1)
	c, r := float32(side+2.0/8*10), float32(-side)
	if got := step.Sequences[0].Weights; !slices.Equal(got, []float32{0, c, c, 0}) {
		t.Errorf("weights %v, want %v", got, c)
	}
	if got := step.Sequences[1].Weights; !slices.Equal(got, []float32{0, r, 0, 0}) {
		t.Errorf("weights %v, want %v", got, r)
	}
}

// ktoStep has two desirable documents and an undesirable one, with log-ratios 1, 3 and -2, and mismatched ones with kl.
func ktoStep(kl float32) *Step {
	one := func(side Side, group int, u float32) Sequence {
		return sequence(group, side, []float32{u - 5, -1}, []float32{-5, -1})
	}
	step := &Step{Sequences: []Sequence{one(Desirable, 0, 1), one(Mismatched, 0, kl-1), one(Undesirable, 1, -2),
		one(Mismatched, 1, kl+1), one(Desirable, 2, 3), one(Mismatched, 2, kl)}}
	step.Whole = Count(step.Sequences)
	return step
}

// TestKTO computes a step by hand, with a divergence that is positive, and with one that is not.
func TestKTO(t *testing.T) {
	for _, kl := range []float32{0.5, -0.5} {
		step := ktoStep(kl)
		at := max(float64(kl), 0)
		r := weigh(t, open(t, Settings{Type: kto, Beta: 0.5, Desirable: new(2.0), Undesirable: new(3.0)}), step)
		want := (2*(1-s(0.5*(1-at))) + 3*(1-s(0.5*(at+2))) + 2*(1-s(0.5*(3-at)))) / 3
		if !near(r.Loss, want, 1e-14) {
			t.Errorf("loss %v, want %v", r.Loss, want)
		}
		means := map[string]float64{"rewards/chosen": 0.5 * 2, "rewards/rejected": -1, "logps/chosen": -4,
			"logps/rejected": -8, "kl": at, "rewards/margins": 2}
		if got := r.Metrics(); !sameMetrics(got, means) {
			t.Errorf("metrics %v, want %v", got, means)
		}
		slope := -3 * 0.5 * s(0.5*(at+2)) * s(-0.5*(at+2)) / 3 * float64(step.Whole.Targets)
		if w := step.Sequences[2].Weights; !near(float64(w[0]), slope, 1e-6) || w[0] != w[1] {
			t.Errorf("weights of the undesirable document %v, want %v", w, slope)
		}
		for _, i := range []int{1, 3, 5} {
			if w := step.Sequences[i].Weights; w[0] != 0 || w[1] != 0 {
				t.Errorf("weights of a mismatched document: %v", w)
			}
		}
	}
	// Without a divergence nothing of mismatched documents is read, and there need not be any.
	o := open(t, Settings{Type: kto, Losses: []string{"apo_zero_unpaired"}, Beta: 0.5})
	step := ktoStep(0.5)
	step.Sequences[1].LogProbs = nil
	r := weigh(t, o, step)
	if want := (1 - s(0.5) + s(-1) + 1 - s(1.5)) / 3; !near(r.Loss, want, 1e-14) {
		t.Errorf("apo_zero_unpaired: loss %v, want %v", r.Loss, want)
	}
	if w := step.Sequences[1].Weights; w[0] != 0 || len(r.Parts) != 4 {
		t.Errorf("apo_zero_unpaired: weights of a mismatched document %v, metrics %v", w, r.Parts)
	}
	one := &Step{Sequences: step.Sequences[4:5]}
	one.Whole = Count(one.Sequences)
	got := weigh(t, o, one).Metrics()
	if want := map[string]float64{"rewards/chosen": 1.5, "logps/chosen": -3}; !sameMetrics(got, want) {
		t.Errorf("without undesirable documents: metrics %v, want %v", got, want)
	}
}

// TestKTOParts: each part of a step has its own divergence, and kl is its mean over mismatched documents.
func TestKTOParts(t *testing.T) {
	o := open(t, Settings{Type: kto})
	a, b := ktoStep(2), ktoStep(-4)
	b.Sequences = b.Sequences[:2]
	whole := a.Whole
	whole.Add(Count(b.Sequences))
	a.Whole, b.Whole = whole, whole
	var all Result
	Merge(&all, weigh(t, o, a))
	Merge(&all, weigh(t, o, b))
	if got := all.Metrics()[klName]; got != 2.0*3/4 {
		t.Errorf("kl %v", got)
	}
}

// TestEmptyStep: a part without sequences adds nothing, and its metrics are in their places.
func TestEmptyStep(t *testing.T) {
	for _, kind := range Types() {
		r := weigh(t, open(t, Settings{Type: kind}), &Step{})
		if r.Loss != 0 || len(r.Parts) == 0 || len(r.Metrics()) != 0 {
			t.Errorf("%s: %+v", kind, r)
		}
	}
}

func TestWeighRefuses(t *testing.T) {
	for _, x := range []struct {
		what   string
		s      Settings
		step   func() *Step
		change func(*Step)
		want   string
	}{
		{"a chosen side alone", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences = s.Sequences[:1] },
			"sequence 0 is the chosen completion of pair 4, and not followed by its rejected side"},
		{"sides of two pairs", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences[1].Group++ }, "sequence 0"},
		{"sides in another order", Settings{Type: dpo}, pairStep, func(s *Step) { slices.Reverse(s.Sequences) },
			"sequence 0 is the rejected completion of pair 4"},
		{"an unknown side", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences[0].Side = 77 }, "the sequence 4"},
		{"an empty completion", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences[1].Weights[1] = 0 },
			"the rejected completion of pair 4 has no token that is a target"},
		{"no reference", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences[1].Reference = nil },
			"the rejected completion of pair 4 has 0 log-probabilities of the reference and 4 positions"},
		{"no log-probabilities", Settings{Type: simpo}, pairStep, func(s *Step) { s.Sequences[0].LogProbs = nil },
			"the chosen completion of pair 4 has 0 log-probabilities and 4 positions"},
		{"too few weights", Settings{Type: kto}, func() *Step { return ktoStep(1) }, func(s *Step) {
			s.Sequences[0].Weights = s.Sequences[0].Weights[:1]
			s.Sequences[0].Targets[1] = -1
		}, "the desirable completion 0 has 1 weights and 2 positions"},
		{"no whole", Settings{Type: dpo}, pairStep, func(s *Step) { s.Whole = Counts{} },
			"the whole step counts 0 groups, and a part of it has 1"},
		{"too few targets", Settings{Type: dpo}, pairStep, func(s *Step) { s.Whole.Targets-- }, "counts 4 targets"},
		{"NaN", Settings{Type: dpo}, pairStep, func(s *Step) { s.Sequences[0].LogProbs[1] = float32(math.NaN()) },
			"the chosen completion of pair 4 has a weight that is infinite or NaN"},
		{"infinite", Settings{Type: dpo, Losses: []string{"hinge"}}, pairStep,
			func(s *Step) { s.Sequences[1].LogProbs[1] = float32(math.Inf(-1)) }, "infinite or NaN"},
		{"beyond fp32", Settings{Type: dpo, Losses: []string{"sppo_hard"}}, pairStep,
			func(s *Step) { s.Sequences[0].LogProbs[1] = -3e38 }, "infinite or NaN"},
		{"a NaN of kto", Settings{Type: kto}, func() *Step { return ktoStep(1) },
			func(s *Step) { s.Sequences[3].LogProbs[0] = float32(math.NaN()) }, "the desirable completion 0 has a weight"},
		{"no mismatched completion", Settings{Type: kto}, func() *Step { return ktoStep(1) },
			func(s *Step) { s.Sequences = s.Sequences[:1] }, "no mismatched completion"},
		{"an empty mismatched completion", Settings{Type: kto}, func() *Step { return ktoStep(1) },
			func(s *Step) { clear(s.Sequences[1].Weights) }, "the mismatched completion 0 has no token"},
		{"a pair for kto", Settings{Type: kto}, pairStep, func(*Step) {}, "the chosen completion of pair 4 is of no use"},
		{"a side with two scores", Settings{Type: reward}, func() *Step { return scoreStep(1, 2, 0) },
			func(s *Step) { s.Sequences[1].Targets[0], s.Whole.Targets = 1, 3 },
			"the rejected completion of pair 0 has 2 targets: the score of a text is at one position"},
		{"a side without a score", Settings{Type: reward}, func() *Step { return scoreStep(1, 2, 0) },
			func(s *Step) { s.Sequences[0].Targets[2] = -1 }, "the chosen completion of pair 0 has 0 targets"},
		{"a chosen side alone for reward", Settings{Type: reward}, func() *Step { return scoreStep(1, 2, 0) },
			func(s *Step) { s.Sequences = s.Sequences[:1] }, "and not followed by its rejected side: reward needs pairs"},
		{"a NaN of reward", Settings{Type: reward}, func() *Step { return scoreStep(1, float32(math.NaN()), 0) },
			func(*Step) {}, "the chosen completion of pair 0 has a weight that is infinite or NaN, at a score of 1"},
		{"a pair for dft", Settings{Type: dft}, pairStep, func(*Step) {}, "the chosen completion of pair 4 is of no use"},
	} {
		step := x.step()
		x.change(step)
		_, err := open(t, x.s).Weigh(step)
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", x.what, err, x.want)
		}
	}
}

// TestNotFiniteEvaluates: in an evaluation a loss that is not finite is a result, and no error.
func TestNotFiniteEvaluates(t *testing.T) {
	for _, kind := range Types() {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			step := pairStep()
			switch kind {
			case kto:
				step = ktoStep(1)
			case reward:
				step = scoreStep(1, float32(bad), 0)
			case dft, distill, policy:
				step = &Step{Sequences: []Sequence{sequence(0, Alone, []float32{-1, -2}, nil)}}
				step.Whole = Count(step.Sequences)
			}
			if kind == distill { // of lists of no token
				step.Sequences[0].Top = &Top{K: 64, IDs: slices.Repeat([]int32{-1}, 2*65), Teacher: make([]float32, 2*64),
					Student: make([]float32, 2*65)}
			}
			if kind == policy {
				step.Sequences[0].Rollout = &Rollout{Advantage: 1}
			}
			for i := range step.Sequences {
				q := &step.Sequences[i]
				for t, w := range q.Weights {
					if w == 0 {
						q.Targets[t] = -1
					}
				}
				q.Weights, q.LogProbs[1] = nil, float32(bad)
			}
			step.Whole = Count(step.Sequences)
			r := weigh(t, open(t, Settings{Type: kind}), step)
			if isFinite(r.Loss) {
				t.Errorf("%s with %v: loss %v", kind, bad, r.Loss)
			}
		}
	}
}

// scoreStep has a pair with these scores.
func scoreStep(c, r float32, margin float64) *Step {
	s := &Step{Sequences: []Sequence{scored(0, Chosen, 2, c), scored(0, Rejected, 1, r)}}
	s.Sequences[0].Margin, s.Sequences[1].Margin = margin, margin
	s.Whole = Count(s.Sequences)
	return s
}

// TestReward computes two pairs by hand, in one part and in two.
func TestReward(t *testing.T) {
	for _, parts := range []int{1, 2} {
		step, other := scoreStep(1.5, -0.5, 0.25), scoreStep(-2, 1, 0)
		step.Whole.Add(other.Whole)
		other.Whole = step.Whole
		o := open(t, Settings{Type: reward, Center: new(0.5)})
		var r Result
		if parts == 1 {
			step.Sequences = append(step.Sequences, other.Sequences...)
			other.Sequences = step.Sequences[2:]
		}
		Merge(&r, weigh(t, o, step))
		if parts == 2 {
			Merge(&r, weigh(t, o, &Step{Whole: step.Whole})) // a part without pairs
			Merge(&r, weigh(t, o, other))
		}
		if want := (-logS(1.75) + 0.5*1 - logS(-3) + 0.5*1) / 2; !near(r.Loss, want, 1e-15) {
			t.Errorf("loss %v, want %v", r.Loss, want)
		}
		want := map[string]float64{"min_reward": -2, "max_reward": 1.5, "mean_reward": 0, "accuracy": 0.5, "margin": -0.5}
		if got := r.Metrics(); !sameMetrics(got, want) {
			t.Errorf("metrics %v, want %v", got, want)
		}
		c, q := float32(-4*(-s(-1.75)+1)/2), float32(-4*(s(-1.75)+1)/2)
		if got := step.Sequences[0].Weights; !slices.Equal(got, []float32{0, 0, c, 0}) {
			t.Errorf("weights %v, want %v", got, c)
		}
		if got := step.Sequences[1].Weights; !slices.Equal(got, []float32{0, q, 0}) {
			t.Errorf("weights %v, want %v", got, q)
		}
		if c, q = float32(-4*(-s(3)-1)/2), float32(-4*(s(3)-1)/2); other.Sequences[0].Weights[2] != c ||
			other.Sequences[1].Weights[1] != q {
			t.Errorf("weights %v and %v, want %v and %v", other.Sequences[0].Weights, other.Sequences[1].Weights, c, q)
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	for _, r := range []Result{{Parts: []Part{{Name: "kl"}}}, {}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is merged", r)
				}
			}()
			Merge(&Result{Parts: []Part{{Name: "nll_loss"}}}, r)
		}()
	}
}
