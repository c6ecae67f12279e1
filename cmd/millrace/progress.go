package main

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/terminal"
)

// bar shows how far a verb is that package train does not carry out.
type bar struct {
	p     *program
	what  string
	shown time.Time
	drawn bool
	total int64
}

func (p *program) bar(what string) *bar {
	return &bar{p: p, what: terminal.Text(what), shown: time.Now()}
}

// set shows done of total: a line that is drawn again on a terminal, a plain one every ten seconds elsewhere.
func (b *bar) set(done, total int64) {
	b.total = total
	format, every := "%s: %3.0f%%\n", 10*time.Second
	if b.p.env.Terminal {
		format, every = "\r\x1b[K%s: %3.0f%%", 100*time.Millisecond
	}
	if total <= 0 || time.Since(b.shown) < every {
		return
	}
	b.shown, b.drawn = time.Now(), b.p.env.Terminal
	fmt.Fprintf(b.p.stderr, format, b.what, 100*float64(done)/float64(total))
}

// end removes what was drawn.
func (b *bar) end() {
	if b.drawn {
		fmt.Fprint(b.p.stderr, "\r\x1b[K")
	}
}
