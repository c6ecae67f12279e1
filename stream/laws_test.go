package stream_test

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"pgregory.net/rapid"
)

// outcome is all that a few steps leave: results and state, by bits.
type outcome struct {
	scalars []uint64
	state   map[store.ID][]byte
}

// train runs some steps, an evaluation between them, and collects what came out.
func train(t testing.TB, r *rig, g *modeltest.Golden, steps int) outcome {
	t.Helper()
	var o outcome
	for i := range steps {
		res := step(t, r, g, i)
		o.scalars = append(o.scalars, math.Float64bits(res.LossSum), math.Float64bits(res.GradNorm))
		if i == 1 {
			loss, err := r.engine.Eval(context.Background(), batchOf(g.First))
			if err != nil {
				t.Fatal(err)
			}
			o.scalars = append(o.scalars, math.Float64bits(loss))
		}
	}
	if _, err := r.engine.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	o.state = map[store.ID][]byte{}
	for _, spec := range r.plan.Extents() {
		l, err := r.store.Borrow(context.Background(), spec.ID, 0, spec.Bytes, store.Read, r.store.Version(spec.ID))
		if err != nil {
			t.Fatal(err)
		}
		o.state[spec.ID] = bytes.Clone(l.Bytes())
		l.Release()
	}
	return o
}

func sameBits(t interface{ Errorf(string, ...any) }, got, want outcome, p *plan.Plan) {
	for i := range want.scalars {
		if got.scalars[i] != want.scalars[i] {
			t.Errorf("scalar %d: %v, reference %v", i, math.Float64frombits(got.scalars[i]), math.Float64frombits(want.scalars[i]))
			break
		}
	}
	for id, bits := range want.state {
		if !bytes.Equal(got.state[id], bits) {
			t.Errorf("%v of %s differ from the reference", id.Kind, p.Model.Parts[id.Part].Name)
		}
	}
}

// placements draws any placement that the planner could make, and more.
func placements(rt *rapid.T, p *plan.Placement) {
	keeps := rapid.SliceOfN(rapid.IntRange(0, nn.Keeps-1), len(p.Keep), len(p.Keep)).Draw(rt, "keep")
	place := plan.Placement{
		Bind:       rapid.Bool().Draw(rt, "bind"),
		Slots:      rapid.IntRange(1, 5).Draw(rt, "slots"),
		GradSlots:  rapid.IntRange(1, 3).Draw(rt, "gradient slots"),
		StageSlots: rapid.IntRange(1, 3).Draw(rt, "stages"),
		SingleHead: rapid.Bool().Draw(rt, "single head"),
		Resident:   rapid.SliceOfN(rapid.Bool(), len(p.Resident), len(p.Resident)).Draw(rt, "resident"),
		SavedHere:  rapid.SliceOfN(rapid.Bool(), len(p.SavedHere), len(p.SavedHere)).Draw(rt, "saved on the device"),
	}
	for _, k := range keeps {
		place.Keep = append(place.Keep, nn.Keep(k))
	}
	*p = place
}

// The law: a placement, a ring depth, overlap or a second run change no bit of results and state.
func TestPlacementChangesNoBit(t *testing.T) {
	const steps = 4
	for _, variant := range []string{"qwen3", "llama-bias", "mistral-window", "llama-linear-tied"} {
		g := modeltest.Load(t, variant)
		for name, n := range map[string]plan.Numerics{"f32": f32, "bf16": bf16} {
			t.Run(variant+" "+name, func(t *testing.T) {
				ref := newRig(t, g, numerics(g, n), streamed(1), true, nil)
				want := train(t, ref, g, steps)
				rapid.Check(t, func(rt *rapid.T) {
					serial := rapid.Bool().Draw(rt, "serial")
					r := newRig(t, g, numerics(g, n), func(p *plan.Placement) { placements(rt, p) }, serial, nil)
					sameBits(rt, train(t, r, g, steps), want, r.plan)
				})
			})
		}
	}
}
