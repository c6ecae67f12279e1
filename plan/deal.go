package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// dealt is a start with a deal that a search tries first, and with one of the same kind that has the head on one
// device.
type dealt struct{ first, whole Placement }

// others lists the deals to try when a dealt head leaves room on devices.
func (d *dealt) others() (all []Placement) {
	if d.first.KeptLogits {
		again := d.first
		again.KeptLogits = false
		all = append(all, again)
	}
	if d.first.HeadDeal != nil {
		all = append(all, d.whole)
	}
	return all
}

// deals lists the deals of a start: of one device, the start. By visit, work is divided more evenly; by block, more can
// stay on a device. The head's tiles are dealt if the visits are done sooner then, and their logits are kept if there
// is room.
func (c *chooser) deals(start Placement) []dealt {
	if c.Devices < 2 || c.alone {
		return []dealt{{start, start}}
	}
	s := c.plan(start)
	if s.Bound() || !s.Trains() {
		byBlock := s.dealBlocks(&c.Machine, c.Devices, 1).of(start, s.Model)
		return []dealt{{byBlock, byBlock}}
	}
	once := start
	if once.HeadAtOnce = !c.RecomputeAll; once.HeadAtOnce && c.fitsDevice(c.measure(once)) {
		s = c.plan(once) // as the search will have it
	}
	whole, done := s.dealVisits(&c.Machine, c.Devices, 1)
	with, ranks, visits := s, 1, whole // ranks that have tiles of the head
	for n := 2; n <= min(c.Devices, len(c.Model.HeadTiles)) && !c.StreamAll && !c.RecomputeAll; n++ {
		place := s.dealBlocks(&c.Machine, c.Devices, n).of(start, s.Model)
		for _, place.KeptLogits = range []bool{false, true} {
			p := c.measure(place)
			if deal, sooner := p.dealVisits(&c.Machine, c.Devices, n); sooner < done && c.fitsDevice(p) {
				with, ranks, visits, done = p, n, deal, sooner
			}
		}
	}
	pair := func(first, whole deal) dealt {
		d := dealt{first.of(start, s.Model), whole.of(start, s.Model)}
		d.first.KeptLogits = with.Placement.KeptLogits
		return d
	}
	return []dealt{pair(visits, whole), pair(with.dealBlocks(&c.Machine, c.Devices, ranks),
		s.dealBlocks(&c.Machine, c.Devices, 1))}
}

// deal says which ranks have the visits of a step, and the shares of the head.
type deal struct{ visits, head []int }

// of is a placement of a model that is dealt so.
func (d deal) of(place Placement, m *model.Model) Placement {
	place.Deal = d.visits
	if ranks := len(d.head); ranks > 1 {
		place.HeadAtOnce, place.HeadDeal = true, nil
		for tile := range m.HeadTiles {
			place.HeadDeal = append(place.HeadDeal, d.head[headShareOf(tile, m, ranks)])
		}
	}
	return place
}

// visitSeconds adds up the arithmetic of a layer in a direction for all micro-batches.
func (p *Plan) visitSeconds(m *Machine, layer int, to nn.Direction) (sec float64) {
	for _, stage := range p.stages(layer, to) {
		for i := range stage {
			sec += p.secondsOf(m, layer, &stage[i])
		}
	}
	return sec
}

