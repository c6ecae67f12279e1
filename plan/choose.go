package plan

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// chooser looks for the placement with the fastest simulated step.
//
// It climbs ladders: flights of rungs, each of which takes more memory and repeats or moves less.
// Ladders do not depend on the budgets, which only say how high one gets, so that
// more memory makes no slower plan but for anomalies of the simulated lanes, such as a drain that starts
// later.
type chooser struct {
	Request
	ctx    context.Context // ends the search
	effort effort
}

// effort is what a search has done so far, in counts: what it takes is held to bounds without a clock.
type effort struct {
	placements int // whose memory was added up
	operations int // that were simulated
}

// feasible is the first of the plans to begin with that fits, the one that asks least of the host before the one that asks least of
// the device, or why there is none. It simulates nothing.
func (c *chooser) feasible() (*Plan, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if c.Device.Unified && c.DeviceBytes == 0 {
		p := c.measure(c.spill(c.smallest(true), 0))
		err := c.fits(p)
		if err == nil || c.DiskBytes == 0 && !c.Wants.NoClip {
			return p, err
		}
		// Weights in place do not fit: they are streamed, from disk where they must, and without gradients in memory where they may.
	}
	var p *Plan
	for _, foot := range c.streaming() {
		p = c.measure(c.spill(foot, 0))
		if c.DeviceBytes == 0 || p.DeviceTotalBytes() <= c.DeviceBytes {
			break // what is lacking now is not on the device
		}
	}
	return p, c.fits(p)
}

// streaming are the placements to begin with where weights are streamed: with buffers of its own for each layer input and gradient of a
// micro-batch and, if that is less, with shared ones.
func (c *chooser) streaming() []Placement {
	feet := []Placement{c.smallest(false)}
	if c.Numerics.MicroBatches > spareInputs {
		shared := feet[0]
		shared.SpareInputs = spareInputs
		feet = append(feet, c.leastHead(shared))
	}
	return feet
}

// spareInputs are the shared buffers beyond one for each micro-batch: one is computed with while another one moves.
const spareInputs = 2

// leastHead has the head in one visit if that takes less of the device: its tiles stay there, and what it has of micro-batches has room
// for one.
func (c *chooser) leastHead(place Placement) Placement {
	once := place
	once.SingleHead = true
	if c.RecomputeAll || c.measure(place).DeviceBytes <= c.measure(once).DeviceBytes {
		return place
	}
	return once
}

