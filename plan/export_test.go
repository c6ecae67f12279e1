package plan

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
)

// Placed places a rank's cells, each by itself, and returns them with memory of their own.
func Placed(p *Plan, rank int) (all []device.Mem) {
	m := p.Cells().Memory()
	m.PlaceDevice(device.Mem{}, rank)
	for cell, mem := range m.at {
		if results := m.Here(Results, rank, 0); mem != results || m.of[Results][own].first+Cell(rank) == Cell(cell) {
			all = append(all, mem)
		}
	}
	return all
}

// Unplaced lists the operands of a schedule that have no memory, of those that are to have some: that the store keeps
// none of, and that have a length.
func Unplaced(p *Plan, mode Mode) (all []string) {
	m := p.Cells().Memory()
	for rank := range p.Ranks() {
		m.PlaceDevice(device.Mem{}, rank)
	}
	m = m.WithHost(func(string) device.Mem { return device.Mem{Len: 1 << 60} })
	for _, op := range p.ScheduleOf(mode).Ops {
		for _, o := range slices.Concat(op.Reads, op.Writes) {
			stored := o.What == Stored || o.At == Disk || o.At != Device && (o.What == Rounded || o.What == Gradient ||
				o.What == Weights || o.What == LogitRows)
			if !stored && p.bytes(&o) > 0 && m.at[o.Cell].IsZero() {
				all = append(all, fmt.Sprintf("%v: %+v", op, o))
			}
		}
	}
	return all
}

// PlacedBytes counts what they take.
func PlacedBytes(p *Plan, rank int) (end int64) {
	for _, mem := range Placed(p, rank) {
		end = max(end, mem.Off+mem.Len)
	}
	return arenaBytes(end)
}

// LeastDiskShare is the part of the disk's rates that fetch and drain can use.
func LeastDiskShare(p *Plan) float64 { return p.Placement.diskShare(LaneFetch) }

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

// PercentsOf are the percents of weights, and Fill divides bytes by rates as far as there is room.
var (
	PercentsOf = percentsOf
	Fill       = fill
)

// Asked is the request that advice begins with.
func (p *Plan) Asked() Request { return *p.asked }
