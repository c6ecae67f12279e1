package plan

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Placement says where everything is while a step runs. It never changes a bit of the result.
type Placement struct {
	// Bind is possible on unified devices: weights are used where they lie, gradients are rounded straight into their
	// extents, and saved inputs stay where they are written. There is then no slot, no fetch and no drain.
	Bind bool `json:"bind"`

	Slots     int    `json:"slots"`      // ring of weight slots for the parts that are not resident
	Resident  []bool `json:"resident"`   // by part: a decoder block that has a weight slot of its own
	GradSlots int    `json:"grad_slots"` // ring of fp32 gradient slots
	// StateHere says, by part, whose low halves, moments and gradient are on the device beside its weights, where a step then updates
	// them: nothing of the part moves from step to step, and its extents in the store are brought up to date when somebody is to read
	// them ([Home]). It is for parts that have a weight slot of their own and are no tile of an embedding, and has no effect on others.
	StateHere []bool `json:"state_here,omitempty"`
	// StatePasses says by part, a decoder block, that its state comes to the device with its weights when a step begins
	// with a pending update, is updated there and leaves again, through a ring of StateSlots buffers: the link and the
	// device then share the updates with the host. It has no effect on parts with StateHere or without a ring slot, nor
	// where anything of the part is on disk.
	StatePasses []bool    `json:"state_passes,omitempty"`
	StateSlots  int       `json:"state_slots,omitempty"`
	StageSlots  int       `json:"stage_slots"` // ring of slots for rounded gradients on their way to the host
	Keep        []nn.Keep `json:"keep"`        // by block: what the backward visit need not recompute
	SavedHere   []bool    `json:"saved_here"`  // by block: its saved input stays on the device
	// SpareInputs is how many buffers for layer inputs there are beside one for each micro-batch; 0: a micro-batch has three, for the
	// inputs of two layers and the gradient. With spare ones the input of the next layer goes to a free buffer, as does the
	// gradient, and all saved inputs leave the device: see setting.inputBuffer. It has no effect where weights are bound.
	SpareInputs int `json:"spare_inputs,omitempty"`
	// KeptOnHost says by block that what it keeps lies in host memory between its two visits; no entries: of none. It passes through
	// a ring of KeptSlots buffers of the device, and stays there where forward turns into backward.
	KeptOnHost []bool `json:"kept_on_host,omitempty"`
	KeptSlots  int    `json:"kept_slots,omitempty"`
	// GatherAhead has a step look up rows of the embedding as the pending update will leave them, and update the table
	// later: see setting.gathersAhead.
	GatherAhead bool `json:"gather_ahead,omitempty"`
	SingleHead  bool `json:"single_head"` // one visit of the head with all tiles resident, so that logits are computed once
	// OnDisk says which extents are kept on disk, by part and kind. It has no entries where nothing is.
	OnDisk [][store.Kinds]bool `json:"on_disk,omitempty"`
	// Moves is how many pieces of a kind fetch has on their way from disk ahead of those that it moves to the device, and
	// drain on their way to disk behind those that it has moved; 0 is one.
	Moves int `json:"moves,omitempty"`
}

// setting is a placement with all that a schedule and the buffers follow from.
type setting struct {
	model *model.Model
	num   Numerics
	place Placement
	wants Wants
}

func (s *setting) blocks() int { return len(s.model.Blocks) }

// streamed reports whether the part passes through the ring of slots.
func (s *setting) streamed(part int) bool {
	return !s.place.Bind && !s.resident(part) && !s.hostOnly(part)
}

// resident reports whether the part has a weight slot of its own: where the placement says so; the final norm, which is
// tiny; and all tiles of the head in a single visit.
func (s *setting) resident(part int) bool {
	switch s.model.Parts[part].Kind {
	case model.Norm:
		return true
	case model.Block:
		return s.place.Resident[part]
	}
	return s.place.SingleHead && !s.hostOnly(part)
}

