package stream

import (
	"slices"

	"github.com/millrace/millrace/plan"
)

// DropWait makes operation i of a schedule forget the wait of that index.
func (e *Engine) DropWait(phase plan.Phase, i, wait int) error {
	p, err := e.program(plan.Mode{Phase: phase})
	if err != nil {
		return err
	}
	op := &p.ops[i]
	op.After = slices.Delete(slices.Clone(op.After), wait, wait+1)
	return nil
}
