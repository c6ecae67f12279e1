package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/trace"
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

// legend says what the marks mean, in the order in which a legend has them, and which names of operations have them: a
// name that ends in a dash stands for all that begin so.
var legend = []struct {
	mark  byte
	means string
	names []string
}{
	{'F', "forward", []string{"forward", "combine"}},
	{'B', "backward with recompute", []string{"reopen", "backward"}},
	{'H', "head", []string{"head-"}},
	{'W', "weights", []string{"fetch", "fetch-state", "write-back", "send-weights", "receive-weights"}},
	{'x', "layer inputs", []string{"load", "save", "drain-input", "load-input", "pass", "pass-input",
		"save-head", "save-head-grad", "load-head", "load-head-grad", "pass-head", "pass-head-grad"}},
	{'v', "values that cross layers", []string{"load-side", "save-side", "load-side-grad", "drain-side",
		"pass-side", "pass-side-grad"}},
	{'a', "kept activations", []string{"save-kept", "load-kept", "save-sums", "load-sums"}},
	{'G', "gradients", []string{"drain", "drain-sum", "send-sum", "receive-sum"}},
	{'g', "clear and round gradients", []string{"zero-grad", "zero-table", "add", "narrow", "round", "round-table", "total"}},
	{'U', "update", []string{"update"}},
	{'e', "embedding", []string{"gather", "gather-ahead", "scatter"}},
	{readMark, "read", []string{ReadWord}},
	{writeMark, "write", []string{WriteWord, "save-state"}},
	{otherMark, "other", nil}, // too short to matter
	{partlyMark, "busy for less than half", nil},
	{idleMark, "idle", nil},
}

// MarkOf is the mark in a Chart of a span of a trace, by the span's name: that of an operation, or of reading or writing.
// Operations that are too short to matter share one.
func MarkOf(span string) byte {
	word, _, _ := strings.Cut(span, " ")
	for _, l := range legend {
		for _, name := range l.names {
			if word == name || strings.HasSuffix(name, "-") && strings.HasPrefix(word, name) {
				return l.mark
			}
		}
	}
	return otherMark
}

// Legend says what the marks of charts mean, those that occur, in lines that are as wide as a chart.
func Legend(charts ...[]string) string {
	drawn := ""
	for _, lines := range charts {
		for _, line := range lines {
			drawn += line[len(line)-chartColumns:]
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
	column float64                                    // seconds
	took   map[Worker]*[chartColumns]map[byte]float64 // seconds
}

// NewChart returns a chart that covers seconds.
func NewChart(seconds float64) *Chart {
	return &Chart{seconds / chartColumns, map[Worker]*[chartColumns]map[byte]float64{}}
}

// Add draws that a worker was busy with what has that mark, 0 for other things, from begin to end in seconds.
func (c *Chart) Add(w Worker, mark byte, begin, end float64) {
	if mark == 0 {
		mark = otherMark
	}
	if !(end > begin) || !(c.column > 0) {
		return
	}
	took := c.took[w]
	if took == nil {
		took = new([chartColumns]map[byte]float64)
		c.took[w] = took
	}
	for i := max(int(begin/c.column), 0); i < chartColumns && float64(i)*c.column < end; i++ {
		if took[i] == nil {
			took[i] = map[byte]float64{}
		}
		took[i][mark] += min(end, float64(i+1)*c.column) - max(begin, float64(i)*c.column)
	}
}

// laneColumns are before each line of a chart, for the lane's name; deviceColumns more where there are several devices.
const laneColumns, deviceColumns = 8, 13

// Lines are the chart, without a legend; none if nothing was drawn.
func (c *Chart) Lines() []string {
	var crew trace.Crew
	for w := range c.took {
		crew.Ranks, crew.Network = max(crew.Ranks, 1+w.Rank), crew.Network || w.OnNetwork()
	}
	label := laneColumns
	if crew.Ranks > 1 {
		label += deviceColumns
	}
	var lines []string
	for _, w := range crew.Workers() {
		took := c.took[w]
		if took == nil {
			continue
		}
		line := make([]byte, chartColumns)
		for i := range took {
			line[i] = c.mark(took[i])
		}
		lines = append(lines, fmt.Sprintf("%-*v%s", label, w, line))
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
	p.walk(m, dev, walking{micros: simulatedMicros, see: func(s interval) { c.Add(s.Worker, s.mark, s.begin, s.end) }})
	return c.Lines()
}
