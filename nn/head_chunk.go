package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// logits forms the chunk's logits of one tile in mem. They are dense whatever the tile, so that both schedules of the head
// ask the device for the same product.
func (c chunk) logits(s device.Stream, tileW, xn device.Mat, mem device.Mem) device.Mat {
	logits := device.NewMat(mem, tensor.F32, c.n, tileW.Rows)
	s.MatMul(logits, c.rows(xn), tileW, device.MatMulFlags{TransB: true})
	return logits
}

// lossGrad is the gradient of the chunk's logits of one tile.
func (c chunk) lossGrad(s device.Stream, tileW device.Mat, first int, logits, stat device.Mat,
	targets, weights, entropySlopes device.Mem, softCap float32, work *HeadWork) device.Mat {
	dLogits := device.NewMat(work.grad, work.dtype, c.n, tileW.Rows)
	if !entropySlopes.IsZero() {
		entropySlopes = c.ids(entropySlopes)
	}
	s.CrossEntropyGrad(dLogits, logits, c.rows(stat), c.ids(targets), c.ids(weights), entropySlopes, first, softCap)
	return dLogits
}

// scores takes the chunk's scores into stat: each as the target's logit among logits whose exponentials add up to 1, so
// that TokenLoss is minus the score, or 0 without a target.
func (c chunk) scores(s device.Stream, tileW, xn, stat device.Mat, targets device.Mem, work *HeadWork) {
	score := device.NewMat(work.logits[0], tensor.F32, c.n, 1)
	s.Zero(score.Mem)
	s.LSEUpdate(c.rows(stat), score, c.ids(targets), 0, 0)
	s.MatMul(score, c.rows(xn), tileW, device.MatMulFlags{TransB: true})
	s.Scale(c.rows(stat).ColRange(2, 1), score, 1)
}

// dScores is the gradient of the chunk's scores, [c, 1], in the type of activations: minus the weights.
func (c chunk) dScores(s device.Stream, weights device.Mem, work *HeadWork) device.Mat {
	exact := device.NewMat(work.logits[0], tensor.F32, c.n, 1)
	s.Scale(exact, device.NewMat(c.ids(weights), tensor.F32, c.n, 1), -1)
	if work.dtype == tensor.F32 {
		return exact
	}
	rounded := device.NewMat(work.grad, work.dtype, c.n, 1)
	s.Cast(rounded, exact)
	return rounded
}

// products takes that gradient through the product that made the logits. of counts the rows of the whole chunk.
func (c chunk) products(s device.Stream, tileW, dTile, dLogits, xn, dxn32 device.Mat, of int, overwrite, fresh bool) {
	s.MatMul(c.rows(dxn32), dLogits, tileW, device.MatMulFlags{Accumulate: !overwrite})
	weightGrad(s, dTile, dLogits, c.rows(xn), of, fresh && c.first == 0)
}
