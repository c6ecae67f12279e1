package session

import (
	"time"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/stream"
)

// How long a pass over the layers takes before anything is said of its progress: on a terminal, and elsewhere, where it
// is also the time between two lines.
const (
	drawPassAfter = time.Second
	linePassAfter = 2 * time.Minute
)

// Watching shows how far the pass of the engine is that begins now, once it has taken some time, until end is called.
// A pass that is over sooner costs a timer.
func (s *Session) Watching(show func(stream.Progress)) (end func()) {
	d := linePassAfter
	if s.Env.Terminal {
		d = drawPassAfter
	}
	ended := make(chan struct{})
	var watcher fault.Group
	watcher.Go(func() {
		for {
			due, free := s.Env.watchClock().After(d)
			select {
			case <-due:
				s.Engine.Watch(show) // which may see the end of the updates alone, that an evaluation settles first
			case <-ended:
				free()
				return
			}
		}
	})
	return func() {
		close(ended)
		watcher.Wait()
	}
}
