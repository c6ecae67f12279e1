package stream_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
)

// Log-probabilities, entropies and hits are those of PyTorch's logits, have the same bits wherever things are placed,
// and come from the weights after all updates.
func TestFiguresAgreeWithPyTorch(t *testing.T) {
	hits := 0.0
	for _, variant := range []string{"qwen3", "qwen3-bias-untied"} {
		g := modeltest.Load(t, variant)
		s := golden(t, g, f32)
		s.outputs.LogProbs = true
		var bound [][]float32
		for name, change := range map[string]func(*plan.Placement){
			"bound": nil, "streamed": streamed(2), "dealt": func(p *plan.Placement) {
				*p = plantest.Streamed(len(p.Where.Weights), len(p.Where.Inputs), 2)
				for b := range p.Where.Inputs {
					p.Deal = append(p.Deal, b%2)
				}
				p.Deal = plan.DealBlocks(p.Deal)
			}, "head at once": func(p *plan.Placement) { streamed(1)(p); p.HeadAtOnce = true },
		} {
			r := start(t, s, setup{change: change})
			got, err := r.engine.Figures(t.Context(), s.eval)
			if err != nil {
				t.Fatal(err)
			}
			vocab := s.model.Vocab
			for m, mb := range s.eval.Micro {
				for i, target := range mb.Targets {
					var want [3]float64
					if target >= 0 {
						row, sum, products := g.Logits[m][i*vocab:][:vocab], 0.0, 0.0
						for _, x := range row {
							sum += math.Exp(float64(x))
							products += math.Exp(float64(x)) * float64(x)
						}
						want = [3]float64{float64(row[target]) - math.Log(sum), math.Log(sum) - products/sum, 0}
						if row[target] == slices.Max(row) {
							want[2] = 1
						}
					}
					for j, got := range []float32{got[m].LogProbs[i], got[m].Entropies[i], got[m].Hits[i]} {
						if d := math.Abs(float64(got) - want[j]); !(d <= 2e-5*max(1, math.Abs(want[j]))) {
							t.Errorf("%s, %s: micro-batch %d, position %d: figure %d is %v, PyTorch %v", variant, name, m, i, j, got,
								want[j])
						}
					}
					hits += want[2]
				}
			}
			before := [][]float32{}
			var sums [3]float64
			for _, one := range got {
				before = append(before, slices.Concat(one.LogProbs, one.Entropies, one.Hits))
				for i := range one.Hits {
					sums[0], sums[1] = sums[0]-float64(one.LogProbs[i]), sums[1]+float64(one.Entropies[i])
					sums[2] += float64(one.Hits[i])
				}
			}
			res, err := r.engine.Measure(t.Context(), s.eval)
			for i, got := range []float64{res.LossSum, res.EntropySum, res.Hits} {
				if err != nil || !(math.Abs(got-sums[i]) <= 1e-12*sums[i]) {
					t.Errorf("%s, %s: the sum of figures %d is %v, and they add up to %v (error %v)", variant, name, i, got, sums[i],
						err)
				}
			}
			if bound == nil {
				bound = before
			}
			for m := range before {
				if !slices.Equal(before[m], bound[m]) {
					t.Errorf("%s: micro-batch %d of %s has other bits", variant, m, name)
				}
			}
			if _, err := r.engine.Step(t.Context(), s.batches[0], s.updates[0]); err != nil {
				t.Fatal(err)
			}
			after, err := r.engine.LogProbs(t.Context(), s.eval)
			if err != nil || slices.Equal(after[0], before[0][:len(after[0])]) {
				t.Errorf("%s: a step changes nothing (error %v)", name, err)
			}
			r.close(t)
		}
	}
	if hits == 0 {
		t.Error("no target has the largest logit")
	}
	r := newRig(t, modeltest.Load(t, "qwen3"), f32, nil)
	if _, err := r.engine.LogProbs(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "make it with LogProbs") {
		t.Errorf("a plan without them: %v", err)
	}
}

// The gradient has the weight of each position: all weights of two double it to the bit, and a weight of zero is as no
// target at all. A batch without weights is one with weights of one.
func TestWeightsOfPositions(t *testing.T) {
	shape := tiny
	shape.BF16, shape.Unclipped = true, true
	s := shape.subject(t, 1)
	norm := func(change func(m, i int) float32, targets func(m, i int) bool) float64 {
		own := *s.batches[0]
		own.Micro = slices.Clone(own.Micro)
		for m := range own.Micro {
			mb := &own.Micro[m]
			mb.Weights, mb.Targets = nil, slices.Clone(mb.Targets)
			for i := range mb.Targets {
				if change != nil {
					mb.Weights = append(mb.Weights, change(m, i))
				}
				if targets != nil && !targets(m, i) {
					mb.Targets[i] = -1
				}
			}
		}
		r := start(t, s, setup{change: streamed(1)})
		defer r.close(t)
		res, err := r.engine.Step(t.Context(), &own, s.updates[0])
		if err != nil {
			t.Fatal(err)
		}
		return res.GradNorm
	}
	all := func(w float32) func(m, i int) float32 { return func(int, int) float32 { return w } }
	even := func(_, i int) bool { return i%2 == 0 }
	plain := norm(nil, nil)
	if one := norm(all(1), nil); one != plain {
		t.Errorf("norm %v with weights of one, %v without", one, plain)
	}
	if two := norm(all(2), nil); two != 2*plain {
		t.Errorf("norm %v with weights of two, %v with one", two, plain)
	}
	if minus := norm(all(-1), nil); minus != plain {
		t.Errorf("norm %v with weights of minus one, %v with one", minus, plain)
	}
	zero := norm(func(m, i int) float32 {
		if even(m, i) {
			return 1
		}
		return 0
	}, nil)
	if without := norm(nil, even); zero != without || zero == plain {
		t.Errorf("norm %v where every second weight is zero, %v where every second position has no target, %v with all",
			zero, without, plain)
	}
}

// A model that is frozen as a whole has the visits of the way up alone, wherever a deal has those of the way down.
func TestFrozenModelsAreDealt(t *testing.T) {
	s := tiny.subject(t, 1)
	s.model, s.outputs.LogProbs = s.model.Frozen(), true
	var want [][]float32
	for _, deal := range [][]int{nil, {0, 1, 0, 1, 0, 0, 1}} {
		r := start(t, s, setup{change: func(p *plan.Placement) {
			*p = plantest.Streamed(len(p.Where.Weights), len(p.Where.Inputs), 2)
			for part := range p.Where.Weights {
				p.Where.Weights[part] = plan.Device
			}
			p.Deal = deal
		}})
		got, err := r.engine.LogProbs(t.Context(), s.eval)
		if err != nil {
			t.Fatal(err)
		}
		for m := range got {
			if want == nil || len(want) == m {
				want = append(want, slices.Clone(got[m]))
			}
			if !slices.Equal(got[m], want[m]) {
				t.Errorf("deal %v: micro-batch %d has other bits", deal, m)
			}
		}
		r.close(t)
	}
}
