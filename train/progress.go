package train

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/terminal"
)

// bar shows how far a long task is: a line that is drawn again on a terminal, and now and then a plain line elsewhere.
type bar struct {
	env   *Env
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

func (e *Env) bar(what string) *bar {
	now := time.Now()
	return &bar{env: e, what: terminal.Text(what), start: now, shown: now}
}

// set shows done of total, if it is time to.
func (b *bar) set(done, total int64) {
	every := lineEvery
	if b.env.Terminal {
		every = drawEvery
	}
	if total <= 0 || time.Since(b.shown) < every {
		return
	}
	b.shown = time.Now()
	share := min(float64(done)/float64(total), 1)
	left := ""
	if share > 0.01 {
		left = ", " + seconds(time.Since(b.start).Seconds()*(1-share)/share) + " left"
	}
	if !b.env.Terminal {
		b.env.say("%s: %.0f%%%s", b.what, share*100, left)
		return
	}
	const width = 30
	full := int(share * width)
	fmt.Fprintf(b.env.Progress, "\r\x1b[K%s [%s%s] %3.0f%%%s", b.what, strings.Repeat("#", full), strings.Repeat(" ", width-full), share*100, left)
	b.drawn = true
}

// end removes what was drawn.
func (b *bar) end() {
	if b.drawn {
		fmt.Fprint(b.env.Progress, "\r\x1b[K")
	}
}

// say writes one line for people.
func (e *Env) say(format string, args ...any) {
	fmt.Fprintln(e.Progress, terminal.Text(fmt.Sprintf(format, args...)))
}

// seconds is a duration for people: "1h02m", "3m20s", "4.2s".
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%.1fs", s)
}

// oneLine is the text of an error in a line that goes on: joined errors have one each.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
