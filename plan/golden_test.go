package plan_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

var update = flag.Bool("update", false, "write the golden schedules")

// What each lane does, in which order, and what it waits for, for those who change it to read.
func TestGoldenSchedules(t *testing.T) {
	for _, c := range []struct {
		name  string
		tied  bool
		split bool
		place func(*plan.Placement)
	}{
		{"bound", false, true, nil},
		{"bound-tied-f32", true, false, nil},
		{"ring-of-2", false, true, func(*plan.Placement) {}},
		{"ring-of-2-tied", true, true, func(*plan.Placement) {}},
		{"ring-of-2-f32", false, false, func(*plan.Placement) {}},
		{"single-head-resident-saved", true, true, func(p *plan.Placement) {
			p.HeadAtOnce, p.Where.Inputs[2] = true, plan.Device
			p.Where.Weights[3] = plan.Device
		}},
		{"state-here", false, true, func(p *plan.Placement) {
			p.HeadAtOnce = true
			for _, part := range []int{2, 6} {
				p.Where.SetState(part, plan.Device)
			}
		}},
		{"head-dealt", false, true, func(p *plan.Placement) {
			p.HeadAtOnce, p.Deal, p.HeadDeal = true, []int{0, 0, 0, 0, 1, 1, 0}, []int{0, 1}
		}},
		{"gather-ahead", false, true, func(p *plan.Placement) { p.LookAhead = true }},
		{"state-passes", false, true, func(p *plan.Placement) {
			p.Rings.State = 2
			p.Where.Updates[2], p.Where.Updates[4] = plan.Device, plan.Device
		}},
		{"cohorts-tied", true, true, func(*plan.Placement) {}},
		{"cohorts-of-host-1-of-2", false, true, func(*plan.Placement) {}},
		{"cohorts-in-bf16", false, true, func(*plan.Placement) {}},
		{"cohorts-in-bf16-of-host-1-of-2", true, true, func(*plan.Placement) {}},
		{"kept-on-host", false, true, func(p *plan.Placement) {
			p.Rings.Activations = 2
			for b := range p.Where.Activations {
				p.Where.Activations[b] = plan.Activations{Level: nn.KeepAttention, Place: plan.Host}
			}
			p.Where.Activations[0].Place = plan.Device
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := tiny
			s.Tied = c.tied
			m := s.model(t)
			n := numerics(2, c.split)
			if strings.HasPrefix(c.name, "cohorts") {
				n.Cohorts = 2
			}
			if strings.Contains(c.name, "in-bf16") {
				n.Exchange = tensor.BF16
			}
			p := newPlan(t, m, n)
			if strings.HasSuffix(c.name, "host-1-of-2") {
				p = hostPlans(t, m, n, 2)[1]
			}
			if c.place != nil {
				place := moving(m, 2)
				c.place(&place)
				p = p.With(place)
			}
			var b strings.Builder
			for i, part := range m.Parts {
				fmt.Fprintf(&b, "part %d is %s\n", i, part.Name)
			}
			for _, pass := range usualPasses {
				fmt.Fprintf(&b, "\n%s\n%s", pass, p.Schedule(pass))
			}
			isGolden(t, c.name+".golden", b.String())
		})
	}
}

// isGolden compares a text with a file of testdata, or writes the file with -update.
func isGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s changed (-golden +now); if it is better, run with -update:\n%s", path, d)
	}
}
