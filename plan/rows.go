package plan

// per says what a row has cells for, and by what they are numbered.
type per uint8

const (
	perStep       per = iota // one
	perSlot                  // slots, as many as row.slots says
	perPart                  // parts
	perLayer                 // layers: from 0 on, with the head
	perMicro                 // micro-batches
	perLayerMicro            // layers and micro-batches
	perSideMicro             // sides and micro-batches
	perRank                  // ranks
	perKind                  // kinds of extents
	perHead                  // sets of buffers of the head: Plan.HeadBuffer
)

// memory is a kind of memory in which values wait.
type memory uint8

const (
	own   memory = iota // of a device: of the part, the layer or the micro-batch alone
	ring                // of a device: through which several pass
	home                // outside of devices
	way                 // outside of devices: of what is on its way
	bound               // outside of devices, where a unified device uses it
	memories
)

// row says that a value can wait in a kind of memory, and how.
type row struct {
	what    What
	in      memory
	per     per
	purpose string // its line in the tables of memory that people read; none: others have its memory, or the store
	// bytes is the length of a cell: of a part, a block from 0, a side or a slot, on a rank if it is of a device; 0
	// where it has no memory.
	bytes func(p *Plan, rank, i int) int64
	// slots is the number of cells of perSlot; of others 0 where no operand is ever in the row.
	slots func(p *Plan) int
}

