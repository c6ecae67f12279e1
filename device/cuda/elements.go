package cuda

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/tensor"
)

// typeName spells a type in kernels' names.
func typeName(t tensor.DType) string {
	if t == tensor.BF16 {
		return "bf16"
	}
	return "f32"
}

// empty reports whether a matrix has no elements: there is nothing to do then.
func empty(m device.Mat) bool { return m.Rows == 0 || m.Cols == 0 }

const (
	// flatCols has the columns of a long vector that is treated as a matrix.
	flatCols = 4096
	// maxCols is the most columns that a matrix keeps: a grid counts blocks of columns in 16 bits.
	maxCols = 1 << 24
)

// elementwise calls f with three matrices of one shape. Those that are dense in memory are vectors, and long vectors
// are cut into rows and a rest.
func elementwise(f func(m [3]device.Mat) error, ms [3]device.Mat) error {
	first := ms[0]
	n := first.Rows * first.Cols
	for _, m := range ms {
		if m.Rows > 1 && m.Stride != m.Cols {
			return f(ms)
		}
	}
	if first.Rows > 1 && first.Cols >= flatCols && first.Cols <= maxCols || n < 2*flatCols {
		return f(ms)
	}
	rows := n / flatCols
	if err := f(shaped(ms, 0, rows, flatCols)); err != nil || n%flatCols == 0 {
		return err
	}
	return f(shaped(ms, rows*flatCols, 1, n%flatCols))
}

// shaped views a stretch of dense matrices in another shape.
func shaped(ms [3]device.Mat, first, rows, cols int) [3]device.Mat {
	for i, m := range ms {
		size := m.DType.Bytes()
		ms[i] = device.NewMat(m.Slice(int64(first)*size, int64(rows)*int64(cols)*size), m.DType, rows, cols)
	}
	return ms
}

// castName spells the types of a cast in kernels' names.
func castName(from, to tensor.DType) string {
	switch {
	case from == tensor.BF16 && to == tensor.BF16:
		return "bf16_bf16"
	case from == tensor.BF16:
		return "bf16_f32"
	case to == tensor.BF16:
		return "f32_bf16"
	}
	return "f32_f32"
}

// AddBias implements device.LinearOps.
func (s *Stream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		return s.launch(named("add_bias", typeName(y.DType)), ptr(y.Mem), ptr(bias.Mem), i32(y.Rows), i32(y.Cols), stride(y))
	})
}

// BiasGrad implements device.LinearOps.
func (s *Stream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.enqueue(func() error {
		if empty(dy) {
			return nil
		}
		for first := 0; first < dy.Cols; first += maxSums {
			n := min(maxSums, dy.Cols-first)
			err := s.sumRows(db.ColRange(first, n), biasSlices, func(w driver.DevicePtr) error {
				return s.launch(named("bias_grad", typeName(dy.DType)), at(w), ptr(dy.ColRange(first, n).Mem), i32(dy.Rows), i32(n),
					i32(biasSlices), stride(dy))
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Add implements device.ElementOps.
func (s *Stream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		return elementwise(func(m [3]device.Mat) error {
			y, a, b := m[0], m[1], m[2]
			return s.launch(named("add", typeName(y.DType)), ptr(y.Mem), ptr(a.Mem), ptr(b.Mem), i32(y.Rows), i32(y.Cols), stride(y), stride(a), stride(b))
		}, [3]device.Mat{y, a, b})
	})
}

// Scale implements device.ElementOps.
func (s *Stream) Scale(y, x device.Mat, by float32) {
	s.operands.Scale(y, x, by)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		return elementwise(func(m [3]device.Mat) error {
			y, x := m[0], m[1]
			return s.launch(named("scale", typeName(y.DType)), ptr(y.Mem), ptr(x.Mem), i32(y.Rows), i32(y.Cols),
				stride(y), stride(x), f32(by))
		}, [3]device.Mat{y, x, x})
	})
}

// Cast implements device.ElementOps.
func (s *Stream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.enqueue(func() error {
		if empty(src) {
			return nil
		}
		return elementwise(func(m [3]device.Mat) error {
			dst, src := m[0], m[1]
			return s.launch(named("cast", castName(src.DType, dst.DType)), ptr(dst.Mem), ptr(src.Mem), i32(dst.Rows), i32(dst.Cols), stride(dst), stride(src))
		}, [3]device.Mat{dst, src, src})
	})
}

// Slices of the rows that kernels sum by themselves. The numbers are the same on all GPUs, and so are bits. A norm's
// gradient goes over its rows once, with two programs for each multiprocessor of a large GPU.
const biasSlices, normSlices = 32, 256

// maxSums is the greatest number of columns that biasSlices slices have room for. It is a multiple of every alignment
// of columns.
const maxSums = workspaceBytes / 4 / biasSlices

// sumRows adds sums over rows to dst: f enqueues a kernel that leaves the sums of slices of the rows in the workspace,
// and another kernel adds up the slices. If dst is the zero Mat, the sums are not wanted.
func (s *Stream) sumRows(dst device.Mat, slices int, f func(w driver.DevicePtr) error) error {
	return s.device.workspace.lend(s, func(w driver.DevicePtr) error {
		if err := f(w); err != nil || dst.IsZero() {
			return err
		}
		return s.launch(named("fold", "f32"), ptr(dst.Mem), at(w), i32(slices), i32(dst.Cols))
	})
}

// RMSNorm implements device.NormOps.
func (s *Stream) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	s.operands.RMSNorm(y, rstd, x, w, spec)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		of, offset, weighted := normWeight(x, w, spec)
		return s.launch(named("rmsnorm", typeName(x.DType)), ptr(y.Mem), ptr(rstd.Mem), ptr(x.Mem), of,
			i32(x.Rows), i32(spec.Groups), i32(x.Cols/spec.Groups), stride(y), stride(x), f32(spec.Eps), offset,
			weighted)
	})
}

