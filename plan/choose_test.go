package plan_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// gpu is a device with memory of its own.
var gpu = device.Info{Name: "test", MemoryBytes: 1 << 40}

// medium is a model whose blocks and activations have sizes in the proportions of real ones.
var medium = shape{Vocab: 3000, Hidden: 64, Inner: 192, Layers: 8, Heads: 4, KVHeads: 2, HeadDim: 16}

func request(t errorer, s shape, n plan.Numerics) plan.Request {
	t.Helper()
	return plan.Request{Model: s.model(t), Numerics: n, Device: gpu, Machine: machine}
}

// oneLine checks that an error is one line with all the words.
func oneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q does not say %q in one line", err, w)
		}
	}
}

func TestRefusals(t *testing.T) {
	n := numerics(2, true)
	r := request(t, medium, n)
	r.DeviceBytes = 1 << 40
	least := smallest(t, r)

	r.DeviceBytes = least - 1
	_, err := plan.New(context.Background(), r)
	oneLine(t, err, "memory.device", plan.FormatBytes(least), "raise it", "sequence_len (12)", "batch_tokens (48)")

	r.DeviceBytes, r.HostBytes = 1<<40, 1<<16
	_, err = plan.New(context.Background(), r)
	oneLine(t, err, "memory.host", "64.0 KiB", "raise it", "batch_tokens (48)")

	r.HostBytes = 0
	r.Numerics.SequenceLen = 4097
	_, err = plan.New(context.Background(), r)
	oneLine(t, err, "sequence_len 4097", "4096")

	r.Numerics = n
	r.Numerics.Compute = tensor.F32
	_, err = plan.New(context.Background(), r)
	oneLine(t, err, "precision")

	r.Numerics, r.Machine = n, plan.Machine{}
	_, err = plan.New(context.Background(), r)
	oneLine(t, err, "_per_sec is 0", "package probe")
}

// A driver's own memory counts where it is: within the device's budget if the device has memory, else within the
// host's.
func TestDriverBytes(t *testing.T) {
	r := request(t, medium, numerics(2, true))
	arena := smallest(t, r)
	plain := r
	plain.DeviceBytes = arena
	without, err := plan.New(context.Background(), plain)
	if err != nil {
		t.Fatal(err)
	}
	r.Device.OverheadBytes = 3 << 20
	r.DeviceBytes = arena + r.Device.OverheadBytes
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p.DeviceDriverBytes != 3<<20 || p.DeviceBytes != without.DeviceBytes || p.DeviceTotalBytes() > r.DeviceBytes || p.HostBytes != without.HostBytes {
		t.Errorf("%d bytes and %d of the driver's on the device, %d on the host; without a driver %d and %d",
			p.DeviceBytes, p.DeviceDriverBytes, p.HostBytes, without.DeviceBytes, without.HostBytes)
	}
	text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0))
	for _, want := range []string{"kernel scratch", "3.0 MiB", plan.FormatBytes(p.DeviceTotalBytes())} {
		if device, _, _ := strings.Cut(text, "  host  "); !strings.Contains(device, want) {
			t.Errorf("the device's table does not say %q:\n%s", want, text)
		}
	}
	r.DeviceBytes--
	_, err = plan.New(context.Background(), r)
	oneLine(t, err, "memory.device", plan.FormatBytes(arena+3<<20))

	r.Device.Unified, r.DeviceBytes = true, 0
	p, err = plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p.DeviceDriverBytes != 0 || !slices.Contains(p.Host, plan.Bytes{Purpose: "kernel scratch", Bytes: 3 << 20}) {
		t.Errorf("%d bytes of the driver's on a unified device, and %v", p.DeviceDriverBytes, p.Host)
	}
}

