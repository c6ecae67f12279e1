package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
)

// chartColumns is the width of a Chart.
const chartColumns = 70

// The mark of a lane in a column of a chart, by the operation that takes most of the column.
const (
	readMark   = 'r'
	writeMark  = 'w'
	otherMark  = 'o'
	idleMark   = '.'
	partlyMark = ':' // busy for less than half of the column
)

// legend says what the marks mean, in the order in which a legend has them.
var legend = []struct {
	mark  byte
	means string
	kinds []Kind
}{
	{'F', "forward", []Kind{Forward}},
	{'B', "backward with recompute", []Kind{Reopen, Backward}},
	{'H', "head", []Kind{HeadNorm, HeadStats, HeadLoss, HeadLogits, HeadGrad, HeadVisit, HeadInput}},
	{'W', "weights", []Kind{Fetch, FetchState, WriteBack}},
	{'x', "layer inputs", []Kind{Load, Save, DrainInput}},
	{'a', "kept activations", []Kind{SaveKept, LoadKept}},
	{'G', "gradients", []Kind{Drain, DrainSum}},
	{'g', "clear and round gradients", []Kind{ZeroGrad, Round}},
	{'U', "update", []Kind{Update}},
	{'e', "embedding", []Kind{Gather, GatherAhead, Scatter}},
	{readMark, "read", nil},
	{writeMark, "write", []Kind{SaveState}},
	{otherMark, "other", nil}, // too short to matter
	{partlyMark, "busy for less than half", nil},
	{idleMark, "idle", nil},
}

// Mark is the letter of an operation in a Chart. Operations that are too short to matter share one.
func (k Kind) Mark() byte {
	for _, l := range legend {
		if slices.Contains(l.kinds, k) {
			return l.mark
		}
	}
	return otherMark
}

// Legend says what the marks of charts mean, those that occur, in lines that are as wide as a chart.
func Legend(charts ...[]string) string {
	drawn := ""
	for _, lines := range charts {
		for _, line := range lines {
			drawn += line[laneColumns:]
		}
	}
	var b strings.Builder
	width := 0
	for _, l := range legend {
		if strings.IndexByte(drawn, l.mark) < 0 {
			continue
		}
		text := fmt.Sprintf("%c %s", l.mark, l.means)
		switch {
		case width == 0:
		case width+2+len(text) > laneColumns+chartColumns:
			b.WriteString(",\n")
			width = 0
		default:
			b.WriteString(", ")
			width += 2
		}
		b.WriteString(text)
		width += len(text)
	}
	return b.String()
}

// Chart draws a step over time from left to right, a line for each lane that has anything to do: in each column the
// Mark of what took most of it, a colon where the lane was busy for less than half, a dot where it was idle.
type Chart struct {
	column float64 // seconds
	used   [Lanes]bool
	took   [Lanes][chartColumns]map[byte]float64 // seconds
}

// NewChart returns a chart that covers seconds.
func NewChart(seconds float64) *Chart { return &Chart{column: seconds / chartColumns} }

// Add draws that a lane was busy with what has that mark, 0 for other things, from begin to end in seconds.
func (c *Chart) Add(lane Lane, mark byte, begin, end float64) {
	if mark == 0 {
		mark = otherMark
	}
	if !(end > begin) || !(c.column > 0) {
		return
	}
	c.used[lane] = true
	for i := max(int(begin/c.column), 0); i < chartColumns && float64(i)*c.column < end; i++ {
		if c.took[lane][i] == nil {
			c.took[lane][i] = map[byte]float64{}
		}
		c.took[lane][i][mark] += min(end, float64(i+1)*c.column) - max(begin, float64(i)*c.column)
	}
}

// laneColumns are before each line of a chart, for the lane's name.
const laneColumns = 8

// Lines are the chart, without a legend; none if nothing was drawn.
func (c *Chart) Lines() []string {
	var lines []string
	for lane := range Lane(Lanes) {
		if !c.used[lane] {
			continue
		}
		line := make([]byte, chartColumns)
		for i, took := range c.took[lane] {
			line[i] = c.mark(took)
		}
		lines = append(lines, fmt.Sprintf("%-*s%s", laneColumns, lane, line))
	}
	return lines
}

func (c *Chart) mark(took map[byte]float64) byte {
	busy, best, most := 0.0, byte(idleMark), 0.0
	for mark, sec := range took {
		busy += sec
		if sec > most || sec == most && mark < best {
			best, most = mark, sec
		}
	}
	switch {
	case busy < 0.02*c.column:
		return idleMark
	case busy < c.column/2:
		return partlyMark
	}
	return best
}

// Timeline is the Chart of a step as it is simulated.
func (p *Plan) Timeline(m Machine, dev device.Info) []string {
	c := NewChart(p.Simulate(m, dev).StepSeconds)
	p.walk(m, dev, walking{micros: simulatedMicros, see: func(s span) { c.Add(s.lane, s.mark, s.begin, s.end) }})
	return c.Lines()
}
