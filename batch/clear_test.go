package batch

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// A micro-batch that is cleared is padding: it has nothing of the documents before.
func TestClear(t *testing.T) {
	m := New(5)
	m.SetDocument(0, []int32{7, 8, 9})
	m.Targets[0], m.Weights[1] = 0, 0.5
	if m.Count() != 1 {
		t.Errorf("%d targets count, and token 0 is one", m.Count())
	}
	m.Clear()
	if padding := New(5); !slices.Equal(m.IDs, padding.IDs) || !slices.Equal(m.Positions, padding.Positions) ||
		!slices.Equal(m.Targets, padding.Targets) || !slices.Equal(m.Weights, padding.Weights) ||
		!slices.Equal(m.DocStart, padding.DocStart) || !slices.Equal(m.DocEnd, padding.DocEnd) || m.Count() != 0 {
		t.Errorf("%+v, want %+v", m, padding)
	}
	if !slices.Equal(m.IDs, make([]int32, 5)) || !slices.Equal(m.Positions, make([]int32, 5)) {
		t.Errorf("padding has tokens: %+v", m)
	}
}

// Weights must be finite, in either direction.
func TestCheckWeights(t *testing.T) {
	for _, w := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := New(4)
		m.SetDocument(0, []int32{1, 2, 3, 4})
		m.Weights[2] = float32(w)
		if err := m.Check(4, 4, 10); err == nil || !strings.Contains(err.Error(), "position 2 has the weight") {
			t.Errorf("%v: error %v", w, err)
		}
		m.Weights[2] = -1
		if err := m.Check(4, 4, 10); err != nil {
			t.Error(err)
		}
	}
}

// The arrays of a layout follow each other from the beginning.
func TestLayoutOf(t *testing.T) {
	if got, want := LayoutOf(3), (Layout{IDs: 0, Targets: 12, Weights: 24, Positions: 36, DocStart: 48, DocEnd: 60, ArrayBytes: 12}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if Bytes(3) != 72 {
		t.Errorf("%d bytes", Bytes(3))
	}
}
