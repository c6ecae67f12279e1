package plan

import (
	"github.com/millrace/millrace/store"
)

// StagingQuota is the staging memory of each lane when extents are on disk: one set of pieces is read ahead of its use, and
// one written behind it.
var StagingQuota = store.LaneQuota(readAhead, writeBehind)

const (
	readAhead   = 1
	writeBehind = 1
)

// DiskWorkers is how many reads and writes of the disk are under way at once.
const DiskWorkers = 4

// StagingPurpose is the name of the staging memory in the plan.
const StagingPurpose = "staging"

// spillOrder are the kinds in the order in which they go to disk. A byte of moments, low halves or gradients that is kept
// there moves twice a step, a byte of weights four times.
var spillOrder = []store.Kind{store.SecondMoment, store.FirstMoment, store.SecondScale, store.FirstScale, store.Low, store.GradSum, store.Grad, store.Weights}

// mayBeOnDisk reports whether extents of the kind can be staged: what is bound is used where it lies.
func (s *setting) mayBeOnDisk(kind store.Kind) bool {
	switch kind {
	case store.Low, store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale:
		return true
	}
	return !s.place.Bind
}

// tierTable is what the extents take of host memory and of disk.
type tierTable struct {
	ram, disk       []Bytes
	ramSum, diskSum int64
	staging         int64
}

// tierTable divides the extents between host memory and disk and adds them up.
func (s *setting) tierTable() *tierTable {
	var ram, disk [store.Kinds]int64
	var onDisk []store.Spec
	for part := range s.model.Parts {
		for _, spec := range s.extents(part) {
			if s.place.onDisk(spec.ID) {
				disk[spec.Kind] += store.AlignUp(spec.Bytes)
				onDisk = append(onDisk, spec)
			} else {
				ram[spec.Kind] += store.AlignUp(spec.Bytes)
			}
		}
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
		t.staging = store.StagingBytes(onDisk, StagingQuota)
		all := store.DiskBytes(onDisk, DiskWorkers)
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
	if t.staging > 0 {
		p.Host = append(p.Host, Bytes{StagingPurpose, t.staging})
	}
}

// spill moves extents to disk until the plan fits host memory, and returns the placement that does, or the one with all of
// them there. Of each kind it takes the last parts first: their update comes last, behind the forward pass of the others,
// so their reads have most time.
func (c *chooser) spill(place Placement) Placement {
	place.OnDisk = nil
	p := c.measure(place)
	if c.HostBytes == 0 || c.DiskBytes == 0 || p.ProcessBytes() <= c.HostBytes {
		return place
	}
	place.OnDisk = make([][store.Kinds]bool, len(c.Model.Parts))
	s := &setting{model: c.Model, num: c.Numerics, place: place, wants: c.Wants}
	bytes := map[store.ID]int64{}
	for _, spec := range p.Extents() {
		bytes[spec.ID] = store.AlignUp(spec.Bytes)
	}
	over := p.ProcessBytes() - c.HostBytes // by the last account, less what has gone to disk since
	for _, kind := range spillOrder {
		if !s.mayBeOnDisk(kind) {
			continue
		}
		// The first extent of a kind brings the kind's staging memory, which is sized by its largest piece.
		sized := false
		for part := len(c.Model.Parts) - 1; part >= 0; part-- {
			id := store.ID{Part: part, Kind: kind}
			if bytes[id] == 0 {
				continue
			}
			if over <= 0 {
				return place
			}
			place.OnDisk[part][kind] = true
			over -= bytes[id]
			if !sized || over <= 0 {
				over, sized = c.measure(place).ProcessBytes()-c.HostBytes, true
			}
		}
	}
	return place
}
