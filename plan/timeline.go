package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/device"
)

// timelineColumns is the width of a timeline.
const timelineColumns = 72

// What a lane does in a column, by the operation that takes most of it.
const (
	readMark   = 'r'
	writeMark  = 'w'
	idleMark   = '.'
	partlyMark = ':' // busy for less than half of the column
)

// marks of the operations. Those that are too short to matter share a mark.
var marks = func() (all [Kinds]byte) {
	for kind := range all {
		all[kind] = 'o'
	}
	for mark, kinds := range map[byte][]Kind{
		'U': {Update}, 'e': {Gather, Scatter}, 'W': {Fetch, FetchState, Home}, 'x': {Load, Save, DrainInput}, 'a': {SaveKept, LoadKept}, 'F': {Forward}, 'B': {Backward},
		'H': {HeadNorm, HeadStats, HeadLoss, HeadLogits, HeadGrad, HeadVisit, HeadInput}, 'G': {Drain, DrainSum}, 'g': {ZeroGrad, Round},
		writeMark: {SaveState},
	} {
		for _, kind := range kinds {
			all[kind] = mark
		}
	}
	return all
}()

const timelineLegend = "F forward, B backward with recompute, H head, W weights, x layer inputs, a kept activations, G gradients, g clear and round gradients, U update, e embedding, r read, w write, : busy for less than half, . idle"

// Timeline is a step as it is simulated, a line for each lane that has anything to do, over time from left to right.
func (p *Plan) Timeline(m Machine, dev device.Info) []string {
	var busy [Lanes][timelineColumns]map[byte]float64
	column := p.Simulate(m, dev).StepSeconds / timelineColumns
	if !(column > 0) {
		return nil
	}
	used := [Lanes]bool{}
	p.walk(m, dev, func(s span) {
		if s.end <= s.begin {
			return
		}
		used[s.lane] = true
		first, last := int(s.begin/column), min(int(s.end/column), timelineColumns-1)
		for c := first; c <= last; c++ {
			if busy[s.lane][c] == nil {
				busy[s.lane][c] = map[byte]float64{}
			}
			busy[s.lane][c][s.mark] += min(s.end, float64(c+1)*column) - max(s.begin, float64(c)*column)
		}
	}, nil)
	var lines []string
	for lane := range Lane(Lanes) {
		if !used[lane] {
			continue
		}
		var b strings.Builder
		for _, of := range busy[lane] {
			idle := column
			for _, sec := range of {
				idle -= sec
			}
			best, most := byte(idleMark), 0.0
			for mark, sec := range of {
				if sec > most || sec == most && mark < best {
					best, most = mark, sec
				}
			}
			switch {
			case idle > 0.98*column:
				best = idleMark
			case idle > column/2:
				best = partlyMark
			}
			b.WriteByte(best)
		}
		lines = append(lines, fmt.Sprintf("%-7s %s", lane, b.String()))
	}
	return lines
}
