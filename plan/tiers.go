package plan

import (
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// StagingPieces is how many pieces of staging memory each lane may hold when extents are on disk: what it works on, what is
// read ahead, and what is still being written. The update lane holds a piece of each kind at a time.
var StagingPieces = [trace.NumLanes]int{trace.Fetch: 4, trace.Drain: 4, trace.Update: 3 * 5, trace.Disk: 4}

// StagingPurpose is the name of the staging memory in the accounts.
const StagingPurpose = "staging"

// sparePieces is how many files beyond one for each piece are kept, so that a new version can be written while the old
// one is still there: as many as can be on their way at once.
const sparePieces = 32

// spillOrder are the kinds in the order in which they go to disk. A byte of moments, low halves or gradients that is kept
// there moves twice a step, a byte of weights four times.
var spillOrder = []store.Kind{store.SecondMoment, store.FirstMoment, store.Low, store.GradSum, store.Grad, store.Weights}

// mayBeOnDisk reports whether extents of the kind can be staged: what is bound is used where it lies.
func (s *setting) mayBeOnDisk(kind store.Kind) bool {
	return !s.place.Bind || kind == store.SecondMoment || kind == store.FirstMoment || kind == store.Low
}

// tiers divides the extents between host memory and disk and adds them up.
func (s *setting) tiers(p *Plan) {
	var ram, disk [store.Kinds]int64
	var piece int64
	for _, spec := range p.Extents() {
		if s.place.onDisk(spec.ID) {
			disk[spec.Kind] += store.AlignUp(spec.Bytes)
			piece = max(piece, store.AlignUp(spec.Piece))
		} else {
			ram[spec.Kind] += store.AlignUp(spec.Bytes)
		}
	}
	for kind := range store.Kind(store.Kinds) {
		if n := ram[kind]; n > 0 {
			p.State = append(p.State, Bytes{kind.String(), n})
			p.HostBytes += n
		}
		if n := disk[kind]; n > 0 {
			p.Disk = append(p.Disk, Bytes{kind.String(), n})
			p.DiskBytes += n
		}
	}
	if piece > 0 {
		pieces := int64(0)
		for _, n := range StagingPieces {
			pieces += int64(n)
		}
		p.Host = append(p.Host, Bytes{StagingPurpose, pieces * piece})
		p.Disk = append(p.Disk, Bytes{"spare files", sparePieces * piece})
		p.DiskBytes += sparePieces * piece
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
	staging := int64(-1) // bytes of it that are counted
	over := p.ProcessBytes() - c.HostBytes
	for _, kind := range spillOrder {
		if !s.mayBeOnDisk(kind) {
			continue
		}
		for part := len(c.Model.Parts) - 1; part >= 0; part-- {
			id := store.ID{Part: part, Kind: kind}
			n := bytes[id]
			if n == 0 {
				continue
			}
			if over <= 0 {
				return place
			}
			place.OnDisk[part][kind] = true
			over -= n
			if staging < 0 { // the first extent on disk brings the staging memory, sized by the largest piece of all
				staging = c.measure(place).ProcessBytes() - (p.ProcessBytes() - n)
				over += staging
			}
		}
	}
	return place
}
