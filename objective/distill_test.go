package objective

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// taughtCase is a position of testdata/distill.json, which train/testdata/distill.py has made with PyTorch in float64.
type taughtCase struct {
	Share, Temperature        float64
	Logits, Teacher, Gradient []float64
	IDs                       []int32
	Target                    int32
	Loss, KL                  float64
}

// student are the model's log-probabilities at the temperature.
func (c *taughtCase) student() []float64 {
	var logits []float64
	for _, x := range c.Logits {
		logits = append(logits, x/c.Temperature)
	}
	return logSoftmax(logits)
}

// logSoftmax is of float64 logits.
func logSoftmax(logits []float64) (all []float64) {
	most, sum := slices.Max(logits), 0.0
	for _, x := range logits {
		sum += math.Exp(x - most)
	}
	for _, x := range logits {
		all = append(all, x-most-math.Log(sum))
	}
	return all
}

// step makes a step of the position alone.
func (c *taughtCase) step() *Step {
	k := len(c.IDs)
	logp := c.student()
	top := &Top{K: k, Student: make([]float32, k+1), Slopes: make([]float32, k+1)}
	for i, id := range c.IDs {
		top.IDs, top.Teacher = append(top.IDs, id), append(top.Teacher, float32(c.Teacher[i]))
		if id >= 0 {
			top.Student[i] = float32(logp[id])
		}
	}
	if top.IDs = append(top.IDs, c.Target); slices.Contains(c.IDs, c.Target) {
		top.IDs[k] = -1
	}
	s := &Step{Sequences: []Sequence{{Targets: []int32{c.Target}, LogProbs: []float32{float32(logp[c.Target])},
		Weights: []float32{1}, Top: top}}}
	s.Whole = Count(s.Sequences)
	return s
}

// gradient returns the derivative by each logit of the step's position, as a device forms it: by those that the
// temperature has divided, over it.
func (c *taughtCase) gradient(s *Step) (all []float64) {
	q := &s.Sequences[0]
	for _, logp := range c.student() {
		all = append(all, float64(q.Weights[0])*math.Exp(logp)/c.Temperature)
	}
	for i, id := range q.Top.IDs {
		if id >= 0 {
			all[id] = float64(q.Top.Slopes[i]) / c.Temperature
		}
	}
	return all
}

func (c *taughtCase) open(t rapid.TB) Objective {
	return open(t, Settings{Type: distill, TopK: len(c.IDs), Share: &c.Share, Temperature: &c.Temperature})
}

// TestTaughtLikePyTorch compares losses and gradients by logits with autograd's.
func TestTaughtLikePyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/distill.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []taughtCase
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) != 12 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for i := range cases {
		c := &cases[i]
		s := c.step()
		r := weigh(t, c.open(t), s)
		if kl := r.Metrics()["kl"]; !near(r.Loss, c.Loss, 2e-6) || math.Abs(kl-c.KL) > 2e-6 {
			t.Errorf("case %d: loss %v and kl %v, PyTorch's %v and %v", i, r.Loss, kl, c.Loss, c.KL)
		}
		for j, g := range c.gradient(s) {
			if math.Abs(g-c.Gradient[j]) > 5e-7 {
				t.Errorf("case %d, logit %d: gradient %v, PyTorch's %v", i, j, g, c.Gradient[j])
			}
		}
	}
}

// drawTaught draws a position of a small vocabulary, and which of its tokens the teacher's list has.
func drawTaught(rt *rapid.T) *taughtCase {
	vocab := rapid.IntRange(2, 9).Draw(rt, "vocabulary")
	number := func(name string) float64 { return float64(rapid.IntRange(-4096, 4096).Draw(rt, name)) / 1024 }
	c := &taughtCase{Share: float64(rapid.IntRange(1, 8).Draw(rt, "share")) / 8, Temperature: 1,
		Target: int32(rapid.IntRange(0, vocab-1).Draw(rt, "target"))}
	if c.Share == 1 {
		c.Temperature = float64(rapid.IntRange(4, 12).Draw(rt, "temperature")) / 4
	}
	var teacher []float64
	for range vocab {
		c.Logits, teacher = append(c.Logits, number("logit")), append(teacher, number("teacher's logit"))
	}
	teacher = logSoftmax(teacher)
	perm := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for i := range vocab {
			if !yield(i) {
				return
			}
		}
	})).Draw(rt, "tokens")
	for _, id := range perm[:rapid.IntRange(1, vocab-1).Draw(rt, "k")] {
		c.IDs, c.Teacher = append(c.IDs, int32(id)), append(c.Teacher, teacher[id])
	}
	return c
}

// textbook returns share of the divergence with the tail as one bucket, times the squared temperature, and the rest of
// -log p, in float64, from the teacher's numbers as the objective reads them.
func (c *taughtCase) textbook() float64 {
	logq := c.student()
	tailP, tailQ, kl := 1.0, 0.0, 0.0
	for i, id := range c.IDs {
		logp := float64(float32(c.Teacher[i]))
		tailP -= math.Exp(logp)
		kl += math.Exp(logp) * (logp - logq[id])
	}
	for id, x := range logq {
		if !slices.Contains(c.IDs, int32(id)) {
			tailQ += math.Exp(x)
		}
	}
	kl += tailP * (math.Log(tailP) - math.Log(tailQ))
	return c.Share*c.Temperature*c.Temperature*kl - (1-c.Share)*logq[c.Target]
}

