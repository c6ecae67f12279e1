package cuda

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/tensor"
)

// deltaCall is a gated delta net in progress. kernels/delta.py says what its kernels leave for each other in the
// workspace: each numbers of fp32 for a chunk and head. A launch is for a stretch of chunks, count of them from the
// chunk first on.
type deltaCall struct {
	*Stream
	device.DeltaSpec
	qkv, decay, beta           device.Mat
	solved                     arg
	chunks, first, count, each int
	terms                      bool // by the kernels of delta_scan.py
	past                       int  // the numbers before Y
}

// The numbers of fp32 that a chunk and head leaves: T and P; and with T in terms, these, P and vectors.
const (
	deltaSolved = 2 * device.DeltaChunk * device.DeltaChunk
	deltaTerms  = deltaSolved + device.DeltaChunk*device.DeltaChunk/2 + 4*device.DeltaChunk + 16
)

// hasTerms reports whether the kernels of delta_scan.py take the heads, the states, and the matrices, all of which an
// operation reads or writes.
func hasTerms(spec device.DeltaSpec, states []device.Mat, all ...device.Mat) bool {
	room := deltaBytes / (4 * (deltaTerms + 2*device.DeltaChunk*spec.ValueDim))
	isOdd := func(m device.Mat) bool { return ptr(m.Mem).value%16 != 0 }
	return spec.KeyDim == deltaWidth && spec.ValueDim%64 == 0 && spec.Heads <= room &&
		!slices.ContainsFunc(states, isOdd) && !slices.ContainsFunc(all, func(m device.Mat) bool {
		return m.DType != tensor.BF16 || stride(m).value%16 != 0 || isOdd(m)
	})
}

// deltaWidth is the number of columns of keys that a head of the kernels of delta_scan.py has.
const deltaWidth = 128

