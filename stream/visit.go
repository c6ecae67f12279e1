package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// A visit is a call of a layer: nn knows the mathematics, and nothing of places; plan knows places, and nothing of
// mathematics. Here the two meet.
//
// An operation of the schedule names its operands: weights of part 7 in slot 1, the input of block 3 of micro-batch 0,
// the gradient that is written. visit looks up the memory of each (operands.go), puts it into the field of nn.Args
// that the kind of the operand has, and calls the visit's Run. It decides nothing else: which values a visit reads is
// in its declaration, which of them is in which memory is in the plan, and when the memory holds them is in the
// schedule's waits. A new kind of layer therefore changes no line here; a new kind of operand adds one case.
//
// Run only enqueues. The stream belongs to the compute lane of a rank, so kernels of successive visits run in order,
// and the worker is ahead of them by as much as the stream holds. A visit waits for no one: run.go has made the
// stream, or the worker, wait for the operations that the schedule names in After before it comes here.

// visit enqueues a layer's visit: it hands the visit what its operands name.
func (r *execution) visit(s device.Stream, op *plan.Op) error {
	here, memory := r.ranks[op.Rank].arrays, r.ranks[op.Rank].memory
	a := nn.Args{Temperature: r.temperature}
	if block := op.Layer - 1; block >= 0 && block < len(here.Rope) {
		a.Rope, a.Constants = here.Rope[block], here.Constants[block]
		a.Scalar = r.Plan.Model.Scalar(block)
	}
	if op.Micro >= 0 {
		a.Batch = r.batch(op.Rank, op.Micro)
	}
	reads, writes, err := r.operands(op)
	if err != nil {
		return err
	}
	sums := map[int]nn.Params{} // by part
	for i, o := range op.Writes {
		if o.What == plan.Gradient || o.What == plan.CohortSum {
			g := nn.Gradients(writes[i], r.Plan.Model.Parts[o.Index].Layout)
			// The first micro-batch writes the gradient, the others add: the order of sums is fixed.
			g.Fresh = r.Plan.Numerics.BeginsCohort(op.Micro)
			sums[o.Index] = g
		}
	}
	use := func(o *plan.Operand, mem device.Mem) {
		switch o.What {
		case plan.Weights:
			a.Weights = append(a.Weights, nn.Weights(mem, r.Plan.Model.Parts[o.Index].Layout, r.forms[store.Weights].Type))
			a.Gradients = append(a.Gradients, sums[o.Index])
		case plan.Input:
			if op.Visit.Reads.Has(nn.X) && a.X.IsZero() {
				a.X = memory.Rows(o)
			} else {
				a.Y = memory.Rows(o)
			}
		case plan.Side: // of sides that the block states, r.sides has the rows
			if m := r.Plan.Model; m.Ends(op.Layer) && m.ChainOf(op.Layer).Out == o.Index {
				a.Y = memory.Rows(o)
			}
		case plan.InputGrad:
			a.DX = memory.Rows(o)
		case plan.Kept:
			a.Kept = r.Plan.KeptIn(mem, o.Index-1)
		case plan.Outcome:
			a.Outcome = memory.Rows(o)
		case plan.Held:
			r.hold(&a, op, o)
		case plan.Work:
			way := nn.Forward
			if op.Visit.To == nn.Backward {
				way = nn.Backward
			}
			if of := here.Work[way]; o.Index <= len(of) {
				a.Work = of[o.Index-1]
			}
		case plan.Cache:
			a.Cache = r.Plan.CacheIn(mem, o.Index-1)
		case plan.LossSum:
			a.Loss = mem
		case plan.Loads:
			a.Loads = mem
		case plan.Balance:
			a.Balance, a.StepRows = memory.Balances(o), r.Plan.Whole.StepPositions()
		case plan.LogitRows:
			a.Wanted = r.logitsOf(op, o)
		case plan.TokenLosses:
			a.Ending.Figures = device.NewMat(mem, tensor.F32, r.Plan.Model.Head.Figures(), r.Plan.Numerics.Positions())
		case plan.LossWeights:
			head := r.Plan.Head()
			n := mem.Len / int64(head.Weighed())
			a.Batch.Weights = mem.Slice(0, n)
			if head.Values {
				a.ValueSlopes = mem.Slice(n, n)
			}
			if head.Entropies {
				a.EntropySlopes = mem.Slice(mem.Len-n, n)
			}
		case plan.Picks:
			a.Picked.IDs = mem
		case plan.PickedLogits, plan.PickedGrads:
			a.Picked.Values = device.NewMat(mem, tensor.F32, r.Plan.Numerics.Positions(), r.Plan.Outputs.Picks())
		}
	}
	for i := range op.Reads {
		use(&op.Reads[i], reads[i])
	}
	for i := range op.Writes {
		use(&op.Writes[i], writes[i])
	}
	if op.Visit.Writes.Has(nn.LogitRows) && a.Wanted.Rows == 0 {
		return nil
	}
	if (op.Visit.Reads | op.Visit.Writes).Has(nn.Sides) {
		a.Sides = r.sides(op)
	}
	if r.continues {
		if a.Cache != nil {
			a.Cache.TakeOver(s, r.takeover)
		}
		a.First(r.passRows)
	} else if op.Micro >= 0 {
		switch n := r.rows[op.Micro]; {
		case n == 0:
			op.Visit.RunEmpty(s, &a)
			return nil
		case n < a.Batch.T:
			a.First(n)
		}
	}
	op.Visit.Run(s, &a)
	return nil
}

