package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// program is a schedule with an event before and after each operation, from the device of its lane.
type program struct {
	ops        []plan.Op
	begin, end []device.Event
	names      []string              // for errors and traces
	marks      []mark                // visits of layers, for Watch
	continues  bool                  // a pass of which the first rows alone are computed
	half       plan.Half             // of a step
	counts     []bool                // by rank: weights that became NaN are counted on the device as well
	losses     int                   // the rank that computes them
	loads      []int                 // by block: the rank that counts the rows of its experts
	again      []bool                // by operation: another one has a later use for what it has of the store
	disk       [][store.Kinds][]loan // by worker
}

func (e *Engine) program(mode plan.Mode) (*program, error) {
	if p := e.programs[mode]; p != nil {
		return p, nil
	}
	p := &program{ops: e.Plan.ScheduleOf(mode).Ops, continues: mode.Pass.Continues, half: mode.Pass.Half,
		counts: make([]bool, len(e.ranks)), loads: make([]int, len(e.Plan.Model.Blocks))}
	p.disk, p.marks, p.again = e.loans(p.ops), e.marksOf(p.ops, p.half), usesAgain(p.ops)
	for _, op := range p.ops {
		p.names = append(p.names, e.Plan.Describe(&op))
		if op.Do == plan.DoUpdate && !op.OnHost() {
			p.counts[op.Rank] = true
		}
		for _, o := range op.Writes {
			switch o.What {
			case plan.LossSum:
				p.losses = op.Rank
			case plan.Loads:
				p.loads[o.Index-1] = op.Rank
			}
		}
		on := e.workers[e.indexOf(&op)].device
		for _, list := range []*[]device.Event{&p.begin, &p.end} {
			ev, err := on.NewEvent()
			if err != nil {
				return nil, err
			}
			e.closers = append(e.closers, ev.Close)
			*list = append(*list, ev)
		}
	}
	e.programs[mode] = p
	return p, nil
}