// delta calls f with stretches of chunks that are solved, as many as the workspace has room for at a time and all about
// as long; backward is from the last one to the first. A chunk and head leaves DeltaChunk rows of columns with T and P.
func (s *Stream) delta(qkv, decay, beta device.Mat, spec device.DeltaSpec, terms bool, columns int, backward bool,
	f func(d deltaCall) error) error {
	chunks, _ := spec.States(qkv.Rows)
	solve, past := "delta_solve", deltaSolved
	if terms {
		solve, past = "delta_solve_terms", deltaTerms
	}
	each := past + device.DeltaChunk*columns
	if spec.Heads > device.GPUMaxDeltaHeads {
		return fmt.Errorf("%d heads: the workspace has room for %d", spec.Heads, device.GPUMaxDeltaHeads)
	}
	most := deltaBytes / (4 * each * spec.Heads)
	stretches := (chunks + most - 1) / most
	most = (chunks + stretches - 1) / stretches
	return s.device.workspace.lend(s, func(w driver.DevicePtr) error {
		for done := 0; done < chunks; done += most {
			d := deltaCall{s, spec, qkv, decay, beta, at(w), chunks, done, min(most, chunks-done), each, terms, past}
			if backward {
				d.first = chunks - done - d.count
			}
			err := s.launch(d.named(solve), d.solved, ptr(qkv.Mem), ptr(decay.Mem), ptr(beta.Mem),
				ptr(spec.Docs.Start), i32(qkv.Rows), i32(spec.KeyHeads), i32(spec.Heads), i32(spec.KeyDim),
				i32(d.first), i32(d.count), i32(each), stride(qkv))
			if err != nil {
				return err
			}
			if err := f(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// named is a kernel's operation.
func (d deltaCall) named(name string) operation { return named(name, typeName(d.qkv.DType)) }

// read are the operands that nearly all kernels read, after others.
func (d deltaCall) read(first ...arg) []arg {
	return append(append(d.args[:0], first...), ptr(d.qkv.Mem), ptr(d.decay.Mem), ptr(d.beta.Mem))
}

// sizes appends the beginnings of documents, and all sizes, to other arguments.
func (d deltaCall) sizes(args []arg) []arg {
	return append(args, ptr(d.Docs.Start), i32(d.qkv.Rows), i32(d.chunks), i32(d.KeyHeads), i32(d.Heads), i32(d.KeyDim),
		i32(d.ValueDim), i32(d.first), i32(d.count), i32(d.each))
}

// heads appends what the kernels of delta_scan.py take of the sizes, and the stretch, to other arguments.
func (d deltaCall) heads(args []arg) []arg {
	return append(args, i32(d.KeyHeads), i32(d.Heads), i32(d.ValueDim), i32(d.first), i32(d.count), i32(d.each))
}

// GatedDelta implements device.DeltaOps.
func (s *Stream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.enqueue(func() error {
		if empty(qkv) {
			return nil
		}
		terms := hasTerms(spec, []device.Mat{states}, out, qkv)
		return s.delta(qkv, decay, beta, spec, terms, 0, false, func(d deltaCall) error {
			if terms {
				return d.forwardByTerms(out, states)
			}
			args := d.sizes(d.read(ptr(states.Mem), d.solved))
			if err := s.launch(d.named("delta_scan"), append(args, stride(qkv))...); err != nil {
				return err
			}
			args = d.sizes(d.read(ptr(out.Mem), ptr(states.Mem), d.solved))
			return s.launch(d.named("delta_out"), append(args, stride(out), stride(qkv))...)
		})
	})
}

// forwardByTerms computes states and results of a stretch.
func (d deltaCall) forwardByTerms(out, states device.Mat) error {
	args := d.heads(append(d.args[:0], ptr(states.Mem), d.solved, ptr(d.qkv.Mem), ptr(d.Docs.Start), ptr(d.Docs.End),
		i32(d.qkv.Rows), i32(d.chunks)))
	if err := d.launch(d.named("delta_scan_terms"), append(args, stride(d.qkv))...); err != nil {
		return err
	}
	args = d.heads(append(d.args[:0], ptr(out.Mem), ptr(states.Mem), d.solved, ptr(d.qkv.Mem), i32(d.qkv.Rows)))
	return d.launch(d.named("delta_out_terms"), append(args, stride(out), stride(d.qkv))...)
}

// GatedDeltaGrad implements device.DeltaOps. A chunk and head leaves Y and D in the workspace.
func (s *Stream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.enqueue(func() error {
		if empty(qkv) {
			return nil
		}
		terms, values := hasTerms(spec, []device.Mat{states, dstates}, dqkv, dout, qkv), "delta_grad_values"
		if terms {
			values = "delta_grad_values_terms"
		}
		return s.delta(qkv, decay, beta, spec, terms, 2*spec.ValueDim, true, func(d deltaCall) error {
			if err := d.scanGrad(dstates, dout); err != nil {
				return err
			}
			args := d.read(ptr(dqkv.Mem), ptr(ddecay.Mem), ptr(dbeta.Mem), ptr(dstates.Mem), d.solved, ptr(dout.Mem))
			args = append(d.sizes(append(args, ptr(states.Mem))), i32(d.past), stride(dqkv), stride(dout), stride(qkv))
			if err := s.launch(d.named(values), args...); err != nil {
				return err
			}
			args = append(s.args[:0], ptr(dqkv.Mem), d.solved, ptr(dout.Mem), ptr(qkv.Mem), ptr(decay.Mem),
				ptr(states.Mem))
			args = append(d.sizes(args), stride(dqkv), stride(dout), stride(qkv))
			if err := s.launch(d.named("delta_grad_queries"), args...); err != nil {
				return err
			}
			args = append(d.read(ptr(dqkv.Mem), ptr(dstates.Mem), d.solved), ptr(states.Mem))
			return s.launch(d.named("delta_grad_keys"), append(d.sizes(args), i32(d.past), stride(dqkv), stride(qkv))...)
		})
	})
}

// scanGrad computes the gradients of a stretch's states, and Y.
func (d deltaCall) scanGrad(dstates, dout device.Mat) error {
	if !d.terms {
		args := d.sizes(d.read(ptr(dstates.Mem), d.solved, ptr(dout.Mem)))
		return d.launch(d.named("delta_scan_grad"), append(args, stride(dout), stride(d.qkv))...)
	}
	err := d.launch(d.named("delta_before"), append(d.args[:0], d.solved, ptr(dout.Mem), i32(d.qkv.Rows), i32(d.Heads),
		i32(d.ValueDim), i32(d.first), i32(d.count), i32(d.each), i32(d.past), stride(dout))...)
	if err != nil {
		return err
	}
	args := d.heads(append(d.args[:0], ptr(dstates.Mem), d.solved, ptr(dout.Mem), ptr(d.qkv.Mem), ptr(d.Docs.Start),
		i32(d.qkv.Rows), i32(d.chunks)))
	return d.launch(d.named("delta_scan_grad_terms"), append(args, i32(d.past), stride(dout), stride(d.qkv))...)
}
