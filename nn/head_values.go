package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// A critic that shares the policy's blocks is a row of the final norm's part: the value of a position is the product of
// that row with the final norm's result, in fp32, and the number of tokens or tiles has no part in it. It is made when
// the norm is, and its gradient joins those of the tiles before that of the norm. So a step with values has no visit
// more than one without.
//
//	value[t]   = sum_j w[j]*xn[t, j]
//	dxn[t, j] += g[t]*w[j]
//	dw[j]      = sum_t g[t]*xn[t, j]     in the order of positions, by chunks of ChunkTokens
//
// where g[t] is the slope of the loss by the value, in the type of activations.

// ValueRow is the name of the row in the final norm's part. No file of a model has it.
const ValueRow = "value.weight"

// Figures counts the numbers that a position has for the host: those of its loss, and its value last, if it has one.
func (h *Head) Figures() int {
	if h.Values {
		return device.TokenFigures + 1
	}
	return device.TokenFigures
}

// Weighed counts the numbers that an objective gives a position: the weight of its loss, then the slope of its value,
// if it has one, and last the slope of its entropy, if the objective moves with entropies.
func (h *Head) Weighed() (n int) {
	n = 1 + h.Figures() - device.TokenFigures
	if h.Entropies {
		n++
	}
	return n
}

// value writes the values of a micro-batch's positions, [T, 1], of rows that are normed.
func (h *Head) value(s device.Stream, w Params, xn, values device.Mat) {
	row := w.named(ValueRow, 1)
	for c := range chunks(xn.Rows, h.ChunkTokens) {
		s.MatMul(c.rows(values), c.rows(xn), row, device.MatMulFlags{TransB: true})
	}
}

// ofValues are the values of a micro-batch among its figures.
func ofValues(figures device.Mat) device.Mat {
	return device.NewMat(figures.RowRange(device.TokenFigures, 1).Mem, tensor.F32, figures.Cols, 1)
}

// valueGrad adds the gradients of normed rows and of the row that makes their values, by slopes (F32 [T]).
func (h *Head) valueGrad(s device.Stream, w, g Params, xn, dxn32 device.Mat, slopes device.Mem, work *HeadWork) {
	row, dRow := w.named(ValueRow, 1), g.named(ValueRow, 1)
	for c := range chunks(xn.Rows, h.ChunkTokens) {
		slope := device.NewMat(c.ids(slopes), tensor.F32, c.n, 1)
		if work.dtype != tensor.F32 {
			rounded := device.NewMat(work.grad, work.dtype, c.n, 1)
			s.Cast(rounded, slope)
			slope = rounded
		}
		s.MatMul(c.rows(dxn32), slope, row, device.MatMulFlags{Accumulate: true})
		weightGrad(s, dRow, slope, c.rows(xn), h.of(c, work), g.Fresh && c.first == 0)
	}
}
