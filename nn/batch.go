package nn

import "github.com/millrace/millrace/device"

// MicroBatch is a batch.Micro on the device: T positions, at the offsets of batch.Layout.
type MicroBatch struct {
	T            int
	IDs, Targets device.Mem // I32[T]; a negative target does not count in the loss
	Weights      device.Mem // F32[T]: multiplies the gradient of each position's loss
	Docs         device.Docs
}