// A driver's cost of pinned memory counts within both budgets. It covers the memory that the device copies and nothing
// else.
func TestPinnedMemory(t *testing.T) {
	r := request(t, medium, numerics(2, true))
	free, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Device.PinnedDeviceBytesPerMiB, r.Device.PinnedHostBytesPerMiB = device.GPUPinnedDeviceBytesPerMiB, device.GPUPinnedHostBytesPerMiB
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	var pinned, records int64
	for _, b := range slices.Concat(p.State, p.Host) {
		switch b.Purpose {
		case "driver's records of pinned memory":
			records = b.Bytes
		case "weights", "gradients", "tokens", "results", "saved layer inputs", "kept activations", "embedding gradient sum":
			pinned += b.Bytes
		case "low halves", "first moments", "second moments":
			if p.AnyStateResident() {
				pinned += b.Bytes
			}
		}
	}
	mib := (pinned + 1<<20 - 1) >> 20
	if p.PinnedBytes != pinned || pinned == 0 || p.PageTableBytes != mib*2048 || records != store.AlignUp(mib*4096) {
		t.Errorf("%d bytes are pinned, want %d; %d of page tables, %d of records", p.PinnedBytes, pinned, p.PageTableBytes, records)
	}
	if p.HostBytes != free.HostBytes+records || p.DeviceTotalBytes() != free.DeviceTotalBytes()+p.PageTableBytes {
		t.Errorf("%d on the host and %d on the device; without what pinning takes %d and %d",
			p.HostBytes, p.DeviceTotalBytes(), free.HostBytes, free.DeviceTotalBytes())
	}
	device, host, _ := strings.Cut(p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0)), "host memory: ")
	if !strings.Contains(device, "page tables of pinned memory") || !strings.Contains(host, "driver's records of pinned memory") {
		t.Errorf("the tables do not show what pinning takes:\n%s\n%s", device, host)
	}

	// Both budgets bound it.
	least := func(r plan.Request, budget func(*plan.Request) *int64) int64 {
		return int64(sort.Search(1<<30, func(n int) bool {
			*budget(&r) = int64(n)
			return n > 0 && r.Fits(context.Background()) == nil
		}))
	}
	without := r
	without.Device = gpu
	ofDevice, ofHost := func(r *plan.Request) *int64 { return &r.DeviceBytes }, func(r *plan.Request) *int64 { return &r.HostBytes }
	if more := least(r, ofDevice) - least(without, ofDevice); more <= 0 || more > p.PageTableBytes {
		t.Errorf("the least of the device is %d bytes more for page tables, of which the largest plan has %d", more, p.PageTableBytes)
	}
	// The plan that needs least of the host has state of blocks on the device, so that all of the host's is pinned.
	all := p.With(moving(r.Model, 1)).HostBytes
	most := store.AlignUp((all + 1<<20 - 1) >> 20 * r.Device.PinnedHostBytesPerMiB)
	if more := least(r, ofHost) - least(without, ofHost); more <= 0 || more > most {
		t.Errorf("the least of the host is %d bytes more for records, and all of it has %d", more, most)
	}
}

// smallest returns the device memory of the placement in which everything moves, one thing at a time.
func smallest(t errorer, r plan.Request) int64 {
	t.Helper()
	r.DeviceBytes, r.HostBytes = 0, 0
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(moving(r.Model, 1))
	return p.DeviceBytes + (p.PinnedBytes+1<<20-1)>>20*r.Device.PinnedDeviceBytesPerMiB
}

func TestNumericsCheck(t *testing.T) {
	good := numerics(2, true)
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*plan.Numerics){
		"precision.compute": func(n *plan.Numerics) { n.Compute = tensor.I32 },
		"does not go with":  func(n *plan.Numerics) { n.Compute = tensor.F32 },
		"at least 1":        func(n *plan.Numerics) { n.MicroBatches = 0 },
		"at least 1 ":       func(n *plan.Numerics) { n.MicroBatch = -1 },
		"at least 1  ":      func(n *plan.Numerics) { n.SequenceLen = 0 },
		"at least 1   ":     func(n *plan.Numerics) { n.HeadChunk = 0 },
		"block_chunk is 4":  func(n *plan.Numerics) { n.SequenceLen, n.BlockChunk = 100, 4 },
		"more than":         func(n *plan.Numerics) { n.SequenceLen, n.MicroBatch = math.MaxInt/2, 3 },
	} {
		n := good
		change(&n)
		oneLine(t, n.Check(), strings.TrimSpace(name))
	}
}

// drawRequest picks a model, numerics and a machine in which anything may be the bottleneck.
func drawRequest(rt *rapid.T) plan.Request {
	s := shape{Vocab: rapid.IntRange(50, 1000).Draw(rt, "vocabulary"), Hidden: 16 * rapid.IntRange(1, 4).Draw(rt, "hidden"),
		Layers: rapid.IntRange(1, 4).Draw(rt, "layers"), Heads: 4, KVHeads: 2, HeadDim: 16, Tied: rapid.Bool().Draw(rt, "tied")}
	s.Inner = 3 * s.Hidden
	n := drawNumerics(rt, 3)
	n.SequenceLen = rapid.IntRange(1, 200).Draw(rt, "sequence")
	r := request(rt, s, n)
	if rapid.Bool().Draw(rt, "pinning takes memory") {
		r.Device.PinnedDeviceBytesPerMiB, r.Device.PinnedHostBytesPerMiB = device.GPUPinnedDeviceBytesPerMiB, device.GPUPinnedHostBytesPerMiB
	}
	rate := func(name string) float64 { return math.Pow(10, rapid.Float64Range(8, 12).Draw(rt, name)) }
	flops := rate("flops")
	r.Machine = plan.Machine{F32FLOPsPerSec: flops, BF16FLOPsPerSec: 2 * flops, AttentionFLOPsPerSec: flops,
		DeviceBytesPerSec: flops, UploadBytesPerSec: rate("upload"), DownloadBytesPerSec: rate("download"),
		AdamWBytesPerSec: rate("adamw"), HostBytesPerSec: rate("host")}
	return r
}

