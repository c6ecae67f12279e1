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

// Out takes messages and progress. A zero Out is not valid: Writer must be set, io.Discard for silence.
type Out struct {
	Writer   io.Writer
	Terminal bool             // it is one: bars instead of lines
	Now      func() time.Time // tells the time; nil: time.Now
}

func (o Out) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Bar shows how far a long task is: a line that is drawn again on a terminal, and now and then a plain line elsewhere.
type Bar struct {
	out   Out
	what  string
	start time.Time
	shown time.Time
	drawn bool
	lines time.Duration // between two where the output is no terminal
}

// How often progress is shown: on a terminal, and elsewhere.
const (
	drawEvery = 100 * time.Millisecond
	lineEvery = 10 * time.Second
)

// Bar begins to show a task.
func (o Out) Bar(what string) *Bar {
	return o.SlowBar(what, lineEvery)
}

// SlowBar begins to show a task that comes often, with so much time between two plain lines.
func (o Out) SlowBar(what string, lines time.Duration) *Bar {
	now := o.now()
	return &Bar{out: o, what: terminal.Text(what), start: now, shown: now, lines: lines}
}

// Set shows done of total, if it is time to.
func (b *Bar) Set(done, total int64) {
	if total > 0 {
		b.Show(float64(done)/float64(total), "")
	}
}

// Show shows the share that is done, and where the task is, if it is time to.
func (b *Bar) Show(share float64, where string) {
	every, now := b.lines, b.out.now()
	if b.out.Terminal {
		every = drawEvery
	}
	if now.Sub(b.shown) < every {
		return
	}
	b.shown = now
	share = min(share, 1)
	left := ""
	if share > 0.01 {
		left = ", " + Seconds(now.Sub(b.start).Seconds()*(1-share)/share) + " left"
	}
	if where != "" {
		left += ": " + where
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

// Line shows on a terminal, after a while, where a task is whose length is not known.
type Line struct {
	out   Out
	what  string
	start time.Time
	shown time.Time
	drawn bool
}

// lineAfter delays a Line: a task that ends before shows none.
const lineAfter = 2 * time.Second

// Line begins to show a task.
func (o Out) Line(what string) *Line { return &Line{out: o, what: terminal.Text(what), start: o.now()} }

// Show shows where the task is, if it is time to.
func (l *Line) Show(where string) {
	if !l.out.Terminal {
		return
	}
	now := l.out.now()
	if now.Sub(l.start) < lineAfter || now.Sub(l.shown) < drawEvery {
		return
	}
	l.shown, l.drawn = now, true
	terminal.Draw(l.out.Writer, terminal.EraseLine+l.what+": "+terminal.Text(where))
}

// End removes what was drawn.
func (l *Line) End() {
	if l.drawn {
		terminal.Draw(l.out.Writer, terminal.EraseLine)
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
