package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/nn"
)

// deals are the deals that a search tries for a start: none with one device. By visit, work is divided more evenly; by
// block, more can stay on a device.
func (c *chooser) deals(start Placement) [][]int {
	if c.Devices < 2 || c.alone {
		return [][]int{nil}
	}
	s := c.plan(start)
	byBlock := s.dealBlocks(&c.Machine, c.Devices)
	if s.Bound() || !s.Trains() {
		return [][]int{byBlock}
	}
	return [][]int{s.dealVisits(&c.Machine, c.Devices), byBlock}
}

// visitSeconds is how long the arithmetic of a layer in a direction takes for all micro-batches.
func (p *Plan) visitSeconds(m *Machine, layer int, to nn.Direction) (sec float64) {
	for _, stage := range p.stages(layer, to) {
		for i := range stage {
			micros := p.Numerics.MicroBatches
			if stage[i].Over == nn.WholeStep {
				micros = p.Numerics.CohortCount()
			}
			c := p.visitCost(layer, &stage[i], false)
			sec += float64(micros) * c.seconds(m, p)
		}
	}
	return sec
}

// visit is the layer and the direction of one of the visits of a step, from 0.
func (p *Plan) visit(n int) (layer int, to nn.Direction) {
	switch layers := p.blocks(); {
	case n < layers:
		return 1 + n, nn.Forward
	case n == layers && !p.Trains():
		return 1 + n, nn.Forward
	case n == layers:
		return 1 + n, nn.Backward
	default:
		return 2*layers + 1 - n, nn.Backward
	}
}

// dealVisits deals the visits of a step in order, each to the device that is done with it first. The wave reaches a
// device when the first micro-batch has passed the visit before, and is not faster than that visit. Of devices that are
// done at the same time, the one with the least work takes it.
func (p *Plan) dealVisits(m *Machine, devices int) (deal []int) {
	free, work := make([]float64, devices), make([]float64, devices)
	micros, rows := float64(p.Numerics.MicroBatches), float64(p.inputBytes())
	passes := rows/m.DownloadBytesPerSec + rows/m.UploadBytesPerSec
	if p.asked.Device.PeerCopies {
		passes = rows / m.peerBytesPerSec()
	}
	first, end := 0.0, 0.0 // of the visit before: when its first micro-batch is done, and when all of it is
	for n := range p.visitsOfStep() {
		layer, to := p.visit(n)
		sec := p.visitSeconds(m, layer, to)
		begins := func(rank int) float64 { return max(free[rank], first+passes) }
		ends := func(rank int) float64 { return max(begins(rank)+sec, end+sec/micros+passes) }
		best := 0
		for rank := 1; rank < devices; rank++ {
			sooner := ends(rank) - ends(best)
			if same := rounding * ends(best); sooner < -same || sooner <= same && work[rank] < work[best] {
				best = rank
			}
		}
		deal = append(deal, best)
		first, end = begins(best)+sec/micros, ends(best)
		free[best] = end
		work[best] += sec
	}
	return deal
}

// dealBlocks is a deal that has both visits of a block on one device, so that what stays between them can: each block
// goes to the device with the least work so far, of which the first one has the head's from the start.
func (p *Plan) dealBlocks(m *Machine, devices int) []int {
	work := make([]float64, devices)
	_, to := p.visit(p.blocks())
	work[0] = p.visitSeconds(m, p.blocks()+1, to)
	var ranks []int
	for layer := 1; layer <= p.blocks(); layer++ {
		least := slices.Index(work, slices.Min(work))
		if layer == 1 {
			least = 0 // the host reads and writes its rows where they are, if anything is bound
		}
		work[least] += p.visitSeconds(m, layer, nn.Forward)
		if p.Trains() {
			work[least] += p.visitSeconds(m, layer, nn.Backward)
		}
		ranks = append(ranks, least)
	}
	deal := DealBlocks(ranks)
	deal[p.blocks()] = 0
	return deal
}

// dealText says how the visits are dealt, or why one device of several has all of them; empty where there is one.
func (p *Plan) dealText() string {
	if ranks := p.Ranks(); ranks > 1 {
		visits := make([]string, ranks)
		for rank := range visits {
			n := 0
			for _, of := range p.Placement.Deal {
				if of == rank {
					n++
				}
			}
			visits[rank] = fmt.Sprint(n)
		}
		way := "through host memory"
		if p.PeerCopies() {
			way = "directly"
		}
		return fmt.Sprintf("visits of layers by device: %s of %d; rows pass between devices %s",
			strings.Join(visits, ", "), p.visitsOfStep(), way)
	}
	if p.asked == nil || p.asked.Devices < 2 {
		return ""
	}
	why := "there is no room for what several have at once"
	if p.fasterAlone {
		why = "a step has one micro-batch, and several are not faster"
	}
	return fmt.Sprintf("one of %d devices is used: %s", p.asked.Devices, why)
}
