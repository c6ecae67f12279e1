package objective

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// goldenPolicy is testdata/policy.json, by TRL's own functions; policy.py next to it says how. Nulls are NaN.
type goldenPolicy struct {
	Versions                       map[string]string
	Group, Lengths, Cut            []int
	Rewards, Sampler               [][]*float64
	Mask, LogProbs, Old, Reference [][]float64
	Entropies                      [][]float64
	Advantages                     []struct {
		Advantage string
		Weights   []float64
		Want      []float64
	}
	Cases []struct {
		Name          string
		Settings      Settings
		Advantages    []float64
		Loss          float64
		Gradient      [][]float64
		EntropySlopes [][]float64 // of cases with a bonus for entropy
		Metrics       map[string]float64
	}
}

func readGoldenPolicy(t *testing.T) (g goldenPolicy) {
	t.Helper()
	text, err := os.ReadFile("testdata/policy.json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		t.Fatal(err)
	}
	return g
}

// step makes the step of a golden case: each answer has a prompt of two tokens before it, without targets.
func (g *goldenPolicy) step(advantages []float64) *Step {
	s := &Step{}
	for i, n := range g.Lengths {
		q := Sequence{Group: g.Group[i], Rollout: &Rollout{Advantage: advantages[i],
			Unscored: g.Rewards[i][0] == nil && g.Rewards[i][1] == nil}}
		add := func(target int32, weight, lp, old, sampler, reference float64) {
			q.Targets, q.Weights = append(q.Targets, target), append(q.Weights, float32(weight))
			q.LogProbs, q.Reference = append(q.LogProbs, float32(lp)), append(q.Reference, float32(reference))
			q.Rollout.Old = append(q.Rollout.Old, float32(old))
			q.Rollout.Sampler = append(q.Rollout.Sampler, float32(sampler))
		}
		add(-1, 0, 0, 0, 0, 0)
		for t := range n {
			sampler := float64(UnknownLogProb)
			if known := g.Sampler[i][t]; known != nil {
				sampler = *known
			}
			target := int32(7)
			if g.Mask[i][t] == 0 {
				target = -1
			}
			add(target, 1, g.LogProbs[i][t], g.Old[i][t], sampler, g.Reference[i][t])
		}
		add(-1, 0, 0, 0, 0, 0)
		s.Sequences = append(s.Sequences, q)
	}
	s.Whole = Count(s.Sequences)
	return s
}

// addEntropies gives the answers of a step their entropies, and others where no token is.
func (g *goldenPolicy) addEntropies(s *Step) {
	for i := range s.Sequences {
		q := &s.Sequences[i]
		q.Entropies = append(q.Entropies, 8)
		for t := range g.Lengths[i] {
			q.Entropies = append(q.Entropies, float32(g.Entropies[i][t]))
		}
		q.Entropies = append(q.Entropies, 9)
		q.EntropySlopes = slices.Repeat([]float32{77}, len(q.Targets))
	}
}

// TestGoldenPolicies holds losses, gradients and metrics against those of TRL.
func TestGoldenPolicies(t *testing.T) {
	g := readGoldenPolicy(t)
	if len(g.Cases) < 12 {
		t.Fatalf("%d cases", len(g.Cases))
	}
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			step := g.step(c.Advantages)
			for _, i := range g.Cut {
				step.Sequences[i].Rollout.Masked = c.Settings.MaskTruncated
			}
			if c.EntropySlopes != nil {
				g.addEntropies(step)
			}
			step.Whole = Count(step.Sequences)
			r := weigh(t, open(t, c.Settings), step)
			if !near(r.Loss, c.Loss, 1e-12) {
				t.Errorf("loss %v, TRL's %v", r.Loss, c.Loss)
			}
			scale := 0.0
			for _, row := range c.Gradient {
				for _, k := range row {
					scale = max(scale, math.Abs(k))
				}
			}
			for i, q := range step.Sequences {
				for j := range g.Lengths[i] {
					k := -float64(q.Weights[1+j]) / float64(step.Whole.Targets)
					if want := c.Gradient[i][j]; !(math.Abs(k-want) <= 1e-7*scale) {
						t.Errorf("answer %d, token %d: derivative %v, TRL's %v", i, j, k, want)
					}
				}
				if c.EntropySlopes == nil {
					continue
				}
				for j, k := range q.EntropySlopes {
					want := 0.0 // of the positions around the answer
					if j > 0 && j <= g.Lengths[i] {
						want = c.EntropySlopes[i][j-1]
					}
					if k := float64(k) / float64(step.Whole.Targets); !near(k, want, 1e-7) {
						t.Errorf("answer %d, position %d: derivative by its entropy %v, TRL's %v", i, j, k, want)
					}
				}
			}
			metrics := r.Metrics()
			for name, want := range c.Metrics {
				if got, ok := metrics[name]; !ok || math.Abs(got-want) > 1e-12 {
					t.Errorf("%s is %v (%v), TRL's %v", name, got, ok, want)
				}
			}
		})
	}
}

