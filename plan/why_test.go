package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
)

// The notes of a search have the plan that it found as the fastest, and say where routes stopped and what more memory buys.
func TestWhy(t *testing.T) {
	r := request(t, medium, numerics(4, true))
	all, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.DeviceBytes = all.DeviceTotalBytes() * 3 / 4
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	why, err := p.Why(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(why.Trials) == 0 || why.Trials[0].StepSeconds != p.Predicted.StepSeconds {
		t.Fatalf("the fastest of %d trials is %+v, and the plan takes %g s", len(why.Trials), why.Trials[:min(1, len(why.Trials))], p.Predicted.StepSeconds)
	}
	stopped := map[string]int{}
	for _, trial := range why.Trials {
		stopped[trial.StoppedBy]++
		for _, s := range trial.Stages {
			if s.Moves < 1 || s.Moves > s.Of || s.What == "" || s.What == "nothing" {
				t.Errorf("a stage of %+v", s)
			}
		}
	}
	if stopped["memory.device"] == 0 || len(stopped) > 3 {
		t.Errorf("routes were stopped by %v", stopped)
	}
	gained := false
	for _, g := range why.Gains {
		if g.SavedSeconds < 0 {
			t.Errorf("more of %s makes a step longer by %g s", g.Key, -g.SavedSeconds)
		}
		gained = gained || g.Key == "memory.device" && g.SavedSeconds > 0
	}
	if !gained {
		t.Errorf("a gigabyte more on the device gains nothing: %+v", why.Gains)
	}
	for _, want := range []string{"tried ", "no room in memory.device for more", "1.00 GiB more of memory.device: a step takes "} {
		if !strings.Contains(why.String(), want) {
			t.Errorf("%q is not in\n%s", want, why)
		}
	}
	if _, err := (&plan.Plan{}).Why(context.Background()); err == nil {
		t.Error("a plan that was read from a file is searched for again")
	}
}
