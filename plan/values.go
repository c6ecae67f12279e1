package plan

// The problem. A step has some thirty kinds of values: weights, gradients, layer inputs, what a block keeps, tokens,
// losses. Of each one has to know its memory, its length, the names of its moves, and who else uses the same memory:
// the schedule for its waits, the planner for its bytes and seconds, the engine for its addresses.
//
// The obvious answer has a list for each question: constants with rules of which of them share memory, a struct of
// buffers for the device and one for the host, a function for lengths, one for names. A value is then told seven times,
// and a new one touches as many files.
//
// The answer here is one table of two parts. values says of each value what does not depend on where it is: its
// length, and the names of its moves. rows says in which kinds of memory a value can be, how many pieces it has there,
// and how long each piece is. A piece is a [Cell], and cells are numbered one row after the other. What follows reads
// the table:
//
//   - An operand of the schedule has the number of its cell. Operations wait for each other by cells (builder.add).
//   - One loop takes the memory of all cells, for the planner, which counts it, and for the engine (memory.go).
//   - The engine finds the memory of an operand by its cell.
//
// Two values have the same cells where they share memory: a gradient where its value was, weights that are used where
// they are stored (Plan.Cells).

// What says what an operand is.
type What uint8

// What operations read and write. Index is of a part, a layer or a chunk.
const (
	Stored       What = iota // part: all that the store keeps of it from step to step
	Weights                  // part
	State                    // part: its low halves and moments; of state that passes, the rounded gradient as well
	Gradient                 // part: the fp32 sum over micro-batches; of a tied tile in host memory, of a cohort
	CohortSum                // part: the fp32 sum over the micro-batches of a cohort, before it is added to the others
	Narrowed                 // part: such a sum, rounded to bf16 (Numerics.Exchange)
	Total                    // part: the fp32 sum of those of all hosts, in their order
	Rounded                  // part: its gradient in the type that is stored
	Tokens                   // of all micro-batches
	Input                    // layer and micro-batch: x
	InputGrad                // micro-batch: dx
	Kept                     // layer and micro-batch: what forward leaves for backward
	Outcome                  // layer and micro-batch: what its parts made of rows, which forward leaves for backward
	Cache                    // layer: what it keeps from pass to pass
	Side                     // side and micro-batch: what crosses blocks besides x
	SideGrad                 // side and micro-batch: its gradient
	Held                     // layer and micro-batch: what the layer has between its visits of one direction
	HeadUp                   // micro-batch: of what the head has, what passes from tile to tile before there are losses
	HeadDown                 // micro-batch: and after
	Work                     // scratch of the compute lane
	LossSum                  // micro-batch: the sums of the figures of its positions
	Loads                    // layer: how many rows chose each expert
	Balance                  // block with a load-balancing loss, none for all: how often its experts were chosen
	Squares                  // part: the sum of squares of its rounded gradient
	Tally                    // what updates tell: device.OptimizerOps
	LogitRows                // chunk of the wanted rows, and micro-batch
	TokenLosses              // micro-batch: the figures of its positions, for an objective
	LossWeights              // micro-batch: the weights that it gives them
	Picks                    // micro-batch: tokens of its positions whose logits an objective reads
	PickedLogits             // micro-batch: these logits
	PickedGrads              // micro-batch: the gradients that it gives them, where the logits were
	Drawn                    // of a pass that continues sequences: the tokens that its wanted rows draw
	Results                  // the scalars of a step together

	// What follows is memory that no operand names.

	HeldRows     // what is away of Held: Placement.HeldAway
	HostResults  // the scalars as the host's lane writes them, or a device where they are bound
	Rotary       // block: cosines and sines, of the first block with its frequencies
	Constants    // block: F32 [1, nn.Block.FeedConstants]
	WantedLogits // micro-batch, or of a pass that continues sequences: F32 [LogitRows, Vocab]
	Numbers      // the number of the token at each position, where rows of the step's tokens alone are summed or rounded
	OfTokens     // the number of each token of the vocabulary, -1 if it does not occur
	Occurring    // the tokens that occur, rising; with several hosts a list for each cohort of the step
	Touched      // room for the sums of some rows of the embedding, and for what they are rounded to
	Cast         // sums of cohorts, some elements at a time, while they are rounded to bf16
	AheadTokens  // by micro-batch: the tokens that occur in it, each once and rising
	AheadNumbers // by micro-batch: the place in that list of the token at each position
	Ahead        // kind: state of rows of tables, some at a time, which are updated as they are looked up
	AheadTally   // what these updates tell, which nothing reads: the update of the table tells it
	whats
)

// Operand is something that an operation reads or writes, and where it is. The schedule names it; the engine knows the
// memory of each.
type Operand struct {
	What         What
	At           Place
	Cell         Cell // its memory: builder.add sets it
	Index, Micro int  // none where it has no such index
	Rank         int  // of a place on a device
	Slot         int  // of a ring, or of buffers that inputs share or pass through; none where it has memory of its own
	// Cohort is the one whose sum it is, where cohorts have sums of their own; else 0. Cohorts are numbered on their
	// host, but in a CohortSum in host memory and in a Balance in the whole step. Of a Balance, none stands for all.
	Cohort int
	// OfTokens says that the sum of a table's gradient has the rows of the cohort's tokens alone.
	OfTokens bool
}

