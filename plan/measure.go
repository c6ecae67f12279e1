package plan

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// plan is the plan with a placement, before its bytes are counted.
func (c *chooser) plan(place Placement) *Plan {
	if c.accounts == nil {
		c.accounts = new(accounts)
	}
	p := &Plan{Version: FormatVersion, Outputs: c.Outputs, Model: c.Model, Whole: c.Numerics, Numerics: c.share(),
		Cluster: c.Cluster, owners: c.owners(), over: c.Over,
		ComputedOn: c.Device.Numerics, Warning: c.Device.Warning,
		accounts: c.accounts, Unified: c.Device.Unified,
		DeviceBudget: c.DeviceBytes, HostBudget: c.HostBytes, DiskBudget: c.DiskBytes}
	if place.Drives == nil {
		place.Drives = c.shares()
	}
	p.Placement, p.asked = p.resolve(place), &c.Request
	return p
}

// measured remembers what placements take, which routes that begin alike ask for again and again. Budgets change
// nothing of it.
type measured struct {
	mu    sync.Mutex
	plans map[placementKey]*Plan
}

func newMeasured() *measured { return &measured{plans: map[placementKey]*Plan{}} }

// mostMeasured bounds the plans that are remembered: each has a table of all parts, and those that are asked for again
// follow each other closely.
const mostMeasured = 256

// measure adds up what a placement takes, unless that is known. The plan is the caller's; its lists are all callers'.
func (c *chooser) measure(place Placement) *Plan {
	if c.measured == nil {
		return c.addUp(place)
	}
	key := place.key()
	c.measured.mu.Lock()
	p := c.measured.plans[key]
	c.measured.mu.Unlock()
	if p == nil {
		p = c.addUp(place)
		c.measured.mu.Lock()
		if len(c.measured.plans) == mostMeasured {
			clear(c.measured.plans)
		}
		c.measured.plans[key] = p
		c.measured.mu.Unlock()
	}
	own := *p
	return &own
}

// addUp adds up what a placement takes.
func (c *chooser) addUp(place Placement) *Plan {
	c.effort.placements++
	p := c.plan(place)
	ranks := p.Ranks()
	for rank := range ranks {
		groups, bytes := p.deviceBytes(rank)
		if ranks > 1 {
			p.ByDevice = append(p.ByDevice, bytes)
		}
		if bytes > p.DeviceBytes {
			p.Device, p.DeviceBytes = groups, bytes
		}
	}

	p.Host = p.hostBytes()
	switch n := c.Device.OverheadBytes + p.attentionBytes(c.Device); {
	case !c.Device.Unified:
		p.DeviceDriverBytes = n
	case n > 0:
		p.Host = append(p.Host, Bytes{DriverPurpose, n})
	}
	if c.DataBytes > 0 {
		p.Host = append(p.Host, Bytes{data.OrderPurpose, c.DataBytes})
	}
	if c.TokenBytes > 0 {
		p.Host = append(p.Host, Bytes{data.TokensPurpose, c.TokenBytes})
	}
	extents := p.extentsIn(c.extents)
	c.extents = extents
	if p.ManifestBytes = c.manifestBytes(p, extents); p.ManifestBytes > 0 {
		p.Host = append(p.Host, Bytes{ManifestsPurpose, p.ManifestBytes})
	}
	if c.ProgramBytes > 0 {
		p.Host = append(p.Host, Bytes{ProgramPurpose, c.ProgramBytes})
	}
	if c.SamplerBytes > 0 {
		p.Host = append(p.Host, Bytes{SamplerPurpose, c.SamplerBytes})
	}
	p.tierTable(extents).enter(p)
	c.pin(p)
	for i := range p.Host {
		p.Host[i].Bytes = store.AlignUp(p.Host[i].Bytes) // whole pages, as they are counted
		p.HostBytes += p.Host[i].Bytes
	}
	return p
}

// pin adds the cost of pinned host memory to the plan.
func (c *chooser) pin(p *Plan) {
	if p.Unified {
		return
	}
	for _, list := range [][]Bytes{p.State, p.Host} {
		for _, b := range list {
			if p.Pinned(b.Purpose) {
				p.PinnedBytes += store.AlignUp(b.Bytes)
			}
		}
	}
	mib := (p.PinnedBytes + 1<<20 - 1) >> 20
	p.PageTableBytes = mib * c.Device.PinnedDeviceBytesPerMiB
	if n := mib * c.Device.PinnedHostBytesPerMiB; n > 0 {
		p.Host = append(p.Host, Bytes{pinRecordsPurpose, n})
	}
}

