package plan

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
)

// resolve is the placement that comes of one that is asked for: what the model, its types or what is wanted rule out
// has its usual place instead. All rules about places stand here. After it each question about a place is a look into
// the table.
func (p *Plan) resolve(ask Placement) Placement {
	asked, bound := &ask.Where, ask.Where.Bound()
	place := Placement{Rings: ask.Rings, HeadAtOnce: ask.HeadAtOnce, Where: Table{State: make([][store.Kinds]Place, len(p.Model.Parts)),
		Weights: make([]Place, len(p.Model.Parts)), Updates: make([]Place, len(p.Model.Parts)),
		Inputs: make([]Place, p.blocks()), Activations: make([]Activations, p.blocks())}}
	place.Twice = ask.Twice && !bound && p.notTwice() == ""
	from := min(ask.TwiceFrom, p.blocks())
	if place.Twice && from > p.lowestTrained() && !p.Model.Tied { // a tied tile needs both ends in one pass
		place.TwiceFrom = from
	}
	p.Placement.Twice, p.Placement.TwiceFrom = place.Twice, place.TwiceFrom
	place.Deal = p.dealt(ask.Deal, bound)
	alone := place.Deal == nil // buffers that inputs share, and state that passes, have one device's lanes to serve
	if bound || !alone {
		place.Rings.Inputs = 0
	}
	place.PeerCopies = ask.PeerCopies && !alone
	p.Placement.Deal, p.Placement.PeerCopies = place.Deal, place.PeerCopies // for questions about ranks
	place.HeadDeal = p.dealtHead(&ask, bound)
	place.KeptLogits = ask.KeptLogits && place.HeadDeal != nil && p.Trains()
	p.Placement.HeadDeal, p.Placement.KeptLogits = place.HeadDeal, place.KeptLogits
	together := func(part int) bool { return p.together(max(p.Model.Parts[part].Layer, 1)) }
	forms := p.forms()
	inBackward := p.updatesInBackward(bound)
	if p.Cluster.Several() { // gradients leave the device in fp32, and the host updates
		place.Rings.Rounded, place.Rings.State = 0, 0
	}
	for part := range p.Model.Parts {
		resident := asked.State[part][store.Weights] == Device && together(part) &&
			p.stateMayReside(part, bound, ask.HeadAtOnce)
		place.Where.Weights[part] = p.weightsPlace(part, bound, ask.HeadAtOnce,
			resident || asked.Weights[part] == Device && together(part))
		onDisk := false
		for kind := range store.Kind(store.Kinds) {
			at := Host
			switch {
			case kind == store.Inputs, !p.Owns(part) && kind != store.Weights && kind != store.GradSum,
				!forms[kind].Kept() && !(kind == store.GradSum && p.Tied(part) && !bound):
				at = Absent
			case resident:
				at = Device
			case bound && (kind == store.Weights || kind == store.Grad):
				at = InPlace
			case asked.State[part][kind] == Disk && !(kind == store.Grad && inBackward && !p.GradWaits(part)):
				at, onDisk = Disk, true
			}
			place.Where.State[part][kind] = at
		}
		switch {
		case !p.Trained(part) || p.Outputs.NoUpdates || !p.Owns(part):
		case resident:
			place.Where.Updates[part] = Device
		case asked.Updates[part] == Device && place.Rings.State > 0 && alone && place.Where.Weights[part] == Host &&
			!onDisk && !inBackward && !p.Outputs.NoClip && !p.Outputs.Gradients && p.Model.Parts[part].Kind == model.Block:
			place.Where.Updates[part] = Device
		default:
			place.Where.Updates[part] = Host
		}
	}
	lowest, trains := p.lowestTrained(), p.Trains()
	for b := range place.Where.Inputs {
		at, visited := asked.Inputs[b], trains && b+1 >= lowest
		switch {
		case !visited:
			at = Absent
		case bound:
			at = InPlace
		case at == Device && (place.Rings.Inputs > 0 || !p.together(b+1)), at == Disk && p.Model.Begins(1+b),
			at != Device && at != Disk:
			at = Host
		}
		place.Where.Inputs[b] = at
		a := asked.Activations[b]
		if !visited {
			a.Level = nn.KeepInput // nothing reads more
		}
		switch {
		case bound:
			a.Place = InPlace
		case place.Twice && b+1 >= place.TwiceFrom: // the first time down overwrites what is kept
			a = Activations{nn.KeepInput, Device}
		case !p.together(b+1) && (a.Place != Host || place.Rings.Activations == 0 || len(p.Model.GroupParts[b]) > 0):
			a = Activations{nn.KeepInput, Device} // it is computed again, elsewhere
		case a.Place != Host || a.Level == nn.KeepInput || place.Rings.Activations == 0 ||
			len(p.Model.GroupParts[b]) > 0:
			a.Place = Device
		}
		place.Where.Activations[b] = a
	}
	if p.Outputs.Continues() {
		place.Where.Caches = make([]Place, p.blocks())
		for b := range place.Where.Caches {
			switch at := &place.Where.Caches[b]; {
			case bound:
				*at = InPlace
			case b < len(asked.Caches) && asked.Caches[b] == Device:
				*at = Device
			default:
				*at = Host
			}
		}
	}
	if ask.CallChunks > 1 && p.Model.Routed() {
		place.CallChunks = min(ask.CallChunks, p.chunksOfStep())
	}
	// Several devices would each have such rows, of one host memory; caches are of passes with few rows.
	if alone && !bound && p.mayHoldAway() && (p.Trains() || !p.Outputs.Continues()) {
		place.HeldAway = min(ask.HeldAway, nn.NormAway)
	}
	place.LookAhead = ask.LookAhead && !bound && !inBackward && !p.Cluster.Several() && p.mayLookAhead(&place.Where)
	if len(ask.Drives) > 1 && place.Where.onDisk() {
		place.Drives = ask.Drives
	}
	return place
}

