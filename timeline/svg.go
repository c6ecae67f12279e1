package timeline

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/axis"
)

// MaxSVGBytes is the greatest length of a picture.
const MaxSVGBytes = 60_000

// Positions in a picture, in pixels. It is as wide as a README.
const (
	width      = 830
	margin     = 16
	left       = 142 // of the plot
	right      = 766 // of the plot
	titleAt    = 26  // base lines of text
	subtitleAt = 46
	legendAt   = 60 // top of the boxes
	legendRow  = 18
	laneHeight = 32
	laneGap    = 8
	axisHeight = 36
)

// Runes that fit.
const (
	titleRunes    = 80
	subtitleRunes = 120
	nameRunes     = 200 // of names that only programs read
)

// SVG draws the step. Blocks without a gap that one color shows are one bar. Blocks narrower than a few pixels are
// drawn together, as wide as the time that they took.
func (s *Step) SVG(t Theme) []byte {
	for apart := 1.5; ; apart *= 1.5 {
		of := *s
		d := drawing{Step: &of, apart: apart, perPixel: s.Length.Seconds() / (right - left)}
		if d.draw(t); d.Len() <= MaxSVGBytes {
			return d.Bytes()
		}
	}
}

// drawing is a picture that is being drawn.
type drawing struct {
	bytes.Buffer
	*Step
	apart    float64 // pixels: a bar of that width is drawn as it is
	perPixel float64 // seconds
}

// drawnRows are the most rows of a picture: those of eight devices and the host.
const drawnRows = 8*4 + 2

func (d *drawing) draw(t Theme) {
	d.Rows = d.Rows[:min(len(d.Rows), drawnRows)]
	labels, rows := d.legend()
	top := legendAt + rows*legendRow + 20 // of the first lane
	bottom := top + len(d.Rows)*(laneHeight+laneGap)
	height := bottom + axisHeight
	d.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img"`+
		` aria-labelledby="t d">`, width, height, width, height)
	d.line(`<title id="t">%s</title>`, escape(cut(d.title(), nameRunes)))
	d.line(`<desc id="d">%s. Busy: %s.</desc>`, escape(cut(d.subtitle(), nameRunes)), strings.Join(d.shares(), ", "))
	d.line("<style>\n%s</style>", t.style())
	d.line(`<rect class="ground" width="%d" height="%d" rx="6"/>`, width, height)
	d.line(`<text class="title" x="%d" y="%d">%s</text>`, margin, titleAt, escape(cut(d.title(), titleRunes)))
	d.line(`<text class="muted" x="%d" y="%d">%s</text>`, margin, subtitleAt, escape(cut(d.subtitle(), subtitleRunes)))
	for _, l := range labels {
		y := legendAt + l.row*legendRow
		d.line(`<rect class="%s" x="%d" y="%d" width="11" height="11" rx="2"/>`+
			`<text class="muted" x="%d" y="%d">%s</text>`, l.class, l.x, y, l.x+16, y+10, l.means)
	}
	d.line(`<text class="muted" x="%d" y="%d" text-anchor="end">busy</text>`, width-margin, top-8)
	for i := range d.Rows {
		row, y := &d.Rows[i], top+i*(laneHeight+laneGap)
		d.line(`<text class="lane" x="%d" y="%d">%v</text>`, margin, y+14, row.Worker)
		d.line(`<text class="muted" x="%d" y="%d">%s</text>`, margin, y+29, row.Lane.Work())
		d.line(`<text class="lane" x="%d" y="%d" text-anchor="end">%s</text>`,
			width-margin, y+laneHeight/2+5, share(row.Busy(), d.Length))
		d.line(`<rect class="track" x="%d" y="%d" width="%d" height="%d"/>`, left, y, right-left, laneHeight)
	}
	d.axis(top, bottom)
	for i, row := range d.Rows {
		if len(row.Blocks) > 0 {
			d.line(`<g transform="translate(%d %d)">`, left, top+i*(laneHeight+laneGap))
			d.blocks(row.Blocks)
			d.line("</g>")
		}
	}
	d.line("</svg>")
}

func (d *drawing) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// title says what is drawn; a simulation must not pass for a measurement.
func (s *Step) title() string {
	what := "Step"
	if s.Simulated {
		what = "Simulated step"
	}
	if s.Model != "" {
		what += " of " + path.Base(filepath.ToSlash(s.Model))
	}
	return fmt.Sprintf("%s: %s", what, timeText(s.Length))
}

func (s *Step) subtitle() string {
	var parts []string
	if s.Device != "" {
		parts = append(parts, s.Device)
	}
	if s.Tokens > 0 {
		parts = append(parts, grouped(s.Tokens)+" tokens")
	}
	switch {
	case s.Simulated:
		parts = append(parts, "simulated: times are predicted")
	case s.Torn:
		parts = append(parts, fmt.Sprintf("step %d, the trace lacks its beginning", s.Number))
	default:
		parts = append(parts, fmt.Sprintf("step %d, measured", s.Number))
	}
	return strings.Join(parts, " · ")
}

