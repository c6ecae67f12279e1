package plan_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// Whatever the model and the placement, each operation finds what it reads where it reads it, all is updated and
// brought home once, and no two operations meet in memory without an order.
func TestSchedulesAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		p := newPlan(rt, m, drawNumerics(rt, 3))
		p.Outputs.NoClip = rapid.Bool().Draw(rt, "not clipped")
		p = p.With(drawPlacement(rt, m, true))
		for _, phase := range append(phases, plan.Nothing) {
			for _, saves := range []bool{false, true} {
				mode := plan.Mode{Phase: phase, Saves: saves}
				mode.Loaded = phase == plan.Steady || phase == plan.Flush || rapid.Bool().Draw(rt, "loaded")
				// State that is there to be saved, or to be read after a flush, comes home.
				mode.WriteBack = mode.Loaded && (saves || phase == plan.Flush || phase == plan.Nothing &&
					rapid.Bool().Draw(rt, "home"))
				s := p.ScheduleOf(mode)
				for _, err := range check(p, mode, s) {
					rt.Errorf("%+v: %s", mode, err)
				}
				if rt.Failed() {
					rt.Fatalf("%+v\n%s", mode, s)
				}
			}
		}
	})
}

// The checker finds every missing wait, except waits that others imply.
func TestCheckerFindsMissingWaits(t *testing.T) {
	for _, tied := range []bool{false, true} {
		shape := tiny
		shape.Tied = tied
		m := shape.model(t)
		p := newPlan(t, m, numerics(2, true)).With(moving(m, 2))
		waits, found := 0, 0
		mode := plan.Mode{Phase: plan.Steady, Loaded: true}
		s := p.ScheduleOf(mode)
		for i := range s.Ops {
			for j := range s.Ops[i].After {
				less := &plan.Schedule{Ops: slices.Clone(s.Ops)}
				less.Ops[i].After = slices.Delete(slices.Clone(s.Ops[i].After), j, j+1)
				waits++
				if len(check(p, mode, less)) > 0 {
					found++
				}
			}
		}
		t.Logf("tied %v: %d of %d waits are needed", tied, found, waits)
		if found < waits*2/3 {
			t.Errorf("tied %v: of %d waits, the checker misses only %d", tied, waits, found)
		}
	}
}

// No two buffers overlap, except the scratch of visits that follow each other.
func TestBuffersAreApart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		n := drawNumerics(rt, 3)
		p := newPlan(rt, m, n).With(drawPlacement(rt, m, true))
		rank := rapid.IntRange(0, p.Ranks()-1).Draw(rt, "of rank")
		b := p.Place(device.Mem{}, rank)
		if n := plan.PlacedBytes(p, rank); n != p.RankBytes(rank) || n > p.DeviceBytes {
			rt.Errorf("%d bytes are counted, and %d placed", p.RankBytes(rank), n)
		}
		var all []device.Mem
		take := func(list ...device.Mem) { all = append(all, list...) }
		mats := func(list []device.Mat) {
			for _, m := range list {
				take(m.Mem)
			}
		}
		take(b.Slots...)
		take(b.Own...)
		take(b.Grads...)
		take(b.OwnG...)
		take(b.Stages...)
		for part, kind := range m.Parts { // other parts take turns in the memory of these
			if kind.Kind == model.Norm || kind.Kind == model.HeadTile && p.Placement.HeadAtOnce {
				take(b.CohortSums[part])
			}
		}
		take(b.Narrowed)
		for part, kinds := range b.State {
			for kind, mem := range kinds {
				if store.Kind(kind) != store.Grad || mem != b.OwnG[part] {
					take(mem)
				}
			}
		}
		for _, list := range append(b.Saved, b.Working[0], b.Working[1], b.DX, b.Shared) {
			mats(list)
		}
		for side := range m.Sides {
			mats(b.Sides[side])
			if !m.Sides[side].Sliced { // else a gradient takes the value's place
				mats(b.SideGrads[side])
			}
		}
		for _, e := range b.Ending {
			mats([]device.Mat{e.Normed, e.Stats, e.Stat, e.DNormed, e.Loss})
		}
		for _, list := range b.Outcomes {
			for _, m := range list {
				if !slices.Contains(all, m.Mem) { // blocks whose outcomes pass share theirs
					take(m.Mem)
				}
			}
		}
		take(b.KeptRing...)
		take(b.Logits, b.Rope[0].Cos.Mem, b.Rope[0].Sin.Mem, b.Batches, b.Results)
		all = slices.DeleteFunc(all, func(m device.Mem) bool { return m.Len == 0 })
		slices.SortFunc(all, func(a, b device.Mem) int { return int(a.Off - b.Off) })
		for i, m := range all {
			if i > 0 && m.Off < all[i-1].Off+all[i-1].Len {
				rt.Errorf("buffers overlap: %v and %v", all[i-1], m)
			}
			if m.Off+m.Len > p.DeviceBytes {
				rt.Errorf("%v is outside of the %d bytes of the plan", m, p.DeviceBytes)
			}
		}
		var sum int64
		for _, g := range p.Device {
			sum += g.Bytes
		}
		if d := p.DeviceBytes - sum; d < 0 || d >= device.ArenaAlign {
			rt.Errorf("the table has %d bytes, the arena %d", sum, p.DeviceBytes)
		}
	})
}
