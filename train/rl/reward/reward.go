// Package reward judges answers that a policy has sampled, while more are sampled.
//
//   - [Open] makes a [Panel] of the judges that rl.reward of a run file lists: built-in ones, processes that read and
//     write lines of JSON, servers, and a model that the caller evaluates.
//   - [Panel.Judge] hands an answer to all of them and returns at once. [Panel.Wait] has the [Results] of a step.
//
// Invariants: nothing that a judge does keeps a run waiting for longer than its timeout. An answer that a judge does
// not score as the contract says has no reward from it, and its [Cause] is counted; after ten in a row the judge fails,
// and the panel with it. Which answers have a reward does not depend on the order in which they come: one that failed
// together with others is asked for again by itself.
package reward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/runfile"
)

// Answer holds an answer that a policy has sampled.
type Answer struct {
	ID            int64           // which no other answer of the run has
	Prompt        string          // the text before it, as the model reads it
	Messages      json.RawMessage // the conversation that the prompt is of, a list; nil: there is no such
	Completion    string          // the answer's text
	CompletionIDs []int32
	Finish        string          // one of sampler's
	Row           json.RawMessage // the other keys of the prompt's row, an object; nil: there are no such
}

// Options say what a run file does not.
type Options struct {
	Dir       string // where commands run; "": the current directory
	MaxTokens int    // of an answer, for rewards of its length that set no max
	// Model scores the texts of answers by a model that a reward names; NaN is of a text that is too long for it. Wait
	// calls it. Without it, rewards of a model are refused.
	Model func(ctx context.Context, name string, answers []Answer) ([]float64, error)

	after func(time.Duration) alarm // in tests another clock
	start starter                   // in tests other processes
}

// mostInRow counts the answers in a row with whose failure the judge fails.
const mostInRow = 10

// mostReward bounds a reward and a metric of a judge: files of rollouts hold no more.
const mostReward = 1e12

// FailedError is a judge that has failed: its last ten answers did, or it cannot be asked at all.
type FailedError struct {
	Name string // of the reward
	Err  error
}