// What fits takes no more than the budgets, and more memory does not make the predicted step slower. Lanes that wait
// for each other can lose a little where one of them gets faster (Graham's anomalies): a percent is allowed.
func TestMoreMemoryIsNeverSlower(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		least := smallest(rt, r)
		before := math.Inf(1)
		r.DeviceBytes = least
		for range 5 {
			p, err := plan.New(context.Background(), r)
			if err != nil {
				rt.Fatalf("%d bytes are enough, %d are not: %v", least, r.DeviceBytes, err)
			}
			var host int64
			for _, b := range append(p.State, p.Host...) {
				host += b.Bytes
			}
			if p.DeviceTotalBytes() > r.DeviceBytes || host != p.HostBytes {
				rt.Errorf("the plan has %d bytes of %d on the device, and %d on the host in a table of %d", p.DeviceTotalBytes(), r.DeviceBytes, p.HostBytes, host)
			}
			if now := p.Predicted.StepSeconds; now > before*1.001 {
				rt.Errorf("with %d bytes a step takes %.6g s, with less %.6g s", r.DeviceBytes, now, before)
			}
			before = min(before, p.Predicted.StepSeconds)
			r.DeviceBytes += int64(float64(least) * rapid.Float64Range(0, 0.5).Draw(rt, "more"))
		}
		r.HostBytes = rapid.Int64Range(1, 1<<26).Draw(rt, "host")
		if p, err := plan.New(context.Background(), r); err == nil && p.ProcessBytes() > r.HostBytes {
			rt.Errorf("the plan takes %d bytes of the host's %d", p.ProcessBytes(), r.HostBytes)
		}
	})
}

func TestMachineFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "machine.json")
	if err := plan.WriteMachine(path, machine); err != nil {
		t.Fatal(err)
	}
	got, err := plan.ReadMachine(path)
	if err != nil || !cmp.Equal(got, machine) {
		t.Errorf("%v, %s", err, cmp.Diff(machine, got))
	}
	_, err = plan.ReadMachine(path + ".none")
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, text := range []string{"", "{", `{"name": "x"}`, `{"name":"x","f32_flops_per_sec":-1}`} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := plan.ReadMachine(path)
		oneLine(t, err, path, "millrace probe")
	}
	for i, rate := range []float64{-1, math.Inf(1), math.NaN()} {
		m := machine
		m.AdamWUnderCopiesBytesPerSec = rate
		oneLine(t, m.Check(), "adamw_under_copies_bytes_per_sec", fmt.Sprint([]string{"-1", "+Inf", "NaN"}[i]))
	}
	for i, rate := range []float64{0, -1, math.Inf(1), math.NaN()} {
		m := machine
		m.HostBytesPerSec = rate
		oneLine(t, m.Check(), "host_bytes_per_sec", fmt.Sprint([]string{"0", "-1", "+Inf", "NaN"}[i]))
	}
}

// A plan that streams all blocks keeps none of them, fits, and moves at least as much as the plan that chooses.
func TestStreamAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		r.DeviceBytes = int64(float64(smallest(rt, r)) * rapid.Float64Range(1, 4).Draw(rt, "device"))
		r.RecomputeAll = rapid.Bool().Draw(rt, "recompute all")
		free, err := plan.New(context.Background(), r)
		if err != nil {
			rt.Fatal(err)
		}
		r.StreamAll = true
		p, err := plan.New(context.Background(), r)
		if err != nil {
			rt.Fatal(err)
		}
		if len(residentBlocks(p)) > 0 || p.DeviceBytes > r.DeviceBytes {
			rt.Errorf("resident blocks %v, %d bytes of %d", residentBlocks(p), p.DeviceBytes, r.DeviceBytes)
		}
		if p.Predicted.StepSeconds < free.Predicted.StepSeconds*0.999 {
			rt.Errorf("a step takes %.6g s, and %.6g s where the plan chooses", p.Predicted.StepSeconds, free.Predicted.StepSeconds)
		}
	})
	r := request(t, medium, numerics(4, true))
	r.DeviceBytes, r.RecomputeAll = 1<<40, true
	r.Machine.UploadBytesPerSec = 1e6 // it decides
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(residentBlocks(p)) == 0 {
		t.Fatal("with memory for all and a slow link, nothing stays on the device")
	}
	r.StreamAll = true
	q, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if q.Predicted.UploadBytes <= p.Predicted.UploadBytes || q.DeviceBytes >= p.DeviceBytes {
		t.Errorf("streamed: %d bytes to the device, %d on it; resident: %d and %d", q.Predicted.UploadBytes, q.DeviceBytes, p.Predicted.UploadBytes, p.DeviceBytes)
	}
}