// secondsOf returns the time that the arithmetic of a visit of a layer takes for all micro-batches.
func (p *Plan) secondsOf(m *Machine, layer int, v *nn.Visit) float64 {
	micros := p.Numerics.CohortCount()
	if v.Over == nn.EachMicro {
		micros *= p.microsOf(layer, v)
	}
	c := p.visitCost(m, layer, v, false)
	return float64(micros) * c.seconds(m, p)
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

// wave follows the visits of a deal in their order.
type wave struct {
	micros, passes float64   // micro-batches, and seconds in which one passes from a device to another one
	free, work     []float64 // by rank: when it is done with its visits, and how long they compute
	first, end     float64   // of the visit before: when its first micro-batch is done, and when all of it is
}

func (p *Plan) newWave(m *Machine, devices int) *wave {
	rows := float64(p.widestInput())
	w := &wave{micros: float64(p.Numerics.MicroBatches), free: make([]float64, devices), work: make([]float64, devices),
		passes: rows/m.DownloadBytesPerSec + rows/m.UploadBytesPerSec}
	if p.asked.Device.PeerCopies {
		w.passes = rows / m.peerBytesPerSec()
	}
	return w
}

// begins returns the time at which a rank could begin the next visit. The wave reaches it when the first micro-batch
// has passed the visit before.
func (w *wave) begins(rank int) float64 { return max(w.free[rank], w.first+w.passes) }

// ends returns the time at which it would be done: the wave is not faster than the visit before.
func (w *wave) ends(rank int, sec float64) float64 {
	return max(w.begins(rank)+sec, w.end+sec/w.micros+w.passes)
}

// soonest is the rank that would be done with a visit first, except for some. Of those that are done at the same time,
// it is the one with the least work.
func (w *wave) soonest(sec float64, but []int) int {
	best := none
	for rank := range w.free {
		switch {
		case slices.Contains(but, rank):
		case best == none:
			best = rank
		default:
			sooner := w.ends(rank, sec) - w.ends(best, sec)
			if same := rounding * w.ends(best, sec); sooner < -same || sooner <= same && w.work[rank] < w.work[best] {
				best = rank
			}
		}
	}
	return best
}

// take gives a visit to a rank, which has done it with the first micro-batch after some seconds.
func (w *wave) take(rank int, sec, first float64) {
	w.first, w.end = w.begins(rank)+first, w.ends(rank, sec)
	w.free[rank] = w.end
	w.work[rank] += sec
}

// dealVisits deals the visits of a step in order, each to the device that is done with it first. Several ranks may have
// tiles of the head. It also says when the last visit is done.
func (p *Plan) dealVisits(m *Machine, devices, headRanks int) (d deal, done float64) {
	w := p.newWave(m, devices)
	for n := range p.visitsOfStep() {
		layer, to := p.visit(n)
		if n != p.blocks() {
			sec := p.visitSeconds(m, layer, to)
			d.visits = append(d.visits, w.soonest(sec, nil))
			w.take(d.visits[n], sec, sec/w.micros)
			continue
		}
		back := -w.passes // of the first micro-batch, from the last tile
		for _, share := range p.headShares(m, headRanks) {
			sec := share.up + share.down
			rank := w.soonest(sec, d.head)
			d.head = append(d.head, rank)
			w.take(rank, sec, share.up/w.micros)
			back += share.down/w.micros + w.passes
		}
		d.visits = append(d.visits, d.head[0])
		w.first += back
	}
	return d, slices.Max(w.free)
}

// dealBlocks is a deal that has both visits of a block on one device, so that what stays between them can. The first
// devices have the head. From the last block down, each goes to the device with the least work so far: so the backward
// pass begins on devices that the head leaves free.
func (p *Plan) dealBlocks(m *Machine, devices, headRanks int) (d deal) {
	work := make([]float64, devices)
	ranks := make([]int, p.blocks())
	for rank, share := range p.headShares(m, headRanks) {
		work[rank] = share.up + share.down
		d.head = append(d.head, rank)
	}
	for layer := p.blocks(); layer > 0; layer-- {
		least := slices.Index(work, slices.Min(work))
		if p.Model.Begins(layer) && p.Bound() {
			least = 0 // the host reads and writes its rows where they are
		}
		work[least] += p.visitSeconds(m, layer, nn.Forward)
		if p.Trains() {
			work[least] += p.visitSeconds(m, layer, nn.Backward)
		}
		ranks[layer-1] = least
	}
	d.visits = DealBlocks(ranks)
	d.visits[p.blocks()] = d.head[0]
	return d
}

// headShare is the work of a rank that has tiles of the head: seconds for all micro-batches on the way to the last
// tile, and on the way back.
type headShare struct{ up, down float64 }

// headShares divide the head's tiles among ranks, each with neighbours.
func (p *Plan) headShares(m *Machine, ranks int) []headShare {
	layer, shares := p.blocks()+1, make([]headShare, ranks)
	if ranks == 1 {
		_, to := p.visit(p.blocks())
		shares[0].down = p.visitSeconds(m, layer, to)
		return shares
	}
	for _, stage := range p.Head().Stages(nn.Backward, false) {
		v, share := &stage[0], &shares[ranks-1] // that of the loss
		if len(v.Parts) > 0 {
			share = &shares[headShareOf(max(v.Parts[0]-1, 0), p.Model, ranks)]
		}
		if v.Writes.Has(nn.Grads) {
			share.down += p.secondsOf(m, layer, v)
		} else {
			share.up += p.secondsOf(m, layer, v)
		}
	}
	return shares
}

// headShareOf is the share that has a tile.
func headShareOf(tile int, m *model.Model, ranks int) int { return tile * ranks / len(m.HeadTiles) }

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
