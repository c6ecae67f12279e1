package trace_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/trace"
)

func TestExpertsOf(t *testing.T) {
	if x := trace.ExpertsOf([][]int{nil, nil}); x != nil {
		t.Errorf("a model without experts has %+v", x)
	}
	x := trace.ExpertsOf([][]int{{5, 5, 5, 5}, nil, {0, 8, 0, 0}, {1, 3, 0, 0}, {7}})
	want := &trace.Experts{Busiest: []float64{0.25, 1, 0.75, 1}, Entropy: []float64{1, 0, 0.4056, 0}, Unused: []int{0,
		3, 2, 0}}
	if diff := cmp.Diff(want, x); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if x.Worst() != 1 || x.AllUnused() != 5 {
		t.Errorf("the worst layer is %d, and %d experts are not used", x.Worst(), x.AllUnused())
	}
	text, err := json.Marshal(trace.Metrics{Step: 3, Experts: x})
	if err != nil {
		t.Fatal(err)
	}
	var m trace.Metrics
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, m.Experts); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}
