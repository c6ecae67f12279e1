package optim

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
)

// The numbers of an update are those of torch.optim.AdamW: step 3 of betas 0.9 and 0.99, by hand.
func TestScalars(t *testing.T) {
	a := AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}
	want := device.AdamWScalars{ClipScale: 0.25, Decay: float32(1 - 2e-3*0.1), OneMinusBeta1: float32(1 - 0.9), Beta2: 0.99,
		OneMinusBeta2: float32(1 - 0.99), StepSize: float32(2e-3 / (1 - 0.9*0.9*0.9)),
		SqrtBC2: float32(math.Sqrt(1 - 0.99*0.99*0.99)), Eps: 1e-8}
	if got := a.Scalars(3, 2e-3, 0.25, true); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.Decay = 1
	if got := a.Scalars(3, 2e-3, 0.25, false); got != want {
		t.Errorf("without decay %+v, want %+v", got, want)
	}
}

// Check refuses a number just outside of its range, and accepts one on its edge.
func TestAdamWCheck(t *testing.T) {
	good := AdamW{0.9, 0.999, 1e-8, 0.1}
	for _, c := range []struct {
		change func(*AdamW)
		want   string
	}{
		{func(a *AdamW) {}, ""}, {func(a *AdamW) { a.Beta1 = 0 }, ""}, {func(a *AdamW) { a.Beta2 = 0 }, ""},
		{func(a *AdamW) { a.Beta1 = 1 }, "betas"}, {func(a *AdamW) { a.Beta2 = 1 }, "betas"},
		{func(a *AdamW) { a.Beta1 = 1.5 }, "betas"}, {func(a *AdamW) { a.Beta2 = 1.5 }, "betas"},
		{func(a *AdamW) { a.Beta1 = -0.1 }, "betas"}, {func(a *AdamW) { a.Beta2 = -0.1 }, "betas"},
		{func(a *AdamW) { a.Beta1 = math.NaN() }, "betas"}, {func(a *AdamW) { a.Beta2 = math.NaN() }, "betas"},
		{func(a *AdamW) { a.Eps = 0x1p-126 }, ""}, {func(a *AdamW) { a.Eps = math.MaxFloat32 }, ""},
		{func(a *AdamW) { a.Eps = 0x1p-127 }, "Eps"}, {func(a *AdamW) { a.Eps = 2 * math.MaxFloat32 }, "Eps"},
		{func(a *AdamW) { a.Eps = math.NaN() }, "Eps"},
		{func(a *AdamW) { a.WeightDecay = 0 }, ""}, {func(a *AdamW) { a.WeightDecay = -1e-9 }, "WeightDecay"},
		{func(a *AdamW) { a.WeightDecay = math.Inf(1) }, "WeightDecay"}, {func(a *AdamW) { a.WeightDecay = math.NaN() }, "WeightDecay"},
	} {
		a := good
		c.change(&a)
		accepts(t, a, a.Check(), c.want)
	}
	for _, c := range []struct {
		Rates
		want string
	}{
		{Rates{}, ""}, {Rates{1, 1}, ""}, {Rates{LR: -1e-9}, "learning rate"}, {Rates{LR: math.Inf(1)}, "learning rate"},
		{Rates{LR: math.NaN()}, "learning rate"}, {Rates{WeightDecay: -1e-9}, "weight decay"},
		{Rates{WeightDecay: math.Inf(1)}, "weight decay"}, {Rates{WeightDecay: math.NaN()}, "weight decay"},
	} {
		accepts(t, c.Rates, c.Check(), c.want)
	}
}

// accepts holds an error against what it must name; empty: there must be no error.
func accepts(t *testing.T, what any, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%+v: error %v, want %q", what, err, want)
	}
}

func TestClipScale(t *testing.T) {
	for _, c := range []struct{ norm, most, want float64 }{
		{5, 0, 1}, {0.5, 1, 1}, {4, 1, 1 / (4 + 1e-6)}, {4, 2, 2 / (4 + 1e-6)}, {0, 1, 1},
	} {
		if got := ClipScale(c.norm, c.most); got != c.want {
			t.Errorf("norm %v, at most %v: %v, want %v", c.norm, c.most, got, c.want)
		}
	}
}

