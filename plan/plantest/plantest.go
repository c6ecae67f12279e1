// Package plantest draws placements for tests of the law that none of them changes a bit.
//
// Invariant: what it draws includes placements that the planner would not choose, and ones that it has to settle first.
package plantest

import (
	"pgregory.net/rapid"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// Streamed is the placement in which everything passes through rings of some slots.
func Streamed(parts, blocks, slots int) plan.Placement {
	p := plan.Smallest(parts, blocks, false)
	p.Rings = plan.Rings{Weights: slots, Gradients: slots, Rounded: slots}
	return p
}

// Draw picks any placement of a model, bound or not.
func Draw(rt *rapid.T, m *model.Model, bound bool) plan.Placement {
	number := func(name string, least, most int) int { return rapid.IntRange(least, most).Draw(rt, name) }
	yes := func(name string) bool { return rapid.Bool().Draw(rt, name) }
	p := plan.Smallest(len(m.Parts), len(m.Blocks), bound)
	p.HeadAtOnce, p.LookAhead = yes("head at once"), yes("look ahead")
	p.Twice = yes("gradients twice")
	p.TwiceFrom = number("from layer", 0, len(m.Blocks))
	p.CallChunks = number("chunks of a call", 0, 3)
	p.HeldAway = nn.Away(number("away", 0, nn.Aways-1))
	p.Rings = plan.Rings{Weights: number("weight slots", 1, 5), Gradients: number("gradient slots", 1, 3), Rounded: number("rounded slots", 1, 3),
		Activations: number("activation slots", 1, 3)}
	if yes("shared inputs") {
		p.Rings.Inputs = number("spare inputs", 1, 3)
	}
	if yes("state passes") {
		p.Rings.State = number("state slots", 1, 3)
	}
	w := &p.Where
	disk, resident := yes("disk"), !bound && yes("state on the device")
	if disk {
		p.Rings.Reads = number("reads", 0, 4)
		for range number("drives", 0, 3) {
			p.Drives = append(p.Drives, number("share of a drive", 0, 5))
		}
		if len(p.Drives) > 0 {
			p.Drives[0]++ // some drive has all
		}
	}
	for part := range w.State {
		if yes("weights stay") {
			w.Weights[part] = plan.Device
		}
		if yes("device updates") {
			w.Updates[part] = plan.Device
		}
		for kind := range store.Kind(store.Kinds) {
			if inUse := kind == store.Weights || kind == store.Grad || kind == store.GradSum; disk && !(bound && inUse) && yes(kind.String()) {
				w.State[part][kind] = plan.Disk
			}
		}
		if resident && yes("state stays") {
			w.SetState(part, plan.Device)
		}
	}
	places := []plan.Place{plan.Host, plan.Device}
	if disk {
		places = append(places, plan.Disk)
	}
	for b := range w.Inputs {
		w.Inputs[b] = rapid.SampledFrom(places).Draw(rt, "input")
		w.Activations[b] = plan.Activations{Level: nn.Keep(number("keep", 0, nn.Keeps-1)),
			Place: rapid.SampledFrom(places[:2]).Draw(rt, "activations")}
	}
	if yes("dealt") {
		p.PeerCopies = yes("peer copies")
		last := rapid.SampledFrom([]int{2, 3, 8}).Draw(rt, "devices") - 1
		for range w.Inputs {
			p.Deal = append(p.Deal, number("rank", 0, last))
		}
		p.Deal = plan.DealBlocks(p.Deal)
		if yes("dealt by visit") {
			for i := range p.Deal {
				p.Deal[i] = number("rank", 0, last)
			}
		}
		if yes("dealt head") {
			p.HeadAtOnce, p.KeptLogits = true, yes("kept logits")
			for range m.HeadTiles {
				p.HeadDeal = append(p.HeadDeal, number("rank of a tile", 0, last))
			}
		}
	}
	return p
}