// choose looks for the fastest plan; unless it is to be thorough, among those that spend memory on overlap alone.
func (c *chooser) choose(thorough bool) (*Plan, error) {
	best, err := c.feasible()
	if err != nil {
		return nil, err
	}
	best.Predicted = c.simulate(best, 0)
	feet := []Placement{c.smallest(true)}
	if !best.Placement.Bind {
		feet = c.streaming()
	}
	seen := map[string]bool{} // ladders meet
	for _, foot := range feet {
		for _, rings := range c.rings(foot.Bind) {
			rings(&foot)
			best = c.search(foot, best, seen, thorough)
			if err := c.ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	return best, nil
}

// search is the fastest of a plan and those that the ladders lead to from a foot, but for those that were seen.
func (c *chooser) search(foot Placement, best *Plan, seen map[string]bool, thorough bool) *Plan {
	foot = c.fastest(c.spills(foot, thorough)) // overlap is worth the disk, all else is not
	// A row that is looked up ahead is read and written with 18 bytes a parameter, or fewer; the table is updated with 26.
	if foot.GatherAhead = 2*c.Numerics.StepPositions() <= 3*c.Model.Vocab; c.fits(c.measure(foot)) != nil {
		foot.GatherAhead = false
	}
	ladders := [][][]rung{nil}
	if thorough {
		ladders = c.ladders(foot)
	}
	for _, ladder := range ladders {
		if c.ctx.Err() != nil {
			return best
		}
		for _, p := range c.climb(foot, ladder) {
			if c.ctx.Err() != nil {
				return best
			}
			spent := p.Placement
			spent.OnDisk = nil // it follows from the rings
			key := fmt.Sprint(spent)
			if seen[key] {
				continue
			}
			seen[key] = true
			most, serial := best.Predicted.StepSeconds, c.Overlap && best.Placement.Slots == 1 // the smallest
			if serial {
				most = 0
			}
			p.Predicted = c.simulate(p, most)
			if serial || p.Predicted.StepSeconds < best.Predicted.StepSeconds {
				best = p
			}
		}
	}
	return best
}

// fastest is the placement with the shortest step of those that fit, the first one if none does.
func (c *chooser) fastest(places []Placement) Placement {
	best, least := places[0], 0.0
	if len(places) == 1 {
		return best
	}
	for _, place := range places {
		if c.ctx.Err() != nil {
			break
		}
		p := c.measure(place)
		if c.fits(p) != nil {
			continue
		}
		if sec := c.simulate(p, least).StepSeconds; least == 0 || sec < least {
			best, least = place, sec
		}
	}
	return best
}

// simulate predicts a step of a placement; of one that takes longer than so many seconds, 0 being no limit, that it takes forever.
func (c *chooser) simulate(p *Plan, most float64) Prediction {
	q, operations := p.walk(c.Machine, c.Device, walking{micros: simulatedMicros, most: most})
	c.effort.operations += operations
	return q
}

// rung is a change of a placement that takes more memory.
type rung func(*Placement)

// climb goes up as far as the budgets allow, and returns where it rested: at the foot, where one kind of change ended, and
// at the top. The top is the fastest of them, unless lanes get in each other's way.
func (c *chooser) climb(foot Placement, ladder [][]rung) []*Plan {
	var rests []*Plan
	place := foot
	if p := c.measure(place); c.fits(p) == nil {
		rests = append(rests, p)
	} else {
		return nil
	}
	for _, flight := range ladder {
		if c.ctx.Err() != nil {
			break
		}
		at := func(rungs int) (Placement, *Plan) {
			next := clone(place)
			for _, r := range flight[:rungs] {
				r(&next)
			}
			return next, c.measure(next)
		}
		fit := sort.Search(len(flight), func(i int) bool {
			_, p := at(i + 1)
			return c.fits(p) != nil
		})
		if fit > 0 {
			next, p := at(fit)
			place, rests = next, append(rests, p)
		}
		if fit < len(flight) {
			break
		}
	}
	return rests
}

// rings are the depths of the rings that make lanes overlap.
func (c *chooser) rings(bind bool) []rung {
	if bind {
		return []rung{func(*Placement) {}}
	}
	depth := func(slots, stages, grads int) rung {
		return func(n *Placement) { n.Slots, n.StageSlots, n.GradSlots = slots, stages, grads }
	}
	grads := 1
	if c.Model.Tied || c.Numerics.Scheme().Types()[store.Grad].Bytes() == 4 {
		grads = 2 // gradients drain from where they were summed
	}
	if c.Overlap {
		return []rung{depth(2, 1, 1), depth(2, 2, grads), depth(3, 2, grads)}
	}
	return []rung{depth(1, 1, 1), depth(2, 1, 1), depth(2, 2, grads), depth(3, 2, grads)}
}

// ladders spend memory on what is not computed again and on what is not moved again, in several orders.
func (c *chooser) ladders(foot Placement) [][][]rung {
	s := c.plan(foot)
	if !s.Trains() {
		return [][][]rung{nil} // one forward pass: nothing is computed or fetched twice
	}
	var blocks []int // from the last one down: what is kept there is needed again soonest
	for b := len(c.Model.Blocks) - 1; b >= 0; b-- {
		blocks = append(blocks, b)
	}
	keep := func(b int, k nn.Keep) rung {
		return func(n *Placement) {
			n.Keep[b] = k
			if len(n.KeptOnHost) > 0 {
				n.KeptOnHost[b] = false
			}
		}
	}
	levels := []nn.Keep{nn.KeepAttention, nn.KeepGateUp, nn.KeepAll}
	var byBlock, byLevel, saved, resident []rung
	for _, b := range blocks {
		for _, k := range levels {
			byBlock = append(byBlock, keep(b, k))
		}
	}
	for _, disk := range []bool{true, false} { // what moves further first
		for _, b := range blocks {
			if s.leaves(b) && s.SavedOnDisk(b) == disk {
				saved = append(saved, func(n *Placement) { n.SavedHere[b] = true })
			}
		}
	}
	for _, k := range levels {
		for _, b := range blocks {
			byLevel = append(byLevel, keep(b, k))
		}
	}
	for _, part := range c.Model.BlockParts {
		resident = append(resident, func(n *Placement) { n.Resident[part] = true })
	}
	if s.sharesInputs() {
		saved = nil // all of them leave
	}
	moved := [][]rung{saved, resident}
	here, headHere := c.updatesHere(s)
	if foot.Bind {
		moved = [][]rung{nil, nil}
	}
	head := []rung{func(n *Placement) { n.SingleHead = true }}
	away := map[nn.Keep][]rung{} // what blocks keep, in host memory
	for _, k := range levels {
		if foot.Bind || !c.travels(s, k) {
			continue
		}
		for _, b := range blocks {
			away[k] = append(away[k], func(n *Placement) {
				if n.KeptSlots == 0 {
					n.KeptSlots, n.KeptOnHost = keptSlots, make([]bool, len(n.Keep))
				}
				n.Keep[b], n.KeptOnHost[b] = k, true
			})
		}
	}
	if c.StreamAll {
		moved[1], here, headHere = nil, nil, nil
	}
	if c.RecomputeAll {
		byBlock, byLevel, head, away = nil, nil, nil, nil
	}
	var all [][][]rung
	for _, parts := range [][4][]rung{
		{byBlock, moved[0], moved[1], head}, {byLevel, moved[0], moved[1], head},
		{moved[0], byBlock, moved[1], head}, {moved[1], moved[0], byBlock, head},
	} {
		all = append(all, parts[:], [][]rung{parts[3], parts[0], parts[1], parts[2]})
	}
	// Updates on the device: of as many blocks as the host is late with, then what is left goes to what is computed again.
	for _, blocks := range sharesOf(len(here)) {
		all = append(all, [][]rung{head, here[:blocks], byBlock, moved[0], moved[1]})
		if len(headHere) > 0 {
			all = append(all, [][]rung{head, headHere, here[:blocks], byBlock, moved[0], moved[1]})
		}
	}
	if len(here) > 0 {
		all = append(all, [][]rung{head, byBlock, moved[0], here, headHere})
	}
	// State that passes through the device, of some blocks, beside none whose state stays there or as many as have room.
	if c.hostIsLate(s) {
		room := c.room(foot, slices.Concat(head, []rung{c.passing(0, 1)}, here)) - len(head) - 1
		for _, stays := range slices.Compact([]int{0, max(room, 0)}) {
			for _, passes := range passingShares(len(c.Model.Blocks) - stays) {
				all = append(all, [][]rung{head, {c.passing(stays, passes)}, here[:stays], byBlock, moved[0], moved[1]})
			}
		}
	}
	// What attention leaves in host memory: of as many blocks as that has room for, and of the others on the device. Small steps,
	// since what is left of host memory is of no other use.
	if attended := away[nn.KeepAttention]; len(attended) > 0 && c.travelsFaster(s) {
		for _, n := range stepsTo(len(attended), awaySteps) {
			var others []rung
			for _, b := range blocks[n:] {
				others = append(others, keep(b, nn.KeepAttention))
			}
			all = append(all, [][]rung{attended[:n], others, head, byBlock, moved[0], moved[1]})
		}
		all = append(all, [][]rung{attended, moved[0], byBlock, head, moved[1]})
	}
	// More than that where the link has time for it: of as many blocks as there is room for, or of some of those.
	for _, k := range levels[1:] {
		for _, n := range sharesOf(c.room(foot, away[k])) {
			all = append(all, [][]rung{away[k][:n], head, byBlock[n*len(levels):], moved[0], moved[1]})
		}
	}
	return all
}

// updatesHere are the rungs that keep the state of a part on the device, and update it there: of blocks, the first ones first, since
// their updates are what a step begins with; and of the head with its norm.
func (c *chooser) updatesHere(s *Plan) (blocks, head []rung) {
	if s.Placement.Bind || c.Wants.NoUpdates || c.Wants.NoClip || c.HostUpdates {
		return nil, nil
	}
	for _, part := range c.Model.BlockParts {
		if s.Trained(part) {
			blocks = append(blocks, func(n *Placement) { n.Resident[part], n.StateHere[part] = true, true })
		}
	}
	if c.RecomputeAll { // there is no single visit of the head
		return blocks, nil
	}
	return blocks, []rung{func(n *Placement) {
		n.StateHere[c.Model.NormPart] = true
		if !c.Model.Tied {
			for _, part := range c.Model.HeadTiles {
				n.StateHere[part] = true
			}
		}
	}}
}

// room is how many of the rungs fit above a foot.
func (c *chooser) room(foot Placement, rungs []rung) int {
	return sort.Search(len(rungs), func(i int) bool {
		if c.ctx.Err() != nil {
			return true
		}
		place := clone(foot)
		for _, r := range rungs[:i+1] {
			r(&place)
		}
		return c.fits(c.measure(place)) != nil
	})
}

// hostIsLate reports whether the host takes longer to update the blocks than a forward pass takes, where the device
// may update some.
func (c *chooser) hostIsLate(s *Plan) bool {
	if s.Placement.Bind || c.Wants.NoUpdates || c.Wants.NoClip || c.HostUpdates {
		return false
	}
	updates, forward, costs := 0.0, 0.0, s.costs()
	p := &Plan{Numerics: s.Numerics}
	for b, part := range c.Model.BlockParts {
		for kind, sum := range map[Kind]*float64{Update: &updates, Forward: &forward} {
			o := op(LaneUpdate, kind)
			o.Part, o.Layer = part, b+1
			cost := costs(&o)
			*sum += cost.seconds(&c.Machine, p)
		}
	}
	return updates > forward*float64(s.Numerics.MicroBatches)
}

// passing has the state of a number of blocks pass through the device, evenly among those from the first one on that is
// given, so that the host updates others meanwhile.
func (c *chooser) passing(first, passes int) rung {
	blocks := c.Model.BlockParts[first:]
	return func(n *Placement) {
		n.StatePasses, n.StateSlots = make([]bool, len(n.Resident)), stateSlots
		for i := range passes {
			n.StatePasses[blocks[(2*i+1)*len(blocks)/(2*passes)]] = true
		}
	}
}

// stateSlots is the ring of state that passes through the device: that of one part moves while that of another one is
// updated.
const stateSlots = 2

// passingShares are the numbers of blocks whose passing is worth a comparison.
func passingShares(blocks int) (list []int) {
	for eighths := 1; eighths <= 8; eighths++ {
		list = append(list, eighths*blocks/8)
	}
	return slices.DeleteFunc(slices.Compact(list), func(n int) bool { return n < 1 })
}

// sharesOf are the numbers of so many things that are worth a comparison: few, and some parts of all.
func sharesOf(all int) []int {
	list := []int{1, all / 8, all / 4, all / 2, 3 * all / 4, all}
	slices.Sort(list)
	list = slices.Compact(list)
	return slices.DeleteFunc(list, func(n int) bool { return n < 1 || n > all })
}

// awaySteps is about how many numbers of blocks are compared whose attention's outputs wait in host memory.
const awaySteps = 16

// stepsTo are numbers up to so many things, evenly, about as many as asked for or twice that, and all of them.
func stepsTo(all, steps int) (list []int) {
	step := max(all/steps, 1)
	for n := step; n < all; n += step {
		list = append(list, n)
	}
	if all > 0 {
		list = append(list, all)
	}
	return list
}

// keptSlots is the ring of what is kept on the host: one is computed with while another one moves.
const keptSlots = 2

// travelsFaster reports whether what attention leaves comes from host memory sooner than it is computed again.
func (c *chooser) travelsFaster(s *Plan) bool {
	for _, d := range c.Model.Blocks {
		t := c.Numerics.Positions()
		attention := 2 * 2 * s.pairs(d) * int64(d.Heads) * int64(d.HeadDim)
		bytes := int64(t) * int64(d.Heads) * (int64(d.HeadDim)*c.Numerics.Compute.Bytes() + 4)
		link := min(c.Machine.UploadBytesPerSec, c.Machine.DownloadBytesPerSec)
		if float64(attention)/c.Machine.AttentionFLOPsPerSec < float64(bytes)/link {
			return false
		}
	}
	return true
}

// travels reports whether what blocks keep at a level leaves for host memory in the time of a forward visit: what
// takes longer has the device wait for the link. Coming back it has more time.
func (c *chooser) travels(s *Plan, k nn.Keep) bool {
	t, link := c.Numerics.Positions(), min(c.Machine.UploadBytesPerSec, c.Machine.DownloadBytesPerSec)
	place := s.Placement
	place.Keep = slices.Repeat([]nn.Keep{k}, len(c.Model.Blocks))
	kept := c.plan(place)
	for b, d := range c.Model.Blocks {
		products, _, _ := d.FLOPs(t, 0)
		all, _, _ := d.FLOPs(t, s.pairs(d))
		forward := float64(products)/c.Machine.MatMulFLOPsPerSec(c.Numerics.Compute) +
			float64(all-products)/c.Machine.AttentionFLOPsPerSecAt(c.Numerics.SequenceLen)
		if forward < float64(kept.KeptBytes(b))/link {
			return false
		}
	}
	return true
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
		place.StateHere = make([]bool, len(c.Model.Parts))
	}
	return place
}

func clone(p Placement) Placement {
	p.Resident = append([]bool(nil), p.Resident...)
	p.StateHere = append([]bool(nil), p.StateHere...)
	p.StatePasses = append([]bool(nil), p.StatePasses...)
	p.Keep = append([]nn.Keep(nil), p.Keep...)
	p.SavedHere = append([]bool(nil), p.SavedHere...)
	p.KeptOnHost = append([]bool(nil), p.KeptOnHost...)
	return p
}

// plan is the plan with a placement, before its bytes are counted.
func (c *chooser) plan(place Placement) *Plan {
	return &Plan{Wants: c.Wants, Model: c.Model, Numerics: c.Numerics, Placement: place, ComputedOn: c.Device.Numerics,
		Warning: c.Device.Warning, Unified: c.Device.Unified, DeviceBudget: c.DeviceBytes, HostBudget: c.HostBytes, DiskBudget: c.DiskBytes}
}

// measure adds up what a placement takes.
func (c *chooser) measure(place Placement) *Plan {
	c.effort.placements++
	p := c.plan(place)
	a := device.NewArena(device.Mem{})
	p.buffers(a, func(purpose string, bytes int64) {
		if bytes > 0 {
			p.Device = append(p.Device, Bytes{purpose, bytes})
		}
	})
	p.DeviceBytes = a.Peak()

	p.Host = p.hostBuffers()
	switch n := c.Device.OverheadBytes + p.attentionBytes(c.Device); {
	case !c.Device.Unified:
		p.DeviceDriverBytes = n
	case n > 0:
		p.Host = append(p.Host, Bytes{driverPurpose, n})
	}
	if c.DataBytes > 0 {
		p.Host = append(p.Host, Bytes{data.OrderPurpose, c.DataBytes})
	}
	if p.ManifestBytes = p.manifestBytes(); p.ManifestBytes > 0 {
		p.Host = append(p.Host, Bytes{ManifestsPurpose, p.ManifestBytes})
	}
	if c.ProgramBytes > 0 {
		p.Host = append(p.Host, Bytes{"program", c.ProgramBytes})
	}
	p.tierTable().enter(p)
	c.pin(p)
	for i := range p.Host {
		p.Host[i].Bytes = store.AlignUp(p.Host[i].Bytes) // whole pages, as they are counted
		p.HostBytes += p.Host[i].Bytes
	}
	return p
}

// pin adds what pinned host memory takes beside itself.
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

// driverPurpose is the name in the plan of what the device's driver takes for itself.
const driverPurpose = "kernel scratch"

// ManifestsPurpose is what the lists of files in checkpoints are counted under. They are the Go heap's.
const ManifestsPurpose = "checkpoint manifests"

// attentionBytes is what the device's driver takes for the gradient of attention.
func (p *Plan) attentionBytes(dev device.Info) int64 {
	var most int64
	if p.Trains() {
		for _, d := range p.Model.Blocks {
			most = max(most, int64(p.Numerics.Positions())*int64(d.Heads)*int64(d.HeadDim))
		}
	}
	return store.AlignUp(most * dev.AttentionElemBytes)
}

// fits compares a placement with the budgets.
func (c *chooser) fits(p *Plan) error {
	if c.DeviceBytes > 0 && p.DeviceTotalBytes() > c.DeviceBytes {
		largest := largestOf(p.Device)
		return fmt.Errorf("memory.device: a step needs at least %s on the device, %s of it for %s, and the budget is %s; raise it, or lower sequence_len (%d) or batch_tokens (%d)",
			FormatBytes(p.DeviceTotalBytes()), FormatBytes(largest.Bytes), largest.Purpose, FormatBytes(c.DeviceBytes),
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
		disk := ""
		if c.DiskBytes == 0 {
			disk = "set memory.disk, "
		}
		return fmt.Errorf("memory.host: the run needs %s of host memory, %s of it for the state of %s parameters, and the budget is %s; raise it, %schoose a smaller model, or lower batch_tokens (%d)",
			FormatBytes(p.ProcessBytes()), FormatBytes(state), FormatCount(params), FormatBytes(c.HostBytes), disk, c.Numerics.StepPositions())
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
