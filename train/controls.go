package train

import (
	"errors"
	"fmt"
	"sync"
)

// Controls take what a user asks of a run while it takes steps, from any goroutine. The run follows at the next
// boundary after a step; of several hosts those of host 0 count. To have a run stop after its step, close Env.Stop.
// None of it changes a bit of the weights.
type Controls struct {
	mu        sync.Mutex
	isOpen    bool // the run takes steps
	evaluates bool // it has data to evaluate on
	asked     asked
}

// asked has the wishes for the next boundary.
type asked struct {
	save      bool
	evalEvery int // steps; 0: as before
}

// errNoSteps refuses what comes before the first step, or after the last one.
var errNoSteps = errors.New("the run takes no steps now: it has not begun, or is about to end")

// Save asks for a checkpoint of the state after the step that is under way.
func (c *Controls) Save() error {
	return c.ask(func() error { c.asked.save = true; return nil })
}

// EvaluateEvery asks for an evaluation after each step that is a multiple of steps, in place of eval.every.
func (c *Controls) EvaluateEvery(steps int) error {
	return c.ask(func() error {
		switch {
		case steps < 1:
			return fmt.Errorf("an evaluation after every %d steps is asked for: give a number from 1", steps)
		case !c.evaluates:
			return errors.New("the run has no data to evaluate on: set eval.datasets or val_size, and start it again")
		}
		c.asked.evalEvery = steps
		return nil
	})
}

func (c *Controls) ask(ask func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isOpen {
		return errNoSteps
	}
	return ask()
}

// open says that the run takes steps from now on.
func (c *Controls) open(evaluates bool) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.isOpen, c.evaluates = true, evaluates
	}
}

// take returns what was asked since the last boundary.
func (c *Controls) take() (a asked) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		a, c.asked = c.asked, a
	}
	return a
}

// close says that the run takes no further step.
func (c *Controls) close() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.isOpen = false
	}
}
