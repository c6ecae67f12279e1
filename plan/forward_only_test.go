package plan_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// forwardOnly is a plan of that many micro-batches with an objective, of which the last n of each cohort only go up.
func forwardOnly(p *plan.Plan, micros, n int, place plan.Placement) *plan.Plan {
	q := *p
	q.Outputs.Objective, q.Whole.MicroBatches, q.Whole.ForwardOnly = true, micros, n
	return q.With(place)
}

// Micro-batches that only go up compute what they do in an evaluation, and the others what they do alone: whatever the
// model and the placement. Those of a model with experts compute what all do.
func TestForwardOnlyComputesOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		p := newPlan(rt, m, drawNumerics(rt, 1))
		place, cohorts := drawPlacement(rt, m, true), p.Numerics.CohortCount()
		place.Twice = false // which micro-batches that only go up rule out
		up, down := rapid.IntRange(1, 3).Draw(rt, "only up"), rapid.IntRange(1, 3).Draw(rt, "trained")
		flops := func(p *plan.Plan) int64 { return p.Simulate(machine, gpu).FLOPs }
		got := flops(forwardOnly(p, cohorts*(up+down), up, place))
		want := flops(forwardOnly(p, cohorts*down, 0, place))
		if m.Routed() {
			want = flops(forwardOnly(p, cohorts*(up+down), 0, place))
		} else if p.Trains() {
			frozen := newPlan(rt, m.Frozen(), p.Whole)
			frozen.Whole.MicroBatches = cohorts * up
			want += flops(frozen.With(place))
		}
		if p.Trains() && got != want {
			rt.Errorf("%d FLOPs, and %d apart", got, want)
		}
	})
}

// A visit on the way down computes a layer again, and then twice as much: 3 of a micro-batch's 4 shares. So a step in
// which half of them only go up takes 1.25/2 of the time, where arithmetic limits it; and it keeps as much less.
func TestForwardOnlyTakesLess(t *testing.T) {
	const half = 4
	m := medium.model(t)
	fast := machine
	fast.DeviceBytesPerSec, fast.UploadBytesPerSec, fast.DownloadBytesPerSec = 1e15, 1e15, 1e15
	fast.AdamWBytesPerSec, fast.HostBytesPerSec = 1e15, 1e15
	place := moving(m, 2)
	p := newPlan(t, m, numerics(2*half, true))
	all, less := forwardOnly(p, 2*half, 0, place), forwardOnly(p, 2*half, half, place)
	got := less.Simulate(fast, gpu).StepSeconds / all.Simulate(fast, gpu).StepSeconds
	if math.Abs(got-1.25/2) > 0.03 {
		t.Errorf("a step of which half only goes up takes %.4f of the time", got)
	}
	bytes := func(list []plan.Bytes, purpose string) (sum int64) {
		for _, b := range list {
			if b.Purpose == purpose {
				sum += b.Bytes
			}
		}
		return sum
	}
	// The embedding's rows come by way of the first layer's inputs, of all micro-batches. The last layer's stay.
	rows, layers := int64(p.Numerics.Positions()*medium.Hidden*2), int64(len(m.Blocks)-1)
	for micros, p := range map[int64]*plan.Plan{2 * half: all, half: less} {
		if got, want := bytes(p.Host, plan.InputsPurpose), rows*(2*half+micros*(layers-1)); got != want {
			t.Errorf("%d bytes of inputs of %d micro-batches are saved; want %d", got, micros, want)
		}
	}
	for b := range place.Where.Inputs {
		place.Where.Inputs[b] = plan.Device
		place.Where.Activations[b] = plan.Activations{Level: nn.KeepAttention, Place: plan.Device}
	}
	all, less = forwardOnly(p, 2*half, 0, place), forwardOnly(p, 2*half, half, place)
	for purpose, micros := range map[string]int64{"saved layer inputs": half, "kept activations": half + 1} {
		each := bytes(all.Device, purpose) / (2 * half)
		if got := bytes(less.Device, purpose); each == 0 || math.Abs(float64(got)/float64(each*micros)-1) > 0.01 {
			t.Errorf("%d bytes of %s on the device, %d of each micro-batch; want %d of these", got, purpose, each, micros)
		}
	}
	place.HeadAtOnce = true // micro-batches that only go up are in the head one after the other
	work := func(micros, n int) int64 { return bytes(forwardOnly(p, micros, n, place).Device, "work") }
	each := work(2*half, 0) - work(2*half-1, 0)
	if got, want := work(2*half, half), work(half+1, 0); each == 0 || got != want {
		t.Errorf("%d bytes of work, %d of them for each micro-batch in the head; want %d", got, each, want)
	}
}

