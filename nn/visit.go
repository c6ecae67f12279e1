package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// The problem. A step computes each layer in visits: while some of its weights are on the device, micro-batches pass
// through them. A dense block has one visit in each direction. A block whose feed-forward has parts of its own has a
// visit for each of them, and on the way down two for its trunk. The head has visits for its norm, for each tile of the
// vocabulary and for the loss. Experts see the rows of the whole step at once.
//
// The obvious answer is a kind of operation for each of them, which the schedule emits, the simulation prices and the
// engine knows how to call. Then each new layer is a case in ten files.
//
// The answer here: a layer states its visits as data. A [Visit] names the parts that it needs, what it reads and what it
// writes, and has a function that asks a stream for its operations. The schedule loops over visits, moves what they use
// to where they find it, and orders them. The engine finds the memory and calls the function. [Measure] calls the same
// function with a stream that counts. None of the three knows which layer it is.

// Direction says which way a step goes through the layers.
type Direction uint8

// The directions.
const (
	Forward  Direction = iota // of the head: as far as the loss
	Backward                  // of the head: loss and gradients
	Logits                    // of the head alone: logits of the rows that are wanted
	Continue                  // of blocks alone: Forward of positions that follow those in the block's cache
)

// Over says with which rows one call of a visit computes. Where a step has cohorts of micro-batches, each of them is a
// step for the layer.
type Over uint8

// The choices.
const (
	EachMicro Over = iota // one micro-batch
	WholeStep             // the rows of all micro-batches: what the layer holds, since x, y and dx are apart
)

// objective returns the stop of a head whose losses have weights that follow from all of them ([Head.Stops]).
func (h *Head) objective() Visit {
	v := Visit{Name: "objective", To: Backward, OnHost: true, Over: WholeStep, Reads: TokenLosses, Writes: LossWeights}
	if h.Picks > 0 {
		v.Reads, v.Writes = v.Reads|PickedLogits, v.Writes|PickedGrads
	}
	return v
}

// Uses is a set of what a visit reads or writes besides the weights of its parts.
type Uses uint32

// The things that a visit may use. T is the number of positions of a micro-batch.
const (
	X            Uses = 1 << iota // [T, Hidden]: the layer's input
	Y                             // [T, Hidden]: its output
	DX                            // [T, Hidden]: the gradient of y, until the last visit leaves that of x
	Tokens                        // targets, positions and documents of the micro-batch
	KeptRows                      // what forward leaves for backward: Kept
	HeldRows                      // what the layer has on the device between the visits of a direction: Held, or Ending
	Grads                         // fp32 gradients of the weights of its parts, to which it adds
	Loss                          // the sums of the figures of the micro-batch's positions
	LogitRows                     // logits of a tile for some of the rows that are wanted
	Loads                         // how many rows chose each expert, for people: Block.LoadBytes
	CacheRows                     // what the block keeps from pass to pass: Cache
	Balancing                     // what the load-balancing loss needs of the loads of all blocks with experts
	Sides                         // what crosses blocks besides x and y: Block.Sides
	Outcomes                      // what a feed-forward's parts made of rows, which forward leaves for backward: [Summed]
	TokenLosses                   // F32 [Head.Figures, T]: the figures of the positions, one by one
	LossWeights                   // F32 [Head.Weighed, T]: the weights that an objective gives the positions
	PickedLogits                  // F32 [T, Head.Picks]: logits of some tokens, with I32 of the same shape: which
	PickedGrads                   // F32 [T, Head.Picks]: their gradients, which an objective writes, and which tokens
	Drawn                         // F32 [wanted, device.DrawnFigures]: the tokens that the rows draw
)

// Has reports whether the set has all of those.
func (u Uses) Has(of Uses) bool { return u&of == of }

// Visit is a layer's time on the device with some of its parts.
type Visit struct {
	Name          string // in schedules and traces: "forward", "head-stats"
	To            Direction
	Parts         []int // by their number in the layer
	Over          Over
	Reads, Writes Uses
	First         bool // it overwrites what later visits of its kind add to
	// OnHost says that the host does it, and not with a stream: no visit after it begins before.
	OnHost bool
	// Run asks the stream for the visit's operations.
	Run func(device.Stream, *Args)
	// Empty is in place of Run for a micro-batch of padding alone ([Visit.RunEmpty]); nil: nothing.
	Empty func(device.Stream, *Args)
}

