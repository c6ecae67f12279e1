package cuda

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
)

// CausalConv implements device.ConvOps.
func (s *Stream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		return s.launch(named("causal_conv", typeName(x.DType)), ptr(y.Mem), ptr(x.Mem), ptr(w.Mem), ptr(docs.Start),
			i32(x.Rows), i32(x.Cols), i32(w.Cols), stride(y), stride(x), stride(w))
	})
}

// tapSlices is the number of slices of the rows of a convolution, each of which computes what it needs of the taps-1
// rows after it once more. It is a multiple of the kernel's BLOCK_ROWS.
const tapSlices = 256

// CausalConvGrad implements device.ConvOps. The gradients of taps are sums over rows, in slices.
func (s *Stream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		const most = workspaceBytes / 4 / tapSlices / device.MostTaps
		for first := 0; first < x.Cols; first += most {
			n := min(most, x.Cols-first)
			some := dw
			if !dw.IsZero() {
				some = dw.RowRange(first, n)
			}
			err := s.convGrad(dx.ColRange(first, n), some, dy.ColRange(first, n), x.ColRange(first, n),
				w.RowRange(first, n), docs)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// convGrad is CausalConvGrad of as many columns as the workspace has room for.
func (s *Stream) convGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) error {
	return s.device.workspace.lend(s, func(part driver.DevicePtr) error {
		err := s.launch(named("causal_conv_grad", typeName(x.DType)), ptr(dx.Mem), at(part), ptr(dy.Mem), ptr(x.Mem),
			ptr(w.Mem), ptr(docs.Start), i32(x.Rows), i32(x.Cols), i32(w.Cols), i32(tapSlices), flag(!dw.IsZero()),
			stride(dx), stride(dy), stride(x), stride(w))
		if err != nil || dw.IsZero() {
			return err
		}
		return s.launch(named("taps_fold", "f32"), ptr(dw.Mem), at(part), i32(tapSlices), i32(x.Cols), i32(w.Cols),
			stride(dw))
	})
}

// Gate implements device.GateOps.
func (s *Stream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		return s.launch(named("gate", typeName(x.DType)), ptr(y.Mem), ptr(x.Mem), ptr(gate.Mem), i32(x.Rows),
			i32(x.Cols), i32(x.Cols/gate.Cols), flag(kind == device.SiLUGate), stride(y), stride(x), stride(gate))
	})
}

// GateGrad implements device.GateOps.
func (s *Stream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		silu := flag(kind == device.SiLUGate)
		if gate.Cols == x.Cols {
			return s.launch(named("gate_grad_each", typeName(x.DType)), ptr(dx.Mem), ptr(dgate.Mem), ptr(dy.Mem),
				ptr(x.Mem), ptr(gate.Mem), i32(x.Rows), i32(x.Cols), silu, stride(dx), stride(dgate), stride(dy),
				stride(x), stride(gate))
		}
		return s.launch(named("gate_grad", typeName(x.DType)), ptr(dx.Mem), ptr(dgate.Mem), ptr(dy.Mem), ptr(x.Mem),
			ptr(gate.Mem), i32(x.Rows), i32(x.Cols), i32(x.Cols/gate.Cols), silu, stride(dx), stride(dgate),
			stride(dy), stride(x), stride(gate))
	})
}

// DeltaGates implements device.DeltaOps.
func (s *Stream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.enqueue(func() error {
		if empty(a) {
			return nil
		}
		return s.launch(named("delta_gates", typeName(a.DType)), ptr(decay.Mem), ptr(beta.Mem), ptr(a.Mem), ptr(b.Mem),
			ptr(aLog.Mem), ptr(dtBias.Mem), i32(a.Rows), i32(a.Cols), stride(a), stride(b))
	})
}

// DeltaGatesGrad implements device.DeltaOps. The gradients of heads are sums over rows, in slices.
func (s *Stream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.enqueue(func() error {
		if empty(a) {
			return nil
		}
		if a.Cols > maxSums/2 {
			return fmt.Errorf("%d heads: the kernels take at most %d", a.Cols, maxSums/2)
		}
		return s.device.workspace.lend(s, func(part driver.DevicePtr) error {
			err := s.launch(named("delta_gates_grad", typeName(a.DType)), at(part), ptr(da.Mem), ptr(db.Mem),
				ptr(ddecay.Mem), ptr(dbeta.Mem), ptr(a.Mem), ptr(b.Mem), ptr(aLog.Mem), ptr(dtBias.Mem), i32(a.Rows),
				i32(a.Cols), i32(biasSlices), stride(da), stride(db), stride(a), stride(b))
			for i, dst := range []device.Mat{daLog, ddtBias} {
				if err != nil || dst.IsZero() {
					return err
				}
				of := part + driver.DevicePtr(i*biasSlices*a.Cols*4)
				err = s.launch(named("fold", "f32"), ptr(dst.Mem), at(of), i32(biasSlices), i32(a.Cols))
			}
			return err
		})
	})
}
