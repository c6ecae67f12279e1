package stream

import (
	"fmt"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// Progress tells how far a pass over the layers has come: a step, or an evaluation of its size.
type Progress struct {
	Share float64 // of its arithmetic, about
	Where string  // the visit that has ended: "forward, layer 3 of 80"
}

// backwardWeight is about how much longer than a forward visit a backward visit takes, which computes two gradients and
// what its forward visit has not kept; the head's visit does both.
const backwardWeight = 3

// mark is the end of a visit of a layer.
type mark struct {
	op int // the visit's last operation on the compute lane
	Progress
}

// marksOf are the visits of a schedule, in order. Those of a half of a step have shares of the step.
func (e *Engine) marksOf(ops []plan.Op, half plan.Half) (marks []mark) {
	layers, last := len(e.Plan.Model.Blocks), ""
	way := "backward"
	if half == plan.ForUpdates {
		way = "backward again"
	}
	total := 0.0
	for i, op := range ops {
		weight, where := 0.0, ""
		switch {
		case op.Do != plan.DoVisit:
		case op.Layer < 0:
			weight, where = backwardWeight, "head"
		case op.Visit.To == nn.Forward, op.Visit.To == nn.Continue:
			weight, where = 1, fmt.Sprintf("forward, layer %d of %d", op.Layer, layers)
		default:
			weight, where = backwardWeight, fmt.Sprintf("%s, layer %d of %d", way, op.Layer, layers)
		}
		switch {
		case where == "":
		case where == last:
			marks[len(marks)-1].op = i
		default:
			total, last = total+weight, where
			marks = append(marks, mark{i, Progress{total, where}})
		}
	}
	// Up and down, and down again, as far as that goes.
	first, share := 0.0, 1.0
	once, again := 1.0+backwardWeight, backwardWeight*float64(e.Plan.BlocksTwice())/float64(max(layers, 1))
	switch half {
	case plan.ForNorm:
		share = once / (once + again)
	case plan.ForUpdates:
		share = again / (once + again)
		first = 1 - share
	}
	for i := range marks {
		marks[i].Share = first + share*marks[i].Share/total
	}
	return marks
}

// Watch calls show after each visit of the pass that is under way, for those that have ended at once, and returns with
// the pass. Without a pass it returns at once. It is called by another goroutine than the pass, and has to have
// returned before the next one begins.
func (e *Engine) Watch(show func(Progress)) {
	r := e.current.Load()
	if r == nil {
		return
	}
	for _, m := range r.marks {
		if r.await(m.op) != nil || r.end[m.op].Wait() != nil {
			return // the pass has failed, and says so itself
		}
		show(m.Progress)
	}
}
