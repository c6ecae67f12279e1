package stream

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// DropWait makes operation i of a schedule forget the wait of that index.
func (e *Engine) DropWait(pass plan.Pass, i, wait int) error {
	p, err := e.program(plan.Mode{Pass: pass})
	if err != nil {
		return err
	}
	op := &p.ops[i]
	op.After = slices.Delete(slices.Clone(op.After), wait, wait+1)
	return nil
}

// RotaryTables reads a block's tables back from the device, into memory of an account of its own.
func (e *Engine) RotaryTables(block int) (cos, sin []float32, err error) {
	for _, to := range []struct {
		table device.Mat
		rows  *[]float32
	}{{e.ranks[0].arrays.Rope[block].Cos, &cos}, {e.ranks[0].arrays.Rope[block].Sin, &sin}} {
		r, err := hostmem.New().Reserve("test", to.table.Len)
		if err != nil {
			return nil, nil, err
		}
		defer r.Close()
		b, err := e.Devices[0].Register(r)
		if err != nil {
			return nil, nil, err
		}
		defer b.Close()
		s := e.workers[plan.LaneFetch].stream
		s.Copy(device.Whole(b), to.table.Mem)
		if err := s.Sync(); err != nil {
			return nil, nil, err
		}
		*to.rows = slices.Clone(hostmem.F32(r.Bytes()))
	}
	return cos, sin, nil
}

// EmbeddingGrad is the gradient of the embedding's output for a micro-batch, as a step that streams has left it in
// host memory.
func (e *Engine) EmbeddingGrad(m int) []uint16 {
	return hostmem.U16(e.bytes(plan.InputsPurpose, e.host.Home(plan.Input, e.Plan.Numerics.MicroBatches+m)))
}

// Marks are the visits that Watch shows of a pass.
func (e *Engine) Marks(pass plan.Pass) (all []Progress) {
	p, err := e.program(plan.Mode{Pass: pass})
	if err != nil {
		return nil
	}
	for _, m := range p.marks {
		all = append(all, m.Progress)
	}
	return all
}