func (e *FailedError) Error() string { return fmt.Sprintf("reward %s: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Err }

// errClosed is the error of a panel that was closed.
var errClosed = errors.New("the rewards are closed")

// Panel judges answers. All methods but Close may be called by any goroutine; one at a time calls Wait.
type Panel struct {
	specs   []runfile.Reward
	options Options
	judges  []judge
	ctx     context.Context
	end     context.CancelFunc
	working fault.Group

	mu      sync.Mutex
	sheets  map[int64]*sheet // of this step
	open    int              // verdicts that are missing
	settled chan struct{}    // closed when none is missing, or the panel has failed; nil: no caller waits
	benches []bench
	err     error
}

// sheet has what the judges say of an answer.
type sheet struct {
	Answer
	verdicts []verdict
}

// verdict holds the word of one judge on an answer.
type verdict struct {
	isGiven bool
	reward  float64 // NaN: null
	cause   Cause   // of null
	metrics map[string]float64
}

// bench counts what happens at a judge in a step.
type bench struct {
	open     int // verdicts that are missing
	inRow    int // that failed, over all steps
	restarts int
	since    time.Time // when open was last 0
	busy     time.Duration
}

// judge gives verdicts by Panel.settle, one for each question. ask returns at once, and close ends what the judge has
// started, without a wait for questions.
type judge interface {
	ask(q *question)
	close()
}

// question is an answer that is put to a judge.
type question struct {
	judge  int
	sheet  *sheet
	line   func() []byte // the answer as a line of JSON
	failed bool          // together with others; it is asked for by itself
}

// Open starts the judges of a run. Its context ends them. An error is one of the request, unless the context has ended.
func Open(ctx context.Context, specs []runfile.Reward, o Options) (*Panel, error) {
	if err := runfile.CheckRewards(specs); err != nil {
		return nil, fmt.Errorf("rl.reward%w", err)
	}
	if o.after == nil {
		o.after = newAlarm
	}
	if o.start == nil {
		o.start = startProcess
	}
	p := &Panel{specs: specs, options: o, sheets: map[int64]*sheet{}, benches: make([]bench, len(specs))}
	p.ctx, p.end = context.WithCancel(ctx)
	for i := range specs {
		j, err := p.judgeOf(i)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("rl.reward[%d] (%s): %w", i, specs[i].Name, err)
		}
		p.judges = append(p.judges, j)
	}
	return p, nil
}

func (p *Panel) judgeOf(i int) (judge, error) {
	switch s := &p.specs[i]; {
	case len(s.Command) > 0:
		return newCommand(p, i)
	case s.URL != "":
		return newServer(p, i)
	case s.Model != "":
		if p.options.Model == nil {
			return nil, errors.New("a model's directory cannot be a judge here: take a command or a url that evaluates it")
		}
		return modelJudge{}, nil
	default:
		return newBuiltin(p, i)
	}
}

// Names are the names of the rewards, in the order of the run file.
func (p *Panel) Names() (names []string) {
	for i := range p.specs {
		names = append(names, p.specs[i].Name)
	}
	return names
}

// Judge hands an answer to the judges, and returns at once. It keeps the answer until Wait. Its error is that of a
// judge that has failed, of the context, or of an answer that cannot be written as JSON or that the step has already.
func (p *Panel) Judge(a Answer) error {
	for _, part := range []json.RawMessage{a.Messages, a.Row} {
		if part != nil && !json.Valid(part) {
			return fmt.Errorf("answer %d: messages or row is not JSON", a.ID)
		}
	}
	s := &sheet{Answer: a, verdicts: make([]verdict, len(p.specs))}
	p.mu.Lock()
	err := p.ended()
	if err == nil && p.sheets[a.ID] != nil {
		err = fmt.Errorf("answer %d is judged twice in a step", a.ID)
	}
	if err != nil {
		p.mu.Unlock()
		return err
	}
	p.sheets[a.ID] = s
	for i := range p.benches {
		if p.specs[i].Model == "" {
			p.opened(&p.benches[i])
		}
	}
	p.mu.Unlock()
	line := sync.OnceValue(func() []byte { return lineOf(&s.Answer) })
	for i, j := range p.judges {
		j.ask(&question{judge: i, sheet: s, line: line})
	}
	return nil
}

// ended is why the panel judges no more; nil where it does. The caller has the lock.
func (p *Panel) ended() error {
	if p.err == nil && p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return p.err
}

// opened counts a verdict that is missing. The caller has the lock.
func (p *Panel) opened(b *bench) {
	if b.open == 0 {
		b.since = time.Now()
	}
	b.open++
	p.open++
}

// settle notes a verdict. detail says what went wrong with one that is a fault, and is called only if the judge
// fails by it.
func (p *Panel) settle(q *question, v verdict, detail func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.isGiven = true
	q.sheet.verdicts[q.judge] = v
	b := &p.benches[q.judge]
	if b.open--; b.open == 0 {
		b.busy += time.Since(b.since)
	}
	if b.inRow++; !v.cause.isFault() {
		b.inRow = 0
	}
	if b.inRow >= mostInRow {
		p.failed(q.judge, fmt.Errorf("%d answers in a row have failed; of the last one %s", b.inRow, detail()))
	}
	if p.open--; p.open == 0 {
		p.wake()
	}
}

// failed notes that a judge cannot judge, and ends all. The caller has the lock.
func (p *Panel) failed(judge int, err error) {
	if p.err == nil {
		p.err = &FailedError{p.specs[judge].Name, err}
	}
	p.end()
	p.wake()
}

// restarted counts a process that was started in place of another.
func (p *Panel) restarted(judge int) {
	p.mu.Lock()
	p.benches[judge].restarts++
	p.mu.Unlock()
}

// wake ends a wait. The caller has the lock.
func (p *Panel) wake() {
	if p.settled != nil {
		close(p.settled)
		p.settled = nil
	}
}

// Wait returns what the judges say of all answers since it was last called, when they have said it. Its error is that
// of a judge that has failed, or of a context. No caller hands over answers meanwhile.
func (p *Panel) Wait(ctx context.Context) (*Results, error) {
	began := time.Now()
	p.mu.Lock()
	sheets := slices.SortedFunc(maps.Values(p.sheets), func(a, b *sheet) int { return cmp.Compare(a.ID, b.ID) })
	settled := make(chan struct{})
	if p.settled = settled; p.open == 0 || p.ended() != nil {
		p.wake()
	}
	failed := p.ended()
	p.mu.Unlock()
	if failed != nil {
		return nil, failed
	}
	if err := p.askModels(ctx, sheets); err != nil {
		return nil, err
	}
	select {
	case <-settled:
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(p.ended(), context.Cause(ctx)); err != nil {
		return nil, err
	}
	r := p.results(sheets)
	p.sheets = map[int64]*sheet{}
	for i := range p.benches {
		b := &p.benches[i]
		b.restarts, b.busy = 0, 0
	}
	r.WaitSec = time.Since(began).Seconds()
	return r, r.lacking(p.specs)
}

// Close ends all judges, and waits until their processes have ended. No caller uses the panel then or later.
func (p *Panel) Close() {
	p.mu.Lock()
	if p.err == nil {
		p.err = errClosed
	}
	p.wake()
	p.mu.Unlock()
	for _, j := range p.judges {
		j.close()
	}
	p.end()
	p.working.Wait()
}

// modelJudge is a model, which Wait asks about all answers of a step at once.
type modelJudge struct{}

func (modelJudge) ask(*question) {}
func (modelJudge) close()        {}

// askModels has the models score a step, each of them once, however many rewards are of its scores.
func (p *Panel) askModels(ctx context.Context, sheets []*sheet) error {
	var answers []Answer
	scored := map[string][]float64{} // by the model's directory
	for i := range p.specs {
		if p.specs[i].Model == "" || len(sheets) == 0 {
			continue
		}
		if answers == nil {
			for _, s := range sheets {
				answers = append(answers, s.Answer)
			}
		}
		began := time.Now()
		scores, isThere := scored[p.specs[i].Model]
		var err error
		if !isThere {
			scores, err = p.options.Model(ctx, p.specs[i].Model, answers)
			scored[p.specs[i].Model] = scores
		}
		if err == nil && len(scores) != len(answers) {
			err = fmt.Errorf("%d scores for %d answers", len(scores), len(answers))
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return &FailedError{p.specs[i].Name, err}
		}
		p.mu.Lock()
		for n, s := range sheets {
			s.verdicts[i] = verdict{isGiven: true, reward: scores[n]}
			switch {
			case math.IsNaN(scores[n]):
				s.verdicts[i] = null(TooLong)
			case math.Abs(scores[n]) > mostReward:
				s.verdicts[i] = null(NotFinite)
			}
		}
		p.benches[i].busy += time.Since(began)
		p.mu.Unlock()
	}
	return nil
}
