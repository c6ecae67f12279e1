package data

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documentOf is a document of n tokens that begins with some.
func documentOf(n int, first ...int32) Example {
	e := Example{InputIDs: make([]int32, n), Labels: make([]int32, n)}
	copy(e.InputIDs, first)
	for i := range e.Labels {
		e.Labels[i] = Ignore
	}
	return e
}

func datasetOf(t *testing.T, documents ...Example) *Dataset {
	t.Helper()
	d, err := NewDataset(documents)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLengths(t *testing.T) {
	var all []Example
	for n := range 100 {
		all = append(all, documentOf(10*(100-n)))
	}
	for _, n := range []int{2048, 2049, 8193} {
		all = append(all, documentOf(n))
	}
	got, err := datasetOf(t, all...).Lengths()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Lengths{520, 930, 2049, [3]LengthOver{{2048, 2}, {4096, 1}, {8192, 1}}}, got); diff != "" {
		t.Error(diff)
	}
	if got, err := datasetOf(t, documentOf(7)).Lengths(); err != nil || got.P50 != 7 || got.P99 != 7 {
		t.Errorf("one document: %+v, %v", got, err)
	}
}

// TestRepeats: documents are equal by all their tokens and by nothing else, also across the parts in which long ones are
// read.
func TestRepeats(t *testing.T) {
	counted := documentOf(3, 1, 2, 3)
	counted.Labels = []int32{Ignore, 2, 3}
	long, other := documentOf(50_000, 9), documentOf(50_000, 9)
	other.InputIDs[49_999] = 1
	d := datasetOf(t, documentOf(3, 1, 2, 3), documentOf(2, 1, 2), counted, documentOf(4, 1, 2, 3), long, other, documentOf(3, 1, 2, 3), long)
	held := datasetOf(t, documentOf(2, 1, 2), documentOf(2, 2, 1), long, documentOf(2, 1, 2))
	for _, c := range []struct {
		held           *Dataset
		equal, heldToo int
	}{{nil, 3, 0}, {held, 3, 3}, {datasetOf(t, documentOf(1, 5)), 3, 0}} {
		equal, heldToo, err := d.Repeats(t.Context(), c.held)
		if err != nil || equal != c.equal || heldToo != c.heldToo {
			t.Errorf("%d equal, %d held out, %v; want %d and %d", equal, heldToo, err, c.equal, c.heldToo)
		}
	}
	// Parts of one dataset, as val_size makes them.
	var copies []Example
	for range 10 {
		copies = append(copies, documentOf(3, 4, 5, 6))
	}
	training, part, err := datasetOf(t, copies...).Split(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	if equal, heldToo, err := training.Repeats(t.Context(), part); err != nil || equal != 6 || heldToo != 3 {
		t.Errorf("a split: %d and %d, %v", equal, heldToo, err)
	}
}