// TestTaughtSlopes holds the gradient by each logit against differences of the loss in float64.
func TestTaughtSlopes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawTaught(rt)
		s := c.step()
		loss := weigh(rt, c.open(rt), s).Loss
		if want := c.textbook(); math.Abs(loss-want) > 1e-4*(1+math.Abs(want)) {
			rt.Fatalf("loss %v, by the textbook %v", loss, want)
		}
		for j, got := range c.gradient(s) {
			at := c.Logits[j]
			moved := func(h float64) float64 { c.Logits[j] = at + h; return c.textbook() }
			const h = 1.0 / 2048
			one, two := (moved(h)-moved(-h))/(2*h), (moved(2*h)-moved(-2*h))/(4*h)
			c.Logits[j] = at
			if want := (4*one - two) / 3; math.Abs(got-want) > 1e-5+1e-4*math.Abs(want) {
				rt.Fatalf("logit %d: slope %v, by differences %v", j, got, want)
			}
		}
	})
}

// TestTaughtLimits: a teacher that knows one token is a label; one that the model agrees with has no gradient; lists
// may be shorter than K, and empty; and a model that is sure has finite slopes.
func TestTaughtLimits(t *testing.T) {
	one := 1.0
	c := &taughtCase{Share: one, Temperature: 1, Logits: []float64{1, 2, -1, 0.5}, IDs: []int32{2, -1},
		Teacher: []float64{0, -1}, Target: 2}
	s := c.step()
	r := weigh(t, c.open(t), s)
	logp := logSoftmax(c.Logits)
	if !near(r.Loss, -logp[2], 1e-6) {
		t.Errorf("a label: loss %v, -log p is %v", r.Loss, -logp[2])
	}
	for j, g := range c.gradient(s) {
		want := math.Exp(logp[j])
		if j == 2 {
			want--
		}
		if math.Abs(g-want) > 1e-6 {
			t.Errorf("a label: slope %v of logit %d, and of the cross-entropy %v", g, j, want)
		}
	}
	c.IDs, c.Teacher = []int32{1, 3}, []float64{logp[1], logp[3]}
	s = c.step()
	r = weigh(t, c.open(t), s)
	for j, g := range c.gradient(s) {
		if math.Abs(g) > 1e-6 || math.Abs(r.Loss) > 1e-6 {
			t.Errorf("the same distribution: loss %v, slope %v of logit %d", r.Loss, g, j)
		}
	}
	c.IDs = []int32{-1, -1}
	s = c.step()
	if r := weigh(t, c.open(t), s); r.Loss != 0 || s.Sequences[0].Weights[0] != 0 {
		t.Errorf("an empty list: loss %v, weight %v", r.Loss, s.Sequences[0].Weights)
	}
	c.Logits, c.IDs, c.Teacher = []float64{90, 0, 0, 0}, []int32{0, 1}, []float64{math.Log(0.5), math.Log(0.25)}
	s = c.step()
	if r := weigh(t, c.open(t), s); !(r.Loss > 10) || math.Abs(c.gradient(s)[0]-0.5) > 1e-6 ||
		math.Abs(float64(s.Sequences[0].Weights[0])+0.25*0x1p20) > 0x1p4 {
		t.Errorf("a sure model: loss %v, slopes %v, weight %v", r.Loss, s.Sequences[0].Top.Slopes, s.Sequences[0].Weights)
	}
}

// TestTaughtPrompts: positions of the prompt have no slope, whatever the teacher says there; and an evaluation has the
// loss of a step.
func TestTaughtPrompts(t *testing.T) {
	o := open(t, Settings{Type: distill, TopK: 1, Share: new(0.5)})
	q := Sequence{Targets: []int32{1, 2, -1}, LogProbs: []float32{-1, -2, 0}, Weights: []float32{0, 1, 0},
		Top: &Top{K: 1, IDs: []int32{0, 1, 3, 2, -1, -1}, Teacher: []float32{-0.5, -0.25, 0},
			Student: []float32{-2, 9, -3, 9, 9, 9}, Slopes: []float32{7, 7, 7, 7, 7, 7}}}
	s := &Step{Sequences: []Sequence{q}, Whole: Counts{Groups: 1, Targets: 2, Chosen: 2}}
	r := weigh(t, o, s)
	if top := q.Top.Slopes; top[0] != 0 || top[1] != 0 || top[4] != 0 || top[5] != 0 || top[2] == 0 || top[3] == 0 ||
		q.Weights[0] != 0 || q.Weights[2] != 0 {
		t.Errorf("slopes %v, weights %v", top, q.Weights)
	}
	q.Targets[0], q.Weights, q.Top.Slopes = -1, nil, nil
	s.Sequences[0] = q
	if again := weigh(t, o, s); again.Loss != r.Loss || again.Metrics()["kl"] != r.Metrics()["kl"] {
		t.Errorf("loss %v, and %v in an evaluation", r.Loss, again.Loss)
	}
}

// BenchmarkDistill weighs 4096 positions with 64 tokens of a teacher each.
func BenchmarkDistill(b *testing.B) {
	const n, k = 4096, 64
	q := Sequence{Targets: make([]int32, n), LogProbs: make([]float32, n), Weights: slices.Repeat([]float32{1}, n),
		Top: &Top{K: k, IDs: make([]int32, n*(k+1)), Teacher: make([]float32, n*k), Student: make([]float32, n*(k+1)),
			Slopes: make([]float32, n*(k+1))}}
	for i := range q.Top.Teacher {
		q.Top.Teacher[i] = -5 - float32(i%64)/16
	}
	for i := range q.Top.Student {
		q.Top.IDs[i], q.Top.Student[i] = int32(1+i%(k+1)), -5-float32(i%61)/16
	}
	o := open(b, Settings{Type: distill})
	for b.Loop() {
		for t := range q.Weights {
			q.Weights[t] = 1
		}
		weigh(b, o, &Step{Sequences: []Sequence{q}, Whole: Counts{Groups: 1, Targets: n, Chosen: n, ChosenAll: n}})
	}
}
