package plan_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// More devices of a kind make a step shorter, by about their number where arithmetic bounds it. All of them compute,
// and each has less to hold.
func TestDevicesShareAStep(t *testing.T) {
	r, _ := onMachine(t, "llama-3-8b", "h100-sxm")
	r.Numerics.MicroBatch, r.Numerics.MicroBatches, r.Numerics.SequenceLen = 1, 128, 4096
	alone, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	for devices, least := range map[int]float64{2: 0.85, 4: 0.75} {
		r.Devices = devices
		p, err := plan.Estimate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if p.Ranks() != devices || len(p.Predicted.DeviceSeconds) != devices || len(p.ByDevice) != devices {
			t.Errorf("%d devices: %d of them compute, %d are predicted and %d have memory", devices, p.Ranks(),
				len(p.Predicted.DeviceSeconds), len(p.ByDevice))
			continue
		}
		if got := alone.Predicted.StepSeconds / p.Predicted.StepSeconds; got < least*float64(devices) {
			t.Errorf("%d devices take %.3g s and one %.3g s: %.2f times as fast", devices, p.Predicted.StepSeconds,
				alone.Predicted.StepSeconds, got)
		}
		if most := slices.Max(p.ByDevice); most != p.DeviceBytes || most > r.DeviceBytes {
			t.Errorf("%d devices: %d bytes of %v, and the budget is %d", devices, p.DeviceBytes,
				p.ByDevice, r.DeviceBytes)
		}
	}
}

// Copies of several devices and updates share the host's memory: where it is slow, more devices make no shorter step.
func TestDevicesShareTheHostsMemory(t *testing.T) {
	m := medium.model(t)
	p := newPlan(t, m, numerics(8, true)).With(moving(m, 2))
	var deal []int
	for b := range m.Blocks {
		deal = append(deal, b%2)
	}
	place := p.Placement.Clone()
	place.Deal = plan.DealBlocks(deal)
	dealt := p.With(place)
	slow := machine
	slow.UploadBytesPerSec, slow.DownloadBytesPerSec = 1e6, 1e6 // links bound the step
	slow.HostMemoryBytesPerSec = 1e20
	fast := dealt.Simulate(slow, gpu).StepSeconds
	if one := p.Simulate(slow, gpu).StepSeconds; fast > 0.75*one {
		t.Errorf("two links take %.3g s, one %.3g s", fast, one)
	}
	slow.HostMemoryBytesPerSec = 1e6
	if shared := dealt.Simulate(slow, gpu).StepSeconds; shared < 1.3*fast {
		t.Errorf("two links that share the memory of one take %.3g s, apart %.3g s", shared, fast)
	}
}

// hostBytes is the host memory that a plan takes for a purpose.
func hostBytes(p *plan.Plan, purpose string) (sum int64) {
	for _, b := range p.Host {
		if b.Purpose == purpose {
			sum += b.Bytes
		}
	}
	return sum
}

// Rows of devices that copy from each other take no host memory and no link to it, but where they wait for backward.
func TestPeerCopies(t *testing.T) {
	m := medium.model(t)
	p := newPlan(t, m, numerics(8, true)).With(moving(m, 2))
	place := p.Placement.Clone()
	var ranks []int
	for b := range m.Blocks {
		ranks = append(ranks, b%2)
		place.Where.Inputs[b] = plan.Device
	}
	place.Deal = plan.DealBlocks(ranks)
	throughHost := p.With(place)
	place.PeerCopies = true
	direct := p.With(place)

	slow := machine
	slow.UploadBytesPerSec, slow.DownloadBytesPerSec = 1e6, 1e6 // links bound the step
	slow.PeerCopyBytesPerSec = 1e9
	host, peers := throughHost.Simulate(slow, gpu), direct.Simulate(slow, gpu)
	// Each block but the first one has its rows from the other device, and each but the last one its gradient.
	crossing := int64(2*(len(m.Blocks)-1)) * int64(p.Numerics.MicroBatches) * int64(p.Numerics.Positions()) *
		int64(m.Hidden) * p.Numerics.Compute.Bytes()
	if host.PeerBytes != 0 || peers.PeerBytes != crossing ||
		host.DownloadBytes-peers.DownloadBytes != crossing || host.UploadBytes-peers.UploadBytes < crossing {
		t.Errorf("%d bytes pass between devices, want %d; to the host %d and %d, from there %d and %d",
			peers.PeerBytes, crossing, peers.DownloadBytes, host.DownloadBytes, peers.UploadBytes, host.UploadBytes)
	}
	for block := range m.Blocks {
		if direct.SavedOnHost(block) != (block == 0) || throughHost.SavedOnHost(block) != (block == 0) {
			t.Errorf("the input of block %d has a place in host memory: %v", block, direct.SavedOnHost(block))
		}
	}
	// On their way through host memory, the rows of each micro-batch have one buffer for all layers.
	if d := hostBytes(throughHost, plan.InputsPurpose) - hostBytes(direct, plan.InputsPurpose); d != hostBytes(direct,
		plan.InputsPurpose) {
		t.Errorf("rows pass through %d bytes more", d)
	}
	if peers.StepSeconds >= host.StepSeconds {
		t.Errorf("a step takes %v s directly, %v s through host memory", peers.StepSeconds, host.StepSeconds)
	}
	// A rate that is not above the link's is one of the link, which other copies then share.
	slow.PeerCopyBytesPerSec = slow.UploadBytesPerSec
	if link := direct.Simulate(slow, gpu); link.StepSeconds <= peers.StepSeconds {
		t.Errorf("a step takes %v s by links of their own, %v s by those to the host", peers.StepSeconds,
			link.StepSeconds)
	}
}