// stateHere reports whether all that is kept of the part is on the device, and updated there.
func (s *setting) stateHere(part int) bool {
	return len(s.place.StateHere) > 0 && s.place.StateHere[part] && !s.place.Bind && !s.wants.NoUpdates && !s.wants.NoClip &&
		s.resident(part) && s.trained(part) && !s.tied(part)
}

// statePasses reports whether the state of the part passes through the device to be updated.
func (s *setting) statePasses(part int) bool {
	if len(s.place.StatePasses) == 0 || !s.place.StatePasses[part] || s.place.StateSlots == 0 || !s.streamed(part) || !s.trained(part) ||
		s.model.Parts[part].Kind != model.Block || s.wants.NoUpdates || s.wants.NoClip {
		return false
	}
	for kind := range store.Kind(store.Kinds) {
		if kind != store.Inputs && s.onDisk(store.ID{Part: part, Kind: kind}) {
			return false
		}
	}
	return true
}

// anyStatePasses reports whether statePasses holds for any part.
func (s *setting) anyStatePasses() bool {
	return slices.ContainsFunc(s.model.BlockParts, s.statePasses)
}

// updatesInBackward reports whether parts are updated as soon as their gradients are in host memory. What is bound is read by the
// compute lane where an update would write it, for as long as a schedule runs; there updates wait for the step's end as ever.
func (s *setting) updatesInBackward() bool {
	return s.wants.NoClip && !s.wants.NoUpdates && !s.place.Bind
}

// sharedGrads is how many gradients there is room for in host memory where none outlives its step: one is written while
// another one is read, and the third lets either lane be early.
const sharedGrads = 3

// gradShare is the number, from 1, of the room in host memory that a part's gradient shares with those of other parts; 0: it has its own.
func (s *setting) gradShare(part int) int {
	if !s.updatesInBackward() {
		return 0
	}
	return 1 + part%sharedGrads
}

// gathersAhead reports whether a step looks up rows of the embedding as the pending update will leave them, and
// updates the table later. The first layer then waits for the rows of the step's tokens instead of the whole table.
// It takes a table in host memory and, of moments in 8 bits, rows that are whole blocks of them.
func (s *setting) gathersAhead() bool {
	if !s.place.GatherAhead || s.place.Bind || s.wants.NoUpdates || s.updatesInBackward() ||
		s.num.Moments == optim.Dynamic8 && s.model.Hidden%tensor.MomentBlock != 0 {
		return false
	}
	for _, part := range s.model.EmbedTiles {
		for kind := range store.Kind(store.Kinds) {
			if kind != store.GradSum && s.onDisk(store.ID{Part: part, Kind: kind}) {
				return false
			}
		}
		if !s.trained(part) {
			return false
		}
	}
	return true
}

// aheadElems is how many elements of the rows that are looked up ahead are updated at once, and aheadBytes what they
// take beside the weights.
func (s *setting) aheadElems() int64 {
	rows := max(s.pieceElems(s.model.EmbedTiles[0])/2/int64(s.model.Hidden), 1)
	return min(rows, int64(s.num.Positions())) * int64(s.model.Hidden)
}

func (s *setting) aheadBytes() (sum int64) {
	for kind, t := range s.types() {
		if k := store.Kind(kind); k != store.Weights {
			sum += store.AlignUp(k.Elems(s.aheadElems()) * t.Bytes())
		}
	}
	return sum + 8 // the count of bad weights, which the update itself has
}

// sumsTouchedRows reports whether the embedding's gradient is summed and rounded for the rows of the step's tokens
// alone, the others being cleared: where no head adds to it, and it is not summed where it is stored.
func (s *setting) sumsTouchedRows() bool { return !s.model.Tied && s.num.Master == optim.Split }

// touchedBytes is what the order of the tokens that occur takes: for each position of a step, and for each row of the
// vocabulary.
func (s *setting) touchedBytes() int64 {
	if !s.sumsTouchedRows() {
		return 0
	}
	return 4 * int64(s.num.StepPositions()+s.model.Vocab)
}

