package plan

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// chooser looks for a placement: from the smallest one that runs at all, it spends what the budgets leave in the order
// of what saves most time per byte.
type chooser struct {
	Request
}

func (c *chooser) choose() (*Plan, error) {
	bind := c.Device.Unified && c.DeviceBytes == 0
	p := c.measure(c.spill(c.smallest(bind)))
	if bind && c.DiskBytes > 0 && c.fits(p) != nil {
		// Weights in place do not fit: they are streamed, from disk where they must.
		bind = false
		p = c.measure(c.spill(c.smallest(bind)))
	}
	if err := c.fits(p); err != nil {
		return nil, err
	}
	overlap := true // for overlap, more goes to disk; for what saves arithmetic only, nothing does
	try := func(change func(*Placement)) bool {
		next := clone(p.Placement)
		change(&next)
		q := c.measure(next)
		if overlap && c.fits(q) != nil {
			q = c.measure(c.spill(next))
		}
		if c.fits(q) != nil {
			return false
		}
		p = q
		return true
	}

	if !(&setting{model: c.Model}).trains() {
		// One forward pass: nothing is computed or fetched twice.
		if !bind {
			_ = try(func(n *Placement) { n.Slots = 3 }) || try(func(n *Placement) { n.Slots = 2 })
		}
		p.Predicted = p.Simulate(c.Machine, c.Device)
		return p, nil
	}
	if !bind {
		// Overlap first: without a second slot the lanes take turns.
		try(func(n *Placement) { n.Slots = 2 })
		try(func(n *Placement) { n.StageSlots = 2 })
		if c.Model.Tied || c.Numerics.Scheme().Types()[store.Grad].Bytes() == 4 {
			try(func(n *Placement) { n.GradSlots = 2 })
		}
	}
	overlap = false
	// Arithmetic that is not repeated saves the same wherever it is saved; the head's logits take least memory for it.
	try(func(n *Placement) { n.SingleHead = true })
	for _, keep := range []nn.Keep{nn.KeepAll, nn.KeepGateUp, nn.KeepAttention} {
		// From the last block down: what is kept there is needed again soonest.
		for b := len(c.Model.Blocks) - 1; b >= 0; b-- {
			if p.Placement.Keep[b] == nn.KeepInput && !try(func(n *Placement) { n.Keep[b] = keep }) {
				break
			}
		}
	}
	if !bind {
		try(func(n *Placement) { n.Slots = 3 })
		for b := len(c.Model.Blocks) - 1; b >= 0; b-- {
			if !try(func(n *Placement) { n.SavedHere[b] = true }) {
				break
			}
		}
		for _, part := range c.Model.BlockParts {
			if !try(func(n *Placement) { n.Resident[part] = true }) {
				break
			}
		}
	}
	p.Predicted = p.Simulate(c.Machine, c.Device)
	return p, nil
}

// smallest is the placement that needs least memory.
func (c *chooser) smallest(bind bool) Placement {
	place := Placement{
		Bind:     bind,
		Resident: make([]bool, len(c.Model.Parts)),
		Keep:     make([]nn.Keep, len(c.Model.Blocks)), SavedHere: make([]bool, len(c.Model.Blocks)),
		GradSlots: 1,
	}
	if !bind {
		place.Slots, place.StageSlots = 1, 1
	}
	return place
}

func clone(p Placement) Placement {
	p.Resident = append([]bool(nil), p.Resident...)
	p.Keep = append([]nn.Keep(nil), p.Keep...)
	p.SavedHere = append([]bool(nil), p.SavedHere...)
	return p
}

// measure adds up what a placement takes.
func (c *chooser) measure(place Placement) *Plan {
	s := &setting{model: c.Model, num: c.Numerics, place: place, wants: c.Wants}
	p := &Plan{Wants: c.Wants, Model: c.Model, Numerics: c.Numerics, Placement: place, Unified: c.Device.Unified,
		DeviceBudget: c.DeviceBytes, HostBudget: c.HostBytes, DiskBudget: c.DiskBytes}
	a := device.NewArena(device.Mem{})
	s.buffers(a, func(purpose string, bytes int64) {
		if bytes > 0 {
			p.Device = append(p.Device, Bytes{purpose, bytes})
		}
	})
	p.DeviceBytes = a.Peak()

	p.Host = s.hostBuffers()
	if n := c.Device.OverheadBytes + s.attentionBytes(c.Device); n > 0 {
		p.Host = append(p.Host, Bytes{"kernel scratch", n})
	}
	if c.ProgramBytes > 0 {
		p.Host = append(p.Host, Bytes{"program and data", c.ProgramBytes})
	}
	s.tiers(p)
	for _, b := range p.Host {
		p.HostBytes += b.Bytes
	}
	return p
}

// attentionBytes is what the device's driver takes for the gradient of attention.
func (s *setting) attentionBytes(dev device.Info) int64 {
	var most int64
	if s.trains() {
		for _, d := range s.model.Blocks {
			most = max(most, int64(s.num.Positions())*int64(d.Heads)*int64(d.HeadDim))
		}
	}
	return store.AlignUp(most * dev.AttentionElemBytes)
}

// fits compares a placement with the budgets.
func (c *chooser) fits(p *Plan) error {
	if c.DeviceBytes > 0 && p.DeviceBytes > c.DeviceBytes {
		largest := largestOf(p.Device)
		return fmt.Errorf("memory.device: a step needs at least %s on the device, %s of it for %s, and the budget is %s; raise it, or lower sequence_len (%d) or batch_tokens (%d)",
			FormatBytes(p.DeviceBytes), FormatBytes(largest.Bytes), largest.Purpose, FormatBytes(c.DeviceBytes),
			c.Numerics.SequenceLen, c.Numerics.StepPositions())
	}
	if p.DiskBytes > c.DiskBytes {
		return fmt.Errorf("memory.disk: the run needs %s on disk beside %s of host memory, and the budget is %s; raise memory.disk or memory.host",
			FormatBytes(p.DiskBytes), FormatBytes(c.HostBytes), FormatBytes(c.DiskBytes))
	}
	if c.HostBytes > 0 && p.ProcessBytes() > c.HostBytes {
		params, _ := c.Model.Params()
		var state int64
		for _, b := range p.State {
			state += b.Bytes
		}
		return fmt.Errorf("memory.host: the run needs at least %s of host memory, %s of it for the state of %s parameters, and the budget is %s; raise it, set memory.disk, choose a smaller model, or lower batch_tokens (%d)",
			FormatBytes(p.ProcessBytes()), FormatBytes(state), FormatCount(params), FormatBytes(c.HostBytes), c.Numerics.StepPositions())
	}
	return nil
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
