package trackers

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace/tensorboard"
)

// point has the numbers of a step.
type point struct {
	step    int64
	unixMs  int64
	numbers []tensorboard.Scalar
}

// How much waits for a server, and for how long.
const (
	mostWaiting = 32 << 10         // numbers, of some 40 bytes each; later ones are not told
	endWait     = 10 * time.Second // at the end of a run
	leastPause  = time.Second      // between two tries, doubled up to mostPause
	mostPause   = time.Minute
)

// server tells an MLflow server what happens, from a goroutine of its own: a run never waits for it, but a little at
// its end. What cannot be told waits in a queue; what has no room there is dropped and counted.
type server struct {
	about  About
	remote *mlflow
	params []runfile.FlatValue

	mu      sync.Mutex
	queue   []point
	waiting int // numbers in it
	dropped int // steps
	isOver  bool
	says    []string // for the run's goroutine to warn of
	how     Ending

	wake   chan struct{} // has an element when the queue has
	ending chan struct{} // is closed when the run ends
	done   chan struct{} // is closed when the goroutine has ended
	cancel context.CancelFunc
	pause  pause
}

// pause waits between two tries, until the run ends or the context does.
type pause func(ctx context.Context, ending <-chan struct{}, d time.Duration)

// openServer begins to tell a server. It asks for nothing before it has returned.
func openServer(a About, to runfile.MLflow, params []runfile.FlatValue) *server {
	remote, err := newMLflow(to.URL)
	if err != nil {
		a.Files.Warn("report_to: %s; the run continues without it", console.OneLine(err))
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{about: a, remote: remote, params: params, wake: make(chan struct{}, 1), ending: make(chan struct{}),
		done: make(chan struct{}), cancel: cancel, pause: a.pause}
	if s.pause == nil {
		s.pause = pauseFor
	}
	s.remote.experiment = cmp.Or(to.Experiment, runfile.DefaultExperiment)
	s.remote.name = cmp.Or(to.Run, a.Name)
	fault.Go(func() {
		defer close(s.done)
		s.work(ctx)
	})
	return s
}

// pauseFor is a pause by the machine's clock.
func pauseFor(ctx context.Context, ending <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ending:
	case <-ctx.Done():
	}
}

// tell adds a point to the queue, and warns of what the goroutine has met.
func (s *server) tell(p point) {
	if s == nil {
		return
	}
	s.mu.Lock()
	if !s.isOver && s.waiting+len(p.numbers) <= mostWaiting {
		s.queue, s.waiting = append(s.queue, p), s.waiting+len(p.numbers)
	} else {
		s.dropped++
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
	s.warn()
}

// warn gives the run the warnings so far.
func (s *server) warn() {
	s.mu.Lock()
	all := s.says
	s.says = nil
	s.mu.Unlock()
	for _, text := range all {
		s.about.Files.Warn("%s", text)
	}
}

func (s *server) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = append(s.says, text)
}

// end has the goroutine tell what waits, and how the run ends, and waits for that a little.
func (s *server) end(how Ending) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.how = how
	s.mu.Unlock()
	close(s.ending)
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
	s.cancel()
	<-s.done
	s.remote.close()
	s.warn()
	if n := len(s.queue) + s.dropped; n > 0 {
		s.about.Files.Warn("mlflow: the records of %d steps were not sent to %s; metrics.jsonl has them", n, s.remote.url)
	}
}

// work tells the server what comes, until the run has ended or the server refuses.
func (s *server) work(ctx context.Context) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isOver = true
	}()
	if !s.try(ctx, s.begin) {
		return
	}
	for {
		isEnding := s.isEnding() // before the queue is looked at: what comes before the end is told
		s.mu.Lock()
		batch, how := s.queue[:min(len(s.queue), mostPoints)], s.how
		s.mu.Unlock()
		switch {
		case len(batch) > 0:
			if !s.try(ctx, func(ctx context.Context) error { return s.remote.log(ctx, batch) }) {
				return
			}
			s.mu.Lock()
			s.queue = s.queue[len(batch):]
			for _, p := range batch {
				s.waiting -= len(p.numbers)
			}
			s.mu.Unlock()
		case isEnding:
			s.try(ctx, func(ctx context.Context) error { return s.remote.end(ctx, how) })
			return
		default:
			select {
			case <-s.wake:
			case <-s.ending:
			}
		}
	}
}

func (s *server) isEnding() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}

// try asks the server until it answers. It reports false where the server refuses, or does not answer as the run ends.
func (s *server) try(ctx context.Context, ask func(context.Context) error) bool {
	isTold := false
	for wait := leastPause; ; wait = min(2*wait, mostPause) {
		isLast := s.isEnding()
		err := ask(ctx)
		refused := (*refusedError)(nil)
		switch {
		case err == nil:
			return true
		case errors.As(err, &refused):
			s.say("mlflow: " + console.OneLine(err) + "; the run continues without it")
			return false
		case isLast || ctx.Err() != nil:
			if !isTold {
				s.say("mlflow: " + console.OneLine(err))
			}
			return false
		case !isTold:
			isTold = true
			s.say("mlflow: " + console.OneLine(err) + "; its records wait, and the run continues")
		}
		s.pause(ctx, s.ending, wait)
	}
}

// begin finds or makes the run on the server.
func (s *server) begin(ctx context.Context) error {
	file := serverFile{fsys: s.about.Files.FS, dir: s.about.Config.OutputDir}
	was := file.read()
	is := serverRun{URL: s.remote.url, Run: s.about.Run, Mathematics: s.about.Mathematics}
	if was != nil && was.URL == is.URL && was.Run == is.Run {
		// A run whose settings have changed tells other numbers of the steps that it takes again.
		goesOn, err := s.remote.continueRun(ctx, was.ID, s.about.First, was.Mathematics == is.Mathematics)
		if err != nil {
			return err
		}
		if goesOn {
			is.ID = was.ID
		}
	}
	if is.ID == "" {
		if err := s.remote.beginRun(ctx, s.about.Run, s.params); err != nil {
			return err
		}
		is.ID = s.remote.id
	}
	if err := file.write(is); err != nil {
		s.say("mlflow: " + console.OneLine(err) + "; a start of the run after this one begins another one on the server")
	}
	return nil
}
