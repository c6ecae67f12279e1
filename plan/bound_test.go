package plan_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/plan"
)

// No step ends before the time that every step of its placement takes at least, whatever the placement and the rates.
func TestNoStepIsShorterThanTheLeast(t *testing.T) {
	steps, sum := 0, 0.0
	rapid.Check(t, func(rt *rapid.T) {
		m, n := drawModel(rt), drawNumerics(rt, 4)
		n.MicroBatches *= rapid.SampledFrom([]int{1, 1, 1, 2 * plan.SimulatedMicros}).Draw(rt, "times as many")
		p := newPlan(rt, m, n)
		if n.CohortCount() > 1 && rapid.Bool().Draw(rt, "several hosts") {
			p = hostPlans(rt, m, n, n.CohortCount())[rapid.IntRange(0, n.CohortCount()-1).Draw(rt, "host")]
		}
		p.Outputs.NoClip = rapid.Bool().Draw(rt, "not clipped")
		drawForwardOnly(rt, p)
		p = p.With(drawPlacement(rt, m, false))
		p.Unified = false // as on a GPU
		on := machine
		for _, rate := range []*float64{&on.BF16FLOPsPerSec, &on.F32FLOPsPerSec, &on.DeviceBytesPerSec,
			&on.UploadBytesPerSec, &on.DownloadBytesPerSec, &on.AdamWBytesPerSec, &on.DiskReadBytesPerSec,
			&on.DiskWriteBytesPerSec} {
			*rate = math.Pow(10, rapid.Float64Range(8, 11).Draw(rt, "rate"))
		}
		least, sec := plan.LeastSeconds(p, on), p.Simulate(on, gpu).StepSeconds
		if least > sec*(1+1e-9) {
			rt.Errorf("a step takes %.9g s, and %.9g s at least", sec, least)
		}
		if p.Trains() {
			steps, sum = steps+1, sum+least/sec
		}
	})
	if share := sum / float64(steps); !(share > 0.6) {
		t.Errorf("that is %.3f of a step on average, which tells too little", share)
	}
}