// stateMayReside reports whether all that is kept of the part may be on the device, and updated there: it is trained,
// clipped, and visited as a whole.
func (p *Plan) stateMayReside(part int, bound, headAtOnce bool) bool {
	if bound || p.Cluster.Several() || p.Outputs.keepGradients() || p.updatesInBackward(false) || !p.Trained(part) ||
		p.Tied(part) || p.hostOnly(part) {
		return false
	}
	kind := p.Model.Parts[part].Kind
	return kind == model.Block || kind == model.Norm || headAtOnce
}

// weightsPlace is the place of a part's weights within a step. The final norm is tiny and stays on the device, and
// so do the tiles of a head that is visited at once; blocks stay if they are asked to.
func (p *Plan) weightsPlace(part int, bound, headAtOnce, asked bool) Place {
	switch kind := p.Model.Parts[part].Kind; {
	case p.hostOnly(part):
		return Absent
	case bound:
		return InPlace
	case kind == model.Norm, kind == model.Block && asked, kind != model.Norm && kind != model.Block && headAtOnce:
		return Device
	}
	return Host
}

// chunksOfStep is the number of chunks that all rows of a step have.
func (p *Plan) chunksOfStep() int {
	rows := p.Numerics.BlockRows()
	return (p.Numerics.StepPositions() + rows - 1) / rows
}

// mayLookAhead reports whether rows of tables can be updated as they are looked up: of tables in host memory whose rows
// share no state.
func (p *Plan) mayLookAhead(where *Table) bool {
	if p.Outputs.NoUpdates {
		return false
	}
	for _, l := range p.Model.Lookups {
		if int64(l.Cols)%p.Numerics.Scheme().Rule().Together() != 0 {
			return false
		}
	}
	for part := range p.Model.Parts {
		if !p.Model.Parts[part].Kind.LookedUp() {
			continue
		}
		for kind, at := range where.State[part] {
			if store.Kind(kind) != store.GradSum && at == Disk {
				return false
			}
		}
		if !p.Trained(part) {
			return false
		}
	}
	return true
}

