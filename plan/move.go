package plan

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// Move is one change of a placement that spends memory. It is data, so that a search can say what it tried.
type Move struct {
	What  MoveKind
	Index int     // the block (input, activations, cache), the part (weights, state), or the first block (passing)
	To    Place   // of activations
	Level nn.Keep // of activations
	Count int     // passing: how many blocks, evenly among those from Index on
}

// MoveKind says which placement a move of the search changes.
type MoveKind uint8

// The moves.
const (
	MoveInput       MoveKind = iota // a saved layer input stays on the device
	MoveActivations                 // a block keeps more of its forward visit
	MoveWeights                     // a part's weights stay on the device within a step
	MoveState                       // all state of a block stays on the device, which updates it
	MoveHeadState                   // all state of the head and the final norm does
	MoveHead                        // all tiles of the head are on the device at once
	MoveCache                       // what a block keeps from pass to pass stays on the device
	MovePassing                     // the state of some blocks passes through the device to be updated
)

// String says what a move does.
func (m Move) String() string {
	switch m.What {
	case MoveInput:
		return fmt.Sprintf("the input of block %d stays on the device", m.Index)
	case MoveActivations:
		return fmt.Sprintf("block %d keeps %v: %v", m.Index, m.Level, m.To)
	case MoveWeights:
		return fmt.Sprintf("the weights of part %d stay on the device", m.Index)
	case MoveState:
		return fmt.Sprintf("the state of part %d stays on the device", m.Index)
	case MoveHeadState:
		return "the state of the head stays on the device"
	case MoveHead:
		return "the head is visited at once"
	case MoveCache:
		return fmt.Sprintf("the cache of block %d stays on the device", m.Index)
	}
	return fmt.Sprintf("the state of %d blocks from block %d on passes through the device", m.Count, m.Index)
}

// activationSlots is the ring of activations that wait in host memory, and stateSlots that of state that passes: one
// is computed with while another one moves.
const activationSlots, stateSlots = 2, 2

// apply changes a placement. Its slices are its own.
func (m Move) apply(p *Placement, of *model.Model) {
	switch m.What {
	case MoveInput:
		p.Where.Inputs[m.Index] = Device
	case MoveActivations:
		if m.To == Host && p.Rings.Activations == 0 {
			p.Rings.Activations = activationSlots
		}
		p.Where.Activations[m.Index] = Activations{m.Level, m.To}
	case MoveWeights:
		p.Where.Weights[m.Index] = Device
	case MoveState:
		p.Where.SetState(m.Index, Device)
	case MoveHeadState:
		p.Where.SetState(of.NormPart, Device)
		for _, part := range of.HeadTiles {
			p.Where.SetState(part, Device)
		}
	case MoveHead:
		p.HeadAtOnce = true
	case MoveCache:
		if p.Where.Caches == nil {
			p.Where.Caches = make([]Place, len(of.Blocks)) // Absent: of those that are not told, see resolve
		}
		p.Where.Caches[m.Index] = Device
	case MovePassing:
		p.Rings.State = stateSlots
		blocks := of.DecoderParts()[m.Index:]
		for i := range m.Count {
			p.Where.Updates[blocks[(2*i+1)*len(blocks)/(2*m.Count)]] = Device
		}
	}
}

// SetState puts all state of a part in one place.
func (t *Table) SetState(part int, at Place) {
	for kind := range t.State[part] {
		t.State[part][kind] = at
	}
}

// setDisk puts an extent on disk; saved inputs are extents of their block's part.
func (t *Table) setDisk(of *model.Model, id store.ID) {
	if id.Kind == store.Inputs {
		t.Inputs[of.Parts[id.Part].Layer-1] = Disk
		return
	}
	t.State[id.Part][id.Kind] = Disk
}

// onDisk reports whether anything is on disk.
func (t *Table) onDisk() bool {
	return slices.Contains(t.Inputs, Disk) ||
		slices.ContainsFunc(t.State, func(at [store.Kinds]Place) bool { return slices.Contains(at[:], Disk) })
}

// offDisk brings what is on disk to host memory.
func (t *Table) offDisk() {
	for part := range t.State {
		for kind, at := range t.State[part] {
			if at == Disk {
				t.State[part][kind] = Host
			}
		}
	}
	for b, at := range t.Inputs {
		if at == Disk {
			t.Inputs[b] = Host
		}
	}
}

// Stage is a row of moves of one kind, made in order for as long as there is memory for them.
type Stage []Move

// Route is an order in which memory is spent: each stage begins when all of the one before is done.
type Route []Stage
