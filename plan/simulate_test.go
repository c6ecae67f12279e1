package plan_test

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// A step takes no less than any lane is busy, or the cores of a unified device, or the disk, and no more than all of
// them one after the other. The number of bytes moved does not depend on the rates.
func TestSimulationIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e8, 1e9
		unified := device.Info{Unified: rapid.Bool().Draw(rt, "unified")}
		place := drawPlacement(rt, r.Model, unified.Unified)
		p := newPlan(rt, r.Model, r.Numerics).With(place)
		q := p.Simulate(r.Machine, unified)
		least, sum := 0.0, 0.0
		for _, sec := range q.LaneSeconds {
			least, sum = max(least, sec), sum+sec
		}
		if len(q.DeviceSeconds) > 0 { // all of them one after the other
			sum = q.LaneSeconds[plan.LaneUpdate] + q.LaneSeconds[plan.LaneDisk]
			for _, d := range q.DeviceSeconds {
				sum += d.Fetch + d.Compute + d.Drain + d.Exchange
			}
		}
		if unified.Unified {
			least = max(least, q.LaneSeconds[plan.LaneCompute]+q.LaneSeconds[plan.LaneUpdate])
		}
		// A lane alone on the disk may have a part of it.
		disk := q.LaneSeconds[plan.LaneDisk]
		if most := sum - disk + disk/plan.LeastDiskShare(p); q.StepSeconds < least*0.999 || q.StepSeconds > most*1.001 {
			rt.Errorf("a step of %.6g s, with lanes of %.6g s at most and %.6g s together", q.StepSeconds, least, most)
		}
		r.Machine.DiskReadBytesPerSec, r.Machine.UploadBytesPerSec = 1e10, 1e10
		if s := p.Simulate(r.Machine, unified); s.DiskReadBytes != q.DiskReadBytes || s.DiskWrittenBytes != q.DiskWrittenBytes || s.FLOPs != q.FLOPs ||
			s.UploadBytes != q.UploadBytes || s.DownloadBytes != q.DownloadBytes {
			rt.Errorf("other rates move other bytes: %+v, %+v", q, s)
		}
	})
}

// A walk that may end early ends only where the step takes longer. Neighbours that are simulated as one move and
// compute what they do one by one, and take nearly as long: within an eighth for any placement of shapes of a few
// layers. TestManyMicroBatches has real ones, within a thousandth.
func TestGroupsOfMicroBatches(t *testing.T) {
	worst := 0.0
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		r.Numerics.MicroBatches = rapid.IntRange(1, 6*plan.SimulatedMicros).Draw(rt, "micro-batches")
		r.Numerics.MicroBatches *= r.Numerics.CohortCount()
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e8, 1e9
		unified := device.Info{Unified: rapid.Bool().Draw(rt, "unified")}
		place := drawPlacement(rt, r.Model, unified.Unified)
		p := newPlan(rt, r.Model, r.Numerics)
		drawForwardOnly(rt, p)
		p = p.With(place)
		fast, each := p.Simulate(r.Machine, unified), plan.SimulateEach(p, r.Machine, unified)
		if r.Numerics.MicroBatches <= plan.SimulatedMicros && !reflect.DeepEqual(fast, each) {
			rt.Errorf("few micro-batches are grouped: %+v, one by one %+v", fast, each)
		}
		if !reflect.DeepEqual(plan.SimulateUpTo(p, r.Machine, unified, fast.StepSeconds), fast) {
			rt.Errorf("a step of %.6g s is not seen to take just as long", fast.StepSeconds)
		}
		short := rapid.Float64Range(0.01, 0.99).Draw(rt, "shorter") * fast.StepSeconds
		if got := plan.SimulateUpTo(p, r.Machine, unified, short).StepSeconds; got != fast.StepSeconds && !math.IsInf(got, 1) {
			rt.Errorf("a step of %.6g s takes %.6g s for who has %.6g s", fast.StepSeconds, got, short)
		}
		off := math.Abs(fast.StepSeconds/each.StepSeconds - 1)
		worst = max(worst, off)
		if off > 0.125 {
			rt.Errorf("%d micro-batches take %.6g s, one by one %.6g s", r.Numerics.MicroBatches, fast.StepSeconds, each.StepSeconds)
		}
		for lane, sec := range each.LaneSeconds {
			if math.Abs(fast.LaneSeconds[lane]-sec) > 1e-9*sec {
				rt.Errorf("lane %d is busy for %.9g s, one by one %.9g s", lane, fast.LaneSeconds[lane], sec)
			}
		}
		fast.StepSeconds, fast.LaneSeconds, fast.Limit = each.StepSeconds, each.LaneSeconds, each.Limit
		fast.DeviceSeconds = each.DeviceSeconds
		if !reflect.DeepEqual(fast, each) {
			rt.Errorf("%+v, one by one %+v", fast, each)
		}
	})
	t.Logf("at most %.2g of a step apart", worst)
}

