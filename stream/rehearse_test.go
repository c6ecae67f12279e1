package stream_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"pgregory.net/rapid"
)

// rehearsal holds the measures of a steady step on null devices.
type rehearsal struct {
	deviceBytes      int64
	host             map[string]int64 // by purpose
	up, down, peer   int64
	read, written    int64 // of the disk, with what was spared
	matMul, attended int64
}

// rehearse takes steps on devices that only count, with state that is only addresses, and returns what the second took.
func rehearse(t errorer, s *subject, p *plan.Plan) rehearsal {
	t.Helper()
	accounts := hostmem.New()
	var devices []device.Device
	for range p.Ranks() {
		devices = append(devices, null.New(null.Options{Unified: p.Unified}))
	}
	host := devices[0]
	if !p.Unified {
		host = null.New(null.Options{Unified: true})
	}
	state, disk, err := stream.OpenStore(p, stream.StoreOptions{Accounts: accounts, AddressOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	// A drawn micro-batch may have tokens 0 and no targets alone, as padding does, and the plan is for full ones.
	config := stream.Config{Plan: p, Devices: devices, Host: host, Store: state, Accounts: accounts, AddressOnly: true,
		AllRows: true}
	if p.Outputs.Objective {
		config.Objective = rivals{}
		if p.Outputs.Entropies {
			config.Objective = entropic{}
		}
	}
	e, err := stream.New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Errorf("%v", err)
		}
	}()
	traffic := func() (sum store.Traffic) {
		if disk == nil {
			return sum
		}
		if err := disk.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		return disk.Traffic()
	}
	before := make([]null.Counts, len(devices))
	var moved store.Traffic
	for i := range 2 {
		moved = traffic()
		for rank, d := range devices {
			before[rank] = d.(*null.Device).Counts()
		}
		if p.Outputs.Continues() {
			_, err = e.Continue(context.Background(), longestPass(p), p.Outputs.LogitRows)
		} else {
			_, err = e.Step(context.Background(), s.batches[i], s.updates[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := rehearsal{host: map[string]int64{}}
	for rank, d := range devices {
		after, before := d.(*null.Device).Counts(), before[rank]
		r.deviceBytes = max(r.deviceBytes, after.AllocatedPeakBytes)
		r.up += after.HostToDeviceBytes - before.HostToDeviceBytes
		r.down += after.DeviceToHostBytes - before.DeviceToHostBytes
		r.peer += after.PeerBytes - before.PeerBytes
		for name, c := range after.Ops {
			flops := c.FLOPs - before.Ops[name].FLOPs
			if strings.HasPrefix(name, "Attention") || name == "AttendCache" {
				r.attended += flops
			} else {
				r.matMul += flops
			}
		}
	}
	now := traffic()
	r.read = now.ReadBytes + now.SparedReadBytes - moved.ReadBytes - moved.SparedReadBytes
	r.written = now.WrittenBytes + now.SparedWriteBytes - moved.WrittenBytes - moved.SparedWriteBytes
	for _, u := range accounts.Usage() {
		if u.Bytes > 0 { // the rotary tables are gone again
			r.host[u.Purpose] = u.Bytes
		}
	}
	return r
}

// longestPass is a pass with as many positions as a plan has room for.
func longestPass(p *plan.Plan) (pass []stream.Position) {
	for i := range p.Numerics.Positions() {
		pass = append(pass, stream.Position{Sequence: i % p.Outputs.Caches.Sequences, Length: 1})
	}
	return pass
}

// A pass that continues sequences reserves, moves and computes exactly what the plan says.
func TestContinuedPassIsPlanned(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := draw(rt)
		shape.Micro, shape.Cohorts, shape.Narrow, shape.MicroBatch, shape.HeadChunk = 1, 0, false, 1, shape.SequenceLen
		s := shape.subject(rt, 0)
		s.model = s.model.Frozen()
		s.outputs = plan.Outputs{LogitRows: rapid.IntRange(1, shape.SequenceLen).Draw(rt, "logits"),
			Caches: nn.Caches{Sequences: rapid.IntRange(1, 5).Draw(rt, "cached"),
				Positions: rapid.IntRange(1, 64).Draw(rt, "places")}}
		info := device.Info{Unified: rapid.Bool().Draw(rt, "unified")}
		p := newPlan(rt, s, info, func(p *plan.Placement) {
			if info.Unified {
				return
			}
			streamed(rapid.IntRange(1, 3).Draw(rt, "slots"))(p)
			p.HeadAtOnce = rapid.Bool().Draw(rt, "head at once")
			place := rapid.SampledFrom([]plan.Place{plan.Device, plan.Host})
			for range p.Where.Inputs {
				p.Where.Caches = append(p.Where.Caches, place.Draw(rt, "cache"))
			}
			for part := range p.Where.Weights {
				p.Where.Weights[part] = place.Draw(rt, "weights")
			}
		})
		got := rehearse(rt, s, p)
		predicted := p.Simulate(machine, info)
		want := rehearsal{deviceBytes: p.DeviceBytes, host: map[string]int64{}, up: predicted.UploadBytes,
			down: predicted.DownloadBytes, matMul: predicted.FLOPs - got.attended, attended: got.attended}
		for _, b := range append(p.State, p.Host...) {
			if b.Bytes > 0 && b.Purpose != plan.RowsPurpose {
				want.host[b.Purpose] += b.Bytes
			}
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(rehearsal{})); d != "" {
			rt.Errorf("rehearsed (+) is not planned (-): %s", d)
		}
	})
}

// The engine reserves, moves and computes exactly what the plan says, to the byte and to the operation.
func TestRehearsedIsPlanned(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := draw(rt)
		shape.MicroBatch = 1 // null counts attention over a micro-batch as one document
		switch rapid.IntRange(0, 2).Draw(rt, "freeze") {
		case 1:
			shape.FrozenBlocks, shape.FrozenFFN = rapid.IntRange(0, shape.Layers).Draw(rt, "frozen blocks"), true
		case 2:
			shape.FrozenEmbed, shape.FrozenHead = true, rapid.Bool().Draw(rt, "frozen head")
		}
		shape.HeadChunk = min(shape.HeadChunk, shape.SequenceLen)
		s := shape.subject(rt, 2)
		if rapid.Bool().Draw(rt, "not clipped") {
			s = s.unclipped(true)
		}
		if s.outputs.Objective = rapid.Bool().Draw(rt, "objective"); s.outputs.Objective {
			s.numerics.ForwardOnly = rapid.IntRange(0, s.numerics.CohortMicros()-1).Draw(rt, "forward only")
			s.outputs.Entropies = rapid.Bool().Draw(rt, "entropies")
		}
		if n := s.numerics.CohortCount(); n > 1 && rapid.Bool().Draw(rt, "several hosts") {
			s = s.onHost(rapid.IntRange(0, n-1).Draw(rt, "host"), n)
		}
		info := device.Info{Unified: rapid.Bool().Draw(rt, "unified")}
		p := newPlan(rt, s, info, func(p *plan.Placement) {
			placements(rt, s.model, p, info.Unified)
		})
		rehearsedIsPlanned(rt, s, p, info)
	})
}

