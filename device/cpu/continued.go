package cpu

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/delta"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// run is the rows of a sequence in an operation that continues sequences.
type run struct {
	sequence, at int // at is the position of the first row
	rows         []int32
}

// runs finds those of an operation's rows. Something is remembered of that many sequences.
func runs(of device.Continued, rows, sequences int) ([]run, error) {
	var all []run
	number := map[int]int{} // of a sequence's run
	starts, ends := ints(of.Docs.Start, rows), ints(of.Docs.End, rows)
	for r, start := range starts {
		sequence, at := int(start)/of.Each, int(ends[r])-1-int(start)
		if start < 0 || sequence >= sequences || at < 0 {
			return nil, fmt.Errorf("row %d is position %d of sequence %d of %d", r, at, sequence, sequences)
		}
		i, ok := number[sequence]
		if !ok {
			i = len(all)
			number[sequence] = i
			all = append(all, run{sequence: sequence, at: at})
		}
		if next := all[i].at + len(all[i].rows); at != next {
			return nil, fmt.Errorf("row %d is position %d of sequence %d, which is at %d", r, at, sequence, next)
		}
		all[i].rows = append(all[i].rows, int32(r))
	}
	return all, nil
}

// ContinueConv implements device.ConvOps.
func (s *Stream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.try(func() error {
		kept := w.Cols - 1
		all, err := runs(of, x.Rows, tail.Rows/kept)
		if err != nil {
			return err
		}
		a := &kernels.Conv{X: mat(x), W: mat(w), Y: mat(y)}
		const cols = kernels.ConvColumns // of a task
		blocks := (x.Cols + cols - 1) / cols
		s.crew.Run(len(all)*blocks, func(_, task int) {
			run, col := all[task/blocks], task%blocks*cols
			s.crew.ConvContinue(a, mat(tail.RowRange(run.sequence*kept, kept)), run.rows, run.at, col,
				min(col+cols, x.Cols))
		})
		return nil
	})
}

// ContinueDelta implements device.DeltaOps.
func (s *Stream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.try(func() error {
		all, err := runs(device.Continued{Docs: spec.Docs, Each: each}, qkv.Rows, states.Rows)
		if err != nil {
			return err
		}
		a := deltaSpec(qkv, decay, beta, states, spec)
		a.Out = mat(out)
		return s.crew.equipDelta(spec, func(scratch func(worker int) []byte) {
			s.crew.Run(len(all)*spec.KeyHeads, func(worker, task int) {
				run := all[task/spec.KeyHeads]
				delta.Continue(s.crew.Table, a, run.sequence, run.rows, run.at == 0, task%spec.KeyHeads,
					scratch(worker))
			})
		})
	})
}
