// Package notify tells people what happens in a run: it starts commands and calls web hooks, in the background.
//
//   - [Event] has what happened, as one JSON object.
//   - [Sender] has a queue for each notice of a run file, and a goroutine that delivers what is in it.
//
// Invariants: a run waits for nothing here, except in [Sender.Close] for as long as it is ready to. Queues, answers and
// outputs are bounded. The address of a web hook may be a secret: an error has no more of it than its host.
package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/runfile"
)

// Event has what happened in a run. Numbers that are not known are null or missing.
type Event struct {
	Event        string   `json:"event"`   // a name of runfile.NoticeEvents, or test
	Run          string   `json:"run"`     // output_dir
	Machine      string   `json:"machine"` // name of the host
	Step         int      `json:"step"`    // that is done
	Steps        int      `json:"steps,omitempty"`
	Loss         *float64 `json:"loss"`                // of that step
	EvalLoss     *float64 `json:"eval_loss,omitempty"` // of the latest evaluation
	TokensPerSec float64  `json:"tokens_per_sec,omitempty"`
	LeftSec      float64  `json:"seconds_left,omitempty"`
	Time         string   `json:"time"` // RFC 3339, UTC
	Text         string   `json:"text"` // all of it in a line for people
}

// Limits bound what a delivery takes.
type Limits struct {
	Command time.Duration   // of a command
	Hook    time.Duration   // of one call of a web hook
	Waits   []time.Duration // before each further call, where one has failed that may do later
}

// Usual are the limits of runs.
var Usual = Limits{Command: time.Minute, Hook: 10 * time.Second,
	Waits: []time.Duration{2 * time.Second, 10 * time.Second}}

// mostWaiting bounds the events that wait for a notice.
const mostWaiting = 32

// Sender delivers events. A nil one has no notices, and does nothing.
type Sender struct {
	outlets []*outlet
	cancel  context.CancelFunc
	working fault.Group

	mu       sync.Mutex
	isClosed bool
	troubles []string // that no caller has heard of
}

// outlet is a notice with what delivers it.
type outlet struct {
	runfile.Notice
	name    string // for people
	address string // of the web hook; may be a secret
	limits  Limits
	queue   chan Event
}

// Open makes ready what a run file asks for. It fails where the environment lacks a variable, or the machine a program,
// that a notice names.
func Open(notices []runfile.Notice, limits Limits) (*Sender, error) {
	outlets, err := outletsOf(notices, limits)
	if err != nil || len(outlets) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sender{outlets: outlets, cancel: cancel}
	for _, o := range outlets {
		s.working.Go(func() {
			for e := range o.queue {
				if err := o.deliver(ctx, e); err != nil {
					s.lament(o, e, err)
				}
			}
		})
	}
	return s, nil
}

func outletsOf(notices []runfile.Notice, limits Limits) (all []*outlet, err error) {
	for i, n := range notices {
		o := &outlet{Notice: n, limits: limits, queue: make(chan Event, mostWaiting)}
		if n.URL != "" {
			if o.address, err = n.Address(); err != nil {
				return nil, fmt.Errorf("notify[%d]: %w", i, err)
			}
			u, err := url.Parse(o.address)
			if err != nil {
				return nil, fmt.Errorf("notify[%d]: url is no address of the web", i) // err has the address
			}
			o.name = fmt.Sprintf("notify[%d] (%s)", i, u.Host)
		} else {
			if _, err := exec.LookPath(n.Command[0]); err != nil {
				return nil, fmt.Errorf("notify[%d].command: there is no program %s that can be started: name one, with its path", i,
					n.Command[0])
			}
			o.name = fmt.Sprintf("notify[%d] (%s)", i, filepath.Base(n.Command[0]))
		}
		all = append(all, o)
	}
	return all, nil
}

// lament notes that an event was not delivered.
func (s *Sender) lament(o *outlet, e Event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.troubles) < mostWaiting {
		s.troubles = append(s.troubles, fmt.Sprintf("%s was not told of the event %s: %v", o.name, e.Event, err))
	}
}

// Hears reports whether a notice tells of an event.
func (s *Sender) Hears(event string) bool {
	if s == nil {
		return false
	}
	for _, o := range s.outlets {
		if o.Hears(event) {
			return true
		}
	}
	return false
}

// Send has the notices for an event tell of it, and returns at once. Any goroutine may call it, also after Close, when
// it does nothing.
func (s *Sender) Send(e Event) {
	if s == nil {
		return
	}
	var full []*outlet
	s.mu.Lock()
	for _, o := range s.outlets {
		if s.isClosed || !o.Hears(e.Event) {
			continue
		}
		select {
		case o.queue <- e:
		default:
			full = append(full, o)
		}
	}
	s.mu.Unlock()
	for _, o := range full {
		s.lament(o, e, fmt.Errorf("%d earlier ones still wait", mostWaiting))
	}
}

// Troubles returns what was not delivered since the latest call, a line each.
func (s *Sender) Troubles() []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.troubles
	s.troubles = nil
	return all
}

// errNoTime ends deliveries for which a run does not wait.
var errNoTime = errors.New("there was no more time, since the run has ended")

// lastPatience bounds the wait of a run whose context has ended: the program is about to end.
const lastPatience = 2 * time.Second

// Close delivers what waits, for as long as patience lasts, or two seconds once the context has ended, then gives up.
// It returns what was not delivered, as Troubles does.
func (s *Sender) Close(ctx context.Context, patience time.Duration) []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if !s.isClosed {
		s.isClosed = true
		for _, o := range s.outlets {
			close(o.queue)
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	fault.Go(func() { s.working.Wait(); close(done) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
		timer.Reset(min(patience, lastPatience))
		select {
		case <-done:
		case <-timer.C:
		}
	}
	s.cancel()
	<-done
	return s.Troubles()
}

// Test delivers an event by each notice, whichever events that tells of, one after the other, and calls told with how
// it went. The error says what keeps notices from being delivered at all.
func Test(ctx context.Context, notices []runfile.Notice, limits Limits, e Event,
	told func(name string, err error)) error {
	outlets, err := outletsOf(notices, limits)
	if err != nil {
		return err
	}
	for _, o := range outlets {
		told(o.name, o.deliver(ctx, e))
	}
	return ctx.Err()
}

// deliver tells of an event.
func (o *outlet) deliver(ctx context.Context, e Event) error {
	doc, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errNoTime
	}
	if o.address != "" {
		return o.call(ctx, doc)
	}
	return o.start(ctx, e, doc)
}