// Where the host is slow, the device updates what it has room for; where it is fast, or a block may not stay, the
// host does.
func TestUpdatesOnTheDevice(t *testing.T) {
	r := request(t, medium, numerics(1, true))
	r.DeviceBytes, r.Machine.AdamWBytesPerSec = 1<<40, 1e7                // it decides
	r.Machine.UploadBytesPerSec, r.Machine.DownloadBytesPerSec = 1e7, 2e6 // too slow for state that passes
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	for part, kind := range r.Model.Parts {
		if kind.Kind != model.Embed && !p.StateResident(part) {
			t.Errorf("the host updates %s", kind.Name)
		}
	}
	less := r
	less.DeviceBytes = p.DeviceBytes / 2
	some, err := plan.New(context.Background(), less)
	if err != nil {
		t.Fatal(err)
	}
	first, last := r.Model.BlockParts[0], r.Model.BlockParts[len(r.Model.Blocks)-1]
	if !some.StateResident(first) || some.StateResident(last) {
		t.Errorf("with less room the device updates the first block: %v, the last one: %v", some.StateResident(first), some.StateResident(last))
	}
	if some.Predicted.StepSeconds < p.Predicted.StepSeconds {
		t.Errorf("less room is faster")
	}
	r.StreamAll = true
	none, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if none.AnyStateResident() || none.Predicted.StepSeconds < 2*p.Predicted.StepSeconds {
		t.Errorf("all streamed, with updates on the device: %v; %.3g s, else %.3g s", none.AnyStateResident(), none.Predicted.StepSeconds, p.Predicted.StepSeconds)
	}
	r.StreamAll, r.HostUpdates = false, true
	if q, err := plan.New(context.Background(), r); err != nil || q.AnyStateResident() {
		t.Errorf("the host is to update everything: %v", err)
	}
	r.HostUpdates = false
	r.StreamAll, r.Machine.AdamWBytesPerSec, r.Machine.UploadBytesPerSec, r.Machine.DownloadBytesPerSec = false, 1e15, 1e15, 1e15
	if host, err := plan.New(context.Background(), r); err != nil || host.Predicted.StepSeconds > p.Predicted.StepSeconds {
		t.Errorf("a host without limits is slower: %v", err)
	}
	r.Outputs.NoUpdates = true
	if q, err := plan.New(context.Background(), r); err != nil || q.AnyStateResident() {
		t.Errorf("without updates there is no state to live anywhere: %v", err)
	}
}

// Where all is streamed, and the host is slower than the link, the state of some blocks comes to the device to be
// updated.
func TestStatePasses(t *testing.T) {
	r := request(t, medium, numerics(1, true))
	r.DeviceBytes, r.StreamAll, r.Machine.AdamWBytesPerSec = 1<<40, true, 3e9
	passing := func(r plan.Request) (n int, seconds float64) {
		p, err := plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range p.Model.BlockParts {
			if p.StatePasses(part) {
				n++
			}
		}
		return n, p.Predicted.StepSeconds
	}
	n, seconds := passing(r)
	host := r
	host.HostUpdates = true
	none, slow := passing(host)
	if n == 0 || n == len(r.Model.Blocks) || none != 0 || seconds > 0.8*slow {
		t.Errorf("state of %d blocks passes: %.3g s; of %d: %.3g s", n, seconds, none, slow)
	}
	fast := r
	fast.Machine.AdamWBytesPerSec = 1e13
	if n, _ := passing(fast); n != 0 {
		t.Errorf("a host without limits, and state of %d blocks passes", n)
	}
}

// residentBlocks are the parts of the blocks whose weights stay on the device.
func residentBlocks(p *plan.Plan) (parts []int) {
	for _, part := range p.Model.BlockParts {
		if p.Placement.Where.Weights[part] == plan.Device {
			parts = append(parts, part)
		}
	}
	return parts
}
