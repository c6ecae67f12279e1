package report

import (
	"math"
	"strings"

	"github.com/millrace/millrace/trace"
)

// blocks are the cells of a sparkline from the least value to the greatest, and marks are those for a terminal that
// cannot show them.
var (
	blocks = []rune("▁▂▃▄▅▆▇█")
	marks  = []rune("_.:-=+*#")
)

// Sparks draws a number of each run as a line of cells, over the same steps and between the same values, so that one
// cell means the same in all of them. A cell is the mean of its steps; one without a value is a space. Values above the
// first cell of all runs are drawn as high as that: the loss of a run that diverged would press the others flat.
// ok is false where no run has a value.
func Sparks(runs []Run, of Curve, width int, ascii bool) (lines []string, ok bool) {
	last := int64(1)
	for _, r := range runs {
		last = max(last, r.Records[len(r.Records)-1].Step)
	}
	var all [][]float64
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range runs {
		cells := of.cells(r, last, width)
		first := true
		for _, v := range cells {
			if math.IsNaN(v) {
				continue
			}
			if low = min(low, v); first {
				high, first = max(high, v), false
			}
		}
		all = append(all, cells)
	}
	if low > high {
		if math.IsInf(low, 1) {
			return nil, false
		}
		high = low
	}
	with := blocks
	if ascii {
		with = marks
	}
	for _, cells := range all {
		var b strings.Builder
		for _, v := range cells {
			switch {
			case math.IsNaN(v):
				b.WriteByte(' ')
			case high == low:
				b.WriteRune(with[0])
			default:
				share := (min(v, high) - low) / (high - low)
				b.WriteRune(with[min(int(share*float64(len(with))), len(with)-1)])
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines, true
}

// Curve is a number of steps that can be drawn as a sparkline.
type Curve struct {
	value func(trace.Metrics) float64
	// holds: steps between two values have the earlier one.
	holds bool
}

// The curves of losses: of each step, and of evaluations.
var (
	LossCurve = Curve{value: lossOf}
	EvalCurve = Curve{holds: true, value: func(m trace.Metrics) float64 {
		if m.EvalLoss == nil {
			return math.NaN()
		}
		return *m.EvalLoss
	}}
)

// cells divides steps 1 to last into width cells, and has the mean of the finite values in each; NaN where there is no
// such value.
func (c Curve) cells(r Run, last int64, width int) []float64 {
	sums, counts := make([]float64, width), make([]int, width)
	add := func(m trace.Metrics) {
		if v := c.value(m); math.Abs(v) < 1e300 {
			at := int((max(m.Step, 1) - 1) * int64(width) / last)
			sums[at], counts[at] = sums[at]+v, counts[at]+1
		}
	}
	if c.holds && r.Before != nil {
		add(*r.Before)
	}
	end := 0
	for _, m := range r.Records {
		if m.Step >= 1 && m.Step <= last {
			add(m)
			end = max(end, int((m.Step-1)*int64(width)/last))
		}
	}
	before := math.NaN()
	for i := range sums {
		switch {
		case counts[i] > 0:
			sums[i] /= float64(counts[i])
			before = sums[i]
		case c.holds && i <= end:
			sums[i] = before
		default:
			sums[i] = math.NaN()
		}
	}
	return sums
}
