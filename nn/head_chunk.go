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

// grad takes the gradient of the chunk's logits of one tile to the tile and to the normed input.
func (c chunk) grad(s device.Stream, tileW, dTile device.Mat, first int, logits, xn, stat, dxn32 device.Mat,
	overwrite, fresh bool, targets, weights device.Mem, softCap float32, work *HeadWork) {
	dLogits := device.NewMat(work.grad, work.dtype, c.n, tileW.Rows)
	s.CrossEntropyGrad(dLogits, logits, c.rows(stat), c.ids(targets), c.ids(weights), first, softCap)
	s.MatMul(c.rows(dxn32), dLogits, tileW, device.MatMulFlags{Accumulate: !overwrite})
	weightGrad(s, dTile, dLogits, c.rows(xn), fresh && c.first == 0)
}
