package template

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/millrace/millrace/internal/budget"
)

// state is one render.
type state struct {
	t      *Template
	ctx    context.Context
	limits Limits
	now    func() time.Time

	globals  []Value // by id; nil where there is none
	messages []Value
	scope    *scope
	loops    []*loopValue
	captured Value // what the filters of a filter block begin with

	out         []byte
	captures    int // how many captures the current output is in
	generations []Span
	isHidden    bool // a generation block was captured, so that the place of its text is unknown
	pos         int  // in the source, of what is evaluated

	depth                           int
	stepsLeft, nextCheck, allocLeft int64
	use                             budget.Use // of what all renders may take together
}

// scope holds the variables that a body assigned.
type scope struct {
	parent *scope
	ids    []int32
	vals   []Value
}

// manyNames is the number of variables of a scope from which a look through them counts as more than one step.
const manyNames = 64

func (sc *scope) reset() { sc.ids, sc.vals = sc.ids[:0], sc.vals[:0] }

func (sc *scope) set(id int32, v Value) {
	for i, have := range sc.ids {
		if have == id {
			sc.vals[i] = v
			return
		}
	}
	sc.ids, sc.vals = append(sc.ids, id), append(sc.vals, v)
}

func (s *state) lookup(id int32) Value {
	for sc := s.scope; sc != nil; sc = sc.parent {
		if len(sc.ids) > manyNames {
			s.work(4 * len(sc.ids))
		}
		for i, have := range sc.ids {
			if have == id {
				return sc.vals[i]
			}
		}
	}
	if v := s.globals[id]; v != nil {
		return v
	}
	return &undefined{name: s.t.names[id]}
}

func (s *state) write(text string) {
	s.work(len(text))
	if int64(len(s.out)+len(text)) > s.limits.OutputBytes {
		s.failLimit("the template writes more than %d bytes", s.limits.OutputBytes)
	}
	s.out = s.appended(s.out, text)
}

func (s *state) beginCapture() (outer []byte) {
	outer, s.out = s.out, nil
	s.captures++
	return outer
}

func (s *state) endCapture(outer []byte) Value {
	text := String(s.text(s.out))
	s.out = outer
	s.captures--
	return text
}

// messageAt is the index of the message that the innermost loop over messages is at, or -1.
func (s *state) messageAt() int {
	s.work(8 * len(s.messages) * len(s.loops))
	for i := len(s.loops) - 1; i >= 0; i-- {
		item, ok := s.loops[i].item().(*Dict)
		if !ok {
			continue
		}
		for j, m := range s.messages {
			if m, ok := m.(*Dict); ok && m == item {
				return j
			}
		}
	}
	return -1
}

// Error is a fault in parsing or rendering a template, with its place.
type Error struct {
	Line, Column int // from 1; the column counts bytes
	Msg          string
	// IsRaised tells that the template itself refused its input, with raise_exception.
	IsRaised bool
	cause    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("chat template: line %d, column %d: %s", e.Line, e.Column, e.Msg)
}

// Unwrap is ErrLimit, the context's error, or nil.
func (e *Error) Unwrap() error { return e.cause }

func position(source string, pos int) (line, column int) {
	line, column = 1, 1
	for i := 0; i < pos && i < len(source); i++ {
		if column++; source[i] == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

// fail ends the render, as an exception would in Python; Render recovers it.
func (s *state) fail(format string, args ...any) {
	panic(&Error{Msg: fmt.Sprintf(format, args...)})
}

func (s *state) failLimit(format string, args ...any) {
	panic(&Error{Msg: fmt.Sprintf(format, args...), cause: ErrLimit})
}

func (s *state) failUndefined(u *undefined) { s.fail("%s", u.message()) }

// recovered turns what fail panicked with into an error. An error of the runtime is a bug of this package; it becomes
// an error too, since a template that finds one shall not end the process.
func (s *state) recovered(failure any) error {
	e, ok := failure.(*Error)
	if !ok {
		e = bug(failure)
	}
	e.Line, e.Column = position(s.t.source, s.pos)
	return e
}

func bug(failure any) *Error {
	err, ok := failure.(runtime.Error)
	if !ok {
		panic(failure)
	}
	return &Error{Msg: "the template meets a bug of the renderer: " + err.Error(), cause: err}
}
