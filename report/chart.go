package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/axis"
)

// The curves of a chart are drawn in a fixed box, in SVG units, which the page stretches to the room that it has.
// Labels are text of the page at their share of that room, so that their size stays.
const (
	chartWidth, chartHeight = 800.0, 220.0
	mostPoints              = 400 // of a line: one for two units
)

// line is one curve of a chart.
type line struct {
	x, y  []float64
	color int    // index of the page's colors
	class string // "raw" for a faint one, "dots" for marks without a line
	name  string
}

// chart is curves over steps.
type chart struct {
	title, unit string
	log         bool // draws y by its logarithm; values that are not above 0 are left out
	zero        bool // begins the y axis at 0
	keyed       bool // the page names the colors of its lines
	runs        int  // that share the page: each gets a part of its points
	lines       []line
}

// html draws the chart. It is empty if no value can be drawn.
func (c chart) html() string {
	x0, x1, y0, y1 := c.bounds()
	if x0 > x1 {
		return ""
	}
	if x0 == x1 {
		x0, x1 = x0-1, x1+1
	}
	if c.zero {
		y0, y1 = min(y0, 0), max(y1, 0)
	}
	y0, y1, ticks := c.axis(y0, y1)
	toX := func(x float64) float64 { return (x - x0) / (x1 - x0) * chartWidth }
	toY := func(y float64) float64 { return (y1 - c.scale(y)) / (y1 - y0) * chartHeight }
	var b strings.Builder
	b.WriteString(`<div class="chart">` + "\n")
	for _, t := range ticks {
		fmt.Fprintf(&b, `<span class="y" style="top:%.1f%%">%s</span>`+"\n", 100*toY(t)/chartHeight, short(t))
	}
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" role="img" aria-label="%s">`+"\n", chartWidth,
		chartHeight, html.EscapeString(c.title))
	for _, t := range ticks {
		fmt.Fprintf(&b, `<path class="grid" d="M0 %.1fH%g"/>`+"\n", toY(t), chartWidth)
	}
	for _, l := range c.lines {
		c.draw(&b, l, toX, toY)
	}
	b.WriteString("</svg>\n")
	for _, t := range stepsOf(x0, x1, 8) {
		if t != math.Trunc(t) {
			continue
		}
		fmt.Fprintf(&b, `<span class="x" style="left:%.1f%%">%s</span>`+"\n", 100*toX(t)/chartWidth, short(t))
	}
	b.WriteString("</div>\n")
	return b.String()
}

// draw writes a line, interrupted where a value cannot be drawn.
func (c chart) draw(b *strings.Builder, l line, toX, toY func(float64) float64) {
	x, y := c.thin(l.x, l.y, mostPoints/max(1, c.runs))
	if l.class == "dots" {
		for i := range x {
			if c.can(y[i]) {
				// A line without a length and with round ends stays round, however the box is stretched.
				fmt.Fprintf(b, `<path class="dot c%d" d="M%.1f %.1fh0"><title>%s, step %s: %.5g</title></path>`+"\n",
					l.color, toX(x[i]), toY(y[i]), html.EscapeString(l.name), short(x[i]), y[i])
			}
		}
		return
	}
	var d strings.Builder
	pen := "M"
	for i := range x {
		if !c.can(y[i]) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&d, "%s%.1f %.1f", pen, toX(x[i]), toY(y[i]))
		pen = "L"
	}
	if d.Len() > 0 {
		fmt.Fprintf(b, `<path class="line c%d %s" d="%s"><title>%s</title></path>`+"\n", l.color, l.class, d.String(),
			html.EscapeString(l.name))
	}
}

// can reports whether a value can be drawn. The differences of greater ones may not be finite.
func (c chart) can(y float64) bool { return math.Abs(y) < 1e300 && (!c.log || y > 0) }

func (c chart) scale(y float64) float64 {
	if c.log {
		return math.Log10(y)
	}
	return y
}

// bounds returns the box around all values that can be drawn. If no value can, x0 > x1.
func (c chart) bounds() (x0, x1, y0, y1 float64) {
	x0, x1, y0, y1 = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		for i, y := range l.y {
			if c.can(y) {
				x0, x1, y0, y1 = min(x0, l.x[i]), max(x1, l.x[i]), min(y0, y), max(y1, y)
			}
		}
	}
	return x0, x1, y0, y1
}

// axis is the range of a y axis on its scale, with round ticks.
func (c chart) axis(y0, y1 float64) (from, to float64, ticks []float64) {
	from, to = c.scale(y0), c.scale(y1)
	if to-from < 1e-9*max(math.Abs(from), math.Abs(to), 1e-9) {
		pad := max(math.Abs(to)*0.05, 1e-12)
		from, to = from-pad, to+pad
	}
	pad := 0.04 * (to - from)
	from, to = from-pad, to+pad
	if !c.log {
		return from, to, stepsOf(from, to, 5)
	}
	apart := max(1, math.Ceil((to-from)/8)) // decades
	for e := apart * math.Floor(from/apart); e <= math.Ceil(to); e += apart {
		for _, m := range []float64{1, 2, 5} {
			if t := m * math.Pow(10, e); math.Log10(t) >= from && math.Log10(t) <= to && (m == 1 || to-from < 2) {
				ticks = append(ticks, t)
			}
		}
	}
	if len(ticks) < 2 && y1 > 1.05*y0 { // a range between two of those
		ticks = stepsOf(math.Pow(10, from), math.Pow(10, to), 5)
	}
	return from, to, ticks
}

// stepsOf are round numbers in a range, at most n+1 of them.
func stepsOf(from, to float64, n int) (all []float64) {
	step := axis.Step(to-from, float64(n))
	for k := math.Ceil(from / step); k*step <= to && len(all) <= n; k++ {
		all = append(all, k*step)
	}
	return all
}

// thin leaves at most n points of a line: of each group of neighbours the least and the greatest value that can be
// drawn, so that peaks stay, or the first if none can be.
func (c chart) thin(x, y []float64, n int) (tx, ty []float64) {
	if len(x) <= n {
		return x, y
	}
	groups := n / 2
	for g := range groups {
		from, to := g*len(x)/groups, (g+1)*len(x)/groups
		low, high := from, from
		for i := from; i < to; i++ {
			if c.can(y[i]) && (y[i] < y[low] || !c.can(y[low])) {
				low = i
			}
			if c.can(y[i]) && (y[i] > y[high] || !c.can(y[high])) {
				high = i
			}
		}
		for _, i := range []int{min(low, high), max(low, high)} {
			tx, ty = append(tx, x[i]), append(ty, y[i])
		}
	}
	return tx, ty
}

// short is a number for an axis.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e9:
		return strconv.FormatFloat(v/1e9, 'g', 4, 64) + "G"
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case a >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	}
	if math.Abs(v) < 1e-12 {
		return "0"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
