package stream_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// The law of placements holds for experts, for experts with a load-balancing loss, and for those next to a dense
// feed-forward.
func TestExperts(t *testing.T) {
	placementsLaw(t, layersOf(t, 4, modeltest.Mixtures(2), modeltest.Balanced(modeltest.Mixtures(2)),
		modeltest.WithDense(3)))
}

// The load-balancing loss and the gradients with it are those of transformers, over all micro-batches of a step, also
// if each is a cohort of its own.
func TestBalanceAgreesWithPyTorch(t *testing.T) {
	for _, variant := range []string{"mixtral", "qwen3_moe", "qwen3_moe-mixed"} {
		g := modeltest.Load(t, variant)
		n := chunked(numerics(g, f32), 8)
		for _, n.Cohorts = range []int{1, n.MicroBatches} {
			balanceAgrees(t, fmt.Sprintf("%s, cohorts %d", variant, n.Cohorts), g, n)
		}
	}
}

func balanceAgrees(t *testing.T, name string, g *modeltest.Golden, n plan.Numerics) {
	t.Helper()
	sub := golden(t, g, n)
	var err error
	if sub.model, err = sub.model.Balanced(g.AuxCoef); err != nil {
		t.Fatal(err)
	}
	r := start(t, sub, setup{change: streamed(1)})
	defer r.close(t)
	res, err := r.engine.Step(context.Background(), batchOf(g.First), stream.Update{Step: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d := math.Abs(res.LossSum/float64(g.First.TargetCount()) - float64(g.Loss)); !(d <= 1e-5) {
		t.Errorf("%s: loss %v, PyTorch %v", name, res.LossSum/float64(g.First.TargetCount()), g.Loss)
	}
	if d := math.Abs(res.AuxLoss/float64(g.AuxLoss) - 1); !(d <= 1e-5) {
		t.Errorf("%s: load-balancing loss %v, transformers %v", name, res.AuxLoss, g.AuxLoss)
	}
	sameGradients(t, name, r, g.AuxGrads)
}

// weightsOf are the tensors of the model in the store.
func weightsOf(t *testing.T, r *rig, sub *subject) map[string][]float32 {
	t.Helper()
	view, all := stream.Viewer(r.plan, r.store), map[string][]float32{}
	for _, of := range sub.model.Tensors() {
		x, err := sub.model.ReadTensor(of.Name, func(part int) (model.Values, error) {
			return view(context.Background(), part)
		})
		if err != nil {
			t.Fatal(err)
		}
		all[of.Name] = x
	}
	return all
}

// How many experts a part has changes no weight.
func TestExpertsOfAPart(t *testing.T) {
	const steps = 3
	for _, bf16 := range []bool{false, true} {
		var want map[string][]float32
		for _, perPart := range []int{7, 1, 3} {
			s := tiny
			s.Layers, s.Micro, s.BF16, s.families = 3, 3, bf16, []model.Family{modeltest.Mixtures(perPart)}
			s.Type = s.families[0].ModelType
			sub := s.subject(t, steps)
			r := start(t, sub, setup{change: streamed(2)})
			train(t, r, sub, steps)
			got := weightsOf(t, r, sub)
			r.close(t)
			if want == nil {
				want = got
			}
			for name, x := range want {
				for i := range x {
					if math.Float32bits(x[i]) != math.Float32bits(got[name][i]) {
						t.Errorf("bf16 %v, parts of %d: element %d of %s is %g, with all experts in a part %g", bf16,
							perPart, i,
							name, got[name][i], x[i])
						break
					}
				}
			}
		}
	}
}

// Experts or routers may be frozen: what is left is updated as if they were trained, and they stay as they are.
func TestFrozenExperts(t *testing.T) {
	for _, family := range []model.Family{modeltest.Mixtures(2), modeltest.WithDense(2)} {
		t.Run(family.ModelType, func(t *testing.T) { frozenExperts(t, family) })
	}
}

func frozenExperts(t *testing.T, family model.Family) {
	s := tiny
	s.Type, s.Layers, s.Unclipped, s.families = family.ModelType, 3, true, []model.Family{family}
	after := func(steps int, frozen func(field string, isGroup bool) bool) map[string][]float32 {
		sub := s.subject(t, 1)
		for i := range sub.model.Parts {
			p := &sub.model.Parts[i]
			var fields []tensor.Field
			for _, f := range p.Layout.Fields {
				f.Field.Trainable = !frozen(f.Name, p.Group > 0)
				fields = append(fields, f.Field)
			}
			l, err := tensor.NewLayout(fields...)
			if err != nil {
				t.Fatal(err)
			}
			p.Layout = l
		}
		r := start(t, sub, setup{change: streamed(2)})
		defer r.close(t)
		for i := range steps {
			if _, err := r.engine.Step(context.Background(), sub.batches[i], sub.updates[i]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.engine.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		return weightsOf(t, r, sub)
	}
	none := func(string, bool) bool { return false }
	begin, trained := after(0, none), after(1, none)
	for what, isFrozen := range map[string]func(string, bool) bool{
		"experts": func(_ string, isGroup bool) bool { return isGroup },
		"routers": func(field string, _ bool) bool { return strings.HasPrefix(field, "router.") },
		"all but experts and routers": func(field string, isGroup bool) bool {
			return !isGroup && !strings.HasPrefix(field, "router.")
		},
	} {
		changed := 0
		for name, x := range after(1, isFrozen) {
			field, isGroup := name[strings.LastIndex(name, "mlp.")+len("mlp."):], strings.Contains(name, "experts")
			want := trained[name]
			if isFrozen(field, isGroup) {
				want = begin[name]
			}
			if !slices.Equal(x, want) {
				t.Errorf("%s are frozen: %s is not what it should be", what, name)
			}
			if !slices.Equal(x, begin[name]) {
				changed++
			}
		}
		if changed == 0 {
			t.Errorf("%s are frozen: nothing is trained", what)
		}
	}
}
