package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report/page"
	"github.com/millrace/millrace/train/rundir"
)

// Options say what to serve.
type Options struct {
	Dirs    []string // output directories of runs, or folders of them
	Version string   // of the program
	// Own is the run of this process, whose output directory is the first one, nil: runs of other processes alone.
	Own Control
	// LimitBytes bounds the memory of the numbers of all runs; 0 is DefaultLimitBytes.
	LimitBytes int64
	// Token has to come with each request for data where the address is not a loopback one, and with what asks something
	// of a run. Empty: one is made where it is needed.
	Token string
	// Warn tells of a fault of the server, which ends no run; nil: nothing does.
	Warn func(text string)
}

// DefaultLimitBytes is the memory that the numbers of all runs take at most.
const DefaultLimitBytes = 256 << 20

// Intervals of the loop that follows runs.
const (
	followEvery = time.Second
	searchEvery = 5 // passes
	keepAlive   = 15 * time.Second
	grace       = 300 * time.Millisecond // after a request, in which nothing is read in the background
)

// Server follows runs and answers requests about them.
type Server struct {
	options Options
	address string // that was asked for
	open    bool   // it is not a loopback address
	token   string

	mu      sync.Mutex
	runs    []*run // in the order in which they were found
	ids     int
	message string
	events  events

	listener net.Listener
	http     *http.Server
	stop     context.CancelFunc
	loop     fault.Group
	faults   atomic.Int64
	asked    atomic.Int64 // when the latest request came, in nanoseconds since 1970
}

// New finds the runs of directories. Nothing listens yet: see [Server.Listen].
func New(o Options) *Server {
	if o.LimitBytes == 0 {
		o.LimitBytes = DefaultLimitBytes
	}
	s := &Server{options: o, token: o.Token}
	s.events.changed = make(chan struct{})
	if s.token == "" {
		s.token = rand.Text()
	}
	s.search()
	return s
}

// search finds runs that are new, and forgets those that are gone.
func (s *Server) search() {
	all, message := search(s.options.Dirs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Own != nil && !slices.ContainsFunc(all, s.isOwn) {
		all = slices.Insert(all, 0, found{s.options.Dirs[0], ".", rundir.MetricsName}) // it has not begun
	}
	var runs []*run
	for _, f := range all {
		i := slices.IndexFunc(s.runs, func(r *run) bool { return r.base == f.base && r.rel == f.rel })
		if i >= 0 {
			runs = append(runs, s.runs[i])
			continue
		}
		s.ids++
		runs = append(runs, s.newRun(f))
	}
	s.runs, s.message = runs, message
	share := s.options.LimitBytes / int64(max(len(runs), 8))
	for _, r := range runs {
		r.mu.Lock()
		r.records.table.limitBytes = share
		r.mu.Unlock()
	}
}

func (s *Server) newRun(f found) *run {
	r := &run{id: "r" + strconv.Itoa(s.ids), name: terminal.Text(filepath.Join(f.base, f.rel)), base: f.base, rel: f.rel,
		state: "stopped", revision: 1, records: newRecords(f.base, filepath.Join(f.rel, f.records), s.options.LimitBytes/8)}
	if s.options.Own != nil && s.isOwn(f) {
		r.own = s.options.Own
	}
	return r
}

// isOwn reports whether a run is that of this process, where it has one.
func (s *Server) isOwn(f found) bool { return f.base == s.options.Dirs[0] && f.rel == "." }

// all are the runs that there are now.
func (s *Server) all() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// pass looks at each run once, and reads a piece of what is new. It reports whether there is more to read.
func (s *Server) pass(now time.Time, all bool) (more bool) {
	for _, r := range s.all() {
		r.look(now, all)
	}
	return s.readMore()
}

// readMore reads a piece of each run that is not read to its end.
func (s *Server) readMore() (more bool) {
	for _, r := range s.all() {
		more = r.follow() || more
	}
	return more
}

// tell has watchers know which runs have changed.
func (s *Server) tell(now time.Time) {
	revisions := map[string]int64{}
	for _, r := range s.all() {
		r.mu.Lock()
		revisions[r.id] = r.revision
		r.mu.Unlock()
	}
	s.events.publish(now, revisions)
}

// follow looks for changes until the context ends.
func (s *Server) follow(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		all := n%searchEvery == 0
		if all {
			s.search()
		}
		more, isTime := s.pass(time.Now(), all), false
		for more && !isTime {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				isTime = true // to look again; what is left is read after that
			case <-s.quiet():
				more = s.readMore()
			}
		}
		s.tell(time.Now())
		if isTime {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// quiet is closed when no request has come for a while: who asks is not to wait for what is read in the background.
func (s *Server) quiet() <-chan struct{} {
	done := make(chan struct{})
	if since := time.Since(time.Unix(0, s.asked.Load())); since < grace {
		fault.AfterFunc(grace-since, func() { close(done) })
	} else {
		close(done)
	}
	return done
}

// runOf is the run of a request; nil: it was answered with an error.
func (s *Server) runOf(w http.ResponseWriter, q *http.Request) *run {
	id := q.PathValue("id")
	for _, r := range s.all() {
		if r.id == id {
			return r
		}
	}
	fail(w, http.StatusNotFound, "there is no run "+id+": api/runs lists those that there are")
	return nil
}

// routes are the requests that the server answers.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	document := func(name string, of func(r *run, q *http.Request) (any, error)) {
		mux.HandleFunc("GET /api/runs/{id}/"+name, func(w http.ResponseWriter, q *http.Request) {
			if r := s.runOf(w, q); r != nil {
				doc, err := of(r, q)
				answer(w, doc, err)
			}
		})
	}
	mux.HandleFunc("GET /api/runs", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.runsDocument(), nil) })
	document("columns", func(r *run, q *http.Request) (any, error) {
		a, err := askedOf(q)
		if err != nil {
			return nil, err
		}
		doc, err := r.columns(a)
		return json.RawMessage(doc), err
	})
	document("settings", func(r *run, _ *http.Request) (any, error) { return r.settingsDocument(), nil })
	document("plan", func(r *run, _ *http.Request) (any, error) { return r.planDocument(), nil })
	document("timeline", func(r *run, _ *http.Request) (any, error) { return r.timelineDocument(), nil })
	document("samples", func(r *run, q *http.Request) (any, error) {
		after, err := number(q, "after", -1, -1)
		if err != nil {
			return nil, err
		}
		return r.samplesDocument(after)
	})
	document("rows", func(r *run, _ *http.Request) (any, error) { return r.rowsDocument(), nil })
	document("rows/{row}", func(r *run, q *http.Request) (any, error) { return r.rowDocument(q.PathValue("row")) })
	mux.HandleFunc("GET /api/events", s.watch)
	mux.HandleFunc("GET /metrics", s.metrics)
	for name, ask := range asks {
		mux.HandleFunc("POST /api/runs/{id}/"+name, func(w http.ResponseWriter, q *http.Request) { s.ask(w, q, ask) })
	}
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "there is no such document; docs/serve.md lists them")
	})
	files := http.FileServerFS(page.Files)
	mux.HandleFunc("GET /{$}", files.ServeHTTP)
	for _, name := range page.Names() {
		mux.HandleFunc("GET /"+name, files.ServeHTTP)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "there is no such page; open /")
	})
	return mux
}

