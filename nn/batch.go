package nn

import "github.com/millrace/millrace/device"

// Batch is one micro-batch on the device: T positions, packed documents flattened one behind the other.
type Batch struct {
	T            int
	IDs, Targets device.Mem // I32[T]; a negative target does not count in the loss
	Docs         device.Docs
}