// shares are texts such as "compute 97%".
func (s *Step) shares() (all []string) {
	for i := range s.Rows {
		all = append(all, fmt.Sprintf("%v %s", s.Rows[i].Worker, share(s.Rows[i].Busy(), s.Length)))
	}
	return all
}

// label is an entry of the legend.
type label struct {
	tint
	x, row int
}

// legend has the tints that a reader can see, in as many rows as they need.
func (d *drawing) legend() (labels []label, rows int) {
	var took [256]time.Duration
	for _, row := range d.Rows {
		for _, b := range row.Blocks {
			took[tintOf(b.Mark)] += b.End - b.Begin
		}
	}
	x, row := margin, 0
	for i, t := range tints {
		if took[i].Seconds() < d.perPixel {
			continue
		}
		wide := 34 + 7*len(t.means)
		if x+wide > width {
			x, row = margin, row+1
		}
		labels = append(labels, label{t, x, row})
		x += wide
	}
	return labels, row + 1
}

// axis has the times, with a line through the lanes at each tick.
func (d *drawing) axis(top, bottom int) {
	unit, name := time.Second, "s"
	switch {
	case d.Length < 2*time.Millisecond:
		unit, name = time.Microsecond, "µs"
	case d.Length < 10*time.Second:
		unit, name = time.Millisecond, "ms"
	}
	length := d.Length.Seconds() / unit.Seconds()
	step := axis.Step(length, 9)
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	for i := 0.0; i*step <= length; i++ {
		x := left + i*step/length*(right-left)
		d.line(`<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+
			`<text class="muted" x="%.1f" y="%d" text-anchor="middle">%.*f</text>`,
			x, x, top-4, bottom, x, bottom+16, decimals, i*step)
	}
	d.line(`<text class="muted" x="%d" y="%d" text-anchor="end">%s</text>`, width-margin, bottom+16, name)
}

// bar is a rectangle of a lane, in pixels.
type bar struct {
	x, wide float64
	tint    int
}

// unseen is a gap between two bars that no reader sees, in pixels.
const unseen = 0.2

// bars are the blocks of a lane, those of one tint without a gap as one bar. Bars narrower than apart are gathered
// until they are that wide, and drawn from where the first begins, in the tint of most of them.
func (d *drawing) bars(blocks []Block) []bar {
	var merged, drawn []bar
	for _, b := range blocks {
		next := bar{b.Begin.Seconds() / d.perPixel, (b.End - b.Begin).Seconds() / d.perPixel, tintOf(b.Mark)}
		if n := len(merged); n > 0 && merged[n-1].tint == next.tint && next.x-merged[n-1].end() < unseen {
			merged[n-1].wide = max(merged[n-1].wide, next.x+next.wide-merged[n-1].x)
			continue
		}
		merged = append(merged, next)
	}
	took := make([]float64, len(tints)) // of the bars that are gathered
	var from, busy float64
	draw := func() {
		if busy > 0 {
			most := 0
			for i := range took {
				if took[i] > took[most] {
					most = i
				}
			}
			drawn = append(drawn, bar{from, busy, most})
			clear(took)
			busy = 0
		}
	}
	for _, b := range merged {
		if b.wide >= d.apart || b.end() > from+d.apart {
			draw()
		}
		if b.wide >= d.apart {
			drawn = append(drawn, b)
			continue
		}
		if busy == 0 {
			from = b.x
		}
		took[b.tint] += b.wide
		busy += b.wide
	}
	draw()
	return drawn
}

func (b bar) end() float64 { return b.x + b.wide }

// blocks draws the blocks of a lane, a path for each tint.
func (d *drawing) blocks(blocks []Block) {
	bars := d.bars(blocks)
	for i, t := range tints {
		var p bytes.Buffer
		for _, b := range bars {
			if b.tint == i {
				rectangle(&p, b.x, b.wide)
			}
		}
		if p.Len() > 0 {
			d.line(`<path class="%s" d="%s"><title>%s</title></path>`, t.class, p.Bytes(), t.means)
		}
	}
}

// rectangle adds one to a path, with x and width to a tenth of a pixel. One that is narrower is drawn as a tenth.
func rectangle(b *bytes.Buffer, x, wide float64) {
	w := tenths(max(wide, 0.1))
	fmt.Fprintf(b, "M%s 0h%sv%dh-%sz", tenths(x), w, laneHeight, w)
}

func tenths(x float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0")
}

// timeText is a time for people, with three digits.
func timeText(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if x := float64(d) / float64(u.unit); x >= 0.9995 {
			decimals := 0
			for limit := 99.95; decimals < 2 && x < limit; limit /= 10 {
				decimals++
			}
			return fmt.Sprintf("%.*f %s", decimals, x, u.name)
		}
	}
	return fmt.Sprintf("%d ns", d)
}

func share(busy, length time.Duration) string {
	return fmt.Sprintf("%.0f%%", 100*float64(busy)/float64(length))
}

// grouped is a number with a comma before each three digits.
func grouped(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// cut is a text of at most that many characters.
func cut(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// escape makes a text one of XML; characters that XML does not allow become U+FFFD.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder accepts everything
	return b.String()
}
