package serve

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"
)

// events has what changed last, for all watchers: one text that is made once, whatever their number.
type events struct {
	mu        sync.Mutex
	watchers  int
	revisions map[string]int64
	at        time.Time     // of the latest text
	text      []byte        // of revisions, as an event
	changed   chan struct{} // closed when the next text is there
}

// eachWatcher is the time between two events, for each watcher: all of them ask for what is new then, of the machine
// that trains. So 200 watchers are told each 10 seconds.
const eachWatcher = 50 * time.Millisecond

// publish tells of revisions, if they are others than before, and the watchers had time to ask for those.
func (e *events) publish(now time.Time, revisions map[string]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if maps.Equal(e.revisions, revisions) || now.Sub(e.at) < time.Duration(e.watchers)*eachWatcher {
		return
	}
	e.at = now
	doc, err := json.Marshal(revisions)
	if err != nil {
		panic(err) // whole numbers can be marshalled
	}
	e.revisions, e.text = revisions, fmt.Appendf(nil, "event: runs\ndata: %s\n\n", doc)
	close(e.changed)
	e.changed = make(chan struct{})
}

// watch counts a watcher more, or less.
func (e *events) watch(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchers += n
}

// latest is the last event, and the channel that says when there is another one.
func (e *events) latest() ([]byte, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text, e.changed
}

// watch sends events to one watcher until it or the server ends.
func (s *Server) watch(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // a writer without deadlines is one of tests
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	s.events.watch(1)
	defer s.events.watch(-1)
	text, changed := s.events.latest()
	for {
		if len(text) > 0 {
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(text); err != nil || c.Flush() != nil {
				return
			}
		}
		select {
		case <-changed:
			text, changed = s.events.latest()
		case <-alive.C:
			text = []byte(": the server is there\n\n")
		case <-q.Context().Done():
			return
		}
	}
}
