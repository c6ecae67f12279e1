package plan_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

func planFor(t *testing.T, m *model.Model, w plan.Outputs) *plan.Plan {
	t.Helper()
	p, err := plan.New(context.Background(), plan.Request{Model: m, Numerics: numerics(1, true),
		Device: device.Info{Unified: true}, Machine: machine, Outputs: w})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The forward pass of a frozen model and the logits of 10 rows, in chunks of 7, of two tiles.
func TestGoldenLogits(t *testing.T) {
	m := tiny.model(t).Frozen()
	bound := planFor(t, m, plan.Outputs{LogitRows: 10})
	var b strings.Builder
	fmt.Fprintf(&b, "bound\n%s", bound.Schedule(plan.Logits))
	fmt.Fprintf(&b, "\nring of 2\n%s", bound.With(moving(m, 2)).Schedule(plan.Logits))
	continuing := planFor(t, m, plan.Outputs{LogitRows: 2, Caches: nn.Caches{Sequences: 2, Positions: 32}})
	fmt.Fprintf(&b, "\ncontinuing, bound\n%s", continuing.Schedule(plan.Continue))
	place := moving(m, 2)
	place.Where.Caches = []plan.Place{plan.Device}
	fmt.Fprintf(&b, "\ncontinuing, ring of 2\n%s", continuing.With(place).Schedule(plan.Continue))
	draws := planFor(t, m, plan.Outputs{LogitRows: 10, Draws: true, Caches: nn.Caches{Sequences: 10, Positions: 32}})
	fmt.Fprintf(&b, "\ndrawing tokens of 10 rows, bound\n%s", draws.Schedule(plan.Continue))
	fmt.Fprintf(&b, "\ndrawing tokens of 10 rows, ring of 2\n%s", draws.With(place).Schedule(plan.Continue))
	isGolden(t, "logits.golden", b.String())
}

// State is kept for what is wanted only: nothing but weights of a frozen model, no moments without updates.
func TestStateFollowsWants(t *testing.T) {
	m := tiny.model(t)
	kinds := func(p *plan.Plan) (all [store.Kinds]bool) {
		for _, spec := range p.Extents() {
			all[spec.Kind] = true
		}
		return all
	}
	for name, c := range map[string]struct {
		plan *plan.Plan
		want [store.Kinds]bool
	}{
		"training": {planFor(t, m, plan.Outputs{}), [store.Kinds]bool{store.Weights: true, store.Low: true,
			store.Grad: true, store.FirstMoment: true, store.SecondMoment: true}},
		"no updates": {planFor(t, m, plan.Outputs{NoUpdates: true}),
			[store.Kinds]bool{store.Weights: true, store.Low: true, store.Grad: true}},
		"frozen": {planFor(t, m.Frozen(), plan.Outputs{}), [store.Kinds]bool{store.Weights: true}},
	} {
		for how, p := range map[string]*plan.Plan{"bound": c.plan, "streamed": c.plan.With(moving(m, 2))} {
			if got := kinds(p); got != c.want {
				t.Errorf("%s, %s: keeps %v, want %v", name, how, got, c.want)
			}
		}
	}
	// Of a deep model, three gradients are little.
	for name, c := range map[string]struct {
		master       optim.Master
		moments      optim.Moments
		bytesPerElem float64
	}{
		"split":         {optim.Split, optim.MomentsF32, 12},
		"split24":       {optim.Split24, optim.MomentsF32, 11},
		"8-bit moments": {optim.Split, optim.Dynamic8, 6 + 8./tensor.MomentBlock},
		"f32":           {optim.F32, optim.MomentsF32, 12},
		"8+4 moments":   {optim.Split24, optim.Dynamic8Root4, 4.546875},
		"4-bit moments": {optim.Split, optim.Power4Root4, 5.0625},
	} {
		deep := shape{Vocab: 50, Hidden: 128, Inner: 512, Layers: 200, Heads: 2, KVHeads: 2, HeadDim: 64}.model(t)
		n := numerics(1, c.master != optim.F32)
		n.Master, n.Moments = c.master, c.moments
		p := newPlan(t, deep, n)
		p.Outputs.NoClip = true
		p = p.With(moving(deep, 2))
		params, _ := deep.Params()
		var state int64
		for _, b := range p.State {
			state += b.Bytes
		}
		if got := float64(state) / float64(params); got < c.bytesPerElem || got > 1.03*c.bytesPerElem {
			t.Errorf("%s, not clipped: %.2f bytes for each parameter, want %.2f", name, got, c.bytesPerElem)
		}
	}
	trained, frozen := planFor(t, m, plan.Outputs{}).With(moving(m, 1)),
		planFor(t, m.Frozen(), plan.Outputs{}).With(moving(m, 1))
	if frozen.DeviceBytes >= trained.DeviceBytes || frozen.HostBytes >= trained.HostBytes/4 {
		t.Errorf("frozen: %d and %d bytes, to train: %d and %d", frozen.DeviceBytes, frozen.HostBytes, trained.DeviceBytes, trained.HostBytes)
	}
}
