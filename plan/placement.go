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
	// gradient, and all saved inputs leave the device: see Plan.inputBuffer. It has no effect where weights are bound.
	SpareInputs int `json:"spare_inputs,omitempty"`
	// KeptOnHost says by block that what it keeps lies in host memory between its two visits; no entries: of none. It passes through
	// a ring of KeptSlots buffers of the device, and stays there where forward turns into backward.
	KeptOnHost []bool `json:"kept_on_host,omitempty"`
	KeptSlots  int    `json:"kept_slots,omitempty"`
	// GatherAhead has a step look up rows of the embedding as the pending update will leave them, and update the table
	// later: see Plan.gathersAhead.
	GatherAhead bool `json:"gather_ahead,omitempty"`
	SingleHead  bool `json:"single_head"` // one visit of the head with all tiles resident, so that logits are computed once
	// OnDisk says which extents are kept on disk, by part and kind. It has no entries where nothing is.
	OnDisk [][store.Kinds]bool `json:"on_disk,omitempty"`
	// Moves is how many pieces of a kind fetch has on their way from disk ahead of those that it moves to the device, and
	// drain on their way to disk behind those that it has moved; 0 is one.
	Moves int `json:"moves,omitempty"`
}

func (p *Plan) blocks() int { return len(p.Model.Blocks) }

// streamed reports whether the part passes through the ring of slots.
func (p *Plan) streamed(part int) bool {
	return !p.Placement.Bind && !p.resident(part) && !p.hostOnly(part)
}

// resident reports whether the part has a weight slot of its own: where the placement says so; the final norm, which is
// tiny; and all tiles of the head in a single visit.
func (p *Plan) resident(part int) bool {
	switch p.Model.Parts[part].Kind {
	case model.Norm:
		return true
	case model.Block:
		return p.Placement.Resident[part]
	}
	return p.Placement.SingleHead && !p.hostOnly(part)
}

// StateResident reports whether all that is kept of the part is on the device, and updated there.
func (p *Plan) StateResident(part int) bool {
	return len(p.Placement.StateHere) > 0 && p.Placement.StateHere[part] && !p.Placement.Bind && !p.Wants.NoUpdates && !p.Wants.NoClip &&
		p.resident(part) && p.Trained(part) && !p.Tied(part)
}

// StatePasses reports whether the state of the part passes through the device to be updated.
func (p *Plan) StatePasses(part int) bool {
	if len(p.Placement.StatePasses) == 0 || !p.Placement.StatePasses[part] || p.Placement.StateSlots == 0 || !p.streamed(part) || !p.Trained(part) ||
		p.Model.Parts[part].Kind != model.Block || p.Wants.NoUpdates || p.Wants.NoClip {
		return false
	}
	for kind := range store.Kind(store.Kinds) {
		if kind != store.Inputs && p.OnDisk(store.ID{Part: part, Kind: kind}) {
			return false
		}
	}
	return true
}

// anyStatePasses reports whether statePasses holds for any part.
func (p *Plan) anyStatePasses() bool {
	return slices.ContainsFunc(p.Model.BlockParts, p.StatePasses)
}

// UpdatesInBackward reports whether parts are updated as soon as their gradients are in host memory. What is bound is read by the
// compute lane where an update would write it, for as long as a schedule runs; there updates wait for the step's end as ever.
func (p *Plan) UpdatesInBackward() bool {
	return p.Wants.NoClip && !p.Wants.NoUpdates && !p.Placement.Bind
}

// sharedGrads is how many gradients there is room for in host memory where none outlives its step: one is written while
// another one is read, and the third lets either lane be early.
const sharedGrads = 3

// gradShare is the number, from 1, of the room in host memory that a part's gradient shares with those of other parts; 0: it has its own.
func (p *Plan) gradShare(part int) int {
	if !p.UpdatesInBackward() {
		return 0
	}
	return 1 + part%sharedGrads
}

// gathersAhead reports whether a step looks up rows of the embedding as the pending update will leave them, and
// updates the table later. The first layer then waits for the rows of the step's tokens instead of the whole table.
// It takes a table in host memory and, of moments in 8 bits, rows that are whole blocks of them.
func (p *Plan) gathersAhead() bool {
	if !p.Placement.GatherAhead || p.Placement.Bind || p.Wants.NoUpdates || p.UpdatesInBackward() ||
		p.Numerics.Moments == optim.Dynamic8 && p.Model.Hidden%tensor.MomentBlock != 0 {
		return false
	}
	for _, part := range p.Model.EmbedTiles {
		for kind := range store.Kind(store.Kinds) {
			if kind != store.GradSum && p.OnDisk(store.ID{Part: part, Kind: kind}) {
				return false
			}
		}
		if !p.Trained(part) {
			return false
		}
	}
	return true
}