// onDisk reports whether an extent is kept on disk. What is updated on the device is not, nor are gradients that share memory.
func (s *setting) onDisk(id store.ID) bool {
	switch {
	case len(s.place.OnDisk) == 0, id.Kind == store.Grad && s.updatesInBackward():
		return false
	case len(s.place.StateHere) > 0 && s.place.StateHere[id.Part] && id.Kind != store.Inputs:
		return false
	}
	return s.place.OnDisk[id.Part][id.Kind]
}

// anyStateHere reports whether stateHere holds for any part.
func (s *setting) anyStateHere() bool {
	for part := range s.model.Parts {
		if s.stateHere(part) {
			return true
		}
	}
	return false
}

// keptKinds are what is kept of a part from step to step beside its weights, but for its gradient.
var keptKinds = []store.Kind{store.Low, store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale}

// keptBytes is what they take of a part.
func (s *setting) keptBytes(part int) (sum int64) {
	for _, kind := range keptKinds {
		sum += s.kindBytes(part, kind)
	}
	return sum
}

// kindBytes is what a part has of a kind with an element for each parameter, or for each block of them.
func (s *setting) kindBytes(part int, kind store.Kind) int64 {
	t := s.types()[kind]
	if t == tensor.Invalid {
		return 0
	}
	return kind.Elems(s.model.Parts[part].Layout.StateElems) * t.Bytes()
}

// hostOnly reports whether the part never visits the device: embedding tiles that are not also head tiles. The host
// gathers the rows that a step needs, which is less traffic than the table.
func (s *setting) hostOnly(part int) bool {
	return s.model.Parts[part].Kind == model.Embed && !s.model.Tied
}

// tied reports whether the part is a tile that both the embedding and the head use: its fp32 gradient stays until the
// embedding has added its share.
func (s *setting) tied(part int) bool {
	return s.model.Tied && s.model.Parts[part].Kind == model.Embed
}

// ownGrad reports whether the part has an fp32 gradient slot of its own: the final norm, which is small and collects
// gradient while the head's tiles pass, the tiles in a single visit, and blocks whose fp32 gradient waits there for its update.
func (s *setting) ownGrad(part int) bool {
	switch s.model.Parts[part].Kind {
	case model.Norm:
		return true
	case model.Block:
		return s.num.Master == optim.F32 && s.stateHere(part)
	}
	return s.place.SingleHead
}

// gradInExtent reports whether the fp32 gradient is accumulated where it is stored: bound fp32 gradients, and bound
// tied tiles, whose extent-to-be is the sum that the embedding adds to.
func (s *setting) gradInExtent(part int) bool {
	return s.place.Bind && (s.num.Master == optim.F32 && !s.tied(part) || s.tied(part))
}

// staged reports whether rounding and draining go through a stage slot.
func (s *setting) staged() bool { return !s.place.Bind && s.num.Master == optim.Split }

// trained reports whether the part has anything to update.
func (s *setting) trained(part int) bool { return s.model.Parts[part].Layout.StateElems > 0 }

// trains reports whether any part has something to update. A frozen model has no backward pass and keeps nothing for it.
func (s *setting) trains() bool {
	for part := range s.model.Parts {
		if s.trained(part) {
			return true
		}
	}
	return false
}

// savedOnDevice, savedOnHost and savedOnDisk say where the input of a block (from 0) is kept for the backward pass. The
// embedding's output comes to the device by way of the host, unless it is bound.
func (s *setting) savedOnDevice(block int) bool {
	return s.trains() && (s.place.Bind || s.savedHere(block))
}

func (s *setting) savedHere(block int) bool { return s.place.SavedHere[block] && !s.sharesInputs() }

// sharesInputs reports whether layer inputs and their gradients take turns in buffers, one for each micro-batch and the spare ones.
func (s *setting) sharesInputs() bool { return s.place.SpareInputs > 0 && !s.place.Bind }

