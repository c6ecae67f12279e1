package plan

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// A search for the blocks whose gradients are kept ends where an eighth of them is no faster, and else takes the
// fastest of three; it hands on the seconds of the best way for all.
func TestInPartTriesEighths(t *testing.T) {
	m := &model.Model{Blocks: make([]*nn.Block, 16)}
	in := func(sec float64) *Plan { return &Plan{Model: m, Predicted: Prediction{StepSeconds: sec}} }
	for _, c := range []struct {
		seconds     map[int]float64 // by the first layer that is computed twice; the others do not fit
		tried       []int
		want, other float64
	}{
		{map[int]float64{3: 11, 5: 5}, []int{3}, 10, 0},
		{map[int]float64{3: 9, 5: 9.5, 2: 9.2}, []int{3, 5, 2}, 9, 10},
		{map[int]float64{3: 9, 5: 8, 2: 9.2}, []int{3, 5, 2}, 8, 10},
		{map[int]float64{3: 9, 5: 9.5, 2: 8}, []int{3, 5, 2}, 8, 10},
		{map[int]float64{5: 8, 2: 8}, []int{3}, 10, 0},
		{map[int]float64{3: 9, 2: 8}, []int{3, 5, 2}, 8, 10},
	} {
		var tried []int
		got := inPart(in(10), func(_ Gradients, from int, _ float64) (*Plan, error) {
			tried = append(tried, from)
			sec, fits := c.seconds[from]
			if !fits {
				return nil, errors.New("it does not fit")
			}
			return in(sec), nil
		})
		if !slices.Equal(tried, c.tried) || got.Predicted.StepSeconds != c.want || got.OtherStepSeconds != c.other {
			t.Errorf("%v: tried %v, took %v s, %v s otherwise", c.seconds, tried, got.Predicted.StepSeconds,
				got.OtherStepSeconds)
		}
	}
}

// Some of both ways is tried whichever of them is faster for all, unless neither is fast enough.
func TestInPartFollowsBothWays(t *testing.T) {
	m := &model.Model{Blocks: make([]*nn.Block, 16)}
	for _, c := range []struct {
		kept, twice, part float64
		want, other       float64
	}{
		{10, 12, 9, 9, 10},
		{12, 10, 9, 9, 10},
		{10, 12, 11, 10, 12},
		{12, 10, 11, 10, 12},
		{math.Inf(1), math.Inf(1), 9, math.Inf(1), 0},
	} {
		got, err := fasterWay(t.Context(), 0, true, func(way Gradients, from int, _ float64) (*Plan, error) {
			p := &Plan{Model: m, Predicted: Prediction{StepSeconds: c.kept}}
			p.Placement.Where.Inputs = []Place{Disk}
			switch {
			case from > 0:
				p.Predicted.StepSeconds = c.part
			case way == GradientsTwice:
				p.Predicted.StepSeconds = c.twice
			}
			return p, nil
		})
		if err != nil || got.Predicted.StepSeconds != c.want || got.OtherStepSeconds != c.other {
			t.Errorf("%v: %v s, %v s otherwise, error %v", c, got.Predicted.StepSeconds, got.OtherStepSeconds, err)
		}
	}
}
