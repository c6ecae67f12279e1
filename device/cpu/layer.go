package cpu

import (
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// RMSNorm implements device.NormOps.
func (s *Stream) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	s.operands.RMSNorm(y, rstd, x, w, spec)
	s.enqueue(func() {
		a := s.norm(x, w, rstd, spec)
		a.Y = mat(y)
		s.crew.split(x.Rows, 1, rowBytes(x, y), func(lo, hi int) { s.crew.RMSNormForward(a, lo, hi) })
	})
}

// norm has what a norm and its gradient share.
func (s *Stream) norm(x, w, rstd device.Mat, spec device.NormSpec) *kernels.RMSNorm {
	var weight kernels.Vec
	if !w.IsZero() {
		weight = vec(w)
	}
	s.scales = kernels.NormWeight(s.scales[:0], weight, spec.Offset, x.Cols/spec.Groups)
	return &kernels.RMSNorm{X: mat(x), Weight: s.scales, RStd: floats(rstd), Groups: spec.Groups, Eps: spec.Eps}
}

// RMSNormGrad implements device.NormOps. The gradient of the weight comes first, since dx may overwrite dy.
func (s *Stream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec)
	s.enqueue(func() {
		a := s.norm(x, w, rstd, spec)
		a.DX, a.DY = mat(dx), mat(dy)
		if !dw.IsZero() {
			a.DWeight = floats(dw)
			s.crew.split(w.Cols, columns, int64(spec.Groups)*int64(x.Rows)*2*x.DType.Bytes(), func(lo, hi int) {
				s.crew.RMSNormWeightGrad(a, x.Rows, lo, hi)
			})
		}
		if !resid.IsZero() {
			a.Residual = mat(resid)
		}
		s.crew.split(x.Rows, 1, rowBytes(x, dx, dy), func(lo, hi int) { s.crew.RMSNormBackward(a, lo, hi) })
	})
}

// LayerNorm implements device.NormOps.
func (s *Stream) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.operands.LayerNorm(y, stat, x, w, b, eps)
	s.enqueue(func() {
		a := s.layerNorm(x, w, stat)
		a.Y, a.Eps = mat(y), eps
		if !b.IsZero() {
			s.scales = kernels.NormWeight(s.scales, vec(b), 0, x.Cols)
			a.Weight, a.Bias = s.scales[:x.Cols], s.scales[x.Cols:]
		}
		s.crew.split(x.Rows, 1, rowBytes(x, y), func(lo, hi int) { s.crew.LayerNormForward(a, lo, hi) })
	})
}

// layerNorm has what a layer norm and its gradient share.
func (s *Stream) layerNorm(x, w, stat device.Mat) *kernels.LayerNorm {
	s.scales = kernels.NormWeight(s.scales[:0], vec(w), 0, x.Cols)
	return &kernels.LayerNorm{X: mat(x), Weight: s.scales, Stat: floats(stat)}
}

// LayerNormGrad implements device.NormOps. The gradient of the weight comes first, since dx may overwrite dy.
func (s *Stream) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.operands.LayerNormGrad(dx, dw, dy, x, w, stat, resid)
	s.enqueue(func() {
		a := s.layerNorm(x, w, stat)
		a.DX, a.DY = mat(dx), mat(dy)
		if !dw.IsZero() {
			a.DWeight = floats(dw)
			s.crew.split(w.Cols, columns, int64(x.Rows)*2*x.DType.Bytes(), func(lo, hi int) {
				s.crew.LayerNormWeightGrad(a, x.Rows, lo, hi)
			})
		}
		if !resid.IsZero() {
			a.Residual = mat(resid)
		}
		s.crew.split(x.Rows, 1, rowBytes(x, dx, dy), func(lo, hi int) { s.crew.LayerNormBackward(a, lo, hi) })
	})
}

// GLU implements device.MLPOps.
func (s *Stream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLU(y, gateUp, spec)
	s.enqueue(func() {
		a := &kernels.GLU{GateUp: mat(gateUp), H: mat(y), GLUSpec: spec}
		s.crew.split(y.Rows, 1, rowBytes(y, gateUp), func(lo, hi int) { s.crew.GLUForward(a, lo, hi) })
	})
}

// GLUGrad implements device.MLPOps.
func (s *Stream) GLUGrad(dGateUp, act, dy, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLUGrad(dGateUp, act, dy, gateUp, spec)
	s.enqueue(func() {
		a := &kernels.GLU{GateUp: mat(gateUp), H: mat(act), DH: mat(dy), DGateUp: mat(dGateUp), GLUSpec: spec}
		s.crew.split(dy.Rows, 1, rowBytes(dGateUp, act, dy, gateUp), func(lo, hi int) { s.crew.GLUBackward(a, lo, hi) })
	})
}

// Gather implements device.EmbeddingOps.
func (s *Stream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.enqueue(func() {
		a := &kernels.Embedding{IDs: ints(ids, y.Rows), RowFirst: first, Table: mat(table), Y: mat(y)}
		s.crew.split(y.Rows, 1, rowBytes(y, y), func(lo, hi int) { s.crew.EmbeddingGather(a, lo, hi) })
	})
}

// Put implements device.EmbeddingOps.
func (s *Stream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.try(func() error {
		to, from, places := mat(cache), mat(x), ints(at, x.Rows)
		for r, place := range places {
			if int(place) >= cache.Rows {
				return fmt.Errorf("row %d has the place %d in a cache of %d rows", r, place, cache.Rows)
			}
		}
		s.crew.split(x.Rows, 1, rowBytes(x, x), func(lo, hi int) {
			for r := lo; r < hi; r++ {
				if places[r] >= 0 {
					s.crew.CopyRow(to, int(places[r]), from, r)
				}
			}
		})
		return nil
	})
}
