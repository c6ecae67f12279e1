package train

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
)

// A record has the greatest change of a weight in the update of the step before, over its learning rate: what the
// weights themselves say, also where updates wait for no norm, and with moments in 8 bits.
func TestRecordsHaveTheGreatestUpdate(t *testing.T) {
	for name, change := range map[string]func(c *runfile.Config){
		"after the norm": func(*runfile.Config) {},
		"without a norm": func(c *runfile.Config) { c.MaxGradNorm, c.Memory = 0, budget(t, "3MiB") },
		"moments of 8":   func(c *runfile.Config) { c.Precision.Moments = "8bit" },
		"moments of 8+4": func(c *runfile.Config) { c.Precision.Moments = "8+4" },
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.WeightDecay, c.MaxSteps = 0, 8
			change(c)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			records := metricsOf(t, c.OutputDir)
			want := greatestUpdates(t, c, records)
			for i, m := range records {
				switch got := m.MaxUpdateOverLR; {
				case i == 0 || records[i-1].LearningRate == 0:
					if got != nil {
						t.Errorf("step %d: the greatest update is %v, after a step that moved nothing", m.Step, *got)
					}
				case got == nil || !(math.Abs(*got-want[i-1]) < 1e-3*want[i-1]):
					t.Errorf("step %d: the greatest update is %v learning rates, want %v", m.Step, show(got), want[i-1])
				}
			}
		})
	}
}

// greatestUpdates takes the steps of some records again, and returns by how many learning rates each moved a weight, at
// most.
func greatestUpdates(t *testing.T, c *runfile.Config, records []trace.Metrics) (all []float64) {
	t.Helper()
	r := openRun(t, c, "", OpenOptions{})
	before := weightsOf(t, r)
	for _, m := range records {
		b, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.Step(t.Context(), b, r.Update(m.LearningRate))
		if err != nil {
			t.Fatal(err)
		}
		if res.Loss() != m.Loss {
			t.Fatalf("step %d: the loss is %v, and was %v", m.Step, res.Loss(), m.Loss)
		}
		after, most := weightsOf(t, r), 0.0
		for name, w := range after {
			for i, was := range before[name] {
				most = max(most, math.Abs(float64(w[i])-float64(was)))
			}
		}
		all, before = append(all, most/m.LearningRate), after
	}
	return all
}

// weightsOf are all tensors after the updates of all steps.
func weightsOf(t *testing.T, r *Run) map[string][]float32 {
	t.Helper()
	all := map[string][]float32{}
	for _, x := range r.Model().Tensors() {
		w, err := r.Tensor(t.Context(), x.Name)
		if err != nil {
			t.Fatal(err)
		}
		all[x.Name] = w
	}
	return all
}

func show(x *float64) string {
	if x == nil {
		return "absent"
	}
	return fmt.Sprint(*x)
}