// ReachesHost reports whether operations of the device read and write rows in host memory: see Placement.HeldAway.
func (p *Plan) ReachesHost() bool { return p.Placement.HeldAway > nn.AllHere }

// mayHoldAway reports whether rows between visits may wait in host memory: those of experts. Of other blocks in parts
// the bytes that visits reach there are not known to the byte.
func (p *Plan) mayHoldAway() bool {
	others := func(d *nn.Block) bool { return d.Parts() > 0 && d.Loads() == 0 }
	return p.Model.Routed() && !slices.ContainsFunc(p.Model.Blocks, others)
}

func (p *Plan) blocks() int { return len(p.Model.Blocks) }

// Bound reports whether weights are used where they are: see [Table.Bound].
func (p *Plan) Bound() bool { return p.Placement.Where.Bound() }

// streamed reports whether the part passes through the ring of slots.
func (p *Plan) streamed(part int) bool { return p.Placement.Where.Weights[part] == Host }

// resident reports whether the part has a weight slot of its own.
func (p *Plan) resident(part int) bool { return p.Placement.Where.Weights[part] == Device }

// StateResident reports whether all that is kept of the part is on the device, and updated there.
func (p *Plan) StateResident(part int) bool {
	return p.Placement.Where.State[part][store.Weights] == Device
}

// anyUpdatedOnDevice reports whether a device updates a part.
func (p *Plan) anyUpdatedOnDevice() bool { return slices.Contains(p.Placement.Where.Updates, Device) }

// AnyStateResident reports whether StateResident holds for any part.
func (p *Plan) AnyStateResident() bool {
	return slices.ContainsFunc(p.Placement.Where.State, func(at [store.Kinds]Place) bool { return at[store.Weights] == Device })
}

// StatePasses reports whether the state of the part passes through the device to be updated.
func (p *Plan) StatePasses(part int) bool {
	return p.Placement.Where.Updates[part] == Device && !p.StateResident(part)
}

// anyStatePasses reports whether StatePasses holds for any part.
func (p *Plan) anyStatePasses() bool {
	return slices.ContainsFunc(p.Model.DecoderParts(), p.StatePasses)
}

// ComputesTwice reports whether a step computes its gradients twice: it comes in halves.
func (p *Plan) ComputesTwice() bool { return p.Placement.Twice }

// GradWaits reports whether the gradient of a part waits for the norm in a step that computes others twice.
func (p *Plan) GradWaits(part int) bool {
	return p.Placement.Twice && p.Model.Parts[part].Layer < p.Placement.TwiceFrom
}

// UpdatesInBackward reports whether each part is updated within the step of its gradient, so that no update is ever
// pending: nothing is clipped, or gradients are computed twice. Except where it waits (GradWaits), that is as soon as
// the gradient is in host memory. Bound weights are read by the compute lane, for as long as a schedule runs, in the
// memory that an update would write; there updates wait for the step's end. So they do on several hosts.
func (p *Plan) UpdatesInBackward() bool { return p.updatesInBackward(p.Bound()) }

func (p *Plan) updatesInBackward(bound bool) bool {
	return (p.Outputs.NoClip || p.Placement.Twice) && !p.Outputs.keepGradients() && !bound && !p.Cluster.Several()
}

// sharedGrads is the number of gradients that have room in host memory where none outlives its step: one is written
// while another one is read, and the third lets either lane be early.
const sharedGrads = 3

// gradShare is the number, from 1, of the room in host memory that a part's gradient shares with those of other
// parts; 0: it has its own.
func (p *Plan) gradShare(part int) int {
	if !p.UpdatesInBackward() || p.GradWaits(part) {
		return 0
	}
	return 1 + part%sharedGrads
}