// A setting that is missing stays missing through YAML, and JSON leaves it out.
func TestSettingText(t *testing.T) {
	var g Group
	if err := yaml.Unmarshal([]byte("match: a\nweight_decay: 0\n"), &g); err != nil || g.LearningRate.Given || g.WeightDecay != Given(0) {
		t.Errorf("%+v, error %v", g, err)
	}
	if got, want := g.String(), "a weight_decay=0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	g.LearningRate, g.Freeze = Given(0.1234567890123), true
	if got, want := g.String(), "a learning_rate=0.1234567890123 weight_decay=0 freeze"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	doc, err := json.Marshal(Group{Match: "a", LearningRate: Given(0.1234567890123)})
	if want := `{"match":"a","learning_rate":"0.1234567890123"}`; err != nil || string(doc) != want {
		t.Errorf("%s, want %s; error %v", doc, want, err)
	}
	if text, err := (Setting{}).MarshalText(); text != nil || err != nil {
		t.Errorf("no setting is %q, error %v", text, err)
	}
	if err := yaml.Unmarshal([]byte("match: a\nweight_decay: much\n"), &g); err == nil || !strings.Contains(err.Error(), `"much" is not a number`) {
		t.Errorf("error %v", err)
	}
	if Given(3).Or(4) != 3 || (Setting{}).Or(4) != 4 || (Setting{}).IsZero() != true || Given(0).IsZero() {
		t.Error("a setting is its value, or the other one where it has none")
	}
}

// updates records what a rule asks of a stream.
type updates struct {
	device.Stream
	adamW  []device.AdamWArgs
	adamW8 []device.AdamW8Args
}

func (u *updates) AdamW(a device.AdamWArgs, bad device.Mem) { u.adamW = append(u.adamW, a) }

func (u *updates) AdamW8(a device.AdamW8Args, bad device.Mem) { u.adamW8 = append(u.adamW8, a) }

// A rule hands each kind of state to the operand of its name, and lists what it hands over.
func TestRules(t *testing.T) {
	var of [store.Kinds]device.Mat
	for kind := range of {
		of[kind].Rows = 100 + kind
	}
	numbers := AdamW{0.9, 0.99, 1e-8, 0.1}.Scalars(1, 1e-3, 1, true)
	draw := device.Draw{Part: 3}
	rows := func(kinds ...store.Kind) (n []int) {
		for _, kind := range kinds {
			n = append(n, 100+int(kind))
		}
		return n
	}
	for _, c := range []struct {
		Scheme
		together int64
		states   []store.Kind
	}{
		{Scheme{F32, MomentsF32}, 1, []store.Kind{store.FirstMoment, store.SecondMoment}},
		{Scheme{Split24, MomentsF32}, 4, []store.Kind{store.Low, store.FirstMoment, store.SecondMoment}},
		{Scheme{Split, Dynamic8}, 256, []store.Kind{store.Low, store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale}},
		{Scheme{F32, Dynamic8Root4}, 256, []store.Kind{store.FirstMoment, store.SecondMoment, store.FirstScale,
			store.SecondScale}},
		{Scheme{F32, Power4Root4}, 256, []store.Kind{store.FirstMoment, store.SecondMoment, store.FirstScale,
			store.SecondScale}},
	} {
		var u updates
		rule := c.Rule()
		rule.Update(&u, &of, numbers, draw, device.Mem{})
		if got := rule.Together(); got != c.together {
			t.Errorf("%+v: %d parameters together, want %d", c.Scheme, got, c.together)
		}
		if got := c.States(); !slices.Equal(got, c.states) {
			t.Errorf("%+v keeps %v, want %v", c.Scheme, got, c.states)
		}
		var got []int
		switch {
		case len(u.adamW) == 1 && len(u.adamW8) == 0:
			a := u.adamW[0]
			got = []int{a.Weights.Rows, a.Low.Rows, a.Grad.Rows, a.M.Rows, a.V.Rows}
			if a.AdamWScalars != numbers || a.Draw != draw {
				t.Errorf("numbers %+v, draw %v", a.AdamWScalars, a.Draw)
			}
		case len(u.adamW8) == 1 && len(u.adamW) == 0:
			a := u.adamW8[0]
			got = []int{a.Weights.Rows, a.Low.Rows, a.Grad.Rows, a.M.Rows, a.V.Rows, a.MScale.Rows, a.VScale.Rows}
			if a.AdamWScalars != numbers || a.Draw != draw {
				t.Errorf("numbers %+v, draw %v", a.AdamWScalars, a.Draw)
			}
		}
		want := rows(store.Weights, store.Low, store.Grad, store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale)
		if !c.Moments.Coded() {
			want = want[:5]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v hands over %v, want %v", c.Scheme, got, want)
		}
	}
}
