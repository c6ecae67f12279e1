package plan

import "github.com/millrace/millrace/device"

// PlacedBytes is what the buffers of all micro-batches take where each is placed.
func PlacedBytes(p *Plan) int64 {
	a := device.NewArena(device.Mem{})
	p.setting().buffers(a, nil)
	return a.Peak()
}

// SimulateEach is Simulate with each micro-batch by itself.
var SimulateEach = (*Plan).simulateEach

// SimulatedMicros is from how many micro-batches on Simulate groups them.
const SimulatedMicros = simulatedMicros