// AheadRows is the number of rows of a table that are updated at once as they are looked up ahead.
func (p *Plan) AheadRows(l *model.Lookup) int {
	rows := max(p.PieceElems(l.Tiles[0])/2/int64(l.Cols), 1)
	return int(min(rows, int64(p.Numerics.Positions())))
}

// SumsTouchedRows reports whether the gradient of a tile that is looked up is summed and rounded for the rows of the
// step's tokens alone, the others being cleared: where no head adds to it, it is not summed where it is stored, and
// other hosts have no share of it.
func (p *Plan) SumsTouchedRows(part int) bool {
	return p.Model.Parts[part].Kind.LookedUp() && !p.Tied(part) && p.Numerics.Master != optim.F32 &&
		!p.Cluster.Several()
}

// ClearsEarly reports whether a step clears the gradient of such a tile before its backward pass: it is kept in host
// memory, where no other part's gradient takes its place (Placement.UpdatesInBackward).
func (p *Plan) ClearsEarly(part int) bool {
	return p.SumsTouchedRows(part) && p.gradShare(part) == 0 && !p.OnDisk(store.ID{Part: part, Kind: store.Grad})
}

// RoundsEarly reports whether a step rounds what the head has added to a tied tile's gradient as soon as that is in
// host memory, when the host has nothing to do. Of the rows of the step's tokens, to which the embedding adds, that is
// done again at the end.
func (p *Plan) RoundsEarly(part int) bool {
	n := &p.Numerics
	return p.Tied(part) && !p.Bound() && n.Master != optim.F32 && !p.Cluster.Several() && n.CohortCount() == 1 &&
		!n.NarrowSums() && p.gradShare(part) == 0 && !p.OnDisk(store.ID{Part: part, Kind: store.Grad}) &&
		!p.OnDisk(store.ID{Part: part, Kind: store.GradSum})
}

// roundsEarly reports whether RoundsEarly holds for some tile.
func (p *Plan) roundsEarly() bool {
	return slices.ContainsFunc(p.Model.Lookups, func(l model.Lookup) bool {
		return slices.ContainsFunc(l.Tiles, p.RoundsEarly)
	})
}

// SendsRows reports whether hosts exchange the gradient of a tile by the rows of each cohort's tokens alone: of a table
// that is only looked up. All hosts know the tokens of all cohorts, so the rows travel without their numbers.
func (p *Plan) SendsRows(part int) bool {
	return p.Cluster.Several() && p.hostOnly(part) && p.Trained(part)
}

// CohortTokens is the greatest number of different tokens that a cohort can have where it comes down.
func (p *Plan) CohortTokens() int { return min(p.cohortPositions(), p.Model.Vocab) }

// TouchedBytesPerElem is the room that such a sum takes for each element of a row: in fp32, of a cohort by itself as
// well, and rounded.
func (p *Plan) TouchedBytesPerElem() int64 {
	if p.Numerics.CohortCount() > 1 {
		return 4 + 4 + 2
	}
	return 4 + 2
}

// numbersTokens reports whether a step numbers the tokens that occur in it, or with several hosts those of each cohort:
// SumsTouchedRows, RoundsEarly or SendsRows holds for some part.
func (p *Plan) numbersTokens() bool {
	return p.roundsEarly() || slices.ContainsFunc(p.Model.Lookups, func(l model.Lookup) bool {
		return p.SumsTouchedRows(l.Tiles[0]) || p.SendsRows(l.Tiles[0])
	})
}

// rowBytes is the length of that many columns of a micro-batch, in the type of activations.
func (p *Plan) rowBytes(cols int) int64 {
	return int64(p.Numerics.Positions()) * int64(cols) * p.Numerics.Compute.Bytes()
}

// OnDisk reports whether an extent is kept on disk.
func (p *Plan) OnDisk(id store.ID) bool {
	if id.Kind != store.Inputs {
		return p.Placement.Where.State[id.Part][id.Kind] == Disk
	}
	block := p.Model.Parts[id.Part].Layer - 1
	return block >= 0 && block < p.blocks() && p.Placement.Where.Inputs[block] == Disk
}

