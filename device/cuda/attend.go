package cuda

import (
	"fmt"

	"github.com/millrace/millrace/device"
)

// maxHeadDim is the widest head that the attention kernels take.
const maxHeadDim = 256

// RoPE implements device.AttentionOps.
func (s *Stream) RoPE(y, x device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, heads, cos, sin, positions, inverse)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		return s.launch("rope."+typeName(x.DType), ptr(y.Mem), ptr(x.Mem), ptr(cos.Mem), ptr(sin.Mem), ptr(positions),
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
		args := append([]arg{ptr(out.Mem), ptr(lse.Mem), ptr(q.Mem), ptr(k.Mem), ptr(v.Mem), ptr(spec.Docs.Start)}, sizes(q, spec)...)
		return s.attend("attention", q, spec, append(args, stride(out), stride(q), stride(k), stride(v), f32(spec.Scale)))
	})
}

// AttentionGrad implements device.AttentionOps. It leaves in delta the sum over each head of out times its gradient.
func (s *Stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.enqueue(func() error {
		if q.Rows == 0 {
			return nil
		}
		err := s.launch("attention_delta."+typeName(q.DType), ptr(delta.Mem), ptr(out.Mem), ptr(dout.Mem),
			i32(q.Rows), i32(spec.Heads), i32(spec.HeadDim), stride(out), stride(dout))
		if err != nil {
			return err
		}
		read := []arg{ptr(dout.Mem), ptr(q.Mem), ptr(k.Mem), ptr(v.Mem), ptr(lse.Mem), ptr(delta.Mem)}
		last := []arg{stride(dout), stride(q), stride(k), stride(v), f32(spec.Scale)}
		join := func(parts ...[]arg) (all []arg) {
			for _, p := range parts {
				all = append(all, p...)
			}
			return all
		}
		err = s.attend("attention_dkdv", q, spec, join([]arg{ptr(dk.Mem), ptr(dv.Mem)}, read, []arg{ptr(spec.Docs.End)}, sizes(q, spec),
			[]arg{stride(dk), stride(dv)}, last))
		if err != nil {
			return err
		}
		return s.attend("attention_dq", q, spec, join([]arg{ptr(dq.Mem)}, read, []arg{ptr(spec.Docs.Start)}, sizes(q, spec),
			[]arg{stride(dq)}, last))
	})
}

// sizes are the arguments that all attention kernels share.
func sizes(q device.Mat, spec device.AttentionSpec) []arg {
	return []arg{i32(q.Rows), i32(spec.Heads), i32(spec.KVHeads), i32(spec.HeadDim), i32(spec.Window)}
}

// attend launches the kernel made for this head size and aligned operands if there is one, else the narrowest that has room for it.
func (s *Stream) attend(op string, q device.Mat, spec device.AttentionSpec, args []arg) error {
	if spec.HeadDim > maxHeadDim {
		return fmt.Errorf("heads of %d columns: the kernels take at most %d", spec.HeadDim, maxHeadDim)
	}
	if spec.Scale <= 0 {
		return fmt.Errorf("a scale of %g: the kernels take positive ones", spec.Scale)
	}
	op = fmt.Sprintf("%s.%s.h", op, typeName(q.DType))
	if done, err := s.launchIf(fmt.Sprintf("%s%d.a16", op, spec.HeadDim), args...); done || err != nil {
		return err
	}
	for _, room := range []int{16, 64, 128, maxHeadDim} {
		if room < spec.HeadDim {
			continue
		}
		if done, err := s.launchIf(fmt.Sprintf("%s%d.any", op, room), args...); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("no kernel of %s takes heads of %d columns", op, spec.HeadDim)
}
