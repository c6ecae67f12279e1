package plan

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
)

// PlacedBytes counts a rank's buffers of all micro-batches by placing each.
func PlacedBytes(p *Plan, rank int) int64 {
	a := device.NewArena(device.Mem{})
	p.buffers(a, rank, nil)
	return a.Peak()
}

// SimulateEach is Simulate with each micro-batch by itself.
var SimulateEach = (*Plan).simulateEach

// SimulateUpTo is Simulate, except that it stops at a step that takes longer than most seconds.
func SimulateUpTo(p *Plan, m Machine, dev device.Info, most float64) Prediction {
	q, _ := p.walk(m, dev, walking{micros: simulatedMicros, most: most})
	return q
}

// AwaitOthers has operations that receive wait for this host's own progress.
func AwaitOthers(p *Plan, s *Schedule) { p.awaitOthers(s.Ops, new(scheduleMemory)) }

// SimulatedMicros is from how many micro-batches on Simulate groups them.
const SimulatedMicros = simulatedMicros

// SpillOrder is the order in which kinds of state go to disk.
func SpillOrder(p *Plan) []store.Kind { return p.spillOrder() }

// LeastSeconds is the time that no simulated step falls short of.
func LeastSeconds(p *Plan, m Machine) float64 { return p.leastSeconds(&m, new(visitCosts)) }
