package objective

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func s(x float64) float64    { return 1 / (1 + math.Exp(-x)) }
func logS(x float64) float64 { return math.Log(s(x)) }

// textbook has each loss of a pair as its paper or TRL writes it, with its slopes by u and v.
var textbook = map[string]func(p pair, b, e, gamma float64) (loss, du, dv float64){
	"sigmoid": func(p pair, b, e, _ float64) (float64, float64, float64) {
		z := b * (p.u - p.v)
		k := -b * ((1-e)*s(-z) - e*s(z))
		return -(1-e)*logS(z) - e*logS(-z), k, -k
	},
	"hinge": func(p pair, b, _, _ float64) (float64, float64, float64) {
		z, k := b*(p.u-p.v), 0.0
		if z < 1 {
			k = -b
		}
		return math.Max(0, 1-z), k, -k
	},
	"ipo": func(p pair, b, _, _ float64) (float64, float64, float64) {
		x := p.u/p.lu - p.v/p.lv - 1/(2*b)
		return x * x, 2 * x / p.lu, -2 * x / p.lv
	},
	"robust": func(p pair, b, e, _ float64) (float64, float64, float64) {
		z := b * (p.u - p.v)
		k := -b * ((1-e)*s(-z) + e*s(z)) / (1 - 2*e)
		return (-(1-e)*logS(z) + e*logS(-z)) / (1 - 2*e), k, -k
	},
	"exo_pair": func(p pair, b, e, _ float64) (float64, float64, float64) {
		z := b * (p.u - p.v)
		q := s(z)
		k := b * q * (1 - q) * (z - math.Log(1-e) + math.Log(e))
		return q*(math.Log(q)-math.Log(1-e)) + (1-q)*(math.Log(1-q)-math.Log(e)), k, -k
	},
	"nca_pair": func(p pair, b, _, _ float64) (float64, float64, float64) {
		return -logS(b*p.u) - logS(-b*p.u)/2 - logS(-b*p.v)/2, -b*s(-b*p.u) + b/2*s(b*p.u), b / 2 * s(b*p.v)
	},
	"bco_pair": func(p pair, b, _, _ float64) (float64, float64, float64) {
		return -logS(b*p.u) - logS(-b*p.v), -b * s(-b*p.u), b * s(b*p.v)
	},
	"sppo_hard": func(p pair, b, _, _ float64) (float64, float64, float64) {
		x, y := p.u-1/(2*b), p.v+1/(2*b)
		return x*x + y*y, 2 * x, 2 * y
	},
	"apo_zero": func(p pair, b, _, _ float64) (float64, float64, float64) {
		return 1 - s(b*p.u) + s(b*p.v), -b * s(b*p.u) * s(-b*p.u), b * s(b*p.v) * s(-b*p.v)
	},
	"apo_down": func(p pair, b, _, _ float64) (float64, float64, float64) {
		z := b * (p.u - p.v)
		return s(b*p.u) + 1 - s(z), b*s(b*p.u)*s(-b*p.u) - b*s(z)*s(-z), b * s(z) * s(-z)
	},
	"discopop": func(p pair, b, _, _ float64) (float64, float64, float64) {
		z := b * (p.u - p.v)
		m := s(z / 0.05)
		k := b * (-(1-m)*s(-z) - m*math.Exp(-z) + m*(1-m)/0.05*(logS(z)+math.Exp(-z)))
		return -(1-m)*logS(z) + m*math.Exp(-z), k, -k
	},
	"sigmoid_norm": func(p pair, b, _, _ float64) (float64, float64, float64) {
		y := b * (p.u/p.lu - p.v/p.lv)
		return -logS(y), -b * s(-y) / p.lu, b * s(-y) / p.lv
	},
	"simpo": func(p pair, b, e, gamma float64) (float64, float64, float64) {
		y := b*(p.u/p.lu-p.v/p.lv) - gamma
		k := -b * ((1-e)*s(-y) - e*s(y))
		return -(1-e)*logS(y) - e*logS(-y), k / p.lu, -k / p.lv
	},
	"orpo": func(p pair, b, _, _ float64) (float64, float64, float64) {
		a, q := p.u/p.lu, p.v/p.lv
		o := (a - q) - (math.Log(1-math.Exp(a)) - math.Log(1-math.Exp(q)))
		return -b * logS(o), -b * s(-o) / (1 - math.Exp(a)) / p.lu, b * s(-o) / (1 - math.Exp(q)) / p.lv
	},
}