// anyOnDisk reports whether anything is kept on disk.
func (p *Plan) anyOnDisk() bool { return p.Placement.Where.onDisk() }

// stateKinds are the kinds of a part's state from step to step other than its weights.
func (p *Plan) stateKinds() []store.Kind { return p.Numerics.Scheme().States() }

// stateBytes counts the bytes of these kinds that a part has.
func (p *Plan) stateBytes(part int) (sum int64) {
	for _, kind := range p.stateKinds() {
		sum += p.kindBytes(part, kind)
	}
	return sum
}

// kindBytes counts the bytes that a part has of a kind of state.
func (p *Plan) kindBytes(part int, kind store.Kind) int64 {
	return p.forms()[kind].Bytes(p.Model.Parts[part].Layout.StateElems)
}

// hostOnly reports whether the part never visits the device: tiles that are looked up and are not also head tiles. The
// host gathers the rows that a step needs, which is less traffic than the table.
func (p *Plan) hostOnly(part int) bool {
	return p.Model.Parts[part].Kind.LookedUp() && !p.Tied(part)
}

// Tied reports whether the part is a tile that both the embedding and the head use: its fp32 gradient stays until the
// embedding has added its share.
func (p *Plan) Tied(part int) bool {
	return p.Model.Tied && p.Model.Parts[part].Kind == model.Embed
}

// ownGrad reports whether the part has an fp32 gradient slot of its own: the final norm, which is small and collects
// gradient while the head's tiles pass, the tiles in a single visit, and blocks whose fp32 gradient waits there for
// its update.
func (p *Plan) ownGrad(part int) bool {
	switch p.Model.Parts[part].Kind {
	case model.Norm:
		return true
	case model.Block:
		return p.Numerics.Master == optim.F32 && p.StateResident(part)
	}
	return p.Placement.HeadAtOnce
}

// GradInExtent reports whether the fp32 gradient is accumulated where it is stored: bound fp32 gradients, unless other
// hosts have a share of them, and bound Tied tiles, whose extent-to-be is the sum that the embedding adds to.
func (p *Plan) GradInExtent(part int) bool {
	return p.Bound() && (p.Numerics.Master == optim.F32 && !p.Cluster.Several() || p.Tied(part))
}

// staged reports whether rounding and draining go through a stage slot.
func (p *Plan) staged() bool {
	return !p.Bound() && p.Numerics.Master != optim.F32 && !p.Cluster.Several()
}

// Trained reports whether the part has anything to update.
func (p *Plan) Trained(part int) bool { return p.Model.Parts[part].Trained() }

// Trains reports whether any part has something to update. A frozen model has no backward pass and keeps nothing for
// it.
func (p *Plan) Trains() bool { return trains(p.Model) }

func trains(m *model.Model) bool {
	return slices.ContainsFunc(m.Parts, func(p model.Part) bool { return p.Trained() })
}

// savedOnDevice reports whether the input of a block (from 0) waits in a buffer of its own on the device.
func (p *Plan) savedOnDevice(block int) bool {
	at := p.Placement.Where.Inputs[block]
	return at == Device || at == InPlace
}

// savedOn reports whether the input of a layer waits in a buffer of its own on a rank: that of the layer, where both of
// its visits are.
func (p *Plan) savedOn(rank, layer int) bool {
	return layer <= p.blocks() && p.savedOnDevice(layer-1) && p.RankOf(layer, nn.Backward) == rank
}

// sharesInputs reports whether layer inputs and their gradients take turns in buffers, one for each micro-batch and
// the spare ones.
func (p *Plan) sharesInputs() bool { return p.Placement.Rings.Inputs > 0 }