func rehearsedIsPlanned(t errorer, s *subject, p *plan.Plan, info device.Info) {
	t.Helper()
	got := rehearse(t, s, p)
	predicted := p.Simulate(machine, info)
	want := rehearsal{deviceBytes: p.DeviceBytes, host: map[string]int64{}, up: predicted.UploadBytes,
		down: predicted.DownloadBytes, peer: predicted.PeerBytes,
		read: predicted.DiskReadBytes, written: predicted.DiskWrittenBytes,
		matMul: predicted.FLOPs - got.attended, attended: got.attended}
	for _, op := range p.Schedule(plan.Steady).Ops {
		if op.Do == plan.DoMove && op.Writes[0].What == plan.CohortSum && p.Bound() { // no link is between the two
			want.down += p.SumBytes(op.Part)
		}
	}
	for _, b := range append(p.State, p.Host...) {
		if b.Bytes > 0 && b.Purpose != plan.RowsPurpose && b.Purpose != plan.ManifestsPurpose { // which are not the engine's
			want.host[b.Purpose] += b.Bytes
		}
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(rehearsal{})); d != "" {
		t.Errorf("rehearsed (+) is not planned (-): %s", d)
	}
}

// So it is with experts and with values that cross blocks, also where results are written in host memory, and where
// both cross devices.
func TestRehearsedFamiliesArePlanned(t *testing.T) {
	for _, tied := range []bool{false, true} {
		for _, family := range []model.Family{modeltest.Mixtures(2), modeltest.Balanced(modeltest.Mixtures(2)),
			modeltest.WithDense(2), crossing} {
			shape := tiny
			shape.Type, shape.families, shape.Layers = family.ModelType, []model.Family{family}, 6
			shape.MicroBatch, shape.Tied, shape.BF16 = 1, tied, tied
			for _, info := range []device.Info{{}, {Unified: true}} {
				s := shape.subject(t, 2)
				rehearsedIsPlanned(t, s, newPlan(t, s, info, nil), info)
				dealt := newPlan(t, s, info, func(p *plan.Placement) {
					p.Deal = plan.DealBlocks([]int{0, 1, 2, 0, 1, 0})
				})
				if rehearsedIsPlanned(t, s, dealt, info); dealt.Ranks() != 3 {
					t.Errorf("%s: %d ranks", family.ModelType, dealt.Ranks())
				}
			}
		}
	}
}

