package plan

import (
	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// HostBuffers are a run's buffers in host memory that are not extents of the store, each in the region of its purpose.
// The plan counts them and the engine places them with this same code. A buffer that a run does not need has no memory.
type HostBuffers struct {
	Batches device.Mem // token arrays of the micro-batches, see Batch
	// Where rows of the step's tokens alone are summed or rounded: the number of the token at each position, and that of
	// each token of the vocabulary, -1 if it does not occur.
	Numbers, OfTokens device.Mem
	// Tokens has the tokens that occur, rising; with several hosts a list for each cohort of the step, in which they are
	// numbered by themselves.
	Tokens []device.Mem
	// The scalars of a step, as the host's lane and as each rank's device writes them; each is zero in all but one.
	HostResults   device.Mem
	DeviceResults []device.Mem
	// Balance has what the load-balancing loss needs of all blocks where there are several devices or hosts:
	// Buffers.Balance.
	Balance device.Mem

	Inputs [][]device.Mem // by block and micro-batch: saved layer inputs
	// Passing are, by micro-batch, rows on their way from device to device, which are not saved here. A micro-batch is
	// at one border of layers at a time, so it has one buffer for all of them.
	Passing []device.Mem
	// HeadPassing are rings for rows of the head's on their way from device to device, one for each change of devices.
	HeadPassing []device.Mem
	// By side and micro-batch: rows of a table, and sides and their gradients on their way from device to device. A
	// gradient may be in the value's place.
	Sides, SideGrads [][]device.Mem

	Activations [][]device.Mem // by block and micro-batch: what forward kept for backward
	Outcomes    [][]device.Mem // by block and micro-batch: what its parts made of rows
	Caches      []device.Mem   // by block: those that wait here between visits
	Logits      []device.Mem   // by micro-batch, or of a pass that continues sequences: F32 [LogitRows, Vocab]

	Sums    []device.Mem // by part: fp32 gradients of a tied tile that is bound, of each cohort
	Touched device.Mem   // room for the sums of some rows of the embedding, and for what they are rounded to
	// CohortSums is the ring, of several hosts, for the sums of cohorts: those of this host that leave a device or
	// are sent, and those that are received. Each slot has room for the sum of any part (Plan.SumBytes).
	CohortSums []device.Mem
	// Total receives the sums of cohorts one after the other: of a piece of the embedding, and with several hosts of
	// any part.
	Total device.Mem
	// Cast takes sums of cohorts, some elements at a time, while they are rounded to bf16.
	Cast device.Mem
	// AheadTokens are, by micro-batch, the tokens that occur in it, each once and rising, and AheadNumbers the place in that
	// list of the token at each position. Ahead holds, by kind, the state of their rows in tables, which are updated as
	// they are looked up, some at a time. AheadTally receives what these updates tell, which nothing reads: the update of
	// the table tells it.
	AheadTokens, AheadNumbers device.Mem
	Ahead                     [store.Kinds]device.Mem
	AheadTally                device.Mem
}

// HostBuffers places them in the regions of their purposes; the zero Mem stands for a region that is not there.
func (p *Plan) HostBuffers(region func(purpose string) device.Mem) *HostBuffers {
	return p.placeHost(&hostArena{region: region})
}

// hostBytes lists what they take by purpose, with the rows that a loader hands out.
func (p *Plan) hostBytes() []Bytes {
	a := &hostArena{used: []Bytes{{RowsPurpose, batch.Bytes(p.Whole.StepPositions())}}}
	p.placeHost(a)
	return a.used
}

// hostArena gives out memory, one piece after the other in each region, or only counts.
type hostArena struct {
	region func(purpose string) device.Mem // nil: it counts
	used   []Bytes
}

func (a *hostArena) take(purpose string, n int64) device.Mem {
	if n == 0 {
		return device.Mem{}
	}
	i := 0
	for i < len(a.used) && a.used[i].Purpose != purpose {
		i++
	}
	if i == len(a.used) {
		a.used = append(a.used, Bytes{Purpose: purpose})
	}
	off := a.used[i].Bytes
	a.used[i].Bytes += n
	if a.region == nil {
		return device.Mem{}
	}
	mem := a.region(purpose)
	if mem.IsZero() {
		return mem
	}
	return mem.Slice(off, n)
}

func (p *Plan) placeHost(a *hostArena) *HostBuffers {
	b := &HostBuffers{}
	t, micros := p.Numerics.Positions(), p.Numerics.MicroBatches
	each := func(purpose string, n int64) (all []device.Mem) { // a piece for each micro-batch
		if a.region == nil {
			a.take(purpose, int64(micros)*n)
			return nil
		}
		for range micros {
			all = append(all, a.take(purpose, n))
		}
		return all
	}
	b.Batches = a.take(TokensPurpose, int64(micros)*batch.Bytes(t))
	positions := 4 * int64(p.Numerics.StepPositions())
	if p.NumbersTokens() || p.Placement.LookAhead {
		b.OfTokens = a.take(TokensPurpose, 4*int64(p.Model.Vocab))
	}
	if p.NumbersTokens() {
		b.Numbers = a.take(TokensPurpose, positions)
		lists, most := 1, min(p.Numerics.StepPositions(), p.Model.Vocab)
		if p.Cluster.Several() {
			lists, most = p.Whole.CohortCount(), p.CohortTokens()
		}
		for range lists {
			b.Tokens = append(b.Tokens, a.take(TokensPurpose, 4*int64(most)))
		}
	}
	b.HostResults = a.take(ResultsPurpose, p.ResultBytes())
	for range p.Ranks() {
		b.DeviceResults = append(b.DeviceResults, a.take(ResultsPurpose, p.ResultBytes()))
	}
	b.Balance = p.placeBalance(a)

	b.Inputs, b.Activations = make([][]device.Mem, p.blocks()), make([][]device.Mem, p.blocks())
	for i := range p.blocks() {
		if p.SavedOnHost(i) {
			b.Inputs[i] = each(InputsPurpose, p.inputBytes())
		}
	}
	if p.rowsPass() {
		b.Passing = each(InputsPurpose, p.inputBytes())
	}
	for _, n := range p.headPassingBytes() {
		b.HeadPassing = append(b.HeadPassing, a.take(InputsPurpose, n))
	}
	b.Sides, b.SideGrads = make([][]device.Mem, len(p.Model.Sides)), make([][]device.Mem, len(p.Model.Sides))
	for i, side := range p.Model.Sides {
		if passes := p.sidePasses(i); passes || side.Lookup != nil && !p.Bound() {
			b.Sides[i] = each(SidesPurpose, p.sideBytes(i))
			if b.SideGrads[i] = b.Sides[i]; passes && !p.gradTakesSide(i) && p.Trains() {
				b.SideGrads[i] = each(SidesPurpose, p.sideBytes(i))
			}
		}
	}
	for i := range p.blocks() {
		if p.ActivationsSpill(i) {
			b.Activations[i] = each(KeptPurpose, p.KeptBytes(i))
		}
	}
	b.Outcomes = make([][]device.Mem, p.blocks())
	for i := range p.blocks() {
		if p.outcomePasses(i) {
			b.Outcomes[i] = each(OutcomesPurpose, p.inputBytes())
		}
	}
	b.Caches = make([]device.Mem, p.blocks())
	for i := range p.blocks() {
		if p.cacheAt(i) == Host {
			b.Caches[i] = a.take(CachesPurpose, p.CacheBytes(i))
		}
	}
	if n := int64(p.Outputs.LogitRows) * int64(p.Model.Vocab) * tensor.F32.Bytes(); n > 0 {
		if p.Outputs.Continues() {
			b.Logits = []device.Mem{a.take(LogitsPurpose, n)}
		} else {
			b.Logits = each(LogitsPurpose, n)
		}
	}

	b.Sums = make([]device.Mem, len(p.Model.Parts))
	var touched, total int64
	perElem := p.TouchedBytesPerElem()
	for part := range p.Model.Parts {
		if p.Tied(part) && p.Bound() {
			b.Sums[part] = a.take(EmbeddingSumPurpose, int64(p.Numerics.CohortCount())*p.TiedSumStride(part))
		}
		switch piece := min(p.gradBytes(part), 4*p.PieceElems(part)); {
		case p.SumsTouchedRows(part) || p.RoundsEarly(part):
			touched = max(touched, piece, perElem*int64(p.Model.LookupOf(part).Cols))
		case p.Numerics.CohortCount() > 1 && p.Model.Parts[part].Kind.LookedUp():
			total = max(total, piece)
		}
	}
	b.Touched = a.take(EmbeddingSumPurpose, touched)
	if p.Cluster.Several() {
		p.placeSums(a, b)
	} else {
		b.Total = a.take(EmbeddingSumPurpose, total)
		if p.Numerics.NarrowSums() {
			b.Cast = a.take(EmbeddingSumPurpose, min(total, p.castBytes()))
		}
	}
	if p.Placement.LookAhead {
		b.AheadTokens, b.AheadNumbers = a.take(TokensPurpose, positions), a.take(TokensPurpose, positions)
		for kind, dtype := range p.types() {
			if k := store.Kind(kind); dtype != tensor.Invalid {
				n := int64(0)
				for i := range p.Model.Lookups {
					l := &p.Model.Lookups[i]
					n = max(n, k.Elems(int64(p.AheadRows(l)*l.Cols))*dtype.Bytes())
				}
				b.Ahead[kind] = a.take(EmbeddingAheadPurpose, store.AlignUp(n))
			}
		}
		b.AheadTally = a.take(EmbeddingAheadPurpose, device.TallyBytes)
	}
	return b
}

// castBytes bounds HostBuffers.Cast: as many bytes as a piece has elements, 4 MiB, which stay in the caches of cores.
func (p *Plan) castBytes() int64 { return max(p.Numerics.pieceElems()/tensor.Align, 1) * tensor.Align }

// Names of host memory in the accounts.
const (
	RowsPurpose         = "packed rows" // of a step, as the loader hands them out
	TokensPurpose       = "tokens"      // of a step, as the device takes them, and the order of those that occur
	ResultsPurpose      = "results"
	InputsPurpose       = "saved layer inputs"
	SidesPurpose        = "values that cross layers"
	KeptPurpose         = "kept activations"
	OutcomesPurpose     = "sums of experts"
	CachesPurpose       = "caches"
	LogitsPurpose       = "logits"
	EmbeddingSumPurpose = "embedding gradient sum"
	SumsPurpose         = "gradients of micro-batch groups" // that pass between hosts
	// EmbeddingAheadPurpose is state of rows of the embedding that are looked up before the table is updated.
	EmbeddingAheadPurpose = "embedding rows ahead"
)