// inputBuffer is where x[layer][m] lies among shared buffers, on the way up or down. On the way up every visit of a micro-batch takes
// the next buffer round the ring for what it writes, which the visit before the spare ones has read. The gradients follow the inputs of
// the head round the ring; what they leave free is a ring of its own, through which the inputs pass on the way down.
func (s *setting) inputBuffer(layer, m int, down bool) int {
	micros, spare := s.num.MicroBatches, s.place.SpareInputs
	visit := (layer-1)*micros + m
	if down {
		visit = (s.blocks()+2)*micros + ((s.blocks()-layer)*micros+m)%spare
	}
	return visit % (micros + spare)
}

// inputGradBuffer is where dx[m] lies among shared buffers.
func (s *setting) inputGradBuffer(m int) int { return s.inputBuffer(s.blocks()+2, m, false) }

func (s *setting) savedOnHost(block int) bool {
	return !s.place.Bind && (block == 0 || s.leaves(block) && !s.savedOnDisk(block))
}

func (s *setting) savedOnDisk(block int) bool {
	return block > 0 && s.leaves(block) && s.onDisk(store.ID{Part: s.model.BlockParts[block], Kind: store.Inputs})
}

// keptOnHost reports whether what a block (from 0) keeps for its backward visit lies in host memory between its visits.
func (s *setting) keptOnHost(block int) bool {
	return !s.place.Bind && block < len(s.place.KeptOnHost) && s.place.KeptOnHost[block] && s.place.Keep[block] > nn.KeepInput &&
		block+1 >= s.lowestTrained()
}

// blockKeptBytes is the length of what a block keeps of a micro-batch.
func (s *setting) blockKeptBytes(block int) int64 {
	a := device.NewArena(device.Mem{})
	s.model.Blocks[block].NewKept(a, s.num.Compute, s.num.Positions(), s.place.Keep[block])
	return a.Peak()
}

// leaves reports whether the input of a block leaves the device and comes back. It need not where no later layer takes the
// working buffer over, as none does from the last block, unless they share buffers; inputs below the lowest trained layer are not asked for.
func (s *setting) leaves(block int) bool {
	if s.place.Bind || s.savedHere(block) || block+1 < s.lowestTrained() {
		return false
	}
	if s.sharesInputs() {
		return true
	}
	for later := block + 2; later <= s.blocks(); later += 2 {
		if later == s.blocks() || !s.place.SavedHere[later] {
			return true
		}
	}
	return false
}

// lowestTrained is the first layer, of the blocks and the head, whose backward visit anything needs: nothing below the lowest
// trained layer is visited.
func (s *setting) lowestTrained() int {
	for part, p := range s.model.Parts {
		if s.trained(part) && p.Layer <= s.blocks() {
			return max(p.Layer, 1)
		}
	}
	return s.blocks() + 1
}

// logitChunks is the number of chunks of a micro-batch's wanted rows.
func (s *setting) logitChunks() int {
	return (s.wants.LogitRows + s.num.HeadChunk - 1) / s.num.HeadChunk
}

// types are the element types of the kinds of extents; what is not kept is tensor.Invalid.
func (s *setting) types() [store.Kinds]tensor.DType {
	types := s.num.Scheme().Types()
	if s.wants.NoUpdates {
		for _, kind := range []store.Kind{store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale} {
			types[kind] = tensor.Invalid
		}
	}
	return types
}

// weightBytes and gradBytes are the part's weights on the device and its fp32 gradient.
func (s *setting) weightBytes(part int) int64 {
	return s.model.Parts[part].Layout.WeightElems * s.num.Scheme().Types()[store.Weights].Bytes()
}

func (s *setting) gradBytes(part int) int64 { return s.model.Parts[part].Layout.StateElems * 4 }

func (s *setting) storedGradBytes(part int) int64 {
	return s.model.Parts[part].Layout.StateElems * s.num.Scheme().Types()[store.Grad].Bytes()
}

// blockPart is the part of decoder block l (1..L).
func (s *setting) blockPart(layer int) int { return s.model.BlockParts[layer-1] }
