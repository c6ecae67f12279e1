package plan

import (
	"cmp"
	"slices"
	"sort"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// StagingQuota is the least staging memory of each lane when extents are on disk: see Rings.Reads.
var StagingQuota = store.LaneQuota(1, 1)

// Quota is the staging memory of each lane: of each rank, and of the host.
func (p *Plan) Quota() store.Quota { return p.Placement.quota() }

// quota has updates a piece of each kind ahead for each drive.
func (p *Placement) quota() store.Quota { return store.LaneQuota(p.drives(), max(p.Rings.Reads, 1)) }

// DiskWorkers is the number of reads and writes of a drive that are under way at once. A machine's disk rates are
// measured with the same number.
const DiskWorkers = 4

// requests is the number of reads and writes of pieces in a row that keep all drives busy: as many as have DiskWorkers
// on the drive with the smallest share, within bounds, since they take staging memory.
func (p *Placement) requests() int {
	all, least := 0, 0
	for _, share := range p.Drives {
		if all += share; share > 0 && (least == 0 || share < least) {
			least = share
		}
	}
	if least == 0 {
		return DiskWorkers
	}
	turns := (all + least/2) / least
	return DiskWorkers * min(turns, mostTurns*len(p.Drives))
}

// mostTurns bounds the requests of several drives to that times as many as drives of one rate need.
const mostTurns = 3

// diskShare is the part of the disk's rates that a lane can use. Fetch and drain move one kind at a time, and have at
// most one request under way beyond the pieces that are read ahead or written back.
func (p *Placement) diskShare(lane Lane) float64 {
	if lane == LaneUpdate {
		return 1
	}
	return min(float64(1+max(p.Rings.Reads, 1))/float64(p.requests()), 1)
}

// stagingPurpose is the name of the staging memory in the plan.
const stagingPurpose = "staging"

// spillOrder are the kinds in the order in which they go to disk. A byte of moments, low halves, gradients or saved
// layer inputs that is kept there moves twice a step, a byte of weights four times. The state moves below the forward
// pass, with the updates; inputs are written in the forward pass and read in the backward pass, so some of them may
// go first. Of the optimizer's states the largest go first, the last of its list before the others.
func (p *Plan) spillOrder() (kinds []store.Kind) {
	forms := p.Numerics.Scheme().Forms()
	for _, state := range slices.Backward(p.Numerics.Scheme().Rule().States()) {
		kinds = append(kinds, state.Kind)
	}
	slices.SortStableFunc(kinds, func(a, b store.Kind) int {
		bytes := func(kind store.Kind) int64 { return forms[kind].Bytes(tensor.Align) }
		return cmp.Compare(bytes(b), bytes(a))
	})
	return append(kinds, store.Low, store.GradSum, store.Grad, store.Inputs, store.Weights)
}

// mayBeOnDisk reports whether extents of the kind can be staged. Bound extents cannot: they are used where they are
// stored.
func (p *Plan) mayBeOnDisk(kind store.Kind) bool {
	kept := !p.UpdatesInBackward() || p.Placement.TwiceFrom > 0 // of some parts
	return slices.Contains(p.stateKinds(), kind) || !p.Bound() && (kind != store.Grad || kept)
}

// tierTable has the bytes of the extents in host memory and on disk.
type tierTable struct {
	ram, disk       []Bytes
	ramSum, diskSum int64
	byDrive         []int64 // where there are several
	staging         int64
}

// tierTable divides the extents of the parameters between host memory and disk and adds them up, with those of inputs.
// It puts those in host memory first.
func (p *Plan) tierTable(extents []store.Spec) *tierTable {
	inRAM := 0
	for i, spec := range extents {
		if !p.OnDisk(spec.ID) {
			extents[i], extents[inRAM] = extents[inRAM], spec
			inRAM++
		}
	}
	ram, onDisk := store.RAMBytes(extents[:inRAM]), append(extents[inRAM:], p.InputExtents()...)
	var disk [store.Kinds]int64
	for _, spec := range onDisk {
		disk[spec.Kind] += store.AlignUp(spec.Bytes)
	}
	t := &tierTable{}
	for kind := range store.Kind(store.Kinds) {
		if n := ram[kind]; n > 0 {
			t.ram = append(t.ram, Bytes{kind.String(), n})
			t.ramSum += n
		}
		if n := disk[kind]; n > 0 {
			t.disk = append(t.disk, Bytes{kind.String(), n})
			t.diskSum += n
		}
	}
	if len(onDisk) > 0 {
		t.staging = store.StagingBytes(onDisk, p.Quota(), p.Crew())
		byDrive, all := store.DriveBytes(onDisk, p.Deal(), DiskWorkers), int64(0)
		for _, n := range byDrive {
			all += n
		}
		if p.Placement.drives() > 1 {
			t.byDrive = append(byDrive, make([]int64, p.Placement.drives()-len(byDrive))...)
		}
		t.disk = append(t.disk, Bytes{"spare files", all - t.diskSum})
		t.diskSum = all
	}
	return t
}

// enter adds the table to a plan's.
func (t *tierTable) enter(p *Plan) {
	p.State = append(p.State, t.ram...)
	p.HostBytes += t.ramSum
	p.Disk = append(p.Disk, t.disk...)
	p.DiskBytes += t.diskSum
	p.ByDrive = t.byDrive
	if t.staging > 0 {
		p.Host = append(p.Host, Bytes{stagingPurpose, t.staging})
	}
}

// over places weights where the plan has them over which this one is made: what steps have on the device waits in host
// memory.
func (c *chooser) over(place Placement) Placement {
	if c.Over == nil {
		return place
	}
	for part := range place.Where.State {
		if c.Over.Placement.Where.State[part][store.Weights] == Disk {
			place.Where.State[part][store.Weights] = Disk
		}
	}
	of := &c.Over.Placement
	place.Drives, place.Rings.Reads = slices.Clone(of.Drives), of.Rings.Reads
	return place
}

// spill moves extents and saved inputs to disk until the plan fits host memory, and returns the placement that does, or
// the one with all of them on disk. The inputs of the first inputsFirst blocks go first. Of each kind of state it takes
// the last parts first: their update comes last, after the forward pass of the others, so their reads have the most
// time. Of inputs it takes the first blocks' first, since those are not needed for the longest time.
func (c *chooser) spill(place Placement, inputsFirst int) Placement {
	if c.Over != nil { // which has decided
		return place
	}
	place = place.Clone()
	place.Where.offDisk()
	p := c.measure(place)
	if c.HostBytes == 0 || c.DiskBytes == 0 || p.ProcessBytes() <= c.HostBytes {
		return place
	}
	s := c.plan(place)
	bytes := make([][store.Kinds]int64, len(c.Model.Parts))
	var inputs, others []store.ID
	for block, part := range c.Model.BlockParts {
		if block > 0 && s.inputSpills(block) {
			id := store.ID{Part: part, Kind: store.Inputs}
			inputs, bytes[part][store.Inputs] = append(inputs, id), s.inputBytes(1+block)*int64(s.microsDown())
		}
	}
	for _, spec := range p.Extents() {
		bytes[spec.Part][spec.Kind] = store.AlignUp(spec.Bytes)
	}
	inputsFirst = min(inputsFirst, len(inputs))
	for _, kind := range p.spillOrder() {
		if !s.mayBeOnDisk(kind) {
			continue
		}
		if kind == store.Inputs {
			others = append(others, inputs[inputsFirst:]...)
			continue
		}
		for part := len(c.Model.Parts) - 1; part >= 0; part-- {
			if bytes[part][kind] > 0 {
				others = append(others, store.ID{Part: part, Kind: kind})
			}
		}
	}
	over := p.ProcessBytes() - c.HostBytes // by the last account, less what has gone to disk since
	var sized [store.Kinds]bool            // the first extent of a kind brings staging memory for its largest piece
	for _, id := range slices.Concat(inputs[:inputsFirst], others) {
		if over <= 0 || c.ctx.Err() != nil {
			break
		}
		place.Where.setDisk(c.Model, id)
		over -= bytes[id.Part][id.Kind]
		if !sized[id.Kind] || over <= 0 {
			over, sized[id.Kind] = c.measure(place).ProcessBytes()-c.HostBytes, true
		}
	}
	return place
}

// hold keeps on the device what host memory has no room for, as far as there is room on the device: the saved inputs
// of the last blocks, as many as must, and then the state of the first blocks, whose gradients are not in host memory
// then.
func (c *chooser) hold(place Placement) Placement {
	s := c.plan(place)
	if c.HostBytes == 0 || s.Unified {
		return place
	}
	state, _ := c.stateMoves(s)
	for _, stage := range []Stage{c.savedMoves(s), state, c.cacheMoves(s)} {
		after := func(moves int) *Plan { return c.whole(c.measure(c.with(place, stage[:moves]))) }
		least := sort.Search(len(stage), func(n int) bool {
			return c.ctx.Err() != nil || after(n).ProcessBytes() <= c.HostBytes
		})
		most := sort.Search(least, func(n int) bool { return c.ctx.Err() != nil || !c.roomOnDevice(after(n+1)) })
		place = c.with(place, stage[:most])
	}
	return place
}

// spills are the ways to bring a placement into host memory that are worth a comparison, the one with state first to
// begin with; a thorough search also has those with more staging memory.
func (c *chooser) spills(place Placement, thorough bool) []Placement {
	all := []Placement{c.spill(place, 0)}
	if !all[0].Where.onDisk() || place.Where.Bound() || c.Over != nil {
		return all
	}
	inputs := []int{len(c.Model.Blocks) / 2, len(c.Model.Blocks)}
	for _, n := range inputs {
		all = append(all, c.spill(place, n))
	}
	if thorough {
		place.Rings.Reads = (&Placement{Drives: c.shares()}).requests() - 1
		for _, n := range append([]int{0}, inputs...) {
			all = append(all, c.spill(place, n))
		}
	}
	return all
}