// Stage is a row of visits that each micro-batch goes through before the next one comes. The stages of a layer follow
// each other.
type Stage []Visit

// Args are the operands of a visit; what the visit does not name is zero.
type Args struct {
	// Weights and Gradients are those of the visit's parts, in its order. The gradient of a frozen part is the zero
	// Params.
	Weights, Gradients []Params
	X, Y, DX           device.Mat // [T, Hidden]
	Batch              *MicroBatch
	Rope               *Rope      // of the block's frequencies
	Constants          device.Mat // F32 [1, Block.FeedConstants]
	Scalar             float32    // of a block that has one, see Block.Scalar
	Kept               *Kept
	Outcome            device.Mat // [T, Hidden], see Summed; the zero Mat where no backward pass comes
	Cache              *Cache
	Sides              []SideRows // by the index in Block.Sides
	Held               *Held      // of the micro-batch, or of the whole step
	Work               *Work      // of the visit's direction
	Ending             *Ending

	Loss  device.Mem // F64 [device.TokenFigures]
	Loads device.Mem // Block.LoadBytes
	// F32 [1, experts], the block's own of a cohort, on the way up; F32 [cohorts of the step * blocks with experts,
	// experts] on the way down.
	Balance  device.Mat
	StepRows int // of all micro-batches of a step: with a load-balancing loss
	// Temperature divides the logits of the head before its losses and their gradients; 0: 1. That is no part of the
	// model: visits that write logits have none.
	Temperature   float32
	Wanted        Wanted
	Picked        Picked
	ValueSlopes   device.Mem // F32 [T], of a head with values: those of the loss of the step
	EntropySlopes device.Mem // F32 [T], of a head with entropies: the same by them
}

// Picked are logits of some tokens of each position, or their gradients.
type Picked struct {
	IDs    device.Mem // I32 [T, Head.Picks]; negative: none
	Values device.Mat // F32 [T, Head.Picks]
}

// rows returns the rows of a chunk of positions.
func (p *Picked) rows(c chunk) (values device.Mat, ids device.Mem) {
	values = c.rows(p.Values)
	each := int64(values.Cols) * tensor.I32.Bytes()
	return values, p.IDs.Slice(int64(c.first)*each, int64(c.n)*each)
}

// Wanted are the rows of a micro-batch whose logits a visit computes.
type Wanted struct {
	First, Rows int
	To          device.Mat // F32 [Rows, columns]
	FirstColumn int        // of To, where those of the visit's tile begin
	// Where the rows draw tokens (Head.Draws): how, of which vocabulary, and where to, at the last tile.
	Draws device.Mem // I32 [Rows, device.DrawWords]
	Vocab int
	Drawn device.Mat // F32 [Rows, device.DrawnFigures]
}

// Layer is a block or a head.
type Layer interface {
	// Stages are the layer's visits in a direction. partsAtOnce has all its parts on the device in one visit, if the
	// layer knows how to use that.
	Stages(to Direction, partsAtOnce bool) []Stage
	// Measure runs a visit on a stream that only counts. Layouts are those of the visit's parts; frozen tensors cost no
	// product.
	Measure(v Visit, m Shape, layouts ...*tensor.Layout) Account
}

var _, _ Layer = (*Block)(nil), (*Head)(nil)

