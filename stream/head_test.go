package stream_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/plan"
)

// Tiles of the head on several devices, one after the other or in any order, have the bits of one device, with more
// micro-batches than are in the head at once. So have passes that continue sequences, for logits and for tokens.
func TestDealtHeadChangesNoBit(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, s := range []shape{{BF16: true}, {Tied: true}, {BF16: true, Tied: true, Cohorts: 2}} {
		like := tiny
		like.BF16, like.Tied, like.Cohorts, like.Micro = s.BF16, s.Tied, s.Cohorts, 8
		sub := like.subject(t, 1).withPasses(!s.BF16)
		one := start(t, sub, setup{change: streamed(1), serial: true, device: dev})
		want := train(t, one, sub, 1)
		continued := passes(t, one)
		one.close(t)
		for _, tiles := range [][]int{{0, 0, 1, 1, 2, 2}, {2, 1, 0, 2, 0, 1}} {
			for _, way := range []struct{ kept, peers bool }{{false, true}, {true, false}, {true, true}} {
				r := start(t, sub, setup{device: dev, change: func(p *plan.Placement) {
					streamed(1)(p)
					p.Deal = []int{0, 1, 2, tiles[0], 1, 0, 2}
					p.HeadAtOnce, p.HeadDeal, p.KeptLogits, p.PeerCopies = true, tiles, way.kept, way.peers
				}})
				if place := r.plan.Placement; !slices.Equal(place.HeadDeal, tiles) || place.KeptLogits != way.kept {
					t.Errorf("the head is dealt to %v, with logits kept: %v", place.HeadDeal, place.KeptLogits)
				}
				t.Log(s, tiles, way)
				sameBits(t, train(t, r, sub, 1), want, r.plan)
				if got := passes(t, r); got != continued {
					t.Errorf("passes that continue sequences give %s, want %s", got, continued)
				}
				r.close(t)
			}
		}
	}
}