// AheadElems is how many elements of the rows that are looked up ahead are updated at once, and aheadBytes what they
// take beside the weights.
func (p *Plan) AheadElems() int64 {
	rows := max(p.PieceElems(p.Model.EmbedTiles[0])/2/int64(p.Model.Hidden), 1)
	return min(rows, int64(p.Numerics.Positions())) * int64(p.Model.Hidden)
}

func (p *Plan) aheadBytes() (sum int64) {
	for kind, t := range p.types() {
		if k := store.Kind(kind); k != store.Weights {
			sum += store.AlignUp(k.Elems(p.AheadElems()) * t.Bytes())
		}
	}
	return sum + 8 // the count of bad weights, which the update itself has
}

// SumsTouchedRows reports whether the embedding's gradient is summed and rounded for the rows of the step's tokens
// alone, the others being cleared: where no head adds to it, and it is not summed where it is stored.
func (p *Plan) SumsTouchedRows() bool { return !p.Model.Tied && p.Numerics.Master == optim.Split }

// touchedBytes is what the order of the tokens that occur takes: for each position of a step, and for each row of the
// vocabulary.
func (p *Plan) touchedBytes() int64 {
	if !p.SumsTouchedRows() {
		return 0
	}
	return 4 * int64(p.Numerics.StepPositions()+p.Model.Vocab)
}

// OnDisk reports whether an extent is kept on disk. What is updated on the device is not, nor are gradients that share memory.
func (p *Plan) OnDisk(id store.ID) bool {
	switch {
	case len(p.Placement.OnDisk) == 0, id.Kind == store.Grad && p.UpdatesInBackward():
		return false
	case len(p.Placement.StateHere) > 0 && p.Placement.StateHere[id.Part] && id.Kind != store.Inputs:
		return false
	}
	return p.Placement.OnDisk[id.Part][id.Kind]
}

// AnyStateResident reports whether stateHere holds for any part.
func (p *Plan) AnyStateResident() bool {
	for part := range p.Model.Parts {
		if p.StateResident(part) {
			return true
		}
	}
	return false
}

// keptKinds are what is kept of a part from step to step beside its weights, but for its gradient.
var keptKinds = []store.Kind{store.Low, store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale}

// keptBytes is what they take of a part.
func (p *Plan) keptBytes(part int) (sum int64) {
	for _, kind := range keptKinds {
		sum += p.kindBytes(part, kind)
	}
	return sum
}

// kindBytes is what a part has of a kind with an element for each parameter, or for each block of them.
func (p *Plan) kindBytes(part int, kind store.Kind) int64 {
	t := p.types()[kind]
	if t == tensor.Invalid {
		return 0
	}
	return kind.Elems(p.Model.Parts[part].Layout.StateElems) * t.Bytes()
}

// hostOnly reports whether the part never visits the device: embedding tiles that are not also head tiles. The host
// gathers the rows that a step needs, which is less traffic than the table.
func (p *Plan) hostOnly(part int) bool {
	return p.Model.Parts[part].Kind == model.Embed && !p.Model.Tied
}

// Tied reports whether the part is a tile that both the embedding and the head use: its fp32 gradient stays until the
// embedding has added its share.
func (p *Plan) Tied(part int) bool {
	return p.Model.Tied && p.Model.Parts[part].Kind == model.Embed
}

// ownGrad reports whether the part has an fp32 gradient slot of its own: the final norm, which is small and collects
// gradient while the head's tiles pass, the tiles in a single visit, and blocks whose fp32 gradient waits there for its update.
func (p *Plan) ownGrad(part int) bool {
	switch p.Model.Parts[part].Kind {
	case model.Norm:
		return true
	case model.Block:
		return p.Numerics.Master == optim.F32 && p.StateResident(part)
	}
	return p.Placement.SingleHead
}

// GradInExtent reports whether the fp32 gradient is accumulated where it is stored: bound fp32 gradients, and bound
// Tied tiles, whose extent-to-be is the sum that the embedding adds to.
func (p *Plan) GradInExtent(part int) bool {
	return p.Placement.Bind && (p.Numerics.Master == optim.F32 && !p.Tied(part) || p.Tied(part))
}

// staged reports whether rounding and draining go through a stage slot.
func (p *Plan) staged() bool { return !p.Placement.Bind && p.Numerics.Master == optim.Split }

// Trained reports whether the part has anything to update.
func (p *Plan) Trained(part int) bool { return p.Model.Parts[part].Layout.StateElems > 0 }

// Trains reports whether any part has something to update. A frozen model has no backward pass and keeps nothing for it.
func (p *Plan) Trains() bool {
	for part := range p.Model.Parts {
		if p.Trained(part) {
			return true
		}
	}
	return false
}