// TestTextbook holds the functions of the table against the forms of papers, where those keep their digits.
func TestTextbook(t *testing.T) {
	for i := range losses {
		l := &losses[i]
		if l.of == nil {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				b := rapid.Float64Range(0.05, 2).Draw(rt, "beta")
				e := rapid.Float64Range(0.01, 0.4).Draw(rt, "label smoothing")
				gamma := rapid.Float64Range(0, 2).Draw(rt, "gamma")
				p := pair{rapid.Float64Range(-8, 8).Draw(rt, "u"), rapid.Float64Range(-8, 8).Draw(rt, "v"),
					float64(rapid.IntRange(1, 9).Draw(rt, "lu")), float64(rapid.IntRange(1, 9).Draw(rt, "lv"))}
				if l.name == "orpo" {
					p.u, p.v = -math.Abs(p.u)-0.1, -math.Abs(p.v)-0.1
				}
				loss, du, dv := textbook[l.name](p, b, e, gamma)
				got := l.of(p, &Settings{Beta: b, LabelSmoothing: e, Gamma: &gamma})
				for _, x := range [][2]float64{{got.loss, loss}, {got.du, du}, {got.dv, dv}} {
					if math.Abs(x[0]-x[1]) > 1e-10*(1+math.Abs(x[1])) {
						rt.Fatalf("%+v: %+v, by the textbook %v, %v, %v", p, got, loss, du, dv)
					}
				}
			})
		})
	}
}

// TestSwapped: with label smoothing e the loss is that of the pair and of the swapped one, in the shares 1-e and e.
// So it is for the losses that smooth, except exo_pair, in which e is a distribution, and robust, in which e is
// negative.
func TestSwapped(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		kind := rapid.SampledFrom([]string{dpo, cpo}).Draw(rt, "type")
		e := rapid.Float64Range(0.01, 0.49).Draw(rt, "label smoothing")
		plain := open(rt, Settings{Type: kind, NLL: new(0.0)})
		smooth := open(rt, Settings{Type: kind, NLL: new(0.0), LabelSmoothing: e})
		step := drawStep(rt, plain.Needs())
		swapped, both := copyOf(step), copyOf(step)
		for i := 0; i < len(swapped.Sequences); i += 2 {
			c, r := &swapped.Sequences[i], &swapped.Sequences[i+1]
			*c, *r = *r, *c
			c.Side, r.Side = Chosen, Rejected
		}
		swapped.Whole = Count(swapped.Sequences)
		a, b, c := weigh(rt, plain, step), weigh(rt, plain, swapped), weigh(rt, smooth, both)
		if want := (1-e)*a.Loss + e*b.Loss; !near(c.Loss, want, 1e-13) {
			rt.Fatalf("loss %v, want %v", c.Loss, want)
		}
		for i := range step.Sequences {
			other := &swapped.Sequences[i^1]
			for pos, w := range both.Sequences[i].Weights {
				want := (1-e)*float64(step.Sequences[i].Weights[pos]) + e*float64(other.Weights[pos])
				if math.Abs(float64(w)-want) > 1e-6 {
					rt.Fatalf("weight %v, want %v", w, want)
				}
			}
		}
		if a.Parts[0].Sum != b.Parts[1].Sum || !near(a.Parts[3].Sum, -b.Parts[3].Sum, 1e-12) {
			rt.Fatalf("metrics %v, swapped %v", a.Parts, b.Parts)
		}
	})
}

