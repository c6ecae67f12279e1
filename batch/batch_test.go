package batch

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestLayout holds the arrays of In to LayoutOf, and both to the memory: no entry is in two arrays or in none.
func TestLayout(t *testing.T) {
	const positions = 3
	memory := make([]int32, Bytes(positions)/entryBytes)
	m, l := In(memory), LayoutOf(positions)
	m.Weights[0], m.Weights[1], m.Weights[2] = 1, 1, 1
	for mark, a := range []struct {
		array  []int32
		offset int64
	}{{m.IDs, l.IDs}, {m.Targets, l.Targets}, {m.Positions, l.Positions}, {m.DocStart, l.DocStart}, {m.DocEnd, l.DocEnd}} {
		if len(a.array) != positions || cap(a.array) != positions || l.ArrayBytes != positions*entryBytes {
			t.Fatalf("array %d has %d of %d entries", mark, len(a.array), cap(a.array))
		}
		for i := range a.array {
			a.array[i] = int32(mark + 1)
			if memory[a.offset/entryBytes+int64(i)] != int32(mark+1) {
				t.Errorf("entry %d of array %d is not where the layout says", i, mark)
			}
		}
	}
	for i, x := range memory {
		if x == 0 {
			t.Errorf("entry %d of the memory is in no array", i)
		}
	}
}

// The weights are the entries of the array that is not one of integers.
func TestWeights(t *testing.T) {
	const positions = 3
	memory := make([]int32, Bytes(positions)/entryBytes)
	m, first := In(memory), LayoutOf(positions).Weights/entryBytes
	m.Clear()
	copied := New(positions)
	copied.Weights[1] = -2.5
	m.Copy(copied)
	for i, want := range []float32{1, -2.5, 1} {
		if got := math.Float32frombits(uint32(memory[int(first)+i])); got != want {
			t.Errorf("weight %d is %v, want %v", i, got, want)
		}
	}
	if len(m.Weights) != positions || cap(m.Weights) != positions {
		t.Errorf("%d of %d weights", len(m.Weights), cap(m.Weights))
	}
}

func TestSetDocument(t *testing.T) {
	m := New(5)
	m.SetDocument(1, []int32{7, 8, 9})
	m.Targets[1], m.Targets[2] = 8, 9
	copied := New(5)
	copied.Copy(m)
	for name, c := range map[string]struct{ got, want []int32 }{
		"ids": {copied.IDs, []int32{0, 7, 8, 9, 0}}, "targets": {copied.Targets, []int32{-1, 8, 9, -1, -1}},
		"positions": {copied.Positions, []int32{0, 0, 1, 2, 0}}, "starts": {copied.DocStart, []int32{0, 1, 1, 1, 4}},
		"ends": {copied.DocEnd, []int32{1, 4, 4, 4, 5}},
	} {
		for i := range c.want {
			if c.got[i] != c.want[i] {
				t.Errorf("%s are %v, want %v", name, c.got, c.want)
				break
			}
		}
	}
	if n := copied.Count(); n != 2 {
		t.Errorf("%d targets count, want 2", n)
	}
	if err := copied.Check(5, 5, 10); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	for want, spoil := range map[string]func(m *Micro){
		"an array of 3 entries":                        func(m *Micro) { m.DocEnd = m.DocEnd[:3] },
		"token 10 or target -1 is outside of":          func(m *Micro) { m.IDs[2] = 10 },
		"token -1 or target -1 is outside of":          func(m *Micro) { m.IDs[2] = -1 },
		"token 0 or target 10 is outside of":           func(m *Micro) { m.Targets[3] = 10 },
		"position 1 has place 2 in a document":         func(m *Micro) { m.Positions[1] = 2 },
		"position 1 has place -1 in a document":        func(m *Micro) { m.Positions[1] = -1 },
		"position 2 has place 0 in a document at [3,":  func(m *Micro) { m.DocStart[2] = 3 },
		"position 2 has place 0 in a document at [-1,": func(m *Micro) { m.DocStart[2] = -1 },
		"in a document at [2, 2)":                      func(m *Micro) { m.DocEnd[2] = 2 },
		"an array of 3 weights":                        func(m *Micro) { m.Weights = m.Weights[:3] },
		"position 1 has the weight +Inf":               func(m *Micro) { m.Weights[1] = float32(math.Inf(1)) },
		"position 3 has the weight NaN":                func(m *Micro) { m.Weights[3] = float32(math.NaN()) },
		"in a document at [2, 5)":                      func(m *Micro) { m.DocEnd[2] = 5 },
		"position 3 is of a document that begins at 1": func(m *Micro) { m.DocStart[3] = 1 },
	} {
		m := New(4)
		spoil(&m)
		if err := m.Check(4, 2, 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	m := New(4)
	if err := m.Check(4, 2, 10); err != nil {
		t.Error(err)
	}
	m.Weights = nil
	if err := m.Check(4, 2, 10); err != nil {
		t.Errorf("without weights: %v", err)
	}
	to := New(4)
	to.Weights[2] = 7
	if to.Copy(m); !slices.Equal(to.Weights, []float32{1, 1, 1, 1}) {
		t.Errorf("a copy without weights has %v", to.Weights)
	}
}