// rows are all of them: on a device in the order of addresses, then in host memory, then those without memory of their
// own.
//
// Three rules keep the device's memory small. Rings have equal slots, each as large as the largest that passes through
// it, so that any part fits any slot and the schedule alone says which. Values that are never in use at the same time
// have one cell: gradients of cohorts, the values between visits of all blocks, the scratch of all visits. And the
// values of micro-batches come in equal cells that follow each other, which are counted as one times many, since the
// search counts plans of thousands of micro-batches.
var rows = []row{
	{Weights, ring, perSlot, "weight slots", (*Plan).weightSlotBytes, (*Plan).weightSlots},
	{Weights, own, perPart, "resident weights", (*Plan).residentBytes, nil},
	{Gradient, own, perPart, "gradients", (*Plan).ownGradBytes, nil},
	{Gradient, ring, perSlot, "gradients", (*Plan).gradSlotBytes,
		func(p *Plan) int { return p.Placement.Rings.Gradients }},
	{Rounded, ring, perSlot, "gradients", (*Plan).stageBytes, (*Plan).stageSlots},
	{CohortSum, own, perStep, "gradients of micro-batch groups", (*Plan).cohortSumRoom, nil},
	{Narrowed, own, perStep, "gradients of micro-batch groups", (*Plan).narrowedBytes, nil},
	{State, own, perPart, "resident state", (*Plan).residentStateBytes, nil},
	{Rounded, own, perPart, "resident state", (*Plan).residentGradBytes, nil},
	{State, ring, perSlot, "state that passes", (*Plan).stateSlotBytes,
		func(p *Plan) int { return p.Placement.Rings.State }},
	// Rows of x between two blocks: forward writes one set while it reads the other, and backward passes dx down. A ring
	// of one buffer for each micro-batch and a few spare ones can serve all three (inputBuffer says in which order).
	{Input, ring, perSlot, "layer inputs in use", always((*Plan).widestInput), (*Plan).inputBuffers},
	{InputGrad, own, perMicro, "layer inputs in use", (*Plan).inputGradBytes, nil},
	{Side, own, perSideMicro, "values that cross blocks", (*Plan).sideHereBytes, nil},
	{SideGrad, own, perSideMicro, "values that cross blocks", (*Plan).sideGradHereBytes, nil},
	{Held, own, perStep, "between visits of groups", (*Plan).heldBytes, nil},
	{Input, own, perLayerMicro, "saved layer inputs", (*Plan).savedHereBytes, ifAny((*Plan).savedOnDevice)},
	{Kept, ring, perSlot, "kept activations", (*Plan).keptSlotBytes,
		func(p *Plan) int { return p.Placement.Rings.Activations }},
	{Kept, own, perLayerMicro, "kept activations", (*Plan).keptHereBytes, nil},
	{Outcome, own, perLayerMicro, "sums of experts", (*Plan).outcomeHereBytes, ifAny((*Plan).leavesOutcome)},
	{Outcome, ring, perMicro, "sums of experts", (*Plan).passingOutcomeBytes, ifAny((*Plan).leavesOutcome)},
	{Cache, ring, perSlot, "caches", (*Plan).cacheSlotBytes, func(*Plan) int { return cacheSlots }},
	{Cache, own, perLayer, "caches", (*Plan).cacheHereBytes, nil},
	{LogitRows, own, perStep, "logits", (*Plan).logitChunkBytes, nil},
	{Rotary, own, perLayer, tablesPurpose, (*Plan).rotaryBytes, nil},
	{Balance, own, perStep, tablesPurpose, always((*Plan).balancesBytes), nil},
	{Constants, own, perLayer, tablesPurpose, (*Plan).constantBytes, nil},
	{Tokens, own, perStep, tablesPurpose, unlessBound((*Plan).tokenBytes), nil},
	{Results, own, perStep, tablesPurpose, unlessBound((*Plan).ResultBytes), nil},
	{TokenLosses, own, perMicro, tablesPurpose, unlessBound((*Plan).objectiveFigureBytes), nil},
	{LossWeights, own, perMicro, tablesPurpose, unlessBound((*Plan).objectiveBytes), nil},
	{Picks, own, perMicro, picksPurpose, (*Plan).picksHereBytes, (*Plan).ifPicks},
	{PickedLogits, own, perMicro, picksPurpose, (*Plan).picksHereBytes, (*Plan).ifPicks},
	{Drawn, own, perStep, tablesPurpose, unlessBound((*Plan).drawnBytes), nil},
	{HeadUp, own, perHead, "rows of the head", (*Plan).dealtEndingBytes, nil},
	{Work, own, perStep, "work", (*Plan).workBytes, nil},

	{Tokens, home, perStep, TokensPurpose, always((*Plan).tokenBytes), nil},
	{OfTokens, home, perStep, TokensPurpose, (*Plan).ofTokensBytes, nil},
	{Numbers, home, perStep, TokensPurpose, (*Plan).numbersBytes, nil},
	{Occurring, home, perSlot, TokensPurpose, (*Plan).occurringBytes, (*Plan).tokenLists},
	{AheadTokens, home, perStep, TokensPurpose, ifAhead((*Plan).stepTokenBytes), nil},
	{AheadNumbers, home, perStep, TokensPurpose, ifAhead((*Plan).stepTokenBytes), nil},
	{TokenLosses, home, perMicro, TokensPurpose, always((*Plan).objectiveFigureBytes), nil},
	{LossWeights, home, perMicro, TokensPurpose, always((*Plan).objectiveBytes), nil},
	{Picks, home, perMicro, TokensPurpose, always((*Plan).picksBytes), (*Plan).ifPicks},
	{PickedLogits, home, perMicro, TokensPurpose, always((*Plan).picksBytes), (*Plan).ifPicks},
	{Drawn, home, perStep, TokensPurpose, always((*Plan).drawnBytes), nil},
	{HostResults, home, perStep, ResultsPurpose, always((*Plan).ResultBytes), nil},
	{Results, home, perRank, ResultsPurpose, always((*Plan).ResultBytes), nil},
	{Balance, home, perStep, ResultsPurpose, (*Plan).passingBalanceBytes, nil},
	{Input, home, perLayerMicro, InputsPurpose, (*Plan).savedHomeBytes, nil},
	{Input, way, perMicro, InputsPurpose, (*Plan).passingInputBytes, nil},
	{HeadUp, way, perSlot, InputsPurpose, (*Plan).passingHeadUpBytes, (*Plan).headPassing},
	{HeadDown, way, perSlot, InputsPurpose, (*Plan).passingHeadDownBytes, (*Plan).headPassing},
	{Side, home, perSideMicro, SidesPurpose, (*Plan).sideHomeBytes, nil},
	{SideGrad, home, perSideMicro, SidesPurpose, (*Plan).sideGradHomeBytes, nil},
	{HeldRows, home, perStep, HeldPurpose, (*Plan).heldHomeBytes, nil},
	{Kept, home, perLayerMicro, KeptPurpose, (*Plan).keptHomeBytes, ifAny((*Plan).ActivationsSpill)},
	{Outcome, home, perLayerMicro, OutcomesPurpose, (*Plan).outcomeHomeBytes, ifAny((*Plan).leavesOutcome)},
	{Cache, home, perLayer, CachesPurpose, (*Plan).cacheHomeBytes, nil},
	{WantedLogits, home, perSlot, LogitsPurpose, always((*Plan).logitBytes), (*Plan).logitBuffers},
	{Gradient, home, perPart, EmbeddingSumPurpose, (*Plan).tiedSumsBytes, nil}, // else the store's: store.GradSum
	{Touched, home, perStep, EmbeddingSumPurpose, (*Plan).touchedBytes, nil},
	{CohortSum, way, perSlot, SumsPurpose, (*Plan).sumSlotBytes, (*Plan).sumSlots},
	{Total, home, perStep, SumsPurpose, always((*Plan).totalRoom), nil},
	{Cast, home, perStep, SumsPurpose, always((*Plan).castBytes), nil},
	{Ahead, home, perKind, EmbeddingAheadPurpose, (*Plan).aheadBytes, nil},
	{AheadTally, home, perStep, EmbeddingAheadPurpose, ifAhead((*Plan).tallyBytes), nil},

	{what: Stored, in: home, per: perPart},
	{what: Rounded, in: home, per: perPart},
	{what: Rounded, in: way, per: perSlot, slots: func(*Plan) int { return sharedGrads + 1 }},
	{what: LogitRows, in: home},             // in WantedLogits
	{what: LossSum, in: own, per: perMicro}, // in Results
	{what: Loads, in: own},
	{what: Squares, in: own, per: perPart},
	{what: Tally, in: own},
	{what: LossSum, in: bound, per: perMicro}, // in HostResults
	{what: Loads, in: bound},
	{what: Squares, in: bound, per: perPart},
	{what: Tally, in: bound},
}