// A real disk moves what the plan says as well, to the byte.
func TestDiskTrafficIsPlanned(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, tied := range []bool{false, true} {
		shape := tiny
		shape.Layers, shape.BF16, shape.Tied = 5, true, tied
		s := shape.subject(t, 3)
		r := start(t, s, setup{device: dev, change: allOnDisk})
		defer r.close(t)
		var before, now store.Traffic
		for i := range s.batches {
			before = now
			if _, err := r.engine.Step(t.Context(), s.batches[i], s.updates[i]); err != nil {
				t.Fatal(err)
			}
			if err := r.disk.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			now = r.disk.Traffic()
		}
		want := r.plan.Simulate(machine, dev.Info())
		if read := now.ReadBytes + now.SparedReadBytes - before.ReadBytes - before.SparedReadBytes; read != want.DiskReadBytes {
			t.Errorf("tied %v: %d bytes were read or spared, planned are %d", tied, read, want.DiskReadBytes)
		}
		if written := now.WrittenBytes + now.SparedWriteBytes - before.WrittenBytes - before.SparedWriteBytes; written != want.DiskWrittenBytes {
			t.Errorf("tied %v: %d bytes were written or spared, planned are %d", tied, written, want.DiskWrittenBytes)
		}
		if len(r.plan.InputExtents()) == 0 || now.ReadBytes == before.ReadBytes {
			t.Errorf("tied %v: %+v", tied, now)
		}
	}
}

// alone is a device that copies from no other one.
type alone struct{ device.Device }

// A plan that deals its blocks to more devices than there are is refused, and one that has devices copy from each other
// which do not.
func TestUnfitDevices(t *testing.T) {
	shape := tiny
	shape.Layers = 2
	s := shape.subject(t, 1)
	p := newPlan(t, s, device.Info{}, func(p *plan.Placement) {
		*p = plan.Smallest(len(p.Where.Weights), len(p.Where.Inputs), false)
		p.Deal, p.PeerCopies = plan.DealBlocks([]int{0, 1}), true
	})
	dev := null.New(null.Options{})
	for want, devices := range map[string][]device.Device{
		"deals blocks to 2 devices, and there are 1":         {dev},
		"has devices copy from each other, and these do not": {dev, alone{null.New(null.Options{})}},
	} {
		_, err := stream.New(stream.Config{Plan: p, Devices: devices, Host: dev, Accounts: hostmem.New()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