// Copies in both directions share the link, and take memory from the update, as it does from them: by what was
// measured, and not on a unified device.
func TestLanesSlowEachOtherDown(t *testing.T) {
	m := medium.model(t)
	p := newPlan(t, m, numerics(4, true)).With(moving(m, 2))
	alone := machine
	alone.UploadBytesPerSec, alone.DownloadBytesPerSec, alone.AdamWBytesPerSec = 1e7, 1e7, 1e7 // they decide
	together := alone
	together.DuplexUploadBytesPerSec, together.DuplexDownloadBytesPerSec = 0.6e7, 0.6e7
	both := together
	both.AdamWUnderCopiesBytesPerSec = 0.5e7
	taken := both
	taken.UploadUnderAdamWBytesPerSec, taken.DownloadUnderAdamWBytesPerSec = 0.35e7, 0.35e7
	gains := together
	gains.DuplexUploadBytesPerSec, gains.DuplexDownloadBytesPerSec = 2e7, 2e7 // noise of a measurement
	gains.UploadUnderAdamWBytesPerSec, gains.DownloadUnderAdamWBytesPerSec = 3e7, 3e7
	a, b, c, e := p.Simulate(alone, gpu), p.Simulate(together, gpu), p.Simulate(both, gpu), p.Simulate(taken, gpu)
	if !(a.StepSeconds*1.01 < b.StepSeconds && b.StepSeconds*1.01 < c.StepSeconds && c.StepSeconds*1.01 < e.StepSeconds) ||
		b.StepSeconds > 2*a.StepSeconds {
		t.Errorf("steps of %.4g s, %.4g s with a shared link, %.4g s where copies take memory from updates, and %.4g s "+
			"where updates do from copies", a.StepSeconds, b.StepSeconds, c.StepSeconds, e.StepSeconds)
	}
	if a.LaneSeconds != e.LaneSeconds {
		t.Errorf("lanes have other work to do: %v and %v", a.LaneSeconds, e.LaneSeconds)
	}
	if d := p.Simulate(gains, gpu); !reflect.DeepEqual(d, a) {
		t.Errorf("sharing makes it faster: %+v, %+v", d, a)
	}
	unified := device.Info{Unified: true}
	if !reflect.DeepEqual(p.Simulate(taken, unified), p.Simulate(alone, unified)) {
		t.Error("a unified device has no link")
	}
}

// Weights that come from disk come as fast as the drive can only with as many pieces ahead as it wants requests.
func TestMoreStagingForALaneAlone(t *testing.T) {
	m := medium.model(t)
	slow := machine
	slow.DiskReadBytesPerSec, slow.DiskWriteBytesPerSec = 1e6, 1e12
	step := func(moves int) float64 {
		place := moving(m, 2)
		place.Rings.Reads = moves
		for part := range m.Parts {
			place.Where.State[part][store.Weights] = plan.Disk
		}
		return newPlan(t, m, numerics(1, true)).With(place).Simulate(slow, gpu).StepSeconds
	}
	one, three := step(1), step(3)
	if one < 1.2*three || one > 2*three {
		t.Errorf("with a piece ahead a step takes %.4g s, with three %.4g s", one, three)
	}
	if five := step(5); five != three {
		t.Errorf("with five pieces ahead a step takes %.4g s, with three %.4g s", five, three)
	}
}

