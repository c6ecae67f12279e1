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
			p.SingleHead, p.SavedHere[2] = true, true
			p.Resident[3] = true
		}},
		{"state-here", false, true, func(p *plan.Placement) {
			p.SingleHead, p.Resident[2] = true, true
			p.StateHere = []bool{4: true, 2: true, 6: true}
			p.StateHere = append(p.StateHere, make([]bool, len(p.Resident)-len(p.StateHere))...)
		}},
		{"gather-ahead", false, true, func(p *plan.Placement) { p.GatherAhead = true }},
		{"state-passes", false, true, func(p *plan.Placement) {
			p.StatePasses, p.StateSlots = make([]bool, len(p.Resident)), 2
			p.StatePasses[2], p.StatePasses[4] = true, true
		}},
		{"kept-on-host", false, true, func(p *plan.Placement) {
			p.KeptOnHost, p.KeptSlots = make([]bool, len(p.Keep)), 2
			for b := range p.Keep {
				p.Keep[b], p.KeptOnHost[b] = nn.KeepAttention, b > 0
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := tiny
			s.Tied = c.tied
			m := s.model(t)
			p := newPlan(t, m, numerics(2, c.split))
			if c.place != nil {
				place := moving(m, 2)
				c.place(&place)
				p = p.With(place)
			}
			var b strings.Builder
			for i, part := range m.Parts {
				fmt.Fprintf(&b, "part %d is %s\n", i, part.Name)
			}
			for _, phase := range phases {
				fmt.Fprintf(&b, "\n%s\n%s", phase, p.Schedule(phase))
			}
			got, path := b.String(), filepath.Join("testdata", c.name+".golden")
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
				t.Errorf("the schedule changed (-golden +now); if it is better, run with -update:\n%s", d)
			}
		})
	}
}