// hold gives a visit what its layer has between visits, of the micro-batch or of its cohort.
func (r *execution) hold(a *nn.Args, op *plan.Op, o *plan.Operand) {
	here := r.ranks[op.Rank].arrays
	if o.Index > len(here.Held) {
		a.Ending = here.Ending[r.Plan.HeadBuffer(o.Micro)]
		ending := *a.Ending
		if r.Plan.Outputs.LogProbs {
			ending.Figures = r.figures(op.Rank, o.Micro)
		}
		if parts := op.Visit.Parts; len(here.KeptLogits) > 0 && len(parts) > 0 && parts[0] > 0 {
			kept := here.KeptLogits[parts[0]-1]
			ending.ByTile = kept[o.Micro%len(kept)]
		}
		a.Ending = &ending
		return
	}
	micros := r.Plan.Numerics.CohortMicros()
	if a.Held = here.Held[o.Index-1][o.Micro/micros]; op.Micro >= 0 {
		a.Held = a.Held.Micro(op.Micro % micros)
	}
}

// batch is the tokens of a micro-batch as the device sees them.
func (r *execution) batch(rank, m int) *nn.MicroBatch {
	mem := r.ranks[rank].memory.Here(plan.Tokens, rank, 0)
	if mem.IsZero() { // the device reads them where they are
		mem = r.ranks[rank].memory.Home(plan.Tokens, 0)
	}
	b := plan.Batch(mem, m, r.Plan.Numerics.Positions())
	if r.continues {
		b.Table = r.Plan.CacheTable(mem)
	}
	return b
}

// onPart enqueues what the compute lane does with a part between visits.
func (r *execution) onPart(s device.Stream, op *plan.Op) error {
	reads, writes, err := r.operands(op)
	if err != nil {
		return err
	}
	l := r.Plan.Model.Parts[op.Part].Layout
	vec := func(mem device.Mem, t tensor.DType) device.Mat { return device.NewVec(mem, t, int(l.StateElems)) }
	switch op.Do {
	case plan.DoClear: // a gradient
		nn.Gradients(writes[0], l).Clear(s)
	case plan.DoAdd: // the gradient of a cohort to the sum of those before it
		total := vec(writes[0], tensor.F32)
		s.Add(total, total, vec(reads[0], tensor.F32))
	case plan.DoNarrow: // the sum of a cohort to bf16, and where it is to be added here, to what that is in fp32
		full, narrowed := vec(reads[0], tensor.F32), vec(writes[0], tensor.BF16)
		s.Cast(narrowed, full)
		if len(writes) > 1 {
			s.Cast(full, narrowed)
		}
	case plan.DoRound: // a complete gradient to its stored type, and squares what is stored
		stored := vec(reads[0], tensor.F32)
		if t := r.forms[store.Grad].Type; t != tensor.F32 {
			full := stored
			stored = vec(writes[1], t)
			s.Cast(stored, full)
		}
		s.SumSquares(writes[0], stored)
	case plan.DoUpdate: // a part's pending update
		mem := r.Plan.StateIn(r.ranks[op.Rank].memory.Slot(&op.Writes[1]), op.Part)
		if mem[store.Weights] = writes[0]; len(reads) > 0 { // else the gradient came with the state
			mem[store.Grad] = reads[0]
		}
		if op.First {
			s.Zero(writes[2])
		}
		r.updateSpan(s, op.Part, mem, elemRange{0, l.WeightElems}, elemRange{0, l.StateElems}, writes[2])
	}
	return nil
}