// normWeight returns a kernel's arguments for a norm's weight: its place, the number added to it, and whether there is
// one. An offset of -0 leaves each number as it is.
func normWeight(x, w device.Mat, spec device.NormSpec) (of, offset, weighted arg) {
	add := spec.Offset
	if add == 0 {
		add = float32(math.Copysign(0, -1))
	}
	if w.IsZero() {
		return ptr(x.Mem), f32(add), flag(false) // not read
	}
	return ptr(w.Mem), f32(add), flag(true)
}

// RMSNormGrad implements device.NormOps. One kernel computes both gradients; it leaves the weight's in slices of the
// rows.
func (s *Stream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		d := x.Cols / spec.Groups
		slices := min(normSlices, x.Rows, workspaceBytes/4/d)
		if slices == 0 {
			return fmt.Errorf("the gradient of a norm over %d columns: the kernel takes at most %d", d,
				workspaceBytes/4)
		}
		o := named("rmsnorm_grad", typeName(x.DType))
		if resid.IsZero() {
			resid = x // not read
		} else {
			o = named("rmsnorm_grad", typeName(x.DType), "resid")
		}
		return s.sumRows(dw, slices, func(part driver.DevicePtr) error {
			of, offset, weighted := normWeight(x, w, spec)
			return s.launch(o, at(part), ptr(dx.Mem), ptr(dy.Mem), ptr(x.Mem), of, ptr(rstd.Mem), ptr(resid.Mem),
				i32(x.Rows), i32(spec.Groups), i32(d), i32(slices), stride(dx), stride(dy), stride(x), stride(resid),
				offset, weighted)
		})
	})
}

// LayerNorm implements device.NormOps.
func (s *Stream) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.operands.LayerNorm(y, stat, x, w, b, eps)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		biased := !b.IsZero()
		if !biased {
			b = w // not read
		}
		return s.launch(named("layernorm", typeName(x.DType)), ptr(y.Mem), ptr(stat.Mem), ptr(x.Mem), ptr(w.Mem),
			ptr(b.Mem), i32(x.Rows), i32(x.Cols), stride(y), stride(x), f32(eps), flag(biased))
	})
}

// LayerNormGrad implements device.NormOps, as RMSNormGrad is.
func (s *Stream) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.operands.LayerNormGrad(dx, dw, dy, x, w, stat, resid)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		slices := min(normSlices, x.Rows, workspaceBytes/4/x.Cols)
		if slices == 0 {
			return fmt.Errorf("the gradient of a norm over %d columns: the kernel takes at most %d", x.Cols,
				workspaceBytes/4)
		}
		around := !resid.IsZero()
		if !around {
			resid = x // not read
		}
		return s.sumRows(dw, slices, func(part driver.DevicePtr) error {
			return s.launch(named("layernorm_grad", typeName(x.DType)), at(part), ptr(dx.Mem), ptr(dy.Mem), ptr(x.Mem),
				ptr(w.Mem), ptr(stat.Mem), ptr(resid.Mem), i32(x.Rows), i32(x.Cols), i32(slices), stride(dx),
				stride(dy), stride(x), stride(resid), flag(around))
		})
	})
}

// activations are the words that kernels have for device.Activation.
var activations = [...]string{device.SiLU: "silu", device.GELU: "gelu", device.GELUTanh: "gelu_tanh"}

// gated are alpha, the limit, and what is added to up, in a gated unit. To add -0 leaves each number as it is.
func gated(spec device.GLUSpec) (alpha, limit, plus arg) {
	if spec.Limit == 0 {
		return f32(1), f32(float32(math.Inf(1))), f32(float32(math.Copysign(0, -1)))
	}
	return f32(spec.Alpha), f32(spec.Limit), f32(1)
}

// GLU implements device.MLPOps.
func (s *Stream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLU(y, gateUp, spec)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		alpha, limit, plus := gated(spec)
		return s.launch(named("glu", activations[spec.Gate], typeName(y.DType)), ptr(y.Mem), ptr(gateUp.Mem),
			i32(y.Rows), i32(y.Cols), stride(y), stride(gateUp), flag(!spec.Ungated), alpha, limit, plus)
	})
}

// GLUGrad implements device.MLPOps.
func (s *Stream) GLUGrad(dGateUp, act, dy, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLUGrad(dGateUp, act, dy, gateUp, spec)
	s.enqueue(func() error {
		if empty(dy) {
			return nil
		}
		alpha, limit, plus := gated(spec)
		return s.launch(named("glu_grad", activations[spec.Gate], typeName(dy.DType)), ptr(dGateUp.Mem), ptr(act.Mem),
			ptr(dy.Mem), ptr(gateUp.Mem), i32(dy.Rows), i32(dy.Cols), stride(dGateUp), stride(act), stride(dy),
			stride(gateUp), flag(!spec.Ungated), alpha, limit, plus)
	})
}