// inputBuffer returns the number of the shared buffer of x[layer][m], on the way up or down. On the way up every visit
// of a micro-batch takes the next buffer round the ring for what it writes, which the visit before the spare ones has
// read. The gradients follow the inputs of the head round the ring; what they leave free is a ring of its own, through
// which the inputs pass on the way down.
func (p *Plan) inputBuffer(layer, m int, down bool) int {
	micros, spare := p.Numerics.MicroBatches, p.Placement.Rings.Inputs
	visit := (layer-1)*micros + m
	if down {
		visit = (p.blocks()+2)*micros + ((p.blocks()-layer)*micros+m)%spare
	}
	return visit % (micros + spare)
}

// inputGradBuffer returns the number of the shared buffer of dx[m].
func (p *Plan) inputGradBuffer(m int) int { return p.inputBuffer(p.blocks()+2, m, false) }

// SavedOnHost reports whether the input of a block (from 0) has a place of its own in host memory. The rows of a table
// always have: they come to the device by way of the host, unless they are bound.
func (p *Plan) SavedOnHost(block int) bool {
	return block < p.blocks() && !p.Bound() &&
		(p.Model.Begins(1+block) || p.inputSpills(block) && p.Placement.Where.Inputs[block] == Host)
}

// SavedOnDisk reports whether the input of a block (from 0) has an extent on disk.
func (p *Plan) SavedOnDisk(block int) bool {
	return block < p.blocks() && p.inputSpills(block) && p.Placement.Where.Inputs[block] == Disk
}

// ActivationsPass reports whether what a block (from 0) keeps for its backward visit passes through the ring of slots
// for it.
func (p *Plan) ActivationsPass(block int) bool {
	return p.Placement.Where.Activations[block].Place == Host
}

// ActivationsSpill reports whether what a block (from 0) keeps leaves the device between its two visits. The last
// forward visits leave it in the slots of the ring, and it is found there if the backward pass begins with just these
// visits: else slots would be given to others first.
func (p *Plan) ActivationsSpill(block int) bool {
	if !p.ActivationsPass(block) {
		return false
	}
	if !p.together(block + 1) {
		return true
	}
	blocks, above := 0, 0
	for i := range p.blocks() {
		if p.ActivationsPass(i) {
			blocks++
			if i > block {
				above++
			}
		}
	}
	micros := p.Numerics.MicroBatches
	visits := min(p.Placement.Rings.Activations, blocks*micros)
	return visits%micros != 0 || above >= visits/micros
}

// Keep is the level at which a block (from 0) keeps activations for its backward visit.
func (p *Plan) Keep(block int) nn.Keep { return p.Placement.Where.Activations[block].Level }

// KeptBytes is the length of what a block keeps of a micro-batch.
func (p *Plan) KeptBytes(block int) int64 { return p.keptBytes(block, p.Keep(block)) }

func (p *Plan) keptBytes(block int, level nn.Keep) int64 {
	return p.accounts.keptBytes(p.Model.Like[block], level, func() int64 {
		a := device.NewArena(device.Mem{})
		p.Model.Blocks[block].NewKept(a, p.Numerics.Compute, p.Numerics.Positions(), level)
		return a.Peak()
	})
}

// leavesOutcome reports whether a block (from 0) leaves what its parts made of rows for its backward visits, and has
// such visits (nn.Summed).
func (p *Plan) leavesOutcome(block int) bool {
	return p.Model.Blocks[block].LeavesOutcome() && p.Placement.Where.Inputs[block] != Absent
}

// outcomePasses reports whether that leaves the device and comes back. It waits on the device where the block's input
// does, and else in host memory.
func (p *Plan) outcomePasses(block int) bool {
	return p.leavesOutcome(block) && !p.savedOnDevice(block)
}

// cacheAt returns the place where a block's cache waits; Absent if the plan keeps none.
func (p *Plan) cacheAt(block int) Place {
	if p.Placement.Where.Caches == nil {
		return Absent
	}
	return p.Placement.Where.Caches[block]
}

