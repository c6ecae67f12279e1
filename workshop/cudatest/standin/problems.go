package standin

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// problems collect what Check reports. They have a lock of their own: they come from streams, too.
type problems struct {
	mu    sync.Mutex
	list  []string // in order of the first time
	times map[string]int
	more  int // that did not fit
}

// maxProblems keeps a loop that goes wrong from filling the memory.
const maxProblems = 50

// misused notes something that no correct program does.
func (d *Driver) misused(format string, args ...any) {
	d.log(format, args...)
	text := fmt.Sprintf(format, args...)
	p := &d.problems
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.times == nil {
		p.times = map[string]int{}
	}
	switch {
	case p.times[text] > 0:
		p.times[text]++
	case len(p.list) < maxProblems:
		p.list = append(p.list, text)
		p.times[text] = 1
	default:
		p.more++
	}
}

func (d *Driver) log(format string, args ...any) {
	if d.options.Log != nil {
		d.options.Log("standin: "+format, args...)
	}
}

// Check waits for destroyed streams to end and returns what went wrong, one line each: calls that break a rule, work
// that failed, and what is still alive: contexts, memory, registrations, streams, events, modules. No other goroutine
// may be using the driver.
func (d *Driver) Check() error {
	d.making.Lock()
	ended := d.ended
	d.ended = nil
	d.making.Unlock()
	for _, s := range ended { // without the lock, which a stream's failure takes
		<-s.done
	}
	d.making.Lock()
	defer d.making.Unlock()
	var leaks []string
	for _, c := range d.cards {
		leaks = append(leaks, d.leaks(c)...)
		if c.retained > 0 {
			leaks = append(leaks, fmt.Sprintf("leak: the primary context of card %d is retained %d times", c.number,
				c.retained))
		}
	}
	p := &d.problems
	p.mu.Lock()
	defer p.mu.Unlock()
	var text strings.Builder
	for _, line := range p.list {
		fmt.Fprintf(&text, "standin: %s", line)
		if n := p.times[line]; n > 1 {
			fmt.Fprintf(&text, " (%d times)", n)
		}
		text.WriteByte('\n')
	}
	if p.more > 0 {
		fmt.Fprintf(&text, "standin: and %d more\n", p.more)
	}
	for _, line := range leaks {
		fmt.Fprintf(&text, "standin: %s\n", line)
	}
	if text.Len() == 0 {
		return nil
	}
	return errors.New(strings.TrimSuffix(text.String(), "\n"))
}

// leaks lists the objects that are alive in the context of a card, oldest first. The caller holds making.
func (d *Driver) leaks(c *card) (lines []string) {
	leak := func(of *card, format string, args ...any) {
		if of == c {
			lines = append(lines, fmt.Sprintf("leak: "+format, args...))
		}
	}
	for _, a := range d.memory.all() {
		leak(a.card, "%d bytes of device memory, allocated at %s", len(a.bytes), a.site)
	}
	for _, base := range slices.Sorted(maps.Keys(d.host.all())) {
		r := d.host.all()[base]
		leak(r.card, "%d bytes of host memory are registered, at %s", len(r.bytes), r.site)
	}
	for _, h := range slices.Sorted(maps.Keys(d.streams.all())) {
		s := d.streams.all()[h]
		leak(s.card, "a stream, created at %s", s.site)
	}
	for _, h := range slices.Sorted(maps.Keys(d.events.all())) {
		e := d.events.all()[h]
		leak(e.card, "an event, created at %s", e.site)
	}
	for _, h := range slices.Sorted(maps.Keys(d.modules.all())) {
		m := d.modules.all()[h]
		leak(m.card, "a module, loaded at %s", m.site)
	}
	return lines
}

// callSite names the line that called the stand-in.
func callSite() string {
	var pcs [12]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		inside := strings.Contains(f.Function, "/cudatest/standin.") && !strings.HasSuffix(f.File, "_test.go")
		if !inside && !strings.HasPrefix(f.Function, "reflect.") || !more {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
	}
}
