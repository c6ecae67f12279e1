package objective

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// goldenCritic is testdata/critic.json, by PyTorch's autograd in float64; critic.py next to it says how.
type goldenCritic struct {
	Versions                     map[string]string
	Lengths                      []int
	Rewards                      []*float64 // null: no reward is known
	Mask                         [][]int
	LogProbs, Old, Sampler       [][]float64
	Reference, Values, OldValues [][]float64
	Cases                        []goldenCriticCase
}

// goldenCriticCase has what a step makes of the answers: lists have an entry for each token, 0 where it does not count.
type goldenCriticCase struct {
	Name                string
	Settings            Settings
	Loss                float64
	Advantages, Returns [][]float64
	Gradient, Slopes    [][]float64 // by log-probabilities, and by values
	Metrics             map[string]float64
}

// step makes the step of a golden case: each answer has a prompt of two tokens before it, without targets.
func (g *goldenCritic) step() *Step {
	s := &Step{}
	for i, n := range g.Lengths {
		q := Sequence{Group: i / 2, Rollout: &Rollout{Unscored: g.Rewards[i] == nil}}
		if g.Rewards[i] != nil {
			q.Rollout.Reward = *g.Rewards[i]
		}
		add := func(counts bool, of ...float64) {
			target := int32(-1)
			if counts {
				target = 7
			}
			r := q.Rollout
			q.Targets, q.Weights = append(q.Targets, target), append(q.Weights, 1)
			q.ValueSlopes = append(q.ValueSlopes, 77)
			for i, to := range []*[]float32{&q.LogProbs, &r.Old, &r.Sampler, &q.Reference, &q.Values, &r.Values} {
				*to = append(*to, float32(of[i]))
			}
		}
		add(false, 0, 0, 0, 0, 5, 6)
		for t := range n {
			add(g.Mask[i][t] == 1, g.LogProbs[i][t], g.Old[i][t], g.Sampler[i][t], g.Reference[i][t], g.Values[i][t],
				g.OldValues[i][t])
		}
		add(false, 0, 0, 0, 0, 7, 8)
		s.Sequences = append(s.Sequences, q)
	}
	s.Whole = Count(s.Sequences)
	return s
}

// TestGoldenCritics holds PPO's losses, advantages, returns, slopes and metrics against PyTorch's autograd.
func TestGoldenCritics(t *testing.T) {
	text, err := os.ReadFile("testdata/critic.json")
	if err != nil {
		t.Fatal(err)
	}
	var g goldenCritic
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) < 6 {
		t.Fatalf("%d cases", len(g.Cases))
	}
	for _, c := range g.Cases {
		t.Run(c.Name, func(t *testing.T) {
			step := g.step()
			o := open(t, c.Settings)
			estimates := o.(*ofPolicy).estimates(step.Sequences)
			r := weigh(t, o, step)
			if !near(r.Loss, c.Loss, 1e-12) {
				t.Errorf("loss %v, PyTorch's %v", r.Loss, c.Loss)
			}
			for i, q := range step.Sequences {
				e, at := estimates[i], 0
				for j := range g.Lengths[i] {
					if g.Mask[i][j] == 1 && e.values != nil {
						if math.Abs(e.advantages[at]-c.Advantages[i][j]) > 1e-12 || math.Abs(e.returns[at]-c.Returns[i][j]) > 1e-12 {
							t.Errorf("answer %d, token %d: advantage %v and return %v, PyTorch's %v and %v", i, j, e.advantages[at],
								e.returns[at], c.Advantages[i][j], c.Returns[i][j])
						}
						at++
					}
					n := float64(step.Whole.Targets)
					if got, want := -float64(q.Weights[1+j])/n, c.Gradient[i][j]; math.Abs(got-want) > 1e-7*math.Abs(want)+1e-17 {
						t.Errorf("answer %d, token %d: derivative %v, PyTorch's %v", i, j, got, want)
					}
					got, want := float64(q.ValueSlopes[1+j])/n, c.Slopes[i][j]
					if math.Abs(got-want) > 1e-7*math.Abs(want)+1e-17 {
						t.Errorf("answer %d, token %d: derivative by its value %v, PyTorch's %v", i, j, got, want)
					}
				}
				if q.ValueSlopes[0] != 0 || q.ValueSlopes[len(q.ValueSlopes)-1] != 0 {
					t.Errorf("answer %d has slopes %v where no token counts", i, q.ValueSlopes)
				}
			}
			metrics := r.Metrics()
			for name, want := range c.Metrics {
				if got, ok := metrics[name]; !ok || math.Abs(got-want) > 1e-12 {
					t.Errorf("%s is %v (%v), PyTorch's %v", name, got, ok, want)
				}
			}
		})
	}
}

