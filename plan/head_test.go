package plan_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
)

// dealtHead is a plan with six tiles of the head on the ranks of tiles, and more micro-batches than are in it at once.
func dealtHead(t *testing.T, tiles []int, kept, peers bool) *plan.Plan {
	t.Helper()
	s := tiny
	s.Vocab = 700
	m := s.model(t)
	place := moving(m, 2)
	place.Deal = []int{0, 1, 2, tiles[0], 1, 0, 2}
	place.HeadAtOnce, place.HeadDeal, place.KeptLogits, place.PeerCopies = true, tiles, kept, peers
	p := newPlan(t, m, numerics(9, true)).With(place)
	if !slices.Equal(p.Placement.HeadDeal, tiles) || p.Placement.KeptLogits != kept {
		t.Fatalf("the head is dealt to %v, with logits kept: %v", p.Placement.HeadDeal, p.Placement.KeptLogits)
	}
	return p
}

// Schedules of a dealt head are sound, whatever the order of ranks.
func TestDealtHeadIsSound(t *testing.T) {
	for _, tiles := range [][]int{{0, 0, 1, 1, 2, 2}, {2, 1, 0, 2, 0, 1}} {
		for _, kept := range []bool{false, true} {
			for _, peers := range []bool{false, true} {
				p := dealtHead(t, tiles, kept, peers)
				for _, pass := range usualPasses {
					mode := plan.Mode{Pass: pass}
					for _, err := range check(p, mode, p.ScheduleOf(mode)) {
						t.Errorf("%v, kept %v, peers %v: %s", tiles, kept, peers, err)
					}
				}
			}
		}
	}
}

// While a micro-batch is on its way back through the tiles, the next ones are on their way up: a rank has them in turn.
func TestTurnsOfDealtHead(t *testing.T) {
	var got []int // micro-batches that rank 0 has, negative on the way back
	for _, op := range dealtHead(t, []int{0, 0, 0, 1, 1, 2}, false, true).Schedule(plan.Steady).Ops {
		switch name := op.Name(); {
		case op.Rank == 0 && name == "head-norm":
			got = append(got, op.Micro)
		case name == "head-input":
			got = append(got, -op.Micro)
		}
	}
	if want := []int{0, 1, 2, 3, 4, 0, 5, -1, 6, -2, 7, -3, 8, -4, -5, -6, -7, -8}; !slices.Equal(got, want) {
		t.Errorf("turns %v, want %v", got, want)
	}
}

// Of eight devices, three have a tile of the head each and keep its logits, and another one begins the backward pass.
func TestHeadIsDealt(t *testing.T) {
	r, _ := onMachine(t, "llama-3-8b", "h100-x8-2tb")
	r.Numerics.MicroBatch, r.Numerics.MicroBatches, r.Numerics.SequenceLen, r.Devices = 1, 8, 4096, 8
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	place := p.Placement
	ranks := slices.Compact(slices.Sorted(slices.Values(place.HeadDeal)))
	if next := place.Deal[len(r.Model.Blocks)+1]; len(ranks) != 3 || !place.KeptLogits || slices.Contains(ranks, next) {
		t.Errorf("tiles are dealt to %v, with logits kept: %v; the last block's backward visit to %d", place.HeadDeal,
			place.KeptLogits, next)
	}
	if text := strings.Join(p.Choices(), "\n"); !strings.Contains(text,
		"logits are computed once, by 3 devices with a share of the vocabulary each") {
		t.Error(text)
	}
}
