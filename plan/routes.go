package plan

import (
	"math"
	"slices"
	"sort"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// routes spend memory on what is not computed again and on what is not moved again, in several orders.
func (c *chooser) routes(start Placement) []Route {
	s, measured := c.plan(start), c.measure(start)
	if !s.Trains() {
		return c.forwardRoutes(start)
	}
	bound := start.Where.Bound()
	var blocks []int // from the last one down: what is kept there is needed again soonest
	for b := len(c.Model.Blocks) - 1; b >= 0; b-- {
		blocks = append(blocks, b)
	}
	levels := []nn.Keep{nn.KeepAttention, nn.KeepGateUp, nn.KeepAll}
	keep := func(to Place, k nn.Keep, blocks ...int) (stage Stage) {
		for _, b := range blocks {
			stage = append(stage, Move{What: MoveActivations, Index: b, To: to, Level: k})
		}
		return stage
	}
	var byBlock, byLevel, resident Stage
	for _, b := range blocks {
		for _, k := range levels {
			byBlock = append(byBlock, keep(Device, k, b)...)
		}
	}
	for _, k := range levels {
		byLevel = append(byLevel, keep(Device, k, blocks...)...)
	}
	for _, part := range c.Model.DecoderParts() {
		resident = append(resident, Move{What: MoveWeights, Index: part})
	}
	if bound || c.StreamAll {
		resident = nil
	}
	saved := c.savedMoves(s)
	state, headState := c.stateMoves(s)
	head := Stage{{What: MoveHead}}
	spilled := map[nn.Keep]Stage{} // what blocks keep, in host memory
	for _, k := range levels {
		if !bound && c.travels(k) {
			spilled[k] = keep(Host, k, blocks...)
		}
	}
	if c.RecomputeAll {
		byBlock, byLevel, head, spilled = nil, nil, nil, nil
	}
	var all []Route
	for _, r := range []Route{
		{byBlock, saved, resident, head}, {byLevel, saved, resident, head}, {saved, byBlock, resident, head}, {resident, saved, byBlock, head},
	} {
		all = append(all, r, Route{r[3], r[0], r[1], r[2]})
	}
	// Updates on the device: of as many blocks as the host is late with, then what is left goes to what is computed again.
	for _, n := range sharesOf(len(state)) {
		all = append(all, Route{head, state[:n], byBlock, saved, resident})
		if len(headState) > 0 {
			all = append(all, Route{head, headState, state[:n], byBlock, saved, resident})
		}
	}
	if len(state) > 0 {
		all = append(all, Route{head, byBlock, saved, state, headState})
	}
	// State of some blocks that passes through the device, while no state stays there, or as much as has room.
	if c.hostIsLate(s) {
		passing := func(first, count int) Stage { return Stage{{What: MovePassing, Index: first, Count: count}} }
		room := c.room(measured, start, slices.Concat(head, passing(0, 1), state)) - len(head) - 1
		for _, stays := range slices.Compact([]int{0, max(room, 0)}) {
			for _, n := range passingShares(len(c.Model.DecoderParts()) - stays) {
				all = append(all, Route{head, passing(stays, n), state[:stays], byBlock, saved, resident})
			}
		}
	}
	// Attention's outputs in host memory, of as many blocks as it has room for, and on the device for the others. Steps
	// are small, since the rest of host memory has no other use.
	if attended := spilled[nn.KeepAttention]; len(attended) > 0 && c.travelsFaster(s) {
		for _, n := range stepsTo(len(attended), spillSteps) {
			all = append(all, Route{attended[:n], keep(Device, nn.KeepAttention, blocks[n:]...), head, byBlock, saved, resident})
		}
		all = append(all, Route{attended, saved, byBlock, head, resident})
	}
	// More activations than attention's outputs, where the link has time for them: of as many blocks as there is room
	// for, or of some of those.
	for _, k := range levels[1:] {
		for _, n := range sharesOf(c.room(measured, start, spilled[k])) {
			all = append(all, Route{spilled[k][:n], head, byBlock[n*len(levels):], saved, resident})
		}
	}
	return all
}

// forwardRoutes spend memory on passes forward. One pass computes and fetches nothing twice. Passes that continue
// sequences are many, with little to compute: what is on the device need not move for each of them.
func (c *chooser) forwardRoutes(start Placement) []Route {
	if !c.Outputs.Continues() || start.Where.Bound() {
		return []Route{nil}
	}
	var resident Stage
	caches := c.cacheMoves(c.plan(start))
	for _, part := range c.Model.DecoderParts() {
		resident = append(resident, Move{What: MoveWeights, Index: part})
	}
	if c.StreamAll {
		resident = nil
	}
	return []Route{{caches, resident, {{What: MoveHead}}}, {caches, {{What: MoveHead}}, resident}}
}

// cacheMoves keep caches on the device, of passes that are all that a plan is for.
func (c *chooser) cacheMoves(s *Plan) (caches Stage) {
	if s.Trains() || !c.Outputs.Continues() || s.Bound() {
		return nil
	}
	for b := range c.Model.Blocks {
		caches = append(caches, Move{What: MoveCache, Index: b})
	}
	return caches
}

// savedMoves keep saved inputs on the device: those on disk first, which move further, and of them those of the last
// blocks, which are needed again soonest.
func (c *chooser) savedMoves(s *Plan) (saved Stage) {
	if s.Bound() || s.sharesInputs() {
		return nil
	}
	for _, disk := range []bool{true, false} {
		for b := s.blocks() - 1; b >= 0; b-- {
			if s.inputSpills(b) && s.SavedOnDisk(b) == disk {
				saved = append(saved, Move{What: MoveInput, Index: b})
			}
		}
	}
	return saved
}

// hostUpdates reports whether the host carries out all updates.
func (c *chooser) hostUpdates() bool { return c.HostUpdates || c.Cluster.Several() }

// stateMoves keep the state of parts on the device, which updates it there: of blocks, the first ones first, since
// their updates are what a step begins with; and of the head with its norm.
func (c *chooser) stateMoves(s *Plan) (blocks, head Stage) {
	if s.Bound() || c.StreamAll || c.Outputs.keepGradients() || s.UpdatesInBackward() || c.Outputs.NoClip ||
		c.hostUpdates() {
		return nil, nil
	}
	for _, part := range c.Model.DecoderParts() {
		if s.Trained(part) {
			blocks = append(blocks, Move{What: MoveState, Index: part})
		}
	}
	if c.RecomputeAll { // there is no single visit of the head
		return blocks, nil
	}
	return blocks, Stage{{What: MoveHeadState}}
}

// with is a placement after moves.
func (c *chooser) with(place Placement, moves []Move) Placement {
	place = place.Clone()
	for _, m := range moves {
		m.apply(&place, c.Model)
	}
	return place
}

// room counts the moves that fit, in order, from a start that was measured and fits. Each move takes memory, most of a
// stage about as much as each other one. So it looks first where a line from the start to the end of the stage meets
// the budget, then further and further away from there, and bisects what is left.
func (c *chooser) room(from *Plan, start Placement, moves []Move) int {
	after := func(n int) *Plan { return c.measure(c.with(start, moves[:n])) }
	fits := func(n int) bool { return c.ctx.Err() == nil && c.fits(after(n)) == nil }
	if len(moves) == 0 || c.ctx.Err() != nil {
		return 0
	}
	all := after(len(moves))
	if c.fits(all) == nil {
		return len(moves)
	}
	share := 1.0                        // of the moves
	limit := func(budget int64) int64 { // of a device or of host memory, where 0 sets no limit
		if budget == 0 {
			return math.MaxInt64
		}
		return budget
	}
	for _, of := range [][3]int64{
		{from.DeviceTotalBytes(), all.DeviceTotalBytes(), limit(c.DeviceBytes)},
		{from.ProcessBytes(), all.ProcessBytes(), limit(c.HostBytes)},
		{from.DiskBytes, all.DiskBytes, c.DiskBytes},
	} {
		if none, all, budget := of[0], of[1], of[2]; none < all && all > budget {
			share = min(share, float64(budget-none)/float64(all-none))
		}
	}
	low, high := 0, len(moves) // of which low fits and high does not
	n := min(max(int(share*float64(len(moves))), 1), high-1)
	for away := 1; low < n && n < high; away *= 2 {
		if fits(n) {
			low, n = n, n+away
		} else {
			high, n = n, n-away
		}
	}
	return low + sort.Search(high-low-1, func(i int) bool { return !fits(low + i + 1) })
}

// hostIsLate reports whether the host takes longer to update the blocks than a forward pass takes, where the device
// may update some.
func (c *chooser) hostIsLate(s *Plan) bool {
	if s.Bound() || c.Outputs.keepGradients() || s.UpdatesInBackward() || c.Outputs.NoClip || c.hostUpdates() {
		return false
	}
	updates, forward := 0.0, 0.0
	for layer := 1; layer <= s.blocks(); layer++ {
		for _, part := range c.Model.LayerParts(layer) {
			update := cost{adamw: s.updateBytes(part)}
			updates += update.seconds(&c.Machine, s)
		}
		for _, stage := range s.stages(layer, nn.Forward) {
			visit := s.visitCost(&c.Machine, layer, &stage[0], false)
			forward += visit.seconds(&c.Machine, s)
		}
	}
	return updates > forward*float64(s.Numerics.MicroBatches)
}

// passingShares returns the counts of blocks whose passing is worth simulating: the eighths of all.
func passingShares(blocks int) (list []int) {
	for eighths := 1; eighths <= 8; eighths++ {
		list = append(list, eighths*blocks/8)
	}
	return slices.DeleteFunc(slices.Compact(list), func(n int) bool { return n < 1 })
}

// sharesOf returns the counts worth simulating: 1, 1/8, 1/4, 1/2, 3/4 and all.
func sharesOf(all int) []int {
	list := []int{1, all / 8, all / 4, all / 2, 3 * all / 4, all}
	slices.Sort(list)
	list = slices.Compact(list)
	return slices.DeleteFunc(list, func(n int) bool { return n < 1 || n > all })
}

// spillSteps is about how many numbers of blocks are compared whose attention's outputs wait in host memory.
const spillSteps = 16

// stepsTo returns evenly spaced counts up to all: between steps and 2*steps of them.
func stepsTo(all, steps int) (list []int) {
	step := max(all/steps, 1)
	for n := step; n < all; n += step {
		list = append(list, n)
	}
	if all > 0 {
		list = append(list, all)
	}
	return list
}

// travelsFaster reports whether what attention leaves comes from host memory sooner than it is computed again.
func (c *chooser) travelsFaster(s *Plan) bool {
	link := min(c.Machine.UploadBytesPerSec, c.Machine.DownloadBytesPerSec)
	sec := func(block int, level nn.Keep) float64 {
		a := s.visitsOf(block, nn.Backward, level)
		return s.seconds(&c.Machine, &a, nn.Class.IsOfHeads)
	}
	for b := range c.Model.Blocks {
		if sec(b, nn.KeepInput)-sec(b, nn.KeepAttention) < float64(s.keptBytes(b, nn.KeepAttention))/link {
			return false
		}
	}
	return true
}

// travels reports whether what blocks keep at a level leaves for host memory in the time of a forward visit: what
// takes longer has the device wait for the link. Coming back it has more time.
func (c *chooser) travels(k nn.Keep) bool {
	link := min(c.Machine.UploadBytesPerSec, c.Machine.DownloadBytesPerSec)
	place := c.smallest(false)
	for b := range place.Where.Activations {
		place.Where.Activations[b].Level = k
	}
	s := c.plan(place)
	for b := range c.Model.Blocks {
		a := s.visitsOf(b, nn.Forward, k)
		if s.seconds(&c.Machine, &a, nn.Class.IsFLOPs) < float64(s.KeptBytes(b))/link {
			return false
		}
	}
	return true
}

// smallest is the placement that needs least memory.
func (c *chooser) smallest(bound bool) Placement {
	place := Smallest(len(c.Model.Parts), len(c.Model.Blocks), bound)
	place.PeerCopies, place.Twice, place.TwiceFrom = c.Device.PeerCopies, c.Gradients == GradientsTwice, c.from
	return c.over(place)
}

// Smallest returns the placement that needs the least memory for a model with that number of parts and blocks: bound,
// or with everything passing through rings of one slot.
func Smallest(parts, blocks int, bound bool) Placement {
	where := Table{State: make([][store.Kinds]Place, parts), Weights: slices.Repeat([]Place{Host}, parts), Updates: slices.Repeat([]Place{Host}, parts),
		Inputs: slices.Repeat([]Place{Host}, blocks), Activations: slices.Repeat([]Activations{{nn.KeepInput, Device}}, blocks)}
	for part := range parts {
		where.SetState(part, Host)
		if bound {
			where.State[part][store.Weights] = InPlace
		}
	}
	place := Placement{Where: where, Rings: Rings{Gradients: 1}}
	if !bound {
		place.Rings.Weights, place.Rings.Rounded = 1, 1
	}
	return place
}
