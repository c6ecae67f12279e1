package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// A run writes its state in each step and what is in host memory in each checkpoint; the state on disk, too, where
// checkpoints cannot link it.
func TestWear(t *testing.T) {
	r, on := onMachine(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	step := p.Predicted.DiskWrittenBytes
	params, _ := p.Model.Params()
	linked := p.WearOf(1000, 3, nil, trace.RatingOf(on.RatedWriteBytes))
	copied := p.WearOf(1000, 3, []bool{false}, trace.RatingOf(on.RatedWriteBytes))
	if linked.StepBytes != step || step == 0 || linked.SaveBytes == 0 || linked.SaveBytes >= 12*params ||
		copied.SaveBytes < 12*params || copied.SaveBytes > 12*params*101/100 { // all but the 2 bytes of the gradient
		t.Errorf("of %d parameters: %+v, and where all is copied %+v", params, linked, copied)
	}
	if want := 1000*step + 3*linked.SaveBytes; linked.RunBytes != want || linked.Share != float64(want)/1200e12 ||
		linked.IsAssumed {
		t.Errorf("%+v, want %d bytes of 1,200 TB", linked, want)
	}
	if w := p.WearOf(1000, 3, nil, trace.RatingOf(0)); !w.IsAssumed || w.Share != float64(w.RunBytes)/600e12 {
		t.Errorf("of a drive that is not known: %+v", w)
	}
}

func TestWearText(t *testing.T) {
	known, assumed := trace.RatingOf(1200e12), trace.RatingOf(0)
	for want, w := range map[string]plan.Wear{
		"the run writes 2.15 TB to disk (2.00 GiB in each of 1000 steps): 0.18% of the 1200 TB that the drive is rated for": {
			StepBytes: 2 << 30, Steps: 1000, RunBytes: 2000 << 30, Rating: known},
		"the run writes 2.16 TB to disk (2.00 GiB in each of 1000 steps, 4 checkpoints of 3.00 GiB): 0.36% of the 600 TB " +
			"that the drive is assumed to be rated for (memory.rated_writes sets it)": {
			StepBytes: 2 << 30, Steps: 1000, Saves: 4, SaveBytes: 3 << 30, RunBytes: 2012 << 30, Rating: assumed},
		"the run writes 1.07 GB to disk (1 checkpoint of 1.00 GiB): less than 0.01% of the 1200 TB that the drive is rated " +
			"for": {Steps: 10, Saves: 1, SaveBytes: 1 << 30, RunBytes: 1 << 30, Rating: known},
		"each step writes 1.00 TiB to disk: 1000 steps write 1100 TB, 92% of the 1200 TB that the drive is rated for": {
			StepBytes: 1 << 40, Rating: known},
		"": {Steps: 10, Rating: known},
	} {
		if got := w.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, w := range map[bool]plan.Wear{true: {StepBytes: 1}, false: {Share: 0.009}} {
		if got := w.Matters(); got != want {
			t.Errorf("%+v matters: %v", w, got)
		}
	}
	if all := (&plan.Wear{Share: 0.01}); !all.Matters() {
		t.Error("a hundredth of the drive's rating in checkpoints does not matter")
	}
	if text := trace.RatingOf(1e12).Text(3e12); !strings.HasPrefix(text, "300% of the 1 TB") {
		t.Errorf("three times the rating: %q", text)
	}
}
