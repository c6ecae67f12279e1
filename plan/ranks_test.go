package plan_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// Blocks are on the ranks that they are dealt to, the embedding on rank 0 and the head on that of the last block; a deal
// that the model has no room for is dropped. The schedule has operations of every rank and of no other.
func TestRanks(t *testing.T) {
	for _, c := range []struct {
		deal []int
		want []int // by layer: the blocks, from 1, and the head
	}{
		{nil, []int{0, 0, 0, 0}},
		{[]int{0, 1, 1}, []int{0, 1, 1, 1}},
		{[]int{0, 1, 0}, []int{0, 1, 0, 0}},
		{[]int{0, 1, 2}, []int{0, 1, 2, 2}},
		{[]int{0, 0, 0}, []int{0, 0, 0, 0}},
		{[]int{0, 1}, []int{0, 0, 0, 0}},
		{[]int{0, 1, -1}, []int{0, 0, 0, 0}},
	} {
		m := tiny.model(t)
		place := moving(m, 2)
		place.Deal = plan.DealBlocks(c.deal)
		p := newPlan(t, m, numerics(2, false)).With(place)
		var got []int
		for layer := 1; layer <= len(m.Blocks)+1; layer++ {
			got = append(got, p.RankOf(layer, nn.Forward))
		}
		if !slices.Equal(got, c.want) || p.Ranks() != slices.Max(c.want)+1 {
			t.Errorf("deal %v: layers are on the ranks %v, of %d", c.deal, got, p.Ranks())
		}
		seen := map[int]bool{}
		s := p.Schedule(plan.Steady)
		for i := range s.Ops {
			seen[s.Ops[i].Rank] = true
		}
		if len(seen) != p.Ranks() {
			t.Errorf("deal %v: operations are on the ranks %v, of %d", c.deal, seen, p.Ranks())
		}
	}
}

// A block whose backward visit is dealt to another rank has its input loaded there, into a buffer that the input of an
// earlier block must have left.
func TestInputsOfMovedVisits(t *testing.T) {
	s := tiny
	s.Layers = 5
	m := s.model(t)
	place := moving(m, 1)
	place.Deal = []int{0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}
	p := newPlan(t, m, numerics(2, false)).With(place)
	mode := plan.Mode{Pass: plan.Steady}
	for _, err := range check(p, mode, p.ScheduleOf(mode)) {
		t.Error(err)
	}
}