// What no objective reads is refused, and what leaves nothing to train.
func TestForwardOnlyThatCannotBe(t *testing.T) {
	r := plan.Request{Model: tiny.model(t), Machine: machine, Device: device.Info{Unified: true}}
	for _, c := range []struct {
		n, cohorts int
		objective  bool
		want       string
	}{
		{0, 0, false, ""}, {3, 0, true, ""}, {1, 2, true, ""},
		{4, 0, true, "numerics.forward_only is 4: it must leave one to train of the 4 micro-batches of a group"},
		{2, 2, true, "numerics.forward_only is 2: it must leave one to train of the 2 micro-batches of a group"},
		{-1, 0, true, "numerics.forward_only is -1"},
		{1, 0, false, "numerics.forward_only is for steps with an objective"},
	} {
		r.Numerics, r.Outputs.Objective = numerics(4, false), c.objective
		r.Numerics.ForwardOnly, r.Numerics.Cohorts = c.n, c.cohorts
		err := r.Fits(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%d of %d groups: %v", c.n, c.cohorts, err)
		}
	}
}

// Rows that are not trained have micro-batches of their own, after the others of their cohort.
func TestForwardRows(t *testing.T) {
	r := plan.Request{Model: tiny.model(t), Machine: machine, Device: device.Info{Unified: true},
		Outputs: plan.Outputs{Objective: true}, Numerics: numerics(0, false)}
	for _, c := range []struct {
		rows, cohorts, forward, micro int
		want                          string
	}{
		{12, 1, 6, 0, ""}, {12, 1, 4, 0, ""}, {12, 2, 2, 0, ""}, {12, 1, 4, 4, ""}, {7, 1, 3, 0, ""}, {12, 1, 0, 3, ""},
		{12, 1, 4, 3, "numerics.micro_batch is 3: it must divide the 8 sequences of a group that are trained and the 4"},
		{12, 1, 4, 8, "numerics.micro_batch is 8: it must divide"},
		{12, 2, 6, 0, "6 of the 6 sequences of a group are not trained, which leaves none that are: raise batch_tokens"},
		{12, 2, -1, 0, "-1 of the 6 sequences"},
	} {
		f := plan.Fitting{Request: r, Rows: c.rows, ForwardRows: c.forward, Cuts: plan.Cuts{MicroBatch: c.micro}}
		f.Numerics.Cohorts = c.cohorts
		p, err := f.Fit(t.Context())
		if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) || c.want == "" && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		n := p.Numerics
		if n.MicroBatch*n.MicroBatches != c.rows || n.MicroBatch*n.ForwardOnly != c.forward ||
			c.micro > 0 && n.MicroBatch != c.micro {
			t.Errorf("%+v: %d micro-batches of %d, %d of a group not trained", c, n.MicroBatches, n.MicroBatch,
				n.ForwardOnly)
		}
		f.Numerics.Cohorts = 0
		if one, err := f.FitForward(t.Context()); err != nil || one.Numerics.ForwardOnly != 0 {
			t.Errorf("%+v: an evaluation has %+v, %v", c, one, err)
		}
	}
}
