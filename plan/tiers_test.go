package plan_test

import (
	"context"
	"slices"
	"testing"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// long has far more activations than parameters.
func long(t errorer) plan.Request {
	n := numerics(8, true)
	n.SequenceLen, n.HeadChunk, n.PieceElems = 1024, 64, 1<<13
	r := request(t, medium, n)
	r.DeviceBytes, r.DiskBytes = 1<<40, 1<<40
	r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e9, 1e9
	return r
}

func savedInputs(list []plan.Bytes) int64 {
	for _, b := range list {
		if b.Purpose == plan.InputsPurpose {
			return b.Bytes
		}
	}
	return 0
}

// Saved inputs go to disk where they do not fit, a layer at a time, and no more of them than must.
func TestSavedInputsGoToDisk(t *testing.T) {
	r := long(t)
	moving := newPlan(t, r.Model, r.Numerics).With(moving(r.Model, 1))
	inputs := savedInputs(moving.Host)
	each := inputs / int64(len(r.Model.Blocks)-1) // of all blocks but the last
	state := moving.HostBytes - inputs

	small := r
	small.HostBytes, small.DeviceBytes = each+state/4, moving.DeviceBytes
	without := small
	without.DiskBytes = 0
	_, err := plan.New(context.Background(), without)
	oneLine(t, err, "memory.host", "set memory.disk")
	p, err := plan.New(context.Background(), small)
	if err != nil {
		t.Fatal(err)
	}
	want := inputs
	if p.Placement.Rings.Inputs > 0 {
		want += each // that of the last block leaves as well
	}
	if got := savedInputs(p.Host) + savedInputs(p.Disk); savedInputs(p.Disk) < inputs/2 || got < want || got > want*102/100 {
		t.Errorf("%d bytes of inputs in memory and %d on disk, want %d together", savedInputs(p.Host), savedInputs(p.Disk), want)
	}
	if q := p.Predicted; q.DiskReadBytes < savedInputs(p.Disk) || q.DiskWrittenBytes < savedInputs(p.Disk) {
		t.Errorf("%d bytes are on disk, and %d read and %d written", p.DiskBytes, q.DiskReadBytes, q.DiskWrittenBytes)
	}
	for _, spec := range p.InputExtents() {
		if spec.Kind != store.Inputs || spec.Bytes < each || spec.Bytes%(spec.Piece*int64(r.Numerics.MicroBatches)) != 0 {
			t.Errorf("%+v for %d bytes", spec, each)
		}
	}

	// With more memory fewer of them go, in the end none.
	before := len(p.InputExtents())
	for small.HostBytes < 2*moving.HostBytes {
		small.HostBytes += moving.HostBytes / 4
		p, err := plan.New(context.Background(), small)
		if err != nil {
			t.Fatal(err)
		}
		now := len(p.InputExtents())
		if len(p.Disk) > 0 && p.HostBytes < small.HostBytes-2*each-state/4 {
			t.Errorf("%d bytes of %d are used, with %d inputs on disk", p.HostBytes, small.HostBytes, now)
		}
		before = min(before, now)
	}
	if before != 0 {
		t.Errorf("with memory for all, %d inputs are on disk", before)
	}
}

// What host memory has no room for stays on the device: saved inputs, and then state of blocks, whose gradients are not
// in host memory. The rest goes to disk.
func TestHeldOnDevice(t *testing.T) {
	r := long(t)
	moving := newPlan(t, r.Model, r.Numerics).With(moving(r.Model, 1))
	inputs := savedInputs(moving.Host)
	each := inputs / int64(len(r.Model.Blocks)-1)
	var gradients int64
	for _, part := range r.Model.BlockParts {
		for _, spec := range moving.Extents() {
			if spec.ID == (store.ID{Part: part, Kind: store.Grad}) {
				gradients += spec.Bytes
			}
		}
	}
	for _, c := range []struct {
		what               string
		host, device, disk int64 // budgets; host: less than all that moves takes
		streamAll          bool
		refused            string // "": it fits
	}{
		{"half of the inputs", inputs / 2, 1 << 40, 0, false, ""},
		{"all inputs and half of the gradients", inputs - each + gradients/2, 1 << 40, 0, false, ""},
		{"gradients of blocks that may not stay", inputs - each + gradients/2, 1 << 40, 0, true, "memory.host"},
		{"more than gradients", inputs + 2*gradients, 1 << 40, 0, false, "memory.host"},
		{"half of the inputs, with no room", inputs / 2, moving.DeviceBytes, 0, false, "memory.host"},
		{"half of the inputs, on a small disk", inputs / 2, moving.DeviceBytes, inputs / 3, false, "memory.disk"},
		{"half of the inputs, some of them on a disk", inputs / 2, moving.DeviceBytes + 3*each, inputs / 3, false, ""},
	} {
		now := r
		now.Gradients = plan.GradientsKept
		now.HostBytes, now.DeviceBytes, now.DiskBytes = moving.HostBytes-c.host, c.device, c.disk
		now.StreamAll = c.streamAll
		p, err := plan.New(context.Background(), now)
		switch {
		case c.refused != "":
			if err == nil {
				t.Errorf("%s: fits", c.what)
			} else {
				oneLine(t, err, c.refused)
			}
		case err != nil:
			t.Errorf("%s: %v", c.what, err)
		case p.HostBytes > now.HostBytes || p.DeviceBytes > c.device || p.DiskBytes > c.disk:
			t.Errorf("%s: %d bytes of the host's %d, %d of the device's %d, %d of the disk's %d", c.what, p.HostBytes,
				now.HostBytes, p.DeviceBytes, c.device, p.DiskBytes, c.disk)
		default: // a disk is no reason for a slower step
			now.DiskBytes = 1 << 40
			with, err := plan.New(context.Background(), now)
			if err != nil || with.Predicted.StepSeconds > 1.001*p.Predicted.StepSeconds {
				t.Errorf("%s: a step takes %g s, and with a larger disk %g s (%v)", c.what, p.Predicted.StepSeconds,
					with.Predicted.StepSeconds, err)
			}
		}
	}
}

// Of the optimizer's states the largest go to disk first, before what each visit moves.
func TestSpillOrder(t *testing.T) {
	m := tiny.model(t)
	for moments, want := range map[optim.Moments][]store.Kind{
		optim.MomentsF32: {store.SecondMoment, store.FirstMoment},
		optim.Dynamic8:   {store.SecondMoment, store.FirstMoment, store.SecondScale, store.FirstScale},

		optim.Dynamic8Root4: {store.FirstMoment, store.SecondMoment, store.SecondScale, store.FirstScale},
		optim.Power4Root4:   {store.SecondMoment, store.FirstMoment, store.SecondScale, store.FirstScale},
	} {
		n := numerics(1, true)
		n.Moments = moments
		want = append(want, store.Low, store.GradSum, store.Grad, store.Inputs, store.Weights)
		if got := plan.SpillOrder(newPlan(t, m, n)); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", moments, got, want)
		}
	}
}
