package cuda

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
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
}

// delta calls f with stretches of chunks that are solved, as many as the workspace has room for at a time; backward is
// from the last one to the first. A chunk and head leaves DeltaChunk rows of columns with T and P.
func (s *Stream) delta(qkv, decay, beta device.Mat, spec device.DeltaSpec, columns int, backward bool,
	f func(d deltaCall) error) error {
	chunks, _ := spec.States(qkv.Rows)
	each := device.DeltaChunk * (2*device.DeltaChunk + columns)
	if spec.Heads > device.GPUMaxDeltaHeads {
		return fmt.Errorf("%d heads: the workspace has room for %d", spec.Heads, device.GPUMaxDeltaHeads)
	}
	most := deltaBytes / (4 * each * spec.Heads)
	return s.device.workspace.lend(s, func(w driver.DevicePtr) error {
		for done := 0; done < chunks; done += most {
			d := deltaCall{s, spec, qkv, decay, beta, at(w), chunks, done, min(most, chunks-done), each}
			if backward {
				d.first = chunks - done - d.count
			}
			err := s.launch(d.named("delta_solve"), d.solved, ptr(qkv.Mem), ptr(decay.Mem), ptr(beta.Mem),
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

// GatedDelta implements device.DeltaOps.
func (s *Stream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.enqueue(func() error {
		if empty(qkv) {
			return nil
		}
		return s.delta(qkv, decay, beta, spec, 0, false, func(d deltaCall) error {
			args := d.sizes(d.read(ptr(states.Mem), d.solved))
			if err := s.launch(d.named("delta_scan"), append(args, stride(qkv))...); err != nil {
				return err
			}
			args = d.sizes(d.read(ptr(out.Mem), ptr(states.Mem), d.solved))
			return s.launch(d.named("delta_out"), append(args, stride(out), stride(qkv))...)
		})
	})
}

// GatedDeltaGrad implements device.DeltaOps. A chunk and head leaves Y and D in the workspace.
func (s *Stream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.enqueue(func() error {
		if empty(qkv) {
			return nil
		}
		return s.delta(qkv, decay, beta, spec, 2*spec.ValueDim, true, func(d deltaCall) error {
			args := d.sizes(d.read(ptr(dstates.Mem), d.solved, ptr(dout.Mem)))
			if err := s.launch(d.named("delta_scan_grad"), append(args, stride(dout), stride(qkv))...); err != nil {
				return err
			}
			args = d.read(ptr(dqkv.Mem), ptr(ddecay.Mem), ptr(dbeta.Mem), ptr(dstates.Mem), d.solved, ptr(dout.Mem))
			args = append(d.sizes(append(args, ptr(states.Mem))), stride(dqkv), stride(dout), stride(qkv))
			if err := s.launch(d.named("delta_grad_values"), args...); err != nil {
				return err
			}
			args = append(s.args[:0], ptr(dqkv.Mem), d.solved, ptr(dout.Mem), ptr(qkv.Mem), ptr(decay.Mem),
				ptr(states.Mem))
			args = append(d.sizes(args), stride(dqkv), stride(dout), stride(qkv))
			if err := s.launch(d.named("delta_grad_queries"), args...); err != nil {
				return err
			}
			args = append(d.read(ptr(dqkv.Mem), ptr(dstates.Mem), d.solved), ptr(states.Mem))
			return s.launch(d.named("delta_grad_keys"), append(d.sizes(args), stride(dqkv), stride(qkv))...)
		})
	})
}
