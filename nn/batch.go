package nn

import "github.com/millrace/millrace/device"

// MicroBatch is a batch.Micro on the device: T positions, at the offsets of batch.Layout.
type MicroBatch struct {
	T            int
	IDs, Targets device.Mem // I32[T]; a negative target does not count in the loss
	Weights      device.Mem // F32[T]: multiplies the gradient of each position's loss
	Docs         device.Docs
	// Places are, in a pass that continues sequences, the rows of caches that the positions have (I32[T]). Docs.Start
	// and Docs.End are rows of sequences then, of which each has Caches.Each: the sequence of a position begins at Start,
	// and End is one past its own. With Caches.BlockRows the Table (I32, Caches.BlocksEach for each sequence) says where
	// these are in caches; without it they are rows of caches.
	Places, Table device.Mem
}
