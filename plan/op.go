package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/trace"
)

// Lane is an ordered worker that overlaps with the others. Fetch, compute and drain are streams of the device; update
// is a stream of the host.
type Lane = trace.Lane

// The lanes.
const (
	LaneFetch    = trace.Fetch
	LaneCompute  = trace.Compute
	LaneDrain    = trace.Drain
	LaneUpdate   = trace.Update
	LaneDisk     = trace.Disk
	LaneExchange = trace.Exchange
	LaneSend     = trace.Send
	LaneReceive  = trace.Receive
	Lanes        = int(trace.NumLanes)
)

// Worker is a lane of a rank. A rank is a device that computes, with lanes of its own for fetch, compute and drain and,
// where there are several, exchange; the lanes of the host, update and disk, and send and receive where there are other
// hosts, are those of rank 0. A place is likewise a tier and a rank: see Operand.
type Worker = trace.Worker

// Crew has the workers of a plan.
func (p *Plan) Crew() trace.Crew { return trace.Crew{Ranks: p.Ranks(), Network: p.Cluster.Several()} }

// Workers are all workers of a plan, by their index.
func (p *Plan) Workers() []Worker { return p.Crew().Workers() }

// Do says what an operation does.
type Do uint8

// What operations do.
const (
	DoMove        Do = iota // brings its first operand that it reads to where it writes: fetch or drain
	DoVisit                 // a visit of a layer (nn.Visit): compute
	DoClear                 // zeroes a gradient: compute; update, of a table (Plan.ClearsEarly)
	DoAdd                   // adds the gradient of a cohort to the sum of those before it: compute
	DoNarrow                // rounds the sum of a cohort to bf16, and writes that back if it writes the sum: compute
	DoRound                 // brings a gradient to the type that is stored: update (Plan.RoundsEarly); and squares it: compute
	DoUpdate                // AdamW over a part: update, from the gradient last brought to host memory; compute, where its state is
	DoLookup                // x[1] of a micro-batch, or of all, from rows of the embedding: update
	DoLookupAhead           // the same rows, as the pending update of the embedding will leave them, which comes later: update
	DoScatter               // the table's gradient of the part from all micro-batches, rounded and squared: update
	DoScatterOnto           // the same, onto what a DoClear or a DoRound has left where it is stored: update
	DoSave                  // takes a part's state, as updated, to the checkpoint: disk
	// What follows is for several hosts. A sum is sent from host memory to the part's owner, and weights are sent from
	// where they are stored to each other host; each as its bytes, in one message.
	DoSend    // the operand that it reads to Op.Host: send
	DoReceive // the operand that it writes from Op.Host: receive
	// DoTotal adds a cohort's sum of a part to its Total, or begins it (First). That of the last cohort also brings the
	// total to the type that is stored, where it writes Rounded, and squares what is stored, in as many pieces as
	// squares have: update. The cohort's sum is then spent: its memory may serve as scratch. With Numerics.Exchange the
	// sum is in bf16.
	DoTotal
)

// none marks an index that an operation or an operand does not have.
const none = -1

// Op is one operation. Layer 0 is the embedding, layers 1..L are blocks, layer L+1 is the head. x[l] is the input of
// layer l; x[1] comes out of the embedding.
type Op struct {
	Worker
	Do    Do
	Visit *nn.Visit     // of DoVisit
	Table *model.Lookup // that is looked up, or whose gradient is scattered
	// Layer, Part and Micro say what it is about, for names; -1 where it is about several or none.
	Layer, Part, Micro int
	// Host is the other host of a message; -1 of other operations.
	Host int
	// First says that a visit or a total overwrites what later ones add to, and that an update on the device begins to
	// count the weights that became infinite or NaN.
	First         bool
	Reads, Writes []Operand
	// After are operations of other workers, earlier in the schedule, that must be complete; those of the own one are
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
		lane := op.Lane.String()
		if op.Rank > 0 {
			lane += fmt.Sprintf(" of rank %d", op.Rank)
		}
		fmt.Fprintf(&b, "%4d %-7s %v\n", i, lane, op)
	}
	return b.String()
}

// Name says in a word what the operation does: "fetch", "forward", "round".
func (op *Op) Name() string {
	switch op.Do {
	case DoMove:
		return moveName(op.Reads[0], op.Writes[0])
	case DoClear:
		if op.Lane == LaneUpdate {
			return "zero-table"
		}
		return "zero-grad"
	case DoRound:
		if op.Lane == LaneUpdate {
			return "round-table"
		}
		return "round"
	case DoVisit:
		return op.Visit.Name
	case DoSend:
		return values[op.Reads[0].What].send
	case DoReceive:
		return values[op.Writes[0].What].receive
	}
	return [...]string{DoAdd: "add", DoNarrow: "narrow", DoUpdate: "update",
		DoLookup: "gather", DoLookupAhead: "gather-ahead", DoScatter: "scatter", DoScatterOnto: "scatter",
		DoSave: "save-state", DoTotal: "total"}[op.Do]
}

// moveName is the name of a move by what it reads and writes first.
func moveName(from, to Operand) string {
	switch of := &values[to.What]; {
	case isPeerCopy(from, to):
		return of.peer
	case to.At == Device:
		return of.up
	default:
		return of.down
	}
}

// isPeerCopy reports whether a move is between two devices.
func isPeerCopy(from, to Operand) bool { return from.At == Device && to.At == Device }

// String names the operation by layer, part and micro-batch, and by the slots and buffers of its operands.
func (op Op) String() string {
	slots := map[string]int{}
	chunk, cohort := none, none
	for _, o := range append(op.Writes[:len(op.Writes):len(op.Writes)], op.Reads...) {
		name := values[o.What].outside
		if o.At == Device {
			name = values[o.What].slot
		}
		output := o.What == InputGrad && op.Do != DoMove || o.What == Input && op.Layer != none && o.Index > op.Layer
		if name == "input" && output {
			name = "output"
		}
		if o.What == LogitRows {
			chunk = o.Index
		}
		if o.Slot != none {
			slots[name] = o.Slot
		}
		if o.Cohort > 0 {
			cohort = o.Cohort
		}
	}
	var b strings.Builder
	b.WriteString(op.Name())
	show := func(name string, index int, ok bool) {
		if ok && index != none {
			fmt.Fprintf(&b, " %s %d", name, index)
		}
	}
	show("layer", op.Layer, true)
	show("part", op.Part, true)
	show("micro", op.Micro, true)
	show("cohort", cohort, true)
	show("host", op.Host, true)
	for _, name := range []string{"slot", "grad", "sum", "kept", "cache", "stage", "chunk", "state", "input",
		"output"} {
		if name == "chunk" {
			show(name, chunk, true)
		}
		slot, ok := slots[name]
		show(name, slot, ok)
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
	s := op.Name()
	if op.Part >= 0 {
		s += " " + p.Model.Parts[op.Part].Name
	}
	if op.Micro >= 0 {
		s += fmt.Sprintf(" micro-batch %d", op.Micro)
	}
	if op.Host >= 0 {
		s += fmt.Sprintf(" host %d", op.Host)
	}
	return s
}
