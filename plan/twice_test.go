package plan_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/plan"
)

// Where the disk has a part in a step, the prediction decides whether gradients are kept: on a slow drive they are
// computed twice, on a fast one they are kept. Elsewhere they are kept.
func TestGradientsAreKeptOrComputedTwice(t *testing.T) {
	r := request(t, medium, numerics(2, true))
	r.DeviceBytes, r.DiskBytes = 2*smallest(t, r), 1<<40
	r.HostBytes = leastHostBytes(t, r, plan.GradientsTwice) // less than gradients need
	on := func(way plan.Gradients, diskBytesPerSec float64) *plan.Plan {
		t.Helper()
		r := r
		r.Gradients = way
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = diskBytesPerSec, diskBytesPerSec
		p, err := plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const slow, fast = 1e6, 1e15
	kept, twice := on(plan.GradientsKept, slow), on(plan.GradientsTwice, slow)
	if kept.DiskBytes == 0 || kept.Placement.Twice || !twice.Placement.Twice {
		t.Fatalf("%d bytes on disk; computed twice: %v and %v", kept.DiskBytes, kept.Placement.Twice, twice.Placement.Twice)
	}
	if a, b := kept.Predicted, twice.Predicted; b.StepSeconds >= a.StepSeconds ||
		b.DiskWrittenBytes >= a.DiskWrittenBytes || b.FLOPs <= a.FLOPs*3/2 {
		t.Errorf("kept: %+v; computed twice: %+v", a, b)
	}
	for _, c := range []struct {
		name     string
		rate     float64
		is, isNt *plan.Plan
	}{{"slow", slow, twice, kept}, {"fast", fast, on(plan.GradientsKept, fast), on(plan.GradientsTwice, fast)}} {
		p := on(plan.GradientsAuto, c.rate)
		if p.Placement.Twice != c.is.Placement.Twice || p.Predicted.StepSeconds != c.is.Predicted.StepSeconds ||
			p.OtherStepSeconds != c.isNt.Predicted.StepSeconds {
			t.Errorf("on a %s drive: twice %v in %v s, and %v s otherwise; want %v and %v", c.name, p.Placement.Twice,
				p.Predicted.StepSeconds, p.OtherStepSeconds, c.is.Predicted.StepSeconds, c.isNt.Predicted.StepSeconds)
		}
	}
	r.HostBytes = 1 << 40
	if p := on(plan.GradientsAuto, slow); p.Placement.Twice || p.DiskBytes > 0 || p.OtherStepSeconds != 0 {
		t.Errorf("in memory: computed twice: %v, %d bytes on disk, %v s otherwise", p.Placement.Twice, p.DiskBytes,
			p.OtherStepSeconds)
	}
}

// leastHostBytes is the least host memory with which a request fits, to within 1/1024.
func leastHostBytes(t *testing.T, r plan.Request, way plan.Gradients) int64 {
	t.Helper()
	r.Gradients, r.DiskBytes = way, 0
	low, high := int64(1), int64(1)<<40
	for high-low > high/1024 {
		if r.HostBytes = (low + high) / 2; r.Fits(context.Background()) == nil {
			high = r.HostBytes
		} else {
			low = r.HostBytes
		}
	}
	return high
}

// What fits only without gradients fits.
func TestGradientsThatDoNotFitAreComputedTwice(t *testing.T) {
	r := request(t, medium, numerics(2, true))
	r.DeviceBytes = 2 * smallest(t, r)
	r.HostBytes = (leastHostBytes(t, r, plan.GradientsKept) + leastHostBytes(t, r, plan.GradientsTwice)) / 2
	kept := r
	kept.Gradients = plan.GradientsKept
	if err := kept.Fits(context.Background()); err == nil {
		t.Fatal("kept gradients fit")
	}
	if err := r.Fits(context.Background()); err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(context.Background(), r)
	if err != nil || !p.Placement.Twice || p.HostBytes > r.HostBytes {
		t.Errorf("%v; computed twice: %v", err, p.Placement.Twice)
	}
}

// What cannot be computed twice is refused in a line, and auto keeps it.
func TestGradientsThatCannotBeComputedTwice(t *testing.T) {
	for words, change := range map[string]func(*plan.Request){
		"max_grad_norm: 0": func(r *plan.Request) { r.Outputs.NoClip = true },
		"several hosts": func(r *plan.Request) {
			r.Cluster, r.Numerics.Cohorts = plan.Cluster{Hosts: 2}, 2
		},
		"no block is trained": func(r *plan.Request) {
			for i := range r.Model.Parts {
				if p := &r.Model.Parts[i]; p.Layer <= len(r.Model.Blocks) {
					freezePart(t, p)
				}
			}
		},
	} {
		r := request(t, medium, numerics(2, true))
		change(&r)
		if _, err := plan.New(context.Background(), r); err != nil {
			t.Errorf("%s: %v", words, err)
		}
		r.Gradients = plan.GradientsTwice
		_, err := plan.New(context.Background(), r)
		oneLine(t, err, "memory.gradients is twice", words, "set it to keep")
	}
}
