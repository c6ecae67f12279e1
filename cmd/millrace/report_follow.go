package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/train/rundir"
)

// followSec separates two writes of a page that follows runs; a browser loads it again as often.
const followSec = 10

// waitFor waits until the page is due again. The error is that of the context, when it ends before that.
func waitFor(ctx context.Context) error {
	timer := time.NewTimer(followSec * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow writes the page each time that wait returns, until the runs have ended; the last page is not loaded again.
// So is the page when the user ends the program.
func (c *reportCmd) follow(p *program, wait func(context.Context) error) error {
	for _, name := range c.Runs {
		if _, err := os.Stat(name); err != nil {
			return badFlag("%w; name the output_dir of a run", err)
		}
	}
	for {
		done := true
		for _, name := range c.Runs { // before the records are read, so that the last page has all of them
			done = done && rundir.HasEnded(dirOf(name))
		}
		runs, err := serve.Freeze(c.Runs, thisBuild().Version, true)
		if err != nil {
			return blame.BadRequest(err)
		}
		refreshSec := followSec
		if done {
			refreshSec = 0
		}
		if err := writeReport(c.HTML, runs, refreshSec); err != nil || done {
			return err
		}
		if err := wait(p.ctx); err != nil {
			return errors.Join(writeReport(c.HTML, runs, 0), err)
		}
	}
}

// dirOf is the output directory of a run that is named by it, or by its records.
func dirOf(run string) string {
	if st, err := os.Stat(run); err == nil && !st.IsDir() {
		return filepath.Dir(run)
	}
	return run
}
