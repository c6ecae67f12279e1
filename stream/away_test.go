package stream_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
	"pgregory.net/rapid"
)

// away has some of the rows between visits wait in host memory.
func away(level nn.Away) func(*plan.Placement) {
	return func(p *plan.Placement) {
		streamed(2)(p)
		p.HeldAway = level
	}
}

// Rows between visits may wait in host memory, as many of them as there are levels: that changes no bit, and the device
// reserves, reads and writes what the plan says.
func TestRowsInHostMemory(t *testing.T) {
	families := []model.Family{modeltest.Balanced(modeltest.Mixtures(2)), modeltest.WithDense(3)}
	if !testing.Short() {
		families = append(families, modeltest.Mixtures(2))
	}
	const steps = 2
	dev := newCPU(t)
	defer dev.Close()
	for _, family := range families {
		shape := tiny
		shape.Type, shape.families, shape.Layers, shape.Micro = family.ModelType, []model.Family{family}, 3, 3
		s := shape.subject(t, steps)
		shape.MicroBatch = 1 // null counts attention over a micro-batch as one document
		counted := shape.subject(t, 2)
		var want outcome
		var last *plan.Plan
		for level := range nn.Away(nn.Aways) {
			r := start(t, s, setup{device: dev, change: away(level)})
			got := train(t, r, s, steps)
			p := r.plan
			r.close(t)
			if p.Placement.HeldAway != level {
				t.Errorf("%s: level %d is %d in the plan", family.ModelType, level, p.Placement.HeldAway)
			}
			rehearsedIsPlanned(t, counted, newPlan(t, counted, device.Info{}, away(level)), device.Info{})
			if level == nn.AllHere {
				want, last = got, p
				continue
			}
			sameBits(t, got, want, p)
			before, now := last.Simulate(machine, device.Info{}), p.Simulate(machine, device.Info{})
			if p.DeviceBytes >= last.DeviceBytes || p.HostBytes < last.HostBytes || p.PinnedBytes < last.PinnedBytes ||
				now.UploadBytes <= before.UploadBytes || now.DownloadBytes <= before.DownloadBytes {
				t.Errorf("%s, level %d: %d bytes on the device, %d of the host, %d up, %d down; before %d, %d, %d, %d",
					family.ModelType, level, p.DeviceBytes, p.HostBytes, now.UploadBytes, now.DownloadBytes,
					last.DeviceBytes, last.HostBytes, before.UploadBytes, before.DownloadBytes)
			}
			last = p
		}
	}
}

// Placements that tests of laws draw have rows of mixtures in host memory, at each level.
func TestDrawsHaveRowsInHostMemory(t *testing.T) {
	shape, family := tiny, modeltest.Mixtures(2)
	shape.Type, shape.families, shape.Layers = family.ModelType, []model.Family{family}, 3
	s := shape.subject(t, 1)
	draws := rapid.Custom(func(rt *rapid.T) plan.Placement { return plantest.Draw(rt, s.model, false) })
	const seeds = 64
	of := map[nn.Away]int{}
	for seed := range seeds {
		of[newPlan(t, s, device.Info{}, func(p *plan.Placement) { *p = draws.Example(seed) }).Placement.HeldAway]++
	}
	for level := nn.OutputsAway; level <= nn.NormAway; level++ {
		if of[level] == 0 {
			t.Errorf("%d of %d draws are of level %d: %v", of[level], seeds, level, of)
		}
	}
}