// scored are the answers of the golden file.
func (g *goldenPolicy) scored() (all []Scored) {
	for i := range g.Lengths {
		s := Scored{Group: g.Group[i], Advantage: math.NaN(), Reward: math.NaN(), Tokens: g.Lengths[i]}
		for _, r := range g.Rewards[i] {
			x := math.NaN()
			if r != nil {
				x = *r
			}
			s.Rewards = append(s.Rewards, x)
		}
		all = append(all, s)
	}
	return all
}

// TestGoldenAdvantages holds advantages of rewards, some of them null, against TRL's lines, whose n/(n-1) is of fp32.
func TestGoldenAdvantages(t *testing.T) {
	g := readGoldenPolicy(t)
	for _, c := range g.Advantages {
		o := open(t, Settings{Type: policy, Policy: Policy{Advantage: c.Advantage,
			RewardWeights: map[string]float64{"a": c.Weights[0], "b": c.Weights[1]}}})
		got, figures, err := o.(Rewarded).Advantages(g.scored(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.Want {
			if math.Abs(got[i].Advantage-want) > 1e-7*math.Abs(want) || got[i].Unscored != (i == 5) {
				t.Errorf("%s of %v: answer %d has %+v, TRL's %v", c.Advantage, c.Weights, i, got[i], want)
			}
		}
		if figures["rewards/a/mean"] != 3.25/7 || figures["frac_reward_zero_std"] != 0 ||
			figures["completions/mean_length"] != 35.0/8 || figures["completions/min_length"] != 1 {
			t.Errorf("metrics %v", figures)
		}
	}
}

// TestAdvantages: what is given wins, answers that are all equal or alone teach nothing, and rewards that differ by
// what rounding may be are equal.
func TestAdvantages(t *testing.T) {
	nan := math.NaN()
	answer := func(group int, reward, given float64) Scored {
		return Scored{Group: group, Reward: reward, Advantage: given, Tokens: 3, Ends: Stopped}
	}
	cut := answer(4, 2, nan)
	cut.Ends, cut.Tokens = CutOff, 9
	answers := []Scored{answer(0, 1, nan), answer(0, 1+1e-9, nan), answer(1, 5, nan), answer(2, nan, nan),
		answer(2, nan, nan), answer(3, 1, 7.5), answer(3, 2, nan), answer(4, 1, nan), cut, answer(4, nan, nan)}
	half := 0.5 / (math.Sqrt(0.5) + 1e-4)
	for how, want := range map[string][]float64{
		byGroup:       {0, 0, 0, 0, 0, 7.5, half, -half, half, 0},
		byNone:        {0, 0, 0, 0, 0, 7.5, 0.5, -0.5, 0.5, 0},
		byLeaveOneOut: {0, 0, 0, 0, 0, 7.5, 1, -1, 1, 0},
		byMaxRL:       {0, 0, 0, 0, 0, 7.5, 0.5 / 1.5, -0.5 / 1.5, 0.5 / 1.5, 0},
	} {
		o := open(t, Settings{Type: policy, Policy: Policy{Advantage: how}}).(Rewarded)
		got, figures, err := o.Advantages(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if math.Abs(got[i].Advantage-want[i]) > 1e-12 {
				t.Errorf("%s: answer %d has %v, want %v", how, i, got[i].Advantage, want[i])
			}
		}
		for name, want := range map[string]float64{"frac_reward_zero_std": 0.5, "completions/clipped_ratio": 0.1,
			"completions/max_length": 9, "completions/max_terminated_length": 3, "reward": 13.0 / 7} {
			if math.Abs(figures[name]-want) > 1e-8 {
				t.Errorf("%s: %s is %v, want %v", how, name, figures[name], want)
			}
		}
	}
	// Equal rewards everywhere are no reason to divide by nothing.
	for _, how := range advantages {
		s := Settings{Type: policy, Policy: Policy{Advantage: how}}
		if how == byCritic {
			s.Losses = []string{"ppo"}
		}
		o := open(t, s).(Rewarded)
		got, _, err := o.Advantages([]Scored{answer(0, 3, nan), answer(0, 3, nan), answer(1, 3, nan), answer(1, 3, nan)}, nil)
		if err != nil || slices.ContainsFunc(got, func(r Rollout) bool { return r.Advantage != 0 || r.Unscored }) {
			t.Errorf("%s of equal rewards: %v, %v", how, got, err)
		}
	}
	for want, f := range map[string]func() error{
		"maxrl divides by their mean": func() error {
			o := open(t, Settings{Type: policy, Policy: Policy{Advantage: byMaxRL}}).(Rewarded)
			_, _, err := o.Advantages([]Scored{answer(7, -1, nan), answer(7, 1, nan)}, nil)
			return err
		},
		`reward_weights names "x", and the answers have the rewards ["a"]`: func() error {
			o := open(t, Settings{Type: policy, Policy: Policy{RewardWeights: map[string]float64{"x": 1}}}).(Rewarded)
			_, _, err := o.Advantages([]Scored{{Rewards: []float64{1}}}, []string{"a"})
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestPolicySlopes holds the slopes of losses against differences of their values, where they hold nothing constant,
// and of the same with what they hold.
func TestPolicySlopes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawPolicy(rt)
		o := open(rt, s).(*ofPolicy)
		step := drawStep(rt, o.Needs())
		n := float64(step.Whole.Targets)
		at := copyOf(step)
		weigh(rt, o, at)
		held := heldOf(o, step)
		for i := range step.Sequences {
			q := &step.Sequences[i]
			for pos := range q.Targets {
				if q.Targets[pos] < 0 || nearClip(o, q, pos) {
					continue
				}
				const h = 1.0 / 1024
				moved := func(by float64) float64 {
					c := copyOf(step)
					c.Sequences[i].LogProbs[pos] += float32(by)
					return held(c)
				}
				one, two := (moved(h)-moved(-h))/(2*h), (moved(2*h)-moved(-2*h))/(4*h)
				want := (4*one - two) / 3
				got := -float64(at.Sequences[i].Weights[pos]) / n
				if math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
					rt.Fatalf("%s: answer %d, position %d: slope %v, by differences %v", s.Losses[0], i, pos, got, want)
				}
			}
		}
	})
}

// nearClip says whether the ratio of a position is where differences cross a clip.
func nearClip(o *ofPolicy, q *Sequence, pos int) bool {
	var a answer
	a.read(o, q, 1)
	r, _ := ratio(a.ratioOf(o, slices.Index(a.at, pos)))
	return o.of.paired && (math.Abs(r-1+o.settings.Clip[0]) < 0.02 || math.Abs(r-1-o.settings.Clip[1]) < 0.02)
}

// heldOf is the loss of a step of which some factors stay as they are at a first step: those that losses hold.
func heldOf(o *ofPolicy, first *Step) func(*Step) float64 {
	switch o.of.name {
	case "cispo", "vespo", "dppo", "ref_kl":
	default:
		return func(s *Step) float64 {
			r, err := o.Weigh(s)
			if err != nil {
				panic(err)
			}
			return r.Loss
		}
	}
	// A factor of lp or of a ratio, by what the loss of a token is at the first step.
	read := func(s *Step, i int) *answer {
		var a answer
		a.read(o, &s.Sequences[i], s.Sequences[i].Rollout.Advantage)
		if len(a.at) > 0 {
			o.of.weigh(o, &a)
		}
		return &a
	}
	return func(s *Step) (loss float64) {
		for i := range s.Sequences {
			was, is := read(first, i), read(s, i)
			for t := range is.at {
				var l float64
				switch o.of.name {
				case "cispo", "vespo":
					l = was.slope[t] * is.lp[t]
				default:
					q := is.sampler[t]
					if math.IsNaN(q) {
						q = was.lp[t]
					}
					a := is.advantage
					if o.of.imitates {
						a = was.ref[t] - was.lp[t]
					}
					x, tau := is.lp[t]-q, *o.settings.KLTau
					l = tau * x * x
					if wasX := was.lp[t] - q; was.slope[t] != 2*tau*wasX || a == 0 { // else it is masked
						l -= a * math.Exp(x)
					}
				}
				factor := o.divisor(&s.Whole, len(is.at))
				was.loss[t], is.loss[t] = 0, l
				loss += l / factor
			}
			if beta := *o.settings.KL; beta > 0 && !o.of.imitates {
				is.loss, is.slope = make([]float64, len(is.at)), make([]float64, len(is.at))
				is.addKL(o)
				for _, l := range is.loss {
					loss += l / o.divisor(&s.Whole, len(is.at))
				}
			}
		}
		return loss
	}
}

// TestPoliciesFarAway: log-probabilities that no model has give finite losses, weights and metrics, with any loss.
func TestPoliciesFarAway(t *testing.T) {
	far := []float32{0, -1e-30, -1, -20, -88, -750, -1e4, -1e30, -math.MaxFloat32}
	rapid.Check(t, func(rt *rapid.T) {
		s := drawPolicy(rt)
		if s.Old == OldOfData && s.Losses[0] != "ppo" && rapid.Bool().Draw(rt, "leaves out") {
			s.OffPolicyThreshold, s.Rejection = new(0.5), rapid.SampledFrom(rejections).Draw(rt, "rejection")
			s.RejectionMax = new(2.0)
		}
		o := open(rt, s)
		step := drawStep(rt, o.Needs())
		draw := func(all []float32) {
			for i := range all {
				all[i] = rapid.SampledFrom(far).Draw(rt, "log-probability")
			}
		}
		for i := range step.Sequences {
			q := &step.Sequences[i]
			draw(q.LogProbs)
			draw(q.Reference)
			draw(q.Rollout.Sampler)
			draw(q.Rollout.Old)
			q.Rollout.Advantage = rapid.SampledFrom([]float64{-1e6, -1, 0, 1e-300, 1e6}).Draw(rt, "advantage")
		}
		r := weigh(rt, o, step)
		if !isFinite(r.Loss) {
			rt.Fatalf("%s: loss %v", s.Losses[0], r.Loss)
		}
		for _, q := range step.Sequences {
			for _, w := range q.Weights {
				if !isFinite(float64(w)) {
					rt.Fatalf("%s: weights %v", s.Losses[0], q.Weights)
				}
			}
		}
		for name, x := range r.Metrics() {
			if !isFinite(x) {
				rt.Fatalf("%s: %s is %v", s.Losses[0], name, x)
			}
		}
	})
}

// TestPolicyLeavesOut: what is left out of a step has no weight, and is counted. The effective sample size is that of
// the factors of the others.
func TestPolicyLeavesOut(t *testing.T) {
	answer := func(advantage float64, sampler ...float32) Sequence {
		q := sequence(0, Alone, []float32{-1, -2}, []float32{-1, -1})
		q.Rollout = &Rollout{Advantage: advantage, Sampler: sampler, Old: []float32{-1, -2}}
		return q
	}
	ln2 := float32(math.Ln2)
	for name, x := range map[string]struct {
		s       Policy
		weights [3]bool // of the three answers, whether they have any
		metrics map[string]float64
	}{
		"all": {Policy{}, [3]bool{true, true, true},
			map[string]float64{effectiveSize: 36 / (6 * 7.5)}}, // of 2, 1, 1, 1, 1/2 and 1/2
		"far": {Policy{OffPolicyThreshold: new(0.5)}, [3]bool{true, true, false},
			map[string]float64{"sampling/off_policy_masked": 1.0 / 3}},
		"near": {Policy{OffPolicyThreshold: new(0.8)}, [3]bool{true, true, true},
			map[string]float64{"sampling/off_policy_masked": 0}},
		"tokens": {Policy{Rejection: "token_k1", RejectionMax: new(1.5)}, [3]bool{true, true, false},
			map[string]float64{"sampling/rejected_tokens": 0.5}},
		"answers": {Policy{Rejection: "seq_sum_k2", RejectionMax: new(0.25)}, [3]bool{true, true, false},
			map[string]float64{"sampling/rejected_tokens": 1.0 / 3}},
	} {
		x.s.Old = OldOfData
		step := &Step{Sequences: []Sequence{answer(1, -1-ln2, -2), answer(-1, -1, -2), answer(-1, -1+ln2, -2+ln2)}}
		step.Whole = Count(step.Sequences)
		r := weigh(t, open(t, Settings{Type: policy, Policy: x.s}), step)
		for i, has := range x.weights {
			if w := step.Sequences[i].Weights; (w[0] != 0 || w[1] != 0) != has {
				t.Errorf("%s: answer %d has the weights %v", name, i, w)
			}
		}
		for key, want := range x.metrics {
			if got, ok := r.Metrics()[key]; !ok || math.Abs(got-want) > 1e-6 {
				t.Errorf("%s: %s is %v, want %v", name, key, got, want)
			}
		}
		if _, has := r.Metrics()[rhoSquares]; has {
			t.Errorf("%s: the metrics have %s", name, rhoSquares)
		}
	}

	// An answer that is masked counts for nothing, and not in the divisor either: without it the step is the same.
	o := open(t, Settings{Type: policy, Policy: Policy{Old: OldOfData, MaskTruncated: true}})
	with := &Step{Sequences: []Sequence{answer(1, -1, -2), answer(-1, -1, -2)}}
	with.Sequences[1].Rollout.Masked = true
	with.Whole = Count(with.Sequences)
	without := &Step{Sequences: []Sequence{answer(1, -1, -2)}}
	without.Whole = Count(without.Sequences)
	a, b := weigh(t, o, with), weigh(t, o, without)
	if a.Loss != b.Loss || with.Whole.Masked != 2 || with.Sequences[1].Weights[0] != 0 ||
		with.Sequences[0].Weights[0] != 2*without.Sequences[0].Weights[0] { // whose targets are half as many
		t.Errorf("losses %v and %v, weights %v and %v", a.Loss, b.Loss, with.Sequences[0].Weights,
			without.Sequences[0].Weights)
	}
	only := &Step{Sequences: with.Sequences[1:]}
	only.Whole = Count(only.Sequences)
	if r := weigh(t, o, only); r.Loss != 0 {
		t.Errorf("the loss of masked answers is %v", r.Loss)
	}
}

// TestEntropyBonus: the loss loses entropy_coef times the mean entropy at tokens of answers that are not masked, and
// moves with the entropy of each of these alone, whatever the loss is and in whatever parts a step comes.
func TestEntropyBonus(t *testing.T) {
	step := func(trains bool) *Step {
		s := &Step{}
		for i, entropies := range [][]float32{{64, 1, 2}, {128, 256, 512}, {32, 3, 16}} { // the second is masked
			q := sequence(i, Alone, []float32{0, -1, -2}, []float32{0, -1.5, -1})
			q.Rollout = &Rollout{Advantage: float64(1 - i), Masked: i == 1, Old: []float32{0, -1, -1.75},
				Sampler: []float32{0, -1.25, -2}}
			q.Targets[0] = -1 // of the prompt
			if i == 2 {
				q.Targets[2] = -1 // which a tool wrote
			}
			if q.Entropies = entropies; trains {
				q.EntropySlopes = []float32{77, 77, 77}
			} else {
				q.Weights = nil
			}
			s.Sequences = append(s.Sequences, q)
		}
		s.Whole = Count(s.Sequences)
		return s
	}
	const mean = (1 + 2 + 3) / 3.0
	for _, loss := range Losses(policy) {
		if policyLossNamed(loss).criticized {
			continue
		}
		for _, coef := range []float64{0.25, -0.5} {
			s := Settings{Type: policy, Losses: []string{loss}, Policy: Policy{MaskTruncated: true}}
			if policyLossNamed(loss).normalizer == byMaxTokens {
				s.Normalizer, s.MaxTokens = byMaxTokens, 9
			}
			plain := step(true)
			want := weigh(t, open(t, s), plain).Loss - coef*mean
			s.EntropyCoef = &coef
			o := open(t, s)
			if !o.Needs().Entropies {
				t.Fatalf("%s: needs no entropies", loss)
			}
			with := step(true)
			if got := weigh(t, o, with).Loss; !near(got, want, 1e-14) {
				t.Errorf("%s, %v: loss %v, want %v", loss, coef, got, want)
			}
			slope := float32(-coef * 5 / 3) // of 5 targets, of which 2 are masked
			for i, want := range [][]float32{{0, slope, slope}, {0, 0, 0}, {0, slope, 0}} {
				q := &with.Sequences[i]
				if !slices.Equal(q.EntropySlopes, want) {
					t.Errorf("%s, %v: answer %d has the slopes %v, want %v", loss, coef, i, q.EntropySlopes, want)
				}
				if !slices.Equal(q.Weights, plain.Sequences[i].Weights) {
					t.Errorf("%s, %v: answer %d has the weights %v, and %v without entropies", loss, coef, i, q.Weights,
						plain.Sequences[i].Weights)
				}
			}
			if got := weigh(t, o, step(false)).Loss; !near(got, want, 1e-14) {
				t.Errorf("%s, %v: where nothing is trained the loss is %v, want %v", loss, coef, got, want)
			}
			var merged Result
			for i := range with.Sequences {
				Merge(&merged, weigh(t, o, &Step{Sequences: step(true).Sequences[i : i+1], Whole: with.Whole}))
			}
			if !near(merged.Loss, want, 1e-14) {
				t.Errorf("%s, %v: loss %v of parts, want %v", loss, coef, merged.Loss, want)
			}
			only := &Step{Sequences: step(true).Sequences[1:2]}
			only.Whole = Count(only.Sequences)
			r, slopes := weigh(t, o, only), only.Sequences[0].EntropySlopes
			if r.Loss != 0 || !slices.Equal(slopes, []float32{0, 0, 0}) {
				t.Errorf("%s, %v: an answer that is masked has the loss %v and the slopes %v", loss, coef, r.Loss, slopes)
			}
		}
	}
	for name, coef := range map[string]*float64{"0": new(0.0), "none": nil} {
		o := open(t, Settings{Type: policy, Policy: Policy{EntropyCoef: coef}})
		if o.Needs().Entropies {
			t.Errorf("entropy_coef %s needs entropies", name)
		}
		s := step(true)
		for i := range s.Sequences {
			s.Sequences[i].Entropies, s.Sequences[i].EntropySlopes = nil, nil
		}
		weigh(t, o, s)
	}
}

// TestPolicyRefuses: answers that lack what the loss reads are refused in a line.
func TestPolicyRefuses(t *testing.T) {
	with := func(change func(*Sequence)) *Step {
		q := sequence(3, Alone, []float32{-1, -2}, []float32{-1, -1})
		q.Rollout = &Rollout{Advantage: 1, Sampler: []float32{-1, -1}, Old: []float32{-1, -1}}
		change(&q)
		s := &Step{Sequences: []Sequence{q}}
		s.Whole = Count(s.Sequences)
		return s
	}
	data := Settings{Type: policy, Policy: Policy{Old: OldOfData}}
	bonus := Settings{Type: policy, Policy: Policy{Old: OldOfData, EntropyCoef: new(0.01)}}
	for _, x := range []struct {
		s      Settings
		change func(*Sequence)
		want   string
	}{
		{data, func(q *Sequence) { q.Side = Chosen }, "of pair 3 is of no use: policy needs answers that were sampled"},
		{data, func(q *Sequence) { q.Rollout = nil }, "the document 3 has no advantage"},
		{data, func(q *Sequence) { q.Rollout.Advantage = math.NaN() }, "has the advantage NaN"},
		{data, func(q *Sequence) { q.Rollout.Old = nil }, "has no log-probabilities from before the first update"},
		{data, func(q *Sequence) { q.Rollout.Old = q.Rollout.Old[:1] }, "has 1 log-probabilities from before the first"},
		{data, func(q *Sequence) { q.Rollout.Sampler = q.Rollout.Sampler[:1] }, "has 1 log-probabilities of its sampler"},
		{Settings{Type: policy, Policy: Policy{Old: OldOfSampler}}, func(q *Sequence) { q.Rollout.Sampler = nil },
			"has no log-probabilities of its sampler, and old is sampler"},
		{Settings{Type: policy, Losses: []string{"dppo"}}, func(q *Sequence) { q.Rollout.Sampler = nil },
			"which the loss dppo compares with"},
		{Settings{Type: policy, Policy: Policy{KL: new(0.1)}}, func(q *Sequence) { q.Reference = nil },
			"has 0 log-probabilities of the reference"},
		{bonus, func(*Sequence) {}, "the document 3 has 0 entropies and 2 positions: entropy_coef needs that of each"},
		{bonus, func(q *Sequence) { q.Entropies = make([]float32, 1) }, "the document 3 has 1 entropies and 2 positions"},
		{bonus, func(q *Sequence) { q.Entropies, q.EntropySlopes = make([]float32, 2), make([]float32, 3) },
			"the document 3 has 3 slopes of entropies and 2 positions"},
		{bonus, func(q *Sequence) { q.Entropies = []float32{1, float32(math.Inf(1))} },
			"has a weight that is infinite or NaN"},
		{data, func(q *Sequence) { q.LogProbs[0] = float32(math.Inf(-1)) }, "has a weight that is infinite or NaN"},
		{data, func(q *Sequence) { q.Rollout.Advantage = 1e300 }, "has a weight that is infinite or NaN"},
	} {
		_, err := open(t, x.s).Weigh(with(x.change))
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, x.want)
		}
	}
}
