package plan

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// Place names the memory in which bytes wait between two uses.
type Place uint8

// The places.
const (
	Absent  Place = iota // there is nothing to keep
	InPlace              // in host memory, where a unified device uses them: nothing moves
	Device               // in the device's memory
	Host                 // in host memory
	Disk                 // in files
)

var placeNames = [...]string{"absent", "in-place", "device", "host", "disk"}

// String is the place's name in plan.json.
func (p Place) String() string { return placeNames[p] }

// MarshalText writes the name.
func (p Place) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Place) UnmarshalText(text []byte) error {
	i := slices.Index(placeNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("place %q is unknown; there are %v", text, placeNames)
	}
	*p = Place(i)
	return nil
}

// Table says where everything waits. It is the only author of places: the schedule, the device's and the host's
// memory, the simulation and the engine all follow from it. A table never changes a bit of the result.
type Table struct {
	// State says, by part and kind of extent, where the extent waits from step to step. Where a part's state is on the
	// device, the device updates it there, the store's copy in host memory is written back before it is read
	// ([WriteBack]), and the gradient has no extent.
	State [][store.Kinds]Place `json:"state"`
	// Weights says by part where the weights wait between the visits of one step: on the device, in a slot of their own;
	// or where State has them, to be fetched for each visit through the ring of slots (Host). Parts that the device
	// never visits have none.
	Weights []Place `json:"weights"`
	// Updates says by part where AdamW runs: on the host or on the device. State that is not on the device and is
	// updated there passes: it comes with the weights when a step begins, is updated and leaves again, so that the link
	// and the device share the updates with the host.
	Updates []Place `json:"updates"`
	// Inputs says by block where its input waits for the backward visit; that of a block that no backward visit needs is
	// absent.
	Inputs []Place `json:"inputs"`
	// Activations says by block what its forward visit keeps for the backward visit, and where that waits.
	Activations []Activations `json:"activations"`
	// Caches says by block where its cache waits between visits: in place, on the device, or in host memory, from where
	// it comes for each visit through the ring and goes back. None: no caches are kept.
	Caches []Place `json:"caches,omitempty"`
}

// Activations says which values a block keeps of its forward visit, and at which place.
type Activations struct {
	Level nn.Keep `json:"level"`
	Place Place   `json:"place"`
}

// Rings are the numbers of buffers that the device has for values that pass through it.
type Rings struct {
	Weights   int `json:"weights"`   // weights of parts that have no slot of their own
	Gradients int `json:"gradients"` // fp32 gradients
	Rounded   int `json:"rounded"`   // rounded gradients on their way to the host
	// State is for parts whose state passes.
	State int `json:"state,omitempty"`
	// Inputs counts the spare buffers for layer inputs, on top of one for each micro-batch; 0: a micro-batch has three,
	// for the inputs of two layers and the gradient. With spare ones the input of the next layer goes to a free buffer,
	// as does the gradient, and all saved inputs leave the device: see Plan.inputBuffer.
	Inputs int `json:"inputs,omitempty"`
	// Activations is for those that wait in host memory. They stay in the ring where forward turns into backward.
	Activations int `json:"activations,omitempty"`
	// Reads is the number of pieces of a kind on their way from disk ahead of those that fetch moves to the device,
	// and drain on their way to disk after those that it has moved; 0 is one.
	Reads int `json:"reads,omitempty"`
}