// The waits of the compute lane add up to the time in which it is not busy, and each names the operation that causes
// it.
func TestIdlesAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e8, 1e9
		place := drawPlacement(rt, r.Model, false)
		p := newPlan(rt, r.Model, r.Numerics).With(place)
		q := p.Simulate(r.Machine, gpu)
		sum := 0.0
		for _, i := range p.Stalls(r.Machine, gpu) {
			sum += i.Seconds
		}
		computes := q.LaneSeconds[plan.LaneCompute]
		if n := len(q.DeviceSeconds); n > 0 { // on average
			computes = 0
			for _, d := range q.DeviceSeconds {
				computes += d.Compute / float64(n)
			}
		}
		if want := q.StepSeconds - computes; math.Abs(sum-want) > 1e-6*q.StepSeconds {
			rt.Errorf("compute idles %.6g s of %.6g s, and is explained for %.6g s", want, q.StepSeconds, sum)
		}
	})
	m := medium.model(t)
	p := newPlan(t, m, numerics(4, true)).With(moving(m, 2))
	for want, slow := range map[plan.Stall]func(*plan.Machine){
		{Before: "forward", For: "update"}: func(m *plan.Machine) { m.AdamWBytesPerSec = 1e6 },
		{Before: "backward", For: "fetch"}: func(m *plan.Machine) { m.UploadBytesPerSec = 1e6 },
		{Before: "norm", For: "drain"}:     func(m *plan.Machine) { m.DownloadBytesPerSec = 1e5 },
	} {
		machine := machine
		slow(&machine)
		all := p.Stalls(machine, gpu)
		i := slices.IndexFunc(all, func(i plan.Stall) bool { return i.Before == want.Before && i.For == want.For })
		if i < 0 || i > 2 {
			t.Errorf("%s before %s is not among the longest of %+v", want.For, want.Before, all)
		}
	}
}

// The gradients of a head that is visited once drain during the backward pass, and compute does not wait for their
// slots.
func TestHeadGradientsDrainDuringBackward(t *testing.T) {
	m := medium.model(t)
	if len(m.HeadTiles) < 4 {
		t.Fatalf("%d tiles", len(m.HeadTiles))
	}
	place := moving(m, 2)
	place.HeadAtOnce = true
	p := newPlan(t, m, numerics(8, true)).With(place)
	slow := machine
	slow.BF16FLOPsPerSec, slow.DownloadBytesPerSec = 1e11, 5e8
	for _, i := range p.Stalls(slow, gpu) {
		if i.Before == "round" || i.Before == "head-input" {
			t.Errorf("%.3g s of %.3g s before %s for %s", i.Seconds, p.Simulate(slow, gpu).StepSeconds, i.Before, i.For)
		}
	}
}

// A pass between steps fetches what is streamed once, and computes next to nothing: it is predicted to take as long as
// that takes on the link.
func TestPassesAreSimulated(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-14b", "h100-pcie5")
	r.DeviceBytes = 16 << 30
	for _, texts := range []int{0, 4} {
		if texts > 0 {
			r.Outputs = plan.Outputs{LogitRows: texts, Caches: nn.Caches{Sequences: texts, Positions: 512}}
		}
		p, err := plan.Estimate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		bytes := int64(0)
		for _, op := range p.Schedule(plan.Continue).Ops {
			if op.Do == plan.DoMove && op.Writes[0].What == plan.Weights {
				bytes += 2 * p.Model.Parts[op.Part].Layout.WeightElems
			}
		}
		link := float64(bytes) / r.Machine.UploadBytesPerSec
		got := p.Forecast(r.Machine, r.Device, 10)
		switch {
		case texts == 0 && got.PassSeconds != 0:
			t.Errorf("without caches a pass takes %v s", got.PassSeconds)
		case texts > 0 && (got.PassSeconds < link || got.PassSeconds > 1.2*link || got.Texts != texts):
			t.Errorf("a pass of %d texts takes %v s, and its weights take %v s on the link", got.Texts,
				got.PassSeconds, link)
		}
	}
}
