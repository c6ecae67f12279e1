// Package console writes a verb's messages to people: lines, and bars that show the progress of a long task.
//
// Invariant: except the characters that draw a bar, no written character has an effect on a terminal.
package console

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/terminal"
)

// Out is where messages and progress go. A zero Out is not valid: Writer must be set, io.Discard for silence.
type Out struct {
	Writer   io.Writer
	Terminal bool // it is one: bars instead of lines
}

// Bar shows how far a long task is: a line that is drawn again on a terminal, and now and then a plain line elsewhere.
type Bar struct {
	out   Out
	what  string
	start time.Time
	shown time.Time
	drawn bool
}

// How often progress is shown: on a terminal, and elsewhere.
const (
	drawEvery = 100 * time.Millisecond
	lineEvery = 10 * time.Second
)

// Bar begins to show a task.
func (o Out) Bar(what string) *Bar {
	now := time.Now()
	return &Bar{out: o, what: terminal.Text(what), start: now, shown: now}
}

// Set shows done of total, if it is time to.
func (b *Bar) Set(done, total int64) {
	every := lineEvery
	if b.out.Terminal {
		every = drawEvery
	}
	if total <= 0 || time.Since(b.shown) < every {
		return
	}
	b.shown = time.Now()
	share := min(float64(done)/float64(total), 1)
	left := ""
	if share > 0.01 {
		left = ", " + Seconds(time.Since(b.start).Seconds()*(1-share)/share) + " left"
	}
	if !b.out.Terminal {
		b.out.Say("%s: %.0f%%%s", b.what, share*100, left)
		return
	}
	const width = 30
	full := int(share * width)
	terminal.Draw(b.out.Writer, fmt.Sprintf("%s%s [%s%s] %3.0f%%%s", terminal.EraseLine, b.what, strings.Repeat("#", full),
		strings.Repeat(" ", width-full), share*100, left))
	b.drawn = true
}

// End removes what was drawn.
func (b *Bar) End() {
	if b.drawn {
		terminal.Draw(b.out.Writer, terminal.EraseLine)
	}
}

// Say writes one line for people.
func (o Out) Say(format string, args ...any) {
	fmt.Fprintln(o.Writer, terminal.Text(fmt.Sprintf(format, args...)))
}

// Seconds is a duration for people: "1h02m", "3m20s", "4.2s".
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%.1fs", s)
}

// OneLine returns the text of an error as part of a line. Joined errors have a line each; OneLine separates them with
// semicolons.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