// Placement is the table and what else of memory a step is given for speed.
type Placement struct {
	Where Table `json:"where"`
	Rings Rings `json:"rings"`
	// HeadAtOnce has all tiles of the head on the device in one visit, so that logits are computed once.
	HeadAtOnce bool `json:"head_at_once"`
	// LookAhead has a step look up rows of the embedding as the pending update will leave them, and update the table
	// later. The first layer then waits for the rows of the step's tokens instead of the whole table.
	LookAhead bool `json:"look_ahead,omitempty"`
	// CallChunks is the number of chunks (Numerics.BlockRows) whose rows experts take in one call; 0: one. Larger calls
	// take more scratch, and fewer of them find no rows: see device.Blocks.
	CallChunks int `json:"call_chunks,omitempty"`
	// HeldAway says how much of what a block holds of all rows between its visits waits in host memory, where the device
	// reads and writes it over the link: for steps of more rows than there is room for.
	HeldAway nn.Away `json:"held_away,omitempty"`
	// Deal says by visit which rank computes it, from 0: forward of the blocks, the head, backward of the blocks from
	// the last one down. None: rank 0 computes all.
	Deal []int `json:"deal,omitempty"`
	// HeadDeal says by tile of the head which rank computes it, where Deal deals the visits and the head is on the
	// devices at once; the first tile is on the rank of the head. None: all are.
	HeadDeal []int `json:"head_deal,omitempty"`
	// KeptLogits has the logits of a dealt head wait on the devices for their gradients, so that they are computed
	// once.
	KeptLogits bool `json:"kept_logits,omitempty"`
	// Twice has a step compute its gradients twice: for the norm, and when that is known for updates. So no gradient
	// waits for the norm, and none has a place of its own in host memory or on disk (sharedGrads).
	Twice bool `json:"gradients_twice,omitempty"`
	// TwiceFrom has Twice hold for the layers from this one on, the head among them: gradients of the layers below wait
	// for the norm, as they do otherwise, and are updated during the second half. 0: it holds for all.
	TwiceFrom int `json:"gradients_twice_from,omitempty"`
	// PeerCopies has rows pass from rank to rank by copies between the devices (device.Peers); else they pass by way of
	// host memory.
	PeerCopies bool `json:"peer_copies,omitempty"`
	// Drives has by drive its share of the pieces on disk, out of the sum of all; nil: there is one drive.
	Drives []int `json:"drives,omitempty"`
}

// Bound reports whether weights are used where they are, as a unified device can. Gradients are then rounded straight
// into their extents, and saved inputs stay where they are written. There is no slot, no fetch and no drain.
func (t *Table) Bound() bool { return len(t.State) > 0 && t.State[0][store.Weights] == InPlace }

// Clone is a copy with slices of its own.
func (p Placement) Clone() Placement {
	w := &p.Where
	w.State, w.Weights, w.Updates = slices.Clone(w.State), slices.Clone(w.Weights), slices.Clone(w.Updates)
	w.Inputs, w.Activations = slices.Clone(w.Inputs), slices.Clone(w.Activations)
	w.Caches, p.Deal, p.HeadDeal = slices.Clone(w.Caches), slices.Clone(p.Deal), slices.Clone(p.HeadDeal)
	p.Drives = slices.Clone(p.Drives)
	return p
}

// placementKey tells placements apart: a search knows them again by it.
type placementKey struct {
	rings                                         Rings
	headAtOnce, keptLogits, lookAhead, peerCopies bool
	twice                                         bool
	twiceFrom, callChunks                         int
	heldAway                                      nn.Away
	lists                                         string // the table and the deals, each list after its length
}

func (p *Placement) key() placementKey {
	w := &p.Where
	lists := make([]byte, 0, 16*(len(w.State)+len(w.Inputs)))
	begin := func(n int) { lists = binary.AppendUvarint(lists, uint64(n)) }
	begin(len(w.State))
	for i := range w.State {
		for _, at := range w.State[i] {
			lists = append(lists, byte(at))
		}
	}
	for _, places := range [][]Place{w.Weights, w.Updates, w.Inputs, w.Caches} {
		begin(len(places))
		for _, at := range places {
			lists = append(lists, byte(at))
		}
	}
	begin(len(w.Activations))
	for _, a := range w.Activations {
		lists = append(lists, byte(a.Level), byte(a.Place))
	}
	for _, deal := range [][]int{p.Deal, p.HeadDeal, p.Drives} {
		begin(len(deal))
		for _, rank := range deal {
			lists = binary.AppendUvarint(lists, uint64(rank))
		}
	}
	return placementKey{p.Rings, p.HeadAtOnce, p.KeptLogits, p.LookAhead, p.PeerCopies, p.Twice, p.TwiceFrom,
		p.CallChunks, p.HeldAway, string(lists)}
}
