package template

import (
	"context"
	"errors"
	"math"

	"github.com/millrace/millrace/internal/budget"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

// Limits bound what one render may use. A field that is zero has the value of DefaultLimits.
type Limits struct {
	OutputBytes int64 // of the text
	AllocBytes  int64 // of all strings, lists and captures that the render makes, kept or not
	Steps       int64 // expressions and statements evaluated, and one per 64 bytes that an operation goes through
	Depth       int   // of expressions and calls inside of each other
}

// DefaultLimits are far above what real templates need on long conversations, and reached within a few seconds.
var DefaultLimits = Limits{OutputBytes: 32 << 20, AllocBytes: 256 << 20, Steps: 20_000_000, Depth: 2000}

// sharedRenders bounds the steps that all renders of a conversation take together, in multiples of one render's: some
// are rendered again, in part, to find out who wrote what.
const sharedRenders = 10

// stepsKey is the key of a context under which its renders share their steps.
type stepsKey struct{}

// ShareSteps returns a context whose renders take their steps from one number: ten times those of DefaultLimits. One
// goroutine renders with it.
func ShareSteps(ctx context.Context) context.Context {
	left := sharedRenders * DefaultLimits.Steps
	return context.WithValue(ctx, stepsKey{}, &left)
}

// shareSteps bounds the steps of a render by those that are left of its context, and returns a function that counts
// them there.
func (s *state) shareSteps() (end func()) {
	left, ok := s.ctx.Value(stepsKey{}).(*int64)
	if !ok {
		return func() {}
	}
	s.limits.Steps = min(s.limits.Steps, *left)
	return func() { *left -= s.limits.Steps - max(s.stepsLeft, 0) }
}

// maxRange is the longest range that Jinja's sandbox allows.
const maxRange = 100000

// ErrLimit is in the error of a render that ran into one of its Limits.
var ErrLimit = errors.New("a limit of templates was reached")

func (l Limits) orDefaults() Limits {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.OutputBytes, DefaultLimits.OutputBytes)
	set(&l.AllocBytes, DefaultLimits.AllocBytes)
	set(&l.Steps, DefaultLimits.Steps)
	if l.Depth <= 0 {
		l.Depth = DefaultLimits.Depth
	}
	return l
}

// checkEvery is the number of steps between two looks at the context: some hundred microseconds.
const checkEvery = 4096

// work counts one step and the bytes that an operation goes through.
func (s *state) work(bytes int) {
	s.stepsLeft -= 1 + int64(bytes)>>6
	if s.stepsLeft < s.nextCheck {
		s.check()
	}
}

func (s *state) check() {
	if s.stepsLeft < 0 {
		s.failLimit("the template evaluates more than %d steps: is there a loop in it that grows?", s.limits.Steps)
	}
	if err := s.ctx.Err(); err != nil {
		panic(&Error{Line: 1, Column: 1, Msg: "the render was stopped", cause: err})
	}
	s.nextCheck = max(s.stepsLeft-checkEvery, 0)
}

// alloc counts bytes that an operation is about to make, before it makes them.
func (s *state) alloc(bytes int) {
	s.allocLeft -= int64(bytes)
	if s.allocLeft < 0 || bytes < 0 {
		s.failLimit("the template makes more than %d bytes of values", s.limits.AllocBytes)
	}
	if s.limits.AllocBytes > 0 { // else no render: see unlimited
		if err := s.use.Take(s.ctx, int64(bytes)); err != nil {
			s.failTake(err)
		}
	}
	s.work(bytes)
}

// failTake ends a render that may not take memory from the budget of all.
func (s *state) failTake(err error) {
	if errors.Is(err, budget.ErrTooMuch) {
		s.failLimit("the template makes too many values: %v", err)
	}
	panic(&Error{Line: 1, Column: 1, Msg: "the render was stopped", cause: err})
}

// valueBytes is the size of a value in a list.
const valueBytes = 16
