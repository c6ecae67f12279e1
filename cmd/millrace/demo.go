package main

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/millrace/millrace/demo"
	"github.com/millrace/millrace/internal/terminal"
)

type demoCmd struct {
	Dir     string  `complete:"DIR" default:"millrace-demo" help:"Directory for all files of the demo; an earlier demo there is replaced."`
	Seconds float64 `default:"120" help:"About how long the demo may take; this decides how many steps there are."`
	Steps   int     `placeholder:"N" help:"Do N steps instead; the same N give the same text again on a machine of the same kind."`
	JSON    bool    `help:"Print the result as JSON at the end; the text for people goes to standard error."`
}

func (*demoCmd) Help() string {
	return `A small model learns to write like a book that is part of the program: no network, no other file. Weights,
gradients and activations stream through a device budget of an eighth of the training state, and part of the state is
on disk. The run is killed with kill -9 in a random step, verified and resumed; its state is compared by SHA-256 with
that of a run that had all in memory and was not stopped. Samples show what the model has learned. Faster cores do
more steps in the same time, and the model writes better. States that differ end the program with status 1.

Example:

  millrace demo --dir /tmp/demo`
}

// Run runs the demo.
func (c *demoCmd) Run(p *program) error {
	if !(c.Seconds > 0 && c.Seconds <= 86400) {
		return badFlag("--seconds is %v: it must be above 0, and at most 86400", c.Seconds)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := demo.Options{Dir: c.Dir, Steps: c.Steps, Seconds: c.Seconds, Shape: demo.DefaultShape, Out: p.stdout,
		Program: func(ctx context.Context, args ...string) *exec.Cmd { return exec.CommandContext(ctx, self, args...) }}
	if c.JSON {
		o.Out = p.stderr
	}
	o.Color = terminal.CanColor(p.stdout) && !c.JSON
	if p.stderr.terminal {
		o.Bars = p.stderr
	}
	r, err := demo.Run(p.ctx, o)
	if r != nil && c.JSON && (err == nil || errors.Is(err, demo.ErrDiffers)) {
		err = errors.Join(err, p.printJSON(r))
	}
	return err
}