// savedOnDevice, savedOnHost and savedOnDisk say where the input of a block (from 0) is kept for the backward pass. The
// embedding's output comes to the device by way of the host, unless it is bound.
func (p *Plan) savedOnDevice(block int) bool {
	return p.Trains() && (p.Placement.Bind || p.savedHere(block))
}

func (p *Plan) savedHere(block int) bool { return p.Placement.SavedHere[block] && !p.sharesInputs() }

// sharesInputs reports whether layer inputs and their gradients take turns in buffers, one for each micro-batch and the spare ones.
func (p *Plan) sharesInputs() bool { return p.Placement.SpareInputs > 0 && !p.Placement.Bind }

// inputBuffer is where x[layer][m] lies among shared buffers, on the way up or down. On the way up every visit of a micro-batch takes
// the next buffer round the ring for what it writes, which the visit before the spare ones has read. The gradients follow the inputs of
// the head round the ring; what they leave free is a ring of its own, through which the inputs pass on the way down.
func (p *Plan) inputBuffer(layer, m int, down bool) int {
	micros, spare := p.Numerics.MicroBatches, p.Placement.SpareInputs
	visit := (layer-1)*micros + m
	if down {
		visit = (p.blocks()+2)*micros + ((p.blocks()-layer)*micros+m)%spare
	}
	return visit % (micros + spare)
}

// inputGradBuffer is where dx[m] lies among shared buffers.
func (p *Plan) inputGradBuffer(m int) int { return p.inputBuffer(p.blocks()+2, m, false) }

func (p *Plan) SavedOnHost(block int) bool {
	return !p.Placement.Bind && (block == 0 || p.leaves(block) && !p.SavedOnDisk(block))
}

func (p *Plan) SavedOnDisk(block int) bool {
	return block > 0 && p.leaves(block) && p.OnDisk(store.ID{Part: p.Model.BlockParts[block], Kind: store.Inputs})
}

// ActivationsPass reports whether what a block (from 0) keeps for its backward visit lies in host memory between its visits.
func (p *Plan) ActivationsPass(block int) bool {
	return !p.Placement.Bind && block < len(p.Placement.KeptOnHost) && p.Placement.KeptOnHost[block] && p.Placement.Keep[block] > nn.KeepInput &&
		block+1 >= p.lowestTrained()
}

// KeptBytes is the length of what a block keeps of a micro-batch.
func (p *Plan) KeptBytes(block int) int64 {
	a := device.NewArena(device.Mem{})
	p.Model.Blocks[block].NewKept(a, p.Numerics.Compute, p.Numerics.Positions(), p.Placement.Keep[block])
	return a.Peak()
}

// leaves reports whether the input of a block leaves the device and comes back. It need not where no later layer takes the
// working buffer over, as none does from the last block, unless they share buffers; inputs below the lowest trained layer are not asked for.
func (p *Plan) leaves(block int) bool {
	if p.Placement.Bind || p.savedHere(block) || block+1 < p.lowestTrained() {
		return false
	}
	if p.sharesInputs() {
		return true
	}
	for later := block + 2; later <= p.blocks(); later += 2 {
		if later == p.blocks() || !p.Placement.SavedHere[later] {
			return true
		}
	}
	return false
}

// lowestTrained is the first layer, of the blocks and the head, whose backward visit anything needs: nothing below the lowest
// Trained layer is visited.
func (p *Plan) lowestTrained() int {
	for part, known := range p.Model.Parts {
		if p.Trained(part) && known.Layer <= p.blocks() {
			return max(known.Layer, 1)
		}
	}
	return p.blocks() + 1
}

// logitChunks is the number of chunks of a micro-batch's wanted rows.
func (p *Plan) logitChunks() int {
	return (p.Wants.LogitRows + p.Numerics.HeadChunk - 1) / p.Numerics.HeadChunk
}

// types are the element types of the kinds of extents; what is not kept is tensor.Invalid.
func (p *Plan) types() [store.Kinds]tensor.DType {
	types := p.Numerics.Scheme().Types()
	if p.Wants.NoUpdates {
		for _, kind := range []store.Kind{store.FirstMoment, store.SecondMoment, store.FirstScale, store.SecondScale} {
			types[kind] = tensor.Invalid
		}
	}
	return types
}

// weightBytes and gradBytes are the part's weights on the device and its fp32 gradient.
func (p *Plan) weightBytes(part int) int64 {
	return p.Model.Parts[part].Layout.WeightElems * p.Numerics.Scheme().Types()[store.Weights].Bytes()
}

func (p *Plan) gradBytes(part int) int64 { return p.Model.Parts[part].Layout.StateElems * 4 }

func (p *Plan) storedGradBytes(part int) int64 {
	return p.Model.Parts[part].Layout.StateElems * p.Numerics.Scheme().Types()[store.Grad].Bytes()
}

// blockPart is the part of decoder block l (1..L).
func (p *Plan) blockPart(layer int) int { return p.Model.BlockParts[layer-1] }
