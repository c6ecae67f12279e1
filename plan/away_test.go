package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// Where the device has no room for the rows that experts see, as many of them as that takes wait in host memory, and
// their bytes count over the link. A device whose operations do not reach host memory has no such plan.
func TestRowsBetweenVisitsWaitInHostMemory(t *testing.T) {
	on, err := plan.FindMachine("h100-sxm")
	if err != nil {
		t.Fatal(err)
	}
	r := on.Request(modelOf(t, mixtureConfig(8)), plan.Numerics{Compute: tensor.BF16, Master: optim.Split,
		SequenceLen: 64, MicroBatch: 1, MicroBatches: 256, HeadChunk: 64})
	r.Device.OverheadBytes = 0
	choose := func() (*plan.Plan, error) { return plan.New(context.Background(), r) }
	room, err := choose()
	if err != nil {
		t.Fatal(err)
	}
	if room.Placement.HeldAway != nn.AllHere || strings.Contains(strings.Join(room.Choices(), "\n"), "experts wait") {
		t.Errorf("level %d where there is room", room.Placement.HeldAway)
	}
	away := room
	for away.Placement.HeldAway < nn.NormAway {
		changed := plan.Smallest(len(r.Model.Parts), len(r.Model.Blocks), false)
		changed.Rings.Inputs, changed.HeldAway = 2, away.Placement.HeldAway+1
		least := room.With(changed)
		r.DeviceBytes = least.DeviceTotalBytes() + least.DeviceTotalBytes()/100
		p, err := choose()
		if err != nil {
			t.Fatalf("level %d: %v", changed.HeldAway, err)
		}
		// The fastest plan may have more of them there, for buffers of other values, or fewer: its head takes less room.
		if !p.ReachesHost() || p.DeviceTotalBytes() > r.DeviceBytes {
			t.Errorf("level %d, with room for %d: %d bytes of %d", p.Placement.HeldAway, changed.HeldAway,
				p.DeviceTotalBytes(), r.DeviceBytes)
		}
		if !strings.Contains(strings.Join(p.Choices(), "\n"), "wait in host memory, where the device reads") {
			t.Errorf("level %d: %v", p.Placement.HeldAway, p.Choices())
		}
		text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0))
		if !strings.Contains(text, "compute reads and writes host memory over the link for") ||
			!strings.Contains(text, "rows between visits of groups") {
			t.Errorf("level %d:\n%s", p.Placement.HeldAway, text)
		}
		away = least
	}
	if r.Device.ReachesHost = false; err == nil {
		_, err = choose()
	}
	if err == nil || !strings.Contains(err.Error(), "memory.device") {
		t.Errorf("without a way to host memory: %v", err)
	}
}
