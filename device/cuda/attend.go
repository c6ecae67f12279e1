package cuda

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
)

// RoPE implements device.AttentionOps.
func (s *Stream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		o := named("rope", typeName(x.DType))
		if !bias.IsZero() {
			o = named("rope", typeName(x.DType), "bias")
		}
		return s.launch(o, ptr(y.Mem), ptr(x.Mem), ptr(bias.Mem), ptr(cos.Mem), ptr(sin.Mem), ptr(positions),
			i32(x.Rows), i32(heads), i32(x.Cols/heads), flag(inverse), stride(y), stride(x))
	})
}

// Attention implements device.AttentionOps.
func (s *Stream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.enqueue(func() error {
		if q.Rows == 0 {
			return nil
		}
		args := append(s.args[:0], ptr(out.Mem), ptr(lse.Mem), ptr(q.Mem), ptr(k.Mem), ptr(v.Mem), ptr(spec.Sinks.Mem), ptr(spec.Docs.Start))
		args = append(sizes(args, q, spec), stride(out), stride(q), stride(k), stride(v), f32(spec.Scale), f32(spec.SoftCap))
		return s.attend("attention", q, spec, args)
	})
}

// fillPrograms is the least number of programs of attention_dkdv for which query heads that share keys stay in one program, if one takes
// blocks of fillKeys keys: two for each multiprocessor of a large GPU. The numbers are the same on all GPUs, and so are bits.
const fillPrograms, fillKeys = 256, 128

// splits is among how many programs the query heads that share a key head are split, so that few key heads and rows fill a GPU. Each
// leaves sums of rows of keys columns for dk and dv, in fp32, in the workspace.
func splits(rows, keys int, spec device.AttentionSpec) int {
	n := min(fillPrograms*fillKeys/(rows*spec.KVHeads), spec.Heads/spec.KVHeads, workspaceBytes/(2*4*rows*keys))
	return max(n, 1)
}

// AttentionGrad implements device.AttentionOps.
func (s *Stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.enqueue(func() error {
		if q.Rows == 0 {
			return nil
		}
		err := s.launch(named("attention_delta", typeName(q.DType)), ptr(delta.Mem), ptr(out.Mem), ptr(dout.Mem),
			i32(q.Rows), i32(spec.Heads), i32(spec.HeadDim), stride(out), stride(dout))
		if err != nil {
			return err
		}
		read := func(to []arg) []arg {
			return append(to, ptr(dout.Mem), ptr(q.Mem), ptr(k.Mem), ptr(v.Mem), ptr(lse.Mem), ptr(delta.Mem))
		}
		last := func(to []arg) []arg {
			return append(to, stride(dout), stride(q), stride(k), stride(v), f32(spec.Scale), f32(spec.SoftCap))
		}
		keys := func(part driver.DevicePtr, n int) error {
			args := read(append(s.args[:0], ptr(dk.Mem), ptr(dv.Mem), at(part)))
			args = sizes(append(args, ptr(spec.Docs.End)), q, spec)
			return s.attend("attention_dkdv", q, spec, last(append(args, i32(n), stride(dk), stride(dv))))
		}
		if n := splits(k.Rows, k.Cols, spec); n == 1 {
			err = keys(0, n)
		} else {
			err = s.device.workspace.lend(s, func(part driver.DevicePtr) error {
				if err := keys(part, n); err != nil {
					return err
				}
				return s.launch(named("attention_fold", typeName(k.DType)), ptr(dk.Mem), ptr(dv.Mem), at(part), i32(k.Rows), i32(k.Cols), i32(n),
					stride(dk), stride(dv))
			})
		}
		if err != nil {
			return err
		}
		args := read(append(s.args[:0], ptr(dq.Mem)))
		args = sizes(append(args, ptr(spec.Docs.Start)), q, spec)
		return s.attend("attention_dq", q, spec, last(append(args, stride(dq))))
	})
}

// sizes are the arguments that all attention kernels share.
func sizes(to []arg, q device.Mat, spec device.AttentionSpec) []arg {
	return append(to, i32(q.Rows), i32(spec.Heads), i32(spec.KVHeads), i32(spec.HeadDim), i32(spec.Window))
}

// attend launches the kernel made for this head size and aligned operands if there is one, else the narrowest that has room for it.
func (s *Stream) attend(name string, q device.Mat, spec device.AttentionSpec, args []arg) error {
	if most := device.GPUMaxHeadDim.Of(q.DType, spec.SoftCap > 0); spec.HeadDim > most {
		return fmt.Errorf("heads of %d columns: the kernels take at most %d, in bf16 without a soft cap %d",
			spec.HeadDim, most, device.GPUMaxHeadDim.BF16)
	}
	if spec.Scale <= 0 {
		return fmt.Errorf("a scale of %g: the kernels take positive ones", spec.Scale)
	}
	o := named(name, typeName(q.DType))
	if spec.SoftCap > 0 {
		o = named(name, typeName(q.DType), "cap")
	}
	o.head = spec.HeadDim
	return s.launch(o, args...)
}

// JoinHeads implements device.AttentionOps.
func (s *Stream) JoinHeads(y, a, b device.Mat, heads int) {
	s.operands.JoinHeads(y, a, b, heads)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		d, n := y.Cols/heads, a.Cols/heads
		if err := s.moveHeads(y, a, heads, n, d, n); err != nil || n == d {
			return err
		}
		step := 0 // from head to head of b
		if b.Cols > d-n {
			step = d - n
		}
		return s.moveHeads(y.ColRange(n, y.Cols-n), b, heads, d-n, d, step)
	})
}

// SplitHeads implements device.AttentionOps.
func (s *Stream) SplitHeads(a, b, y device.Mat, heads int) {
	s.operands.SplitHeads(a, b, y, heads)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		d, n := y.Cols/heads, a.Cols/heads
		if err := s.moveHeads(a, y, heads, n, n, d); err != nil || b.IsZero() {
			return err
		}
		rest := y.ColRange(n, y.Cols-n)
		if b.Cols == heads*(d-n) { // of one head, too: a sum of one negative zero is another zero
			return s.moveHeads(b, rest, heads, d-n, d-n, d)
		}
		return s.launch(named("sum_heads", typeName(y.DType)), ptr(b.Mem), ptr(rest.Mem), i32(y.Rows), i32(heads),
			i32(d-n), i32(d), stride(b), stride(rest))
	})
}

// moveHeads copies width columns of each head; the heads begin as many columns after each other as toHead and fromHead
// say. From the zero Mat come zeros.
func (s *Stream) moveHeads(to, from device.Mat, heads, width, toHead, fromHead int) error {
	if width == 0 {
		return nil
	}
	return s.launch(named("move_heads", typeName(to.DType)), ptr(to.Mem), ptr(from.Mem), i32(to.Rows), i32(heads),
		i32(width), i32(toHead), i32(fromHead), stride(to), stride(from))
}

// SinkGrad implements device.AttentionOps.
func (s *Stream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.enqueue(func() error {
		if empty(lse) {
			return nil
		}
		return s.sumRows(dsinks, biasSlices, func(w driver.DevicePtr) error {
			return s.launch(named("sink_grad", typeName(sinks.DType)), at(w), ptr(sinks.Mem), ptr(lse.Mem), ptr(delta.Mem),
				i32(lse.Rows), i32(sinks.Cols), i32(biasSlices))
		})
	})
}