// Names in the plan of what the device's driver takes for pinned host memory, of the device and of the host.
const (
	pageTablesPurpose = "page tables of pinned memory"
	pinRecordsPurpose = "driver's records of pinned memory"
)

// Names in the plan: of what the device's driver takes for itself, and of the program with its data.
const (
	DriverPurpose  = "kernel scratch"
	ProgramPurpose = "program"
)

// ManifestsPurpose counts the lists of files in checkpoints. They are the Go heap's.
const ManifestsPurpose = "checkpoint manifests"

// attentionBytes is the memory that the device's driver takes for the gradient of attention.
func (p *Plan) attentionBytes(dev device.Info) int64 {
	var most int64
	for _, a := range p.AttentionShapes() {
		most = max(most, int64(p.Numerics.Positions())*int64(a.Heads)*int64(a.HeadDim))
	}
	return store.AlignUp(most * dev.AttentionElemBytes)
}

// AttentionShapes lists the attentions whose gradients a step asks for, of blocks that differ.
func (p *Plan) AttentionShapes() (all []nn.AttentionShape) {
	if !p.Trains() {
		return nil
	}
	for i := range p.Model.Blocks {
		if p.Model.Like[i] != i {
			continue
		}
		if a := p.visitsOf(i, nn.Backward, nn.KeepAll).Widest; a.Heads > 0 {
			all = append(all, a)
		}
	}
	return all
}

// fits compares a placement with the budgets.
func (c *chooser) fits(p *Plan) error {
	if p = c.whole(p); !c.roomOnDevice(p) {
		largest, or := largestOf(p.Device), ""
		if c.shapes() {
			or = fmt.Sprintf(", or lower sequence_len (%d) or batch_tokens (%d)", c.Numerics.SequenceLen,
				c.Numerics.StepPositions())
		}
		err := fmt.Errorf("%s: a step needs at least %s on the device, %s of it for %s, and the budget is %s; raise it%s",
			c.budget("device"), FormatBytes(p.DeviceTotalBytes()), FormatBytes(largest.Bytes), largest.Purpose,
			FormatBytes(c.DeviceBytes), or)
		if c.HostBytes > 0 && p.ProcessBytes() > c.HostBytes {
			err = fmt.Errorf("%w; %s: %s is too small as well, and %s needs %s", err, c.budget("host"),
				FormatBytes(c.HostBytes), c.who(), FormatBytes(p.ProcessBytes()))
		}
		return err
	}
	if p.DiskBytes > c.DiskBytes {
		return fmt.Errorf("memory.disk: the run needs %s on disk with %s of host memory, and the budget is %s; "+
			"raise memory.disk or memory.host",
			FormatBytes(p.DiskBytes), FormatBytes(c.HostBytes), FormatBytes(c.DiskBytes))
	}
	if err := c.fitsDrives(p); err != nil {
		return err
	}
	if c.HostBytes > 0 && p.ProcessBytes() > c.HostBytes {
		return &hostShort{p, p.ProcessBytes()}
	}
	return nil
}

// hostShort is the error of a plan that host memory has no room for.
type hostShort struct {
	*Plan
	needBytes int64 // its own; less where a larger budget needs less, since less of it is on disk and staged
}

func (e *hostShort) Error() string {
	params, _ := e.Model.Params()
	var state int64
	for _, b := range e.State {
		state += b.Bytes
	}
	or := ""
	if e.DiskBudget == 0 && e.asked.Guest == "" {
		or = ", set memory.disk"
	}
	if e.asked.shapes() {
		or += fmt.Sprintf(", choose a smaller model, or lower batch_tokens (%d)", e.Whole.StepPositions())
	}
	return fmt.Sprintf("%s: %s needs %s of host memory, %s of it for the state of %s parameters, and the budget is %s; "+
		"raise it%s", e.asked.budget("host"), e.asked.who(), FormatBytes(e.needBytes), FormatBytes(state),
		FormatCount(params), FormatBytes(e.HostBudget), or)
}

// who needs the memory of a request.
func (r *Request) who() string {
	if r.Guest != "" {
		return "the model"
	}
	return "the run"
}

func largestOf(list []Bytes) Bytes {
	var best Bytes
	for _, b := range list {
		if b.Bytes > best.Bytes {
			best = b
		}
	}
	return best
}
