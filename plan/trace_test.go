package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// The spans of a simulated step end with the step, unless work of the disk comes last. They follow each other on each
// lane but the disk, and are at least as long as the lane is busy: other lanes slow an operation down, and its span
// shows that.
func TestTraceIsTheSimulation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		r.Numerics.MicroBatches = rapid.IntRange(1, 2*plan.SimulatedMicros).Draw(rt, "micro-batches")
		r.Numerics.MicroBatches *= r.Numerics.CohortCount()
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e8, 1e9
		dev := device.Info{Unified: rapid.Bool().Draw(rt, "unified")}
		p := newPlan(rt, r.Model, r.Numerics).With(drawPlacement(rt, r.Model, dev.Unified))
		want := p.Simulate(r.Machine, dev)
		got := p.Trace(r.Machine, dev, trace.About{Model: "m"})
		if !got.Simulated || got.Model != "m" || got.Tokens != int64(p.Numerics.StepPositions()) {
			rt.Errorf("about %+v", got.About)
		}
		took, last := map[trace.Worker]time.Duration{}, map[trace.Worker]time.Duration{}
		end := time.Duration(0)
		for _, s := range got.Spans {
			if s.Step != 1 || s.Name == "" || s.End <= s.Start || s.Lane != trace.Disk && s.Start < last[s.Worker] {
				rt.Fatalf("span %+v after %v", s, last[s.Worker])
			}
			took[s.Worker] += s.End - s.Start
			last[s.Worker], end = s.End, max(end, s.End)
		}
		// One lane gets a share of the disk. If it is alone there, the disk's span ends before the disk has done the lane's
		// work.
		early, near := want.StepSeconds-end.Seconds(), 1e-3*want.StepSeconds+1e-8
		if early < -near || early > near && want.LaneSeconds[trace.Disk] == 0 {
			rt.Errorf("spans end after %.9g s, the step after %.9g s", end.Seconds(), want.StepSeconds)
		}
		rounding := 1e-9 * float64(2*len(got.Spans)+2000) // spans shorter than 1 ns are left out
		for lane, sec := range want.LaneSeconds {
			longest := time.Duration(0) // of the devices
			for of, sum := range took {
				if of.Lane == trace.Lane(lane) {
					longest = max(longest, sum)
				}
			}
			if longest.Seconds() < sec*0.999-rounding {
				rt.Errorf("lane %v has spans of %v, and is busy for %.9g s", trace.Lane(lane), longest, sec)
			}
		}
	})
}

func TestMarkOf(t *testing.T) {
	for name, want := range map[string]byte{"forward block.3": 'F', "reopen block.3": 'B', "head-grad head.1": 'H',
		"fetch block.0": 'W', "fetch-state block.0": 'W', "drain norm": 'G', "drain-input": 'x', "zero-grad norm": 'g',
		"update norm": 'U', "gather-ahead": 'e', "save-state norm": 'w', "upload": 'o'} {
		if got := plan.MarkOf(name + " micro-batch 3"); got != want {
			t.Errorf("%s: mark %c, want %c", name, got, want)
		}
	}
	reads, writes, others := plan.MarkOf("read for fetch layer 1"), plan.MarkOf("write for update layer 1"),
		plan.MarkOf("")
	if reads == writes || reads == others || writes == others || others != plan.MarkOf("forwards layer 1") {
		t.Errorf("read %c, write %c, others %c", reads, writes, others)
	}
}

// Neighbours that are simulated as one say which micro-batches they are.
func TestTraceNamesGroups(t *testing.T) {
	s := shape{Vocab: 64, Hidden: 16, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 16, Inner: 48}
	r := request(t, s, numerics(4*plan.SimulatedMicros, false))
	got := newPlan(t, r.Model, r.Numerics).Trace(machine, device.Info{}, trace.About{})
	for _, s := range got.Spans {
		if strings.HasPrefix(s.Name, "forward ") && strings.HasSuffix(s.Name, " micro-batches 4 to 7") {
			return
		}
	}
	t.Error("no span names micro-batches 4 to 7")
}

// Micro-batches beyond the number that is simulated one by one have spans by neighbours of a cohort, that of the last
// group for those that are left; others have a span each.
func TestTraceNamesMicroBatches(t *testing.T) {
	n := plan.SimulatedMicros
	for _, c := range []struct {
		micros, cohorts int
		want            string
	}{
		{n, 1, fmt.Sprintf("micro-batch %d", n-1)},
		{n + 1, 1, fmt.Sprintf("micro-batches %d to %d", n, n)},
		{2 * n, 1, fmt.Sprintf("micro-batches %d to %d", 2*n-2, 2*n-1)},
		{3*n - 1, 1, fmt.Sprintf("micro-batches %d to %d", 3*n-3, 3*n-2)},
		{n, 2, fmt.Sprintf("micro-batch %d", n-1)},
		{2 * n, 2, fmt.Sprintf("micro-batches %d to %d", n, n+1)},
		{3 * (n - 10), 3, fmt.Sprintf("micro-batches %d to %d", n-11, n-11)},
		{3 * (n - 10), 3, fmt.Sprintf("micro-batches %d to %d", n-10, n-8)},
	} {
		micros, want, numerics := c.micros, c.want, numerics(c.micros, false)
		numerics.Cohorts = c.cohorts
		r := request(t, tiny, numerics)
		p := newPlan(t, r.Model, r.Numerics).With(moving(r.Model, 2))
		groups, ones, last := 0, 0, false
		for _, s := range p.Trace(r.Machine, device.Info{}, trace.About{}).Spans {
			switch {
			case strings.Contains(s.Name, "micro-batches "):
				groups++
			case strings.Contains(s.Name, "micro-batch "):
				ones++
			}
			if strings.HasPrefix(s.Name, "fetch ") && strings.Contains(s.Name, "micro-batch") {
				t.Errorf("%d micro-batches: %q is of one", micros, s.Name)
			}
			last = last || strings.HasSuffix(s.Name, want)
		}
		if !last || (groups > 0) != (micros > n) || (ones > 0) != (micros <= n) {
			t.Errorf("%d micro-batches: %d spans of groups, %d of one, %q is there: %v", micros, groups, ones, want, last)
		}
	}
}
