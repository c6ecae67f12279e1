package stream_test

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// updatedResident keeps the state of every part on the device if the part allows it, except the second part of each
// four.
func updatedResident(p *plan.Placement) {
	streamed(2)(p)
	p.HeadAtOnce = true
	for part := range p.Where.State {
		if part%4 != 1 {
			p.Where.SetState(part, plan.Device)
		}
	}
}

// State that lives on the device is there for all who read the store: after a flush and in a save, whether the flush
// has an update to do or not, and after a step that is skipped. An evaluation leaves it where it is.
func TestStateOnTheDeviceComesHome(t *testing.T) {
	for _, eight := range []bool{false, true} {
		shape := tiny
		shape.Layers, shape.BF16, shape.Moments8, shape.Split24 = 5, true, eight, !eight
		s := shape.subject(t, 4)
		s.updates[2].LR = 1e30 // the step that follows has no finite norm
		dev := newCPU(t)
		defer dev.Close()

		// seen is what a sequence shows: the store after each flush, and what is saved.
		type seen []outcome
		run := func(o setup) (all seen, skipped bool) {
			o.device = dev
			r := start(t, s, o)
			defer r.close(t)
			ctx := context.Background()
			step := func(i int) {
				res, err := r.engine.Step(ctx, s.batches[i], s.updates[i])
				if err != nil {
					t.Fatal(err)
				}
				skipped = skipped || res.Skipped
			}
			flush := func() {
				bad, err := r.engine.Flush(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if bad != 0 {
					t.Errorf("%d bad weights", bad)
				}
				all = append(all, stateOf(t, r))
			}
			saving := func(then func()) {
				o := outcome{state: map[store.ID][]byte{}}
				r.engine.Save(r.capture(o.state))
				then()
				if r.engine.Saving() {
					t.Error("nothing is saved")
				}
				all = append(all, o)
			}
			step(0)
			before := r.store.Version(store.ID{Part: r.plan.Model.BlockParts[1], Kind: store.Low})
			step(1)
			if _, err := r.engine.Eval(ctx, s.eval); err != nil {
				t.Fatal(err)
			}
			after := r.store.Version(store.ID{Part: r.plan.Model.BlockParts[1], Kind: store.Low})
			if here := r.plan.StateResident(r.plan.Model.BlockParts[1]); here != (before == after) {
				t.Errorf("state on the device: %v; the store has seen %d writes, %d before", here, after, before)
			}
			flush()
			step(2)
			saving(func() { step(3) })
			flush() // of a step that was skipped
			flush()
			saving(flush)
			return all, skipped
		}
		want, skipped := run(setup{change: streamed(1), serial: true})
		if !skipped {
			t.Error("no step is skipped")
		}
		for _, serial := range []bool{false, true} {
			got, _ := run(setup{change: updatedResident, serial: serial})
			p := newPlan(t, s, dev.Info(), updatedResident)
			if !p.StateResident(s.model.BlockParts[1]) || p.StateResident(s.model.BlockParts[3]) {
				t.Fatal("the placement is not what it is meant to be")
			}
			for i := range want {
				if len(got[i].state) == 0 {
					t.Errorf("look %d has nothing", i)
				}
				sameBits(t, got[i], want[i], p)
			}
		}
	}
}

// Weights that became NaN are counted once, wherever their update was: below a step, before an evaluation or in a
// flush, on the host or on the device.
func TestWeightsThatBecomeNaN(t *testing.T) {
	shape := tiny
	shape.BF16 = true
	s := shape.subject(t, 3)
	s.updates[0].LR = math.Inf(1)
	dev := newCPU(t)
	defer dev.Close()
	ctx := context.Background()
	var want int64
	for _, place := range []func(*plan.Placement){streamed(1), updatedResident} {
		for _, evaluates := range []bool{false, true} {
			for _, flushes := range []bool{false, true} {
				r := start(t, s, setup{change: place, device: dev})
				step := func(i int) int64 {
					res, err := r.engine.Step(ctx, s.batches[i], s.updates[i])
					if err != nil {
						t.Fatal(err)
					}
					return res.BadWeights
				}
				if n := step(0); n != 0 {
					t.Errorf("%d bad weights before any update", n)
				}
				if evaluates {
					if _, err := r.engine.Eval(ctx, s.eval); err != nil {
						t.Fatal(err)
					}
				}
				count := func() int64 { return step(1) }
				if flushes {
					count = func() int64 {
						n, err := r.engine.Flush(ctx)
						if err != nil {
							t.Fatal(err)
						}
						return n
					}
				}
				got := count()
				if want == 0 {
					want = got
				}
				if got != want || got == 0 {
					t.Errorf("evaluates %v, flushes %v: %d bad weights, elsewhere %d", evaluates, flushes, got, want)
				}
				if n := step(2); n != 0 {
					t.Errorf("%d bad weights are counted again", n)
				}
				r.close(t)
			}
		}
	}
}