// CacheBytes is the length of a block's cache.
func (p *Plan) CacheBytes(block int) int64 {
	a := device.NewArena(device.Mem{})
	p.Model.Blocks[block].NewCache(a, p.Numerics.Compute, p.Outputs.Caches)
	return a.Peak()
}

// cacheSlots are the slots of the ring for caches that wait in host memory: one is computed with while another one
// moves.
const cacheSlots = 2

// weightsStay reports whether weights that are resident are so from schedule to schedule: no update changes them.
func (p *Plan) weightsStay() bool { return !p.Trains() && p.Outputs.Continues() }

// ModeOf is a mode as it is with this plan: loaded only where devices keep anything from schedule to schedule, again
// only where they have weights that change in between, and written back only where they keep state.
func (p *Plan) ModeOf(m Mode) Mode {
	m.Loaded = m.Loaded && (p.AnyStateResident() || p.weightsStay())
	m.Again = m.Again && m.Pass == Continue && p.Trains() && slices.Contains(p.Placement.Where.Weights, Device)
	m.WriteBack = m.WriteBack && p.AnyStateResident()
	return m
}

// inputSpills reports whether the input of a block leaves the device and comes back. It need not where no later layer
// takes the working buffer over, as none does from the last block, unless they share buffers.
func (p *Plan) inputSpills(block int) bool {
	inputs := p.Placement.Where.Inputs
	if inputs[block] != Host && inputs[block] != Disk {
		return false
	}
	if p.sharesInputs() || !p.together(block+1) ||
		p.Placement.Twice && block+1 >= p.Placement.TwiceFrom { // it comes down twice
		return true
	}
	rank := p.RankOf(block+1, nn.Forward)
	for later := block + 2; later <= p.blocks(); later += 2 {
		// It is written there, or read there on one of both ways.
		here := !p.Model.Ends(later) && p.RankOf(later, nn.Forward) == rank || p.RankOf(later+1, nn.Forward) == rank ||
			p.RankOf(later+1, nn.Backward) == rank
		if here && !p.savedOn(rank, later+1) {
			return true
		}
	}
	return false
}

// lowestTrained is the first layer, of the blocks and the head, whose backward visit anything needs: nothing below
// the lowest Trained layer is visited.
func (p *Plan) lowestTrained() int {
	lowest := p.blocks() + 1
	for i := range p.Model.Lookups {
		if l := &p.Model.Lookups[i]; slices.ContainsFunc(l.Tiles, p.Trained) {
			lowest = min(lowest, p.Model.FirstOf(l))
		}
	}
	for layer := 1; layer < lowest; layer++ {
		if slices.ContainsFunc(p.Model.LayerParts(layer), p.Trained) {
			return layer
		}
	}
	return lowest
}

// logitChunks is the number of chunks of a micro-batch's wanted rows.
func (p *Plan) logitChunks() int {
	return (p.Outputs.LogitRows + p.Numerics.HeadChunk - 1) / p.Numerics.HeadChunk
}

// forms lists the forms of the kinds of extents, the zero one for a kind that is not kept.
func (p *Plan) forms() store.Forms {
	forms := p.Numerics.Scheme().Forms()
	if p.Outputs.NoUpdates {
		for _, state := range p.Numerics.Scheme().Rule().States() {
			forms[state.Kind] = store.Form{}
		}
	}
	return forms
}

// weightBytes and gradBytes are the part's weights on the device and its fp32 gradient.
func (p *Plan) weightBytes(part int) int64 {
	return p.Model.Parts[part].Layout.WeightElems * p.Numerics.Scheme().Streamed().Bytes()
}

func (p *Plan) gradBytes(part int) int64 { return p.Model.Parts[part].Layout.StateElems * 4 }

func (p *Plan) storedGradBytes(part int) int64 {
	return p.Model.Parts[part].Layout.StateElems * p.Numerics.Scheme().Streamed().Bytes()
}
