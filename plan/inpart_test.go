package plan

import (
	"errors"
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
		got := Request{}.inPart(in(10), func(from int, most float64) (*Plan, error) {
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