// TestLDAlpha: with 1 it is plain DPO to the bit, and with 0 the tails of the longer sides do not count.
func TestLDAlpha(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"sigmoid", "hinge", "bco_pair", "sppo_hard"}).Draw(rt, "loss")
		at := func(alpha *float64) Objective {
			return open(rt, Settings{Type: dpo, Losses: []string{name}, LDAlpha: alpha})
		}
		step := drawStep(rt, Needs{Reference: true, Pairs: true})
		one, plain, none, cut := copyOf(step), copyOf(step), copyOf(step), copyOf(step)
		for i := range cut.Sequences {
			c, r := &step.Sequences[i&^1], &step.Sequences[i|1]
			shared, seen := min(c.completion(), r.completion()), 0
			q := &cut.Sequences[i]
			for pos := range q.Targets {
				if q.isCompletion(pos) {
					if seen++; seen > shared {
						q.Targets[pos] = -1
					}
				}
			}
		}
		a, b := weigh(rt, at(new(1.0)), one), weigh(rt, at(nil), plain)
		c, d := weigh(rt, at(new(0.0)), none), weigh(rt, at(nil), cut)
		if a.Loss != b.Loss || c.Loss != d.Loss {
			rt.Fatalf("alpha 1: %v, plain %v; alpha 0: %v, cut %v", a.Loss, b.Loss, c.Loss, d.Loss)
		}
		for i := range step.Sequences {
			for pos, w := range none.Sequences[i].Weights {
				if w != cut.Sequences[i].Weights[pos] {
					rt.Fatalf("sequence %d has the weights %v, cut %v", i, none.Sequences[i].Weights, cut.Sequences[i].Weights)
				}
			}
		}
	})
}

// TestFarAway: log-probabilities that no model should have give finite weights wherever the slope is finite.
func TestFarAway(t *testing.T) {
	for i := range losses {
		l := &losses[i]
		if l.of == nil {
			continue
		}
		for _, u := range []float64{-1e5, -1e4, -1, 0, 1, 1e4, 1e5} {
			for _, v := range []float64{-1e5, -1e4, -1, 0, 1, 1e4, 1e5} {
				if l.name == "orpo" && (u > 0 || v >= 0) {
					continue
				}
				o := open(t, Settings{Type: l.types[0], Losses: []string{l.name}, Beta: 1})
				step := single(u, v, 1, 1)
				r, err := o.Weigh(step)
				if err != nil {
					t.Errorf("%s at %v, %v: %v", l.name, u, v, err)
				} else if !isFinite(r.Loss) {
					t.Errorf("%s at %v, %v: loss %v", l.name, u, v, r.Loss)
				}
			}
		}
	}
	// Far from 0 the slopes are those of the asymptotes.
	for _, x := range []struct {
		name       string
		u, v       float64
		loss, du   float64
		smoothedBy float64
	}{
		{"sigmoid", -1e4, 0, 1e4, -1, 0}, {"sigmoid", 1e4, 0, 0, 0, 0}, {"sigmoid", 1e4, 0, 1e3, 0.1, 0.1},
		{"hinge", -1e4, 0, 10001, -1, 0}, {"robust", -1e4, 0, 1e4 * 0.9 / 0.8, -0.9 / 0.8, 0.1},
		{"discopop", -1e4, 0, 1e4, -1, 0}, {"discopop", 1e4, 0, 0, 0, 0}, {"bco_pair", -1e4, 1e4, 2e4, -1, 0},
		{"nca_pair", 1e4, 0, 5000 + math.Ln2/2, 0.5, 0}, {"exo_pair", 1e4, 0, -math.Log(0.9), 0, 0.1},
	} {
		got := lossNamed(dpo, x.name).of(pair{x.u, x.v, 1, 1}, &Settings{Beta: 1, LabelSmoothing: x.smoothedBy})
		if !near(got.loss, x.loss, 1e-12) || !near(got.du, x.du, 1e-12) {
			t.Errorf("%s at %v: %+v, want %v and a slope of %v", x.name, x.u, got, x.loss, x.du)
		}
	}
}

// TestCertain: ORPO of a chosen completion of probability 1 has the limits of its loss and slope; that of a rejected
// one has no finite slope.
func TestCertain(t *testing.T) {
	o := Settings{Beta: 1}
	at, limit := lossORPO(pair{0, -2, 1, 1}, &o), lossORPO(pair{-1e-9, -2, 1, 1}, &o)
	if at.loss != 0 || !near(at.du, limit.du, 1e-6) || at.dv != 0 || math.Abs(limit.dv) > 1e-8 {
		t.Errorf("%+v, near it %+v", at, limit)
	}
	_, err := open(t, Settings{Type: orpo}).Weigh(single(-1, 0, 1, 1))
	if err == nil || !strings.Contains(err.Error(), "of pair 7 has a weight that is infinite or NaN") {
		t.Errorf("error %v", err)
	}
}
