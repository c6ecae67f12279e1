package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/sweep"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

type sweepCmd struct {
	runFile
	DryRun bool `help:"List the runs, and how long each is predicted to take; run nothing."`
	JSON   bool `help:"Print the results as one object."`
}

func (*sweepCmd) Help() string {
	return `Trains once for each combination of the values that keys have, one run after the other, each in a directory of
its own below output_dir. Commas divide values; a value with commas is in quotes or brackets. With several seeds the
results say whether a difference is more than seeds make. The same command continues a sweep that was interrupted: runs
that have ended are not run again, and one that was stopped resumes. Interrupts are those of train.

Examples:

  millrace sweep run.yaml learning_rate=1e-5,2e-5,5e-5 seed=1,2 --dry-run
  millrace sweep run.yaml learning_rate=1e-5,2e-5,5e-5 seed=1,2
  millrace sweep run.yaml 'adam_betas=[0.9, 0.95],[0.9, 0.99]' max_steps=500`
}

// States of the runs of a sweep.
const (
	stateNew      = "new"
	stateBegun    = "begun" // it is not known to have ended
	stateDone     = "done"
	stateDiverged = "diverged"
	stateFailed   = "failed"
)

// sweeping is a sweep under way.
type sweeping struct {
	p      *program
	file   string
	fixed  []string // settings of all runs
	keys   []sweep.Key
	parent string // output_dir
	runs   []*sweptRun
}

// sweptRun is a run of a sweep.
type sweptRun struct {
	sweep.Run
	Dir      string
	Settings []string // those of the sweep, output_dir included
	config   *runfile.Config
	State    string
	Why      string  // of a run that failed
	StepSec  float64 // predicted; 0: not known
}

// Run sweeps.
func (c *sweepCmd) Run(p *program) error {
	s, err := c.open(p)
	if err != nil {
		return blame.BadRequest(err)
	}
	if err := s.predict(); err != nil {
		return err
	}
	if c.DryRun {
		return s.list(c.JSON)
	}
	if err := s.train(); err != nil {
		return err
	}
	return s.conclude(c.JSON)
}

// open makes the runs, checks the run file of each, and finds what has been done of them before.
func (c *sweepCmd) open(p *program) (*sweeping, error) {
	file, settings, err := c.arguments()
	if err != nil {
		return nil, err
	}
	s := &sweeping{p: p, file: cmp.Or(file, defaultRunFile)}
	if s.fixed, s.keys, err = sweep.Parse(settings); err != nil {
		return nil, err
	}
	if len(s.keys) == 0 {
		return nil, errors.New("no key has several values: write them with commas, such as learning_rate=1e-5,2e-5")
	}
	for _, k := range s.keys {
		if k.Name == "output_dir" || k.Name == "resume" {
			return nil, fmt.Errorf("%s has several values: the sweep sets it for each run; give it one", k.Name)
		}
	}
	runs, err := sweep.Runs(s.keys)
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		run := &sweptRun{Run: r, Settings: r.Settings(s.keys)}
		of := append(append([]string{}, s.fixed...), run.Settings...)
		if run.config, err = readRunFile(s.file, of); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.Name, err)
		}
		if run.config.Resume == "never" {
			return nil, errors.New("resume is never, and a sweep that is started again resumes its runs: leave resume out")
		}
		s.parent = run.config.OutputDir
		run.Dir = filepath.Join(s.parent, r.Name)
		run.Settings = append(of, runfile.Setting("output_dir", run.Dir))
		run.config.OutputDir = run.Dir
		if run.State, err = stateOf(run.config); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.Name, err)
		}
		s.runs = append(s.runs, run)
	}
	return s, nil
}

// stateOf finds what has become of a run before. One that has ended with other settings is for train to judge.
func stateOf(c *runfile.Config) (string, error) {
	id, err := rundir.Files{FS: vfs.OS{}}.ReadIdentity(c.OutputDir)
	switch {
	case err != nil:
		return "", err
	case id == nil:
		return stateNew, nil
	case id.Ended == nil || !maps.Equal(id.Asked, c.Asked()):
		return stateBegun, nil
	case id.Ended.Diverged:
		return stateDiverged, nil
	}
	return stateDone, nil
}

// predict plans the runs that have not begun, each plan once: a sweep of days is not to end in a run that does not fit.
func (s *sweeping) predict() error {
	known := map[string]float64{}
	for _, r := range s.runs {
		if r.State != stateNew {
			continue
		}
		c := *r.config
		key, err := planKey(c)
		if err != nil {
			return err
		}
		sec, ok := known[key]
		if !ok {
			planned, err := verbs.PlanFor(s.p.ctx, &c, verbs.PlanOptions{Env: s.p.env, Quiet: true})
			if err != nil {
				return fmt.Errorf("run %s: %w", r.Name, err)
			}
			sec = planned.Plan.Predicted.StepSeconds
			known[key] = sec
		}
		r.StepSec = sec
	}
	return nil
}

// planKey is the same for configurations that have the same plan: keys that no plan depends on are left out.
func planKey(c runfile.Config) (string, error) {
	d := runfile.Defaults()
	c.LearningRate, c.MinRate, c.LRScheduler, c.WarmupSteps, c.WarmupRatio = 0, 0, "", 0, 0
	c.WeightDecay, c.AdamBetas, c.AdamEps, c.Seed, c.OutputDir = 0, d.AdamBetas, d.AdamEps, 0, ""
	doc, err := c.YAML()
	return string(doc), err
}

// predictedSec predicts how long a run takes by its plan, without evaluations; 0 where its number of steps follows from
// the data, or there is no plan.
func (r *sweptRun) predictedSec() float64 { return r.StepSec * float64(r.config.MaxSteps) }

