// Package batch is the micro-batch: the token arrays that the loader fills, the engine checks and the kernels read.
//
//   - [Micro] is its six arrays of T entries, one for each position.
//   - [Layout] says where each array begins in the bytes of one micro-batch, in the loader's memory, in the host's and on
//     the device alike.
package batch

import (
	"fmt"
	"math"
	"unsafe"
)

// Micro is one micro-batch: rows of packed documents, flattened one after the other. All arrays have one entry for each
// of its T positions. A position that is padding has token 0, target -1, weight 1, position 0, and is a document of its own.
type Micro struct {
	// IDs are the input tokens.
	IDs []int32
	// Targets[t] is the token that position t learns to predict. A negative one does not count in the loss.
	Targets []int32
	// Weights[t] multiplies the loss of position t where its gradient is computed: 1 in plain cross-entropy, which nil
	// means for all.
	Weights []float32
	// Positions count from 0 in each document.
	Positions []int32
	// DocStart[t] and DocEnd[t] bound the document of position t: its first position, and one past its last.
	DocStart, DocEnd []int32
}

// Layout has the first byte of each array of a micro-batch, counted from its first array. All arrays have ArrayBytes.
type Layout struct {
	IDs, Targets, Weights, Positions, DocStart, DocEnd int64
	ArrayBytes                                         int64
}

const (
	arrays     = 6
	entryBytes = 4
)

// LayoutOf returns the layout of a micro-batch with that number of positions.
func LayoutOf(positions int) Layout {
	n := int64(positions) * entryBytes
	return Layout{IDs: 0, Targets: n, Weights: 2 * n, Positions: 3 * n, DocStart: 4 * n, DocEnd: 5 * n, ArrayBytes: n}
}

// Bytes returns the size of micro-batches that have that number of positions together.
func Bytes(positions int) int64 { return arrays * entryBytes * int64(positions) }

// New allocates a micro-batch of padding.
func New(positions int) Micro {
	m := In(make([]int32, arrays*positions))
	m.Clear()
	return m
}

// In returns the micro-batch stored in memory, which holds the entries of all of its arrays and no more. In writes
// nothing.
func In(memory []int32) Micro {
	l := LayoutOf(len(memory) / arrays)
	at := func(offset int64) []int32 {
		first, end := offset/entryBytes, (offset+l.ArrayBytes)/entryBytes
		return memory[first:end:end]
	}
	weights := at(l.Weights)
	return Micro{IDs: at(l.IDs), Targets: at(l.Targets), Positions: at(l.Positions), DocStart: at(l.DocStart), DocEnd: at(l.DocEnd),
		Weights: unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(weights))), len(weights))}
}

// Clear makes all positions padding.
func (m Micro) Clear() {
	clear(m.IDs)
	clear(m.Positions)
	for t := range m.Targets {
		m.Targets[t] = -1
		m.Weights[t] = 1
		m.DocStart[t] = int32(t)
		m.DocEnd[t] = int32(t + 1)
	}
}

// SetDocument makes the positions from first on, as many as it has tokens, one document. Their targets and
// weights stay as they are.
func (m Micro) SetDocument(first int, tokens []int32) {
	copy(m.IDs[first:], tokens)
	for i := range tokens {
		t := first + i
		m.Positions[t], m.DocStart[t], m.DocEnd[t] = int32(i), int32(first), int32(first+len(tokens))
	}
}

// Copy copies all arrays from another micro-batch of the same length.
func (m Micro) Copy(from Micro) {
	copy(m.IDs, from.IDs)
	copy(m.Targets, from.Targets)
	if from.Weights == nil {
		for t := range m.Weights {
			m.Weights[t] = 1
		}
	}
	copy(m.Weights, from.Weights)
	copy(m.Positions, from.Positions)
	copy(m.DocStart, from.DocStart)
	copy(m.DocEnd, from.DocEnd)
}

// Check refuses arrays whose length is not positions, and entries that would make an operation leave its bounds:
// tokens and targets outside of the vocabulary, places outside of a row of sequenceLen, documents that do not hold
// their positions, and weights that are not finite.
func (m Micro) Check(positions, sequenceLen, vocab int) error {
	for _, array := range [][]int32{m.IDs, m.Targets, m.Positions, m.DocStart, m.DocEnd} {
		if len(array) != positions {
			return fmt.Errorf("batch: an array of %d entries, the plan has %d positions", len(array), positions)
		}
	}
	if m.Weights != nil && len(m.Weights) != positions {
		return fmt.Errorf("batch: an array of %d weights, the plan has %d positions", len(m.Weights), positions)
	}
	for i, id := range m.IDs {
		at, target, place, start, end := int32(i), m.Targets[i], m.Positions[i], m.DocStart[i], m.DocEnd[i]
		switch {
		case id < 0 || int(id) >= vocab || int(target) >= vocab:
			return fmt.Errorf("batch: token %d or target %d is outside of the vocabulary of %d", id, target, vocab)
		case place < 0 || int(place) >= sequenceLen, start < 0 || start > at || end <= at || int(end) > positions:
			return fmt.Errorf("batch: position %d has place %d in a document at [%d, %d)", i, place, start, end)
		case start != at && (i == 0 || start != m.DocStart[i-1]):
			return fmt.Errorf("batch: position %d is of a document that begins at %d, but the position before it is not", i, start)
		}
	}
	for i, w := range m.Weights {
		if math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) {
			return fmt.Errorf("batch: the loss of position %d has the weight %v, which is not finite", i, w)
		}
	}
	return nil
}

// Count is the number of positions whose targets count in the loss.
func (m Micro) Count() int {
	n := 0
	for _, target := range m.Targets {
		if target >= 0 {
			n++
		}
	}
	return n
}