// value says what is true of a value wherever it is.
type value struct {
	// The names of its slots and buffers in schedules, on a device and outside; those without are not shown.
	slot, outside string
	// The names of its moves: to a device, from it, and from one device to another; and of messages that have it.
	up, down, peer, send, receive string
	// bytes is the length of what an operand names, none where its operation knows it; off is where that begins in its
	// cell, if not at 0.
	bytes, off quantity
}

// quantity is a number of bytes that an operand has.
type quantity func(p *Plan, o *Operand) int64

// Quantities of the part, the side or the layer that an operand names, and of any operand.
func ofIndex(f func(*Plan, int) int64) quantity {
	return func(p *Plan, o *Operand) int64 { return f(p, o.Index) }
}

func ofBlock(f func(*Plan, int) int64) quantity {
	return func(p *Plan, o *Operand) int64 { return f(p, o.Index-1) }
}

func ofMicro(f func(*Plan, int) int64) quantity {
	return func(p *Plan, o *Operand) int64 { return f(p, o.Micro) }
}

func ofAll(f func(*Plan) int64) quantity { return func(p *Plan, _ *Operand) int64 { return f(p) } }

// rowsOfLayer is the length of rows as wide as the input of the layer that an operand names.
func (p *Plan) rowsOfLayer(o *Operand) int64 { return p.inputBytes(o.Index) }

// scalar is the length of a sum of squares.
func scalar(*Plan, *Operand) int64 { return 8 }

var values = [whats]value{
	Stored:   {down: "write-back", send: "send-weights", receive: "receive-weights", bytes: ofIndex((*Plan).storedBytes)},
	Weights:  {slot: "slot", up: "fetch", bytes: ofIndex((*Plan).weightBytes)},
	State:    {slot: "state", up: "fetch-state", bytes: ofIndex((*Plan).fetchedStateBytes)},
	Gradient: {slot: "grad", down: "drain-sum", bytes: ofIndex((*Plan).gradBytes), off: (*Plan).tiedSumAt},
	CohortSum: {outside: "sum", down: "drain-sum", send: "send-sum", receive: "receive-sum",
		bytes: (*Plan).cohortSumBytes, off: (*Plan).cohortSumAt},
	Narrowed: {bytes: ofIndex((*Plan).SumBytes)},
	Total:    {bytes: ofIndex((*Plan).gradBytes)},
	Rounded:  {slot: "stage", down: "drain", bytes: ofIndex((*Plan).storedGradBytes)},
	Tokens:   {up: "upload", bytes: ofAll((*Plan).tokenBytes)},
	Input:    {slot: "input", up: "load", down: "save", peer: "pass", bytes: (*Plan).rowsOfLayer},
	InputGrad: {slot: "input", up: "load-input", down: "drain-input", peer: "pass-input",
		bytes: (*Plan).rowsOfLayer},
	Kept:     {slot: "kept", up: "load-kept", down: "save-kept", bytes: ofBlock((*Plan).KeptBytes)},
	Outcome:  {up: "load-sums", down: "save-sums", bytes: (*Plan).rowsOfLayer},
	Cache:    {slot: "cache", up: "load-cache", down: "save-cache", bytes: ofBlock((*Plan).CacheBytes)},
	Side:     {up: "load-side", down: "save-side", peer: "pass-side", bytes: ofIndex((*Plan).sideBytes)},
	SideGrad: {up: "load-side-grad", down: "drain-side", peer: "pass-side-grad", bytes: ofIndex((*Plan).sideBytes)},
	HeadUp: {up: "load-head", down: "save-head", peer: "pass-head", bytes: (*Plan).headRowsBytes,
		off: (*Plan).headRowsAt},
	HeadDown: {up: "load-head-grad", down: "save-head-grad", peer: "pass-head-grad", bytes: (*Plan).headRowsBytes,
		off: (*Plan).headRowsAt},
	LossSum: {bytes: ofAll((*Plan).lossSumBytes), off: ofMicro((*Plan).LossAt)},
	Loads:   {bytes: ofBlock((*Plan).loadBytes), off: (*Plan).loadsAt},
	Balance: {up: "load-balance", down: "save-balance", send: "send-balance", receive: "receive-balance",
		bytes: (*Plan).balanceBytes, off: (*Plan).balanceAt},
	Squares:     {bytes: scalar, off: ofIndex((*Plan).SquaresAt)},
	Tally:       {bytes: ofAll((*Plan).tallyBytes), off: ofAll((*Plan).TallyAt)},
	LogitRows:   {down: "drain-logits"},
	TokenLosses: {down: "save-losses", bytes: ofAll((*Plan).figureBytes)},
	LossWeights: {up: "load-loss-weights", bytes: ofAll((*Plan).weighedBytes)},

	Picks:        {up: "load-picks", bytes: ofAll((*Plan).picksBytes)},
	PickedLogits: {down: "save-picked", bytes: ofAll((*Plan).picksBytes)},
	PickedGrads:  {up: "load-picked-grads", bytes: ofAll((*Plan).picksBytes)},
	Drawn:        {down: "save-drawn", bytes: ofAll((*Plan).drawnBytes)},
	Results:      {down: "collect", bytes: ofAll((*Plan).ResultBytes)},
}

// Range says which bytes of its cell an operand has.
func (p *Plan) Range(o *Operand) (off, bytes int64) {
	v := &values[o.What]
	if v.off != nil {
		off = v.off(p, o)
	}
	return off, v.bytes(p, o)
}

// bytes is the length of what an operand names; 0 where its operation knows it.
func (p *Plan) bytes(o *Operand) int64 {
	if of := values[o.What].bytes; of != nil {
		return of(p, o)
	}
	return 0
}