// trainer starts the program's own verb train in a process of its own, where tests put another program. So each run has
// the memory that it would have alone, and a run that ends its process ends no other.
var trainer = func(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(self, args...), nil
}

// train runs what is to be run. The error is that of a sweep that was interrupted, or cannot start its runs.
func (s *sweeping) train() error {
	for i, r := range s.runs {
		if r.State == stateDone || r.State == stateDiverged {
			continue
		}
		if s.p.ctx.Err() != nil {
			return interruptedSweep("before", i, s)
		}
		about := ""
		if sec := r.predictedSec(); sec > 0 {
			about = fmt.Sprintf(", about %s by its plan", console.Seconds(sec))
		}
		s.p.stderr.line("run %d of %d: %s%s", i+1, len(s.runs), r.Name, about)
		status, err := s.start(r)
		switch {
		case err != nil:
			return err
		case status == exitInterrupted || s.p.env.Stopped() || s.p.ctx.Err() != nil:
			return interruptedSweep("in", i, s)
		case status == exitDone:
			r.State = stateDone
			continue
		}
		if r.State, err = stateOf(r.config); err != nil || r.State != stateDiverged {
			r.State, r.Why = stateFailed, fmt.Sprintf("status %d", status)
		}
		s.p.stderr.line("millrace: run %s: %s; the sweep continues with the next one", r.Name, cmp.Or(r.Why, r.State))
	}
	return nil
}

func interruptedSweep(when string, at int, s *sweeping) error {
	return &sweepInterrupted{fmt.Sprintf("interrupted %s run %d of %d (%s); the same command continues the sweep from "+
		"there", when, at+1, len(s.runs), s.runs[at].Name)}
}

// sweepInterrupted is a train.ErrInterrupted that says how the sweep continues.
type sweepInterrupted struct{ text string }

func (e *sweepInterrupted) Error() string        { return e.text }
func (e *sweepInterrupted) Is(target error) bool { return target == train.ErrInterrupted }

// start trains a run to its end, and passes requests to stop on to it.
func (s *sweeping) start(r *sweptRun) (status int, err error) {
	args := []string{"train", s.file}
	for _, setting := range r.Settings {
		args = append(args, "--set="+setting)
	}
	cmd, err := trainer(args...)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = s.p.stderr, s.p.stderr
	if file, ok := s.p.stderr.w.(*os.File); ok { // so that it draws bars where that is a terminal
		cmd.Stdout, cmd.Stderr = file, file
	}
	s.p.env.WillFinish("the run in progress finishes its step and saves")
	defer s.p.env.WillFinish("")
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("run %s cannot be started: %w", r.Name, err)
	}
	done := make(chan struct{})
	fault.Go(func() { err = cmd.Wait(); close(done) })
	ask := func() { _ = cmd.Process.Signal(syscall.SIGTERM) } // fails where it has ended
	select {
	case <-done:
	case <-s.p.env.Stop:
		ask()
		select {
		case <-done:
		case <-s.p.ctx.Done():
			ask()
			<-done
		}
	case <-s.p.ctx.Done():
		ask()
		<-done
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitDone, nil
	case errors.As(err, &exit):
		if of, ok := exit.Sys().(syscall.WaitStatus); ok && of.Signaled() {
			return 128 + int(of.Signal()), nil // as shells have it
		}
		return exit.ExitCode(), nil
	}
	return 0, fmt.Errorf("run %s: %w", r.Name, err)
}

// list prints the runs that there are to do.
func (s *sweeping) list(asJSON bool) error {
	type listed struct {
		Run     string            `json:"run"`
		Dir     string            `json:"dir"`
		Values  map[string]string `json:"values"`
		State   string            `json:"state"`
		Steps   int               `json:"steps,omitempty"` // 0: they follow from the data
		StepSec float64           `json:"predicted_step_sec,omitempty"`
		Sec     float64           `json:"predicted_sec,omitempty"`
	}
	var all []listed
	head := []string{"run", "state", "steps", "step", "predicted"}
	var rows [][]string
	total, unknown := 0.0, 0
	for _, r := range s.runs {
		all = append(all, listed{r.Name, r.Dir, s.valuesOf(r.Values), r.State, r.config.MaxSteps, r.StepSec,
			r.predictedSec()})
		row := []string{r.Name, r.State, "-", "-", "-"}
		if r.config.MaxSteps > 0 {
			row[2] = fmt.Sprint(r.config.MaxSteps)
		}
		if r.StepSec > 0 {
			row[3] = fmt.Sprintf("%.3g s", r.StepSec)
		}
		switch sec := r.predictedSec(); {
		case sec > 0:
			row[4] = console.Seconds(sec)
			total += sec
		case r.State == stateNew || r.State == stateBegun:
			unknown++
		}
		rows = append(rows, row)
	}
	if asJSON {
		return s.p.printJSON(all)
	}
	text := fmt.Sprintf("in %s\n\n%s", s.parent, columns(head, rows, 0))
	if total > 0 {
		text += fmt.Sprintf("\n%s in all, by their plans, without evaluations", console.Seconds(total))
		if unknown > 0 {
			text += fmt.Sprintf(", and %s more for which that is not known", spelling.Count(unknown, "run"))
		}
		text += "\n"
	}
	return s.p.printf("%s", text)
}

// valuesOf has the values of a run by key.
func (s *sweeping) valuesOf(values []string) map[string]string {
	all := map[string]string{}
	for i, k := range s.keys {
		if values[i] != "" {
			all[k.Name] = values[i]
		}
	}
	return all
}