// A plan says which visits each device has, or why one of several has all of them.
func TestDealIsExplained(t *testing.T) {
	m := medium.model(t)
	r := request(t, medium, numerics(4, true))
	r.Devices = 2
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(p.Choices(), "\n"); p.Ranks() != 2 ||
		!strings.Contains(text, "visits of layers by device: ") ||
		!strings.Contains(text, "rows pass between devices through host memory") {
		t.Errorf("%d ranks: %s", p.Ranks(), text)
	}
	peers := r
	peers.Device.PeerCopies = true
	direct, err := plan.New(context.Background(), peers)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(direct.Choices(), "\n"); !direct.Placement.PeerCopies ||
		!strings.Contains(text, "rows pass between devices directly") {
		t.Errorf("devices that copy from each other: %s", text)
	}
	blocks, deal := len(m.Blocks), p.Placement.Deal
	if len(deal) != 2*blocks+1 || p.RankOf(blocks+1, nn.Backward) != deal[blocks] {
		t.Errorf("a deal of %d visits of %d blocks", len(deal), blocks)
	}
	// With less host memory, state of the deal is on disk; with still less, one device computes.
	r.DeviceBytes, r.DiskBytes = 0, 1<<40
	host := p.HostBytes
	for _, c := range []struct {
		percent int64
		ranks   int
		want    string
	}{{50, 2, "visits of layers by device: "},
		{36, 1, "one of 2 devices is used: there is no room for what several have at once"}} {
		r.HostBytes = host * c.percent / 100
		p, err = plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(p.Choices(), "\n"); p.Ranks() != c.ranks || p.DiskBytes == 0 ||
			!strings.Contains(text, c.want) {
			t.Errorf("%d%% of the host's memory: %d ranks, %d bytes on disk: %s", c.percent, p.Ranks(), p.DiskBytes,
				text)
		}
	}
}

// A step of one micro-batch is on no two devices at once: one of them computes, unless several are faster all the same,
// such as with more memory.
func TestOneMicroBatch(t *testing.T) {
	for shape, ranks := range map[string]int{"smollm2-135m": 1, "llama-3-8b": 2} {
		r, _ := onMachine(t, shape, "rtx4090-x2-256gb")
		r.Numerics.MicroBatches, r.Numerics.MicroBatch, r.Devices = 1, 1, 1
		one, err := plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		r.Devices = 2
		p, err := plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		text, why := strings.Join(p.Choices(), "\n"), "one of 2 devices is used: a step has one micro-batch"
		if p.Ranks() != ranks || p.Predicted.StepSeconds > one.Predicted.StepSeconds ||
			strings.Contains(text, why) != (ranks == 1) {
			t.Errorf("%s: %d devices take %.4g s, one %.4g s: %s", shape, p.Ranks(), p.Predicted.StepSeconds,
				one.Predicted.StepSeconds, text)
		}
	}
}

// Devices that compute in host memory divide its cores: two are no faster than one that has all.
func TestDevicesDivideCores(t *testing.T) {
	r := request(t, medium, numerics(4, true))
	r.Device = device.Info{Unified: true}
	one, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Devices = 2
	two, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if two.Ranks() != 2 || two.Predicted.StepSeconds < one.Predicted.StepSeconds ||
		two.ProcessBytes() <= two.HostBytes+two.DeviceBytes {
		t.Errorf("%d ranks take %.3g s and %d bytes, one %.3g s", two.Ranks(), two.Predicted.StepSeconds,
			two.ProcessBytes(), one.Predicted.StepSeconds)
	}
}