// TestValueSlopes holds the slopes of values against differences of the loss.
func TestValueSlopes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Settings{Type: policy, Losses: []string{"ppo"}, Gamma: new(0.875), Policy: Policy{Old: OldOfData,
			Lambda: new(float64(rapid.IntRange(0, 8).Draw(rt, "lambda")) / 8), VFCoef: new(0.5),
			ClipValue: new(float64(rapid.IntRange(0, 2).Draw(rt, "clip_value")) / 4)}}
		o := open(rt, s).(*ofPolicy)
		step := drawStep(rt, o.Needs())
		at := copyOf(step)
		weigh(rt, o, at)
		estimates := o.estimates(step.Sequences)
		for i := range step.Sequences {
			q, n := &step.Sequences[i], 0
			for pos := range q.Targets {
				if q.Targets[pos] < 0 {
					continue
				}
				e := &estimates[i]
				v, old, g := e.values[n], e.old[n], e.returns[n]
				n++
				const h = 1.0 / 1024
				c := *s.ClipValue
				mirrored := math.Abs(math.Abs(v-g) - math.Abs(min(max(v, old-c), old+c)-g))
				if c > 0 && (math.Abs(math.Abs(v-old)-c) < 2*h || math.Abs(v-old) > c && mirrored < 4*h) {
					continue // differences cross the bound, or a place where either branch may be the larger one
				}
				moved := func(by float64) float64 {
					c := copyOf(step)
					c.Sequences[i].Values[pos] += float32(by)
					return weigh(rt, o, c).Loss
				}
				want := (moved(h) - moved(-h)) / (2 * h)
				got := float64(at.Sequences[i].ValueSlopes[pos]) / float64(step.Whole.Targets)
				if math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
					rt.Fatalf("answer %d, position %d: slope %v, by differences %v", i, pos, got, want)
				}
			}
		}
	})
}

// criticStep is an answer of three tokens with a reward of 2, and values of 0 as a new critic has them.
func criticStep() *Step {
	q := sequence(0, Alone, []float32{-1, -2, -3}, nil)
	q.Values, q.ValueSlopes, q.Rollout = make([]float32, 3), make([]float32, 3), &Rollout{Reward: 2}
	s := &Step{Sequences: []Sequence{q}}
	s.Whole = Count(s.Sequences)
	return s
}

// A new critic's values are 0: the returns of an answer are its reward, less and less towards its beginning with lambda
// below 1, and with lambda 1 everywhere. Without old values the model's own are those of before the update.
func TestNewCritic(t *testing.T) {
	for lambda, want := range map[float64][]float32{1: {-2, -2, -2}, 0.5: {-0.5, -1, -2}, 0: {0, 0, -2}} {
		step := criticStep()
		s := ofPPO(Policy{Lambda: &lambda, VFCoef: new(1.0)})
		s.Type = policy
		r := weigh(t, open(t, s), step)
		loss := 0.0
		for i, slope := range step.Sequences[0].ValueSlopes {
			if slope != want[i] {
				t.Errorf("lambda %v: slopes %v, want %v", lambda, step.Sequences[0].ValueSlopes, want)
				break
			}
			loss += float64(slope*slope) / 2 / 3
		}
		if got := r.Metrics()["loss/value_avg"]; !near(got, loss, 1e-15) {
			t.Errorf("lambda %v: loss of values %v, want %v", lambda, got, loss)
		}
		if explained, ok := r.Metrics()["critic/vf_explained_var"]; ok != (lambda < 1) || explained != 0 {
			t.Errorf("lambda %v: values of 0 explain %v of the variance (%v)", lambda, explained, ok)
		}
	}
}

// Sequences without values or their slopes are refused, and an answer without a reward teaches nothing.
func TestCriticRefuses(t *testing.T) {
	for want, change := range map[string]func(*Sequence){
		"the document 0 has 2 values and 3 positions: ppo needs a critic's value of each": func(q *Sequence) {
			q.Values = q.Values[:2]
		},
		"has 1 slopes of values and 3 positions": func(q *Sequence) { q.ValueSlopes = q.ValueSlopes[:1] },
		"has 0 values from before the first update and 3 positions, and old is data": func(q *Sequence) {
			q.Rollout.Old = make([]float32, 3)
		},
		"has the reward NaN: it must be finite": func(q *Sequence) { q.Rollout.Reward = math.NaN() },
		"has a weight that is infinite or NaN":  func(q *Sequence) { q.Values[1] = float32(math.Inf(1)) },
	} {
		step := criticStep()
		q := &step.Sequences[0]
		change(q)
		s := ofPPO(Policy{})
		if q.Rollout.Old != nil {
			s.Old = OldOfData
		}
		_, err := open(t, s).Weigh(step)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	step := criticStep()
	step.Sequences[0].Rollout.Unscored = true
	step.Sequences[0].ValueSlopes[1] = 3
	o := open(t, ofPPO(Policy{}))
	if r := weigh(t, o, step); r.Loss != 0 || step.Sequences[0].Weights[1] != 0 || step.Sequences[0].ValueSlopes[1] != 0 {
		t.Errorf("an answer without a reward: loss %v, %+v", r.Loss, step.Sequences[0])
	}
	_, _, err := o.(Rewarded).Advantages([]Scored{{Group: 4, Advantage: 1, Reward: 1, Tokens: 2}}, nil)
	if err == nil || !strings.Contains(err.Error(), "group 4 has an advantage, and the loss ppo makes its own") {
		t.Errorf("an advantage of the data: %v", err)
	}
	got, _, err := o.(Rewarded).Advantages([]Scored{{Advantage: math.NaN(), Reward: 3, Tokens: 2},
		{Advantage: math.NaN(), Reward: math.NaN(), Tokens: 2}}, nil)
	if err != nil || got[0].Reward != 3 || got[0].Advantage != 0 || got[0].Unscored || !got[1].Unscored ||
		got[1].Reward != 0 {
		t.Errorf("rewards %+v, %v", got, err)
	}
}