// runsDocument lists the runs.
func (s *Server) runsDocument() runsDocument {
	s.mu.Lock()
	runs, message := s.runs, s.message
	s.mu.Unlock()
	d := runsDocument{Version: s.options.Version, Controls: s.options.Own != nil, Runs: []runDocument{}}
	for _, r := range runs {
		r.mu.Lock()
		d.Runs = append(d.Runs, r.document())
		switch {
		case message != "":
		case r.fault != "":
			message = r.fault
		case r.records.damaged > 0:
			message = r.leftOut()
		}
		r.mu.Unlock()
	}
	if message != "" {
		d.Message = &message
	}
	return d
}

// Bounds of a request for columns.
const (
	mostAsked     = 1000
	mostPoints    = 10_000
	defaultPoints = 1000
)

// askedOf reads a request for columns.
func askedOf(q *http.Request) (a asked, err error) {
	for name := range strings.SplitSeq(q.URL.Query().Get("names"), ",") {
		if name != "" {
			a.names = append(a.names, name)
		}
	}
	if len(a.names) == 0 || len(a.names) > mostAsked {
		return a, badRequest{fmt.Sprintf("names: give from 1 to %d names of columns with commas between them, as "+
			"names=loss,grad_norm", mostAsked)}
	}
	if a.from, err = number(q, "from", 0, 0); err != nil {
		return a, err
	}
	if a.to, err = number(q, "to", 1<<62, 0); err != nil {
		return a, err
	}
	points, err := number(q, "points", defaultPoints, 1)
	a.points = int(min(points, mostPoints))
	return a, err
}

// number reads a whole number of a query, which is least or more; it may be left out.
func number(q *http.Request, name string, otherwise, least int64) (int64, error) {
	text := q.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		return 0, badRequest{fmt.Sprintf("%s: it must be a whole number from %d", name, least)}
	}
	return n, nil
}

// badRequest is an error of what was asked for.
type badRequest struct{ text string }

func (e badRequest) Error() string { return e.text }

// answer writes a document, or the error that there is instead.
func answer(w http.ResponseWriter, doc any, err error) {
	bad := badRequest{}
	switch {
	case errors.As(err, &bad):
		fail(w, http.StatusBadRequest, bad.text)
		return
	case err != nil:
		fail(w, http.StatusNotFound, terminal.Text(console.OneLine(err)))
		return
	}
	text, isReady := doc.(json.RawMessage)
	if !isReady {
		if text, err = json.Marshal(doc); err != nil {
			fail(w, http.StatusInternalServerError, "a number of the document is not finite: report this")
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a reader that is gone needs no answer
}

// fail answers with an error of one line.
func fail(w http.ResponseWriter, status int, why string) {
	text, err := json.Marshal(map[string]string{"error": why})
	if err != nil {
		panic(err) // a text can be marshalled
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
