package plan_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
)

// Whatever the model and the placement, each operation finds what it reads where it reads it, all is updated and
// brought home once, and no two operations meet in memory without an order.
func TestSchedulesAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		p := newPlan(rt, m, drawNumerics(rt, 3))
		p.Outputs.NoClip = rapid.Bool().Draw(rt, "not clipped")
		drawForwardOnly(rt, p)
		p = p.With(drawPlacement(rt, m, true))
		for _, pass := range append(passesOf(p), plan.Nothing) {
			for _, saves := range []bool{false, true} {
				mode := plan.Mode{Pass: pass, Saves: saves}
				mode.Loaded = pass == plan.Steady || pass == plan.Flush || rapid.Bool().Draw(rt, "loaded")
				// State that is there to be saved, or to be read after a flush, comes home.
				mode.WriteBack = mode.Loaded && (saves || pass == plan.Flush || pass == plan.Nothing &&
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

// So does each half of a step that computes gradients of some layers twice, whichever these are.
func TestSchedulesOfHalvesAreSound(t *testing.T) {
	s := tiny
	s.Layers = 4
	m := s.model(t)
	for from := range s.Layers + 1 {
		for ways := range 4 {
			place := plantest.Streamed(len(m.Parts), len(m.Blocks), 2)
			place.Twice, place.TwiceFrom = true, from
			for part := range m.Parts {
				if ways&1 > 0 {
					place.Where.SetState(part, plan.Disk)
				}
			}
			for b := range m.Blocks {
				if ways&2 > 0 {
					place.Where.Inputs[b] = plan.Device
				}
			}
			p := newPlan(t, m, numerics(2, true)).With(place)
			if want := max(from-1, 0); from > 0 && (p.Placement.TwiceFrom > 0) != (want > 0) {
				t.Errorf("from layer %d: planned from layer %d", from, p.Placement.TwiceFrom)
			}
			for _, pass := range passesOf(p) {
				s := p.ScheduleOf(plan.Mode{Pass: pass})
				for _, err := range check(p, plan.Mode{Pass: pass}, s) {
					t.Errorf("from layer %d, %v: %s", from, pass, err)
				}
				if t.Failed() {
					t.Fatalf("\n%s", s)
				}
			}
		}
	}
}

// The checker finds every missing wait, except waits that others imply.
func TestCheckerFindsMissingWaits(t *testing.T) {
	for _, tied := range []bool{false, true} {
		shape := tiny
		shape.Tied = tied
		m := shape.model(t)
		p := newPlan(t, m, numerics(2, true)).With(moving(m, 2))
		waits, found := 0, 0
		mode := plan.Mode{Pass: plan.Steady, Loaded: true}
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

// All that operations name has memory, also of a model that is frozen as a whole.
func TestOperandsHaveMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		if rapid.IntRange(0, 4).Draw(rt, "frozen as a whole") == 0 {
			m = m.Frozen()
		}
		p := newPlan(rt, m, drawNumerics(rt, 3))
		p.Outputs.NoClip = rapid.Bool().Draw(rt, "not clipped")
		drawForwardOnly(rt, p)
		p = p.With(drawPlacement(rt, m, true))
		for _, pass := range passesOf(p) {
			mode := plan.Mode{Pass: pass, Loaded: rapid.Bool().Draw(rt, "loaded")}
			for _, what := range plan.Unplaced(p, mode) {
				rt.Errorf("%+v: %s", mode, what)
			}
		}
	})
}

// No two buffers overlap, except the scratch of visits that follow each other.
func TestBuffersAreApart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		p := newPlan(rt, m, drawNumerics(rt, 3))
		drawForwardOnly(rt, p)
		p = p.With(drawPlacement(rt, m, true))
		rank := rapid.IntRange(0, p.Ranks()-1).Draw(rt, "of rank")
		if n := plan.PlacedBytes(p, rank); n != p.RankBytes(rank) || n > p.DeviceBytes {
			rt.Errorf("%d bytes are counted, and %d placed", p.RankBytes(rank), n)
		}
		all := plan.Placed(p, rank)
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
