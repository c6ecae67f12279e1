package null_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

func alloc(t *testing.T, d *null.Device, purpose string, bytes int64) device.Buffer {
	t.Helper()
	b, err := d.Alloc(purpose, bytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func stream(t *testing.T, d *null.Device) device.Stream {
	t.Helper()
	s, err := d.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReservations(t *testing.T) {
	d := null.New(null.Options{Name: "small", MemoryBytes: 1000})
	a, b := alloc(t, d, "slots", 600), alloc(t, d, "x", 300)
	_, err := d.Alloc("slots", 101)
	if err == nil || !strings.Contains(err.Error(), "101 bytes for slots do not fit: 100 of 1000") {
		t.Errorf("allocating too much: %v", err)
	}
	for range 2 { // closing twice counts once
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	alloc(t, d, "x", 500)
	want := null.Counts{
		Purposes:       []null.PurposeBytes{{Purpose: "slots", PeakBytes: 600}, {Purpose: "x", Bytes: 800, PeakBytes: 800}},
		AllocatedBytes: 800, AllocatedPeakBytes: 900,
		Ops: map[string]null.OpCount{},
	}
	if diff := cmp.Diff(want, d.Counts()); diff != "" {
		t.Error(diff)
	}
	if err := d.Close(); err == nil {
		t.Error("a device with open buffers closes")
	}
	b.Close()
}

// Terabytes of addresses stand for host memory; none of it is touched.
func TestTraffic(t *testing.T) {
	d := null.New(null.Options{})
	const big = 1 << 41
	r, err := hostmem.New().Reserve("state", big, hostmem.AddressOnly)
	if err != nil {
		t.Skip(err)
	}
	defer r.Close()
	host, err := d.Register(r)
	if err != nil {
		t.Fatal(err)
	}
	state, slot, s := device.Whole(host), device.Whole(alloc(t, d, "slot", 1<<40)), stream(t, d)
	s.Copy(slot, state.Slice(5, 1<<40))
	s.Copy(slot.Slice(0, 10), slot.Slice(10, 10))
	s.Copy(state.Slice(0, 100), slot.Slice(0, 100))
	s.Copy(state.Slice(0, 1000), state.Slice(1000, 1000))
	peer := null.New(null.Options{})
	s.Copy(slot.Slice(0, 5), device.Whole(alloc(t, peer, "slot", 5)))
	s.Zero(slot)
	want := null.Counts{
		Purposes:       []null.PurposeBytes{{Purpose: "slot", Bytes: 1 << 40, PeakBytes: 1 << 40}},
		AllocatedBytes: 1 << 40, AllocatedPeakBytes: 1 << 40, RegisteredBytes: big, RegisteredPeakBytes: big,
		Ops:               map[string]null.OpCount{"Copy": {Calls: 5}, "Zero": {Calls: 1}},
		HostToDeviceBytes: 1 << 40, DeviceToHostBytes: 100, HostToHostBytes: 1000,
		DeviceToDeviceBytes: 10, PeerBytes: 5,
	}
	if diff := cmp.Diff(want, d.Counts()); diff != "" {
		t.Error(diff)
	}
}

func TestFLOPs(t *testing.T) {
	d := null.New(null.Options{})
	s := stream(t, d)
	mem := alloc(t, d, "all", 1<<20)
	used := int64(0)
	take := func(n int64) device.Mem {
		used += n
		return device.Whole(mem).Slice(used-n, n)
	}
	mat := func(rows, cols int) device.Mat {
		return device.NewMat(take(int64(4*rows*cols)), tensor.F32, rows, cols)
	}
	s.MatMul(mat(3, 5), mat(7, 3), mat(5, 7), device.MatMulFlags{TransA: true, TransB: true})
	s.MatMul(mat(3, 5), mat(3, 7), mat(7, 5), device.MatMulFlags{Accumulate: true})
	if got := d.Counts().Ops["MatMul"]; got != (null.OpCount{Calls: 2, FLOPs: 2 * 2 * 3 * 5 * 7}) {
		t.Errorf("two products count as %+v", got)
	}

	const rows, heads, headDim = 10, 4, 8
	for _, c := range []struct{ window, pairs int64 }{{0, 55}, {10, 55}, {99, 55}, {1, 10}, {3, 1 + 2 + 8*3}} {
		before := d.Counts()
		ids := func() device.Mem { return take(4 * rows) }
		spec := device.AttentionSpec{Heads: heads, KVHeads: 2, HeadDim: headDim, Window: int(c.window),
			Docs: device.Docs{Positions: ids(), Start: ids(), End: ids()}}
		q, k, v, out, lse := mat(rows, heads*headDim), mat(rows, 2*headDim), mat(rows, 2*headDim), mat(rows, heads*headDim), mat(rows, heads)
		s.Attention(out, lse, q, k, v, spec)
		s.AttentionGrad(mat(rows, heads*headDim), mat(rows, 2*headDim), mat(rows, 2*headDim), mat(rows, heads*headDim), q, k, v, out, lse, mat(rows, heads), spec)
		after := d.Counts()
		forward := after.Ops["Attention"].FLOPs - before.Ops["Attention"].FLOPs
		backward := after.Ops["AttentionGrad"].FLOPs - before.Ops["AttentionGrad"].FLOPs
		if want := 4 * headDim * heads * c.pairs; forward != want || 2*backward != 5*want {
			t.Errorf("window %d: %d forward and %d backward, want %d and 2.5 times that", c.window, forward, backward, want)
		}
		if after.FLOPs()-before.FLOPs() != forward+backward {
			t.Error("FLOPs is not the sum over operations")
		}
	}
}

func TestEvents(t *testing.T) {
	d := null.New(null.Options{})
	s := stream(t, d)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	f, _ := d.NewEvent()
	s.Wait(e)
	s.Record(e)
	s.Record(f)
	if err := e.Wait(); err != nil || f.Since(e) < 0 {
		t.Errorf("wait: %v; time: %v", err, f.Since(e))
	}
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
}

// The null device refuses requests that would do harm on a GPU.
func TestRefusals(t *testing.T) {
	d, other := null.New(null.Options{}), null.New(null.Options{})
	s, closed := stream(t, d), stream(t, d)
	gone := alloc(t, d, "gone", 64)
	gone.Close()
	closed.Close()
	m := func(b device.Buffer, n int) device.Mat { return device.NewVec(device.Whole(b), tensor.F32, n) }
	good := m(alloc(t, d, "good", 64), 16)
	outside := good
	outside.Off = 4
	bias, table, place := m(alloc(t, d, "bias", 64), 16), m(alloc(t, d, "table", 32), 8), alloc(t, d, "place", 4)
	for name, call := range map[string]func(){
		"closed buffer":         func() { s.Add(good, good, m(gone, 16)) },
		"other device's buffer": func() { s.Add(good, good, m(alloc(t, other, "", 64), 16)) },
		"outside of the buffer": func() { s.Add(good, good, outside) },
		"shapes":                func() { s.Add(good, good, good.ColRange(0, 8)) },
		"closed stream":         func() { closed.Add(good, good, good) },
		"bias of an inverse":    func() { s.RoPE(good, good, bias, 1, table, table, device.Whole(place), true) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
	if len(d.Counts().Ops) != 0 {
		t.Errorf("refused operations were counted: %v", d.Counts().Ops)
	}
}