// Stages implements Layer.
func (d *Block) Stages(to Direction, _ bool) []Stage {
	var all []Stage
	visit := func(v Visit) {
		v.To = to
		all = append(all, Stage{v})
	}
	trunk, n, kept, sides, outcome := []int{0}, d.Parts(), KeptRows, Uses(0), Uses(0)
	if len(d.Sides()) > 0 {
		sides = Sides
	}
	if d.LeavesOutcome() {
		outcome = Outcomes
	}
	up := to == Forward || to == Continue
	if to == Continue {
		kept |= CacheRows
	}
	kept |= sides // the visits that run the halves, or their backward, read and write them
	switch {
	case to == Logits:
	case n == 0 && up:
		visit(Visit{Name: "forward", Parts: trunk, Reads: X | Tokens, Writes: Y | kept, Run: d.runForward})
	case n == 0:
		visit(Visit{Name: "backward", Parts: trunk, Reads: X | Tokens, Writes: DX | kept | Grads, Run: d.runBackward})
	case up:
		visit(Visit{Name: "forward", Parts: trunk, Reads: X | Tokens, Writes: Y | kept | HeldRows, Run: d.runOpen})
		for i := range n {
			visit(d.partForward(i))
		}
		if r, ok := d.FeedForward.(Routed); ok {
			visit(Visit{Name: "combine", Reads: HeldRows, Writes: Y | outcome, Run: func(s device.Stream, a *Args) {
				r.Combine(d.held(s, a), a.Y)
				if d.Scalar {
					s.Scale(a.Y, a.Y, a.Scalar)
				}
			}})
		}
	default:
		reopen := Visit{Name: "reopen", Parts: trunk, Reads: X | Tokens | kept | outcome, Writes: HeldRows,
			Run: d.runReopen}
		_, routed := d.FeedForward.(Routed)
		if routed {
			reopen.Reads |= DX
		}
		visit(reopen)
		for i := range n {
			part := n - 1 - i // which may still be in its slot
			if routed {
				part = i // sums over experts have one order in both directions
			}
			visit(d.partBackward(part, i == 0))
		}
		visit(Visit{Name: "backward", Parts: trunk, Reads: X | Tokens | outcome,
			Writes: DX | kept | HeldRows | Grads, Run: d.runClose})
	}
	return all
}

// Stages implements Layer. Part 0 is the final norm, and part 1+i is tile i.
func (h *Head) Stages(to Direction, partsAtOnce bool) []Stage {
	norm := Visit{Name: "head-norm", Parts: []int{0}, Reads: X, Writes: HeldRows, Run: h.runNorm,
		Empty: h.emptyNorm}
	input := Visit{Name: "head-input", Parts: []int{0}, Reads: X | HeldRows, Writes: DX | Grads, Run: h.runInput}
	loss := Visit{Name: "head-loss", Reads: Tokens, Writes: HeldRows | Loss, Run: h.runLoss,
		Empty: h.emptyLoss}
	if h.Values && h.Stops {
		input.Reads |= LossWeights
	}
	stops, picks := h.Stops && to == Backward, h.Picks > 0 && to != Logits
	if stops {
		loss.Writes |= TokenLosses
	}
	if picks {
		loss.Writes |= PickedLogits // which are complete
	}
	var up, down, all []Visit // by tile, and of all tiles
	parts := make([]int, h.Tiles())
	for i := range parts {
		parts[i] = 1 + i
		if to == Logits && h.Draws {
			up = append(up, h.drawVisit(i))
		} else if to == Logits {
			up = append(up, h.logitsVisit(i))
		} else {
			up = append(up, h.statsVisit(i))
		}
		down = append([]Visit{h.gradVisit(i)}, down...)
		if stops {
			down[0].Reads |= LossWeights
		}
		if picks {
			up[i].Writes |= PickedLogits
			down[0].Reads |= PickedGrads
		}
	}
	switch {
	case to == Logits:
		all = append([]Visit{norm}, up...)
	case to == Forward:
		all = append(append([]Visit{norm}, up...), loss)
	case stops:
		up, down = append(append([]Visit{norm}, up...), loss), append(down, input)
		return h.stages(to, partsAtOnce, up, []Visit{h.objective()}, down)
	case partsAtOnce && !h.Scores: // whose gradients form no scores again
		all = []Visit{norm, {Name: "head-visit", Parts: parts, Reads: Tokens, Writes: HeldRows | Grads | Loss,
			Run: h.runVisit, Empty: h.emptyLoss}, input}
	default:
		all = append(append(append(append([]Visit{norm}, up...), loss), down...), input)
	}
	return h.stages(to, partsAtOnce, all)
}

// stages are rows of visits in a direction: each row a stage where all parts are on the device, and else each visit.
func (h *Head) stages(to Direction, partsAtOnce bool, rows ...[]Visit) (all []Stage) {
	for _, visits := range rows {
		for i := range visits {
			if visits[i].To = to; !partsAtOnce {
				all = append(all, Stage{visits[i]})
			}
		}
		if partsAtOnce {
			all = append(all, visits)
		}
	}
	return all
}
