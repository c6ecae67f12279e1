package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/trace"
)

// Lane is an ordered worker that overlaps with the others. Fetch, compute and drain are streams of the device; update
// is a stream of the host.
type Lane = trace.Lane

// The lanes.
const (
	LaneFetch   = trace.Fetch
	LaneCompute = trace.Compute
	LaneDrain   = trace.Drain
	LaneUpdate  = trace.Update
	LaneDisk    = trace.Disk
	Lanes       = int(trace.NumLanes)
)

// Kind is what an operation of a schedule does.
type Kind uint8

// The operations. x[l] is the input of layer l; layer 0 is the embedding, layers 1..L are decoder blocks, layer L+1 is
// the head; x[1] comes out of the embedding.
const (
	Update      Kind = iota // update: AdamW over the part, from the gradient last brought to host memory; compute: where its state is resident, or passes
	Gather                  // update: x[1] of all micro-batches = rows of the embedding
	GatherAhead             // update: the same rows, as the pending update of the embedding will leave them, which comes later
	Upload                  // fetch: the token arrays of all micro-batches
	Fetch                   // fetch: the part's weights into its slot
	FetchState              // fetch: the part's low halves and moments to the device; of state that passes, the gradient as well
	WriteBack               // drain: the part's weights, low halves and moments from the device to the store
	Load                    // fetch: x[l][m] from the host
	Save                    // drain: x[l][m] to the host
	SaveKept                // drain: what the forward visit of x[l][m] kept, to the host
	LoadKept                // fetch: and back
	Forward                 // compute: x[l+1][m] from x[l][m]; of a block's group: its share, added to x[l+1][m]
	HeadNorm                // compute: final norm of x[L+1][m], and empty statistics
	HeadStats               // compute: log-sum-exp statistics of a vocabulary tile
	HeadLoss                // compute: token losses and their sum
	HeadLogits              // compute: logits of a vocabulary tile for a chunk of the wanted rows
	DrainLogits             // drain: these logits to the host
	ZeroGrad                // compute: clear the part's gradient
	HeadGrad                // compute: gradients of a vocabulary tile, logits recomputed
	HeadVisit               // compute: statistics, loss and gradients of all tiles, chunk by chunk, nothing recomputed
	HeadInput               // compute: gradient through the final norm into dx[m]
	Reopen                  // compute: what the groups of a block read in their backward visits, again
	Backward                // compute: recompute x[l] -> x[l+1], then dx[m] and the part's gradient
	Round                   // compute: the part's gradient in its stored type, and its sum of squares
	Drain                   // drain: the part's rounded gradient to the host
	DrainSum                // drain: the fp32 gradient of a tied tile to the host, where the embedding adds to it
	DrainInput              // drain: dx[m], now the gradient of x[1][m], to the host
	Scatter                 // update: embedding gradient of the part from all micro-batches; rounded, squared
	SaveState               // disk: the part's state, as updated, to the checkpoint
	Collect                 // drain: the step's scalars to the host
	Kinds       = iota
)

var kindNames = [Kinds]string{"update", "gather", "gather-ahead", "upload", "fetch", "fetch-state", "write-back",
	"load", "save",
	"save-kept", "load-kept", "forward",
	"head-norm", "head-stats", "head-loss", "head-logits", "drain-logits", "zero-grad", "head-grad", "head-visit",
	"head-input", "reopen", "backward", "round", "drain", "drain-sum", "drain-input", "scatter", "save-state", "collect"}

// String is the operation's name in golden schedules.
func (k Kind) String() string { return kindNames[k] }

// none marks an index that an operation does not have.
const none = -1

// Op is one operation. Indices that do not apply are -1.
type Op struct {
	Lane               Lane
	Kind               Kind
	Layer, Part, Micro int
	Slot               int // weight slot (Fetch)
	Grad               int // fp32 gradient slot (ZeroGrad, HeadGrad, Backward, Round, DrainSum, and Drain of an fp32 gradient)
	Kept               int // slot of what is kept on the host (SaveKept, LoadKept, Forward, Backward)
	Stage              int // slot of the rounded gradient (Round, Drain)
	Chunk              int // of the wanted rows (HeadLogits, DrainLogits)
	State              int // slot of state that passes through the device (FetchState, Update, WriteBack)
	// Where layer inputs and gradients share buffers: Input is the buffer of x[l] (Load, Save, Forward, HeadNorm,
	// HeadInput, Backward) or of dx (DrainInput). Output is the buffer that the operation writes as well: x[l+1]
	// (Forward), dx (HeadInput, Backward).
	Input, Output int
	// First says that the operation is the first of its kind: Backward of a group begins the gradient of what groups
	// read; HeadGrad, for the micro-batch, then overwrites the gradient of the hidden states instead of adding to it,
	// and Update on the device begins to count the weights that became infinite or NaN.
	First bool
	// After are operations of other lanes, earlier in the schedule, that must be complete; those of the own lane are
	// implied.
	After []int
}

// Schedule is one step as a list of operations in an order in which they could also run one after the other.
type Schedule struct {
	Ops []Op
}

// String prints one operation a line: what golden tests compare and `millrace plan --schedule` shows.
func (s *Schedule) String() string {
	var b strings.Builder
	for i, op := range s.Ops {
		fmt.Fprintf(&b, "%4d %-7s %v\n", i, op.Lane, op)
	}
	return b.String()
}

// String names the operation by layer, part and micro-batch.
func (op Op) String() string {
	var b strings.Builder
	b.WriteString(op.Kind.String())
	for _, f := range []struct {
		name  string
		index int
	}{{"layer", op.Layer}, {"part", op.Part}, {"micro", op.Micro}, {"slot", op.Slot}, {"grad", op.Grad}, {"kept", op.Kept},
		{"stage", op.Stage}, {"chunk", op.Chunk}, {"state", op.State}, {"input", op.Input}, {"output", op.Output}} {
		if f.index != none {
			fmt.Fprintf(&b, " %s %d", f.name, f.index)
		}
	}
	if op.First {
		b.WriteString(" first")
	}
	if len(op.After) > 0 {
		fmt.Fprintf(&b, " after %v", op.After)
	}
	return b.String()
}

// Describe names an operation for errors and traces: what it does, its part and its micro-batch.
func (p *Plan) Describe(op *Op) string {
	s := op.Kind.String()
	if op.Part >= 0 {
		s += " " + p.Model.Parts[op.Part].Name
	}
	if op.Micro >= 0 {
		s += fmt.Sprintf(" micro-batch %d", op.Micro)
	}
	return s
}
