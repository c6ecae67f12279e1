package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// operations counts what streams are given, and calls f at one of them: an event that depends on no clock.
type operations struct {
	done atomic.Int64
	at   int64
	f    func()
}

// counted is a device whose streams are counted.
type counted struct {
	device.Device
	operations *operations
}

func (c counted) NewStream(name string) (device.Stream, error) {
	s, err := c.Device.NewStream(name)
	return countedStream{s, c.operations}, err
}

type countedStream struct {
	device.Stream
	operations *operations
}

func (s countedStream) Record(e device.Event) {
	if s.operations.done.Add(1) == s.operations.at {
		s.operations.f()
	}
	s.Stream.Record(e)
}

// lines calls f with each line of progress.
type lines func(line string)

func (l lines) Write(p []byte) (int, error) {
	l(string(p))
	return len(p), nil
}

// countedEnv is an environment that counts operations.
func countedEnv(t *testing.T, o *operations) *session.Env {
	return wrappedEnv(t, func(d device.Device) device.Device { return counted{d, o} })
}

// evaluatedRun is a run that spends most of its time in evaluations, of which the second one is the best.
func evaluatedRun(t *testing.T) *runfile.Config {
	c := withEval(smallConfig(t))
	c.BatchTokens, c.MaxSteps, c.Numerics = c.SequenceLen, 6, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	c.Eval.Every, c.Save.Every, c.Save.Best = 2, 3, true
	return c
}

// recordsOf prints the numbers of metrics.jsonl.
func recordsOf(t *testing.T, dir string) (text string) {
	for _, m := range metricsOf(t, dir) {
		text += fmt.Sprint(m.Step, m.Loss, m.GradNorm)
		if m.EvalLoss != nil {
			text += fmt.Sprint(" evaluated ", *m.EvalLoss)
		}
		text += "\n"
	}
	return text
}

// A run that is stopped in any evaluation ends it early, is saved, and evaluates when it continues: weights, records,
// the best model and what it is are those of a run that was left alone.
func TestInterruptedEvaluation(t *testing.T) {
	whole := evaluatedRun(t)
	counts := map[string]int64{} // when a step is reported, which is after its evaluation
	o := &operations{}
	env := countedEnv(t, o)
	env.Progress = lines(func(line string) { counts[strings.Fields(line)[1]] = o.done.Load() })
	want, err := Train(context.Background(), whole, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{2, 4, 6} {
		t.Run(fmt.Sprintf("after step %d", step), func(t *testing.T) {
			c := *whole
			c.OutputDir = filepath.Join(t.TempDir(), "stopped")
			before, after := counts[fmt.Sprintf("%d/6", step-1)], counts[fmt.Sprintf("%d/6", step)]
			stop := make(chan struct{})
			o := &operations{at: before + (after-before)*3/4}
			env := countedEnv(t, o)
			env.Stop = stop
			finishes := ""
			o.f = func() {
				finishes = env.Finishes()
				close(stop)
			}
			sum, err := Train(context.Background(), &c, Options{Env: env})
			dir := filepath.Join(rundir.CheckpointsDir(&c), checkpoint.DirName(step))
			line := fmt.Sprintf("interrupted after step %d, saved in %s; run the same command to continue", step, dir)
			if step == c.MaxSteps {
				line = fmt.Sprintf("interrupted before the model was written: all 6 steps are saved in %s; run the same command to continue", dir)
			}
			if !errors.Is(err, ErrInterrupted) || err.Error() != line || sum.Steps != step || finishes != fmt.Sprintf("ending the evaluation, and saving step %d", step) {
				t.Fatalf("%+v; %v; it was %q", sum, err, finishes)
			}
			saved, err := checkpoint.Open(vfs.OS{}, dir)
			if err != nil {
				t.Fatal(err)
			}
			if now := int64(o.done.Load()); saved.Manifest.EvalLoss != nil || now >= after {
				t.Fatalf("the evaluation did not end early: %d operations of %d, %v", now, after, saved.Manifest.EvalLoss)
			}
			got, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, got.Model, want.Model)
			sameModel(t, got.BestModel, want.BestModel)
			if a, b := recordsOf(t, c.OutputDir), recordsOf(t, whole.OutputDir); a != b {
				t.Errorf("records\n%s, want\n%s", a, b)
			}
			if *got.EvalAfter != *want.EvalAfter {
				t.Errorf("evaluation %v, want %v", *got.EvalAfter, *want.EvalAfter)
			}
		})
	}
}

// Before the first step a run is ended by its context, wherever it is: it says that nothing is lost, and the next
// start is as if there had been none.
func TestInterruptedStart(t *testing.T) {
	whole := evaluatedRun(t)
	o, evaluated := &operations{}, int64(0)
	env := countedEnv(t, o)
	env.Progress = lines(func(line string) {
		if strings.HasPrefix(line, "eval loss") {
			evaluated = o.done.Load()
		}
	})
	want, err := Train(context.Background(), whole, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	for name, when := range map[string]func(env *session.Env, o *operations, cancel func()){
		"before tokenizing": func(env *session.Env, _ *operations, cancel func()) {
			open := env.Open
			env.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
				cancel()
				return open(name, a)
			}
		},
		"before loading": func(env *session.Env, _ *operations, cancel func()) {
			env.Progress = lines(func(line string) {
				if strings.Contains(line, "parameters") {
					cancel()
				}
			})
		},
		"in the evaluation": func(_ *session.Env, o *operations, cancel func()) { o.at, o.f = evaluated/2, cancel },
	} {
		t.Run(name, func(t *testing.T) {
			c := *whole
			c.OutputDir = filepath.Join(t.TempDir(), "stopped")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := &operations{}
			env := countedEnv(t, o)
			when(env, o, cancel)
			sum, err := Train(ctx, &c, Options{Env: env})
			if !errors.Is(err, ErrInterrupted) || sum != nil || !strings.HasPrefix(err.Error(), "interrupted before a step was done: nothing is lost") {
				t.Fatalf("%+v; %v", sum, err)
			}
			if env.Finishes() != "" {
				t.Errorf("it was %s", env.Finishes())
			}
			if o.done.Load() >= evaluated {
				t.Error("the evaluation was finished")
			}
			got, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, got.Model, want.Model)
		})
	}
}

// A run that continues and is stopped before its next step has its checkpoint still; one that is stopped while the
// model is written has all of its steps, and writes the model when it is started again.
func TestInterruptedElsewhere(t *testing.T) {
	c := smallConfig(t)
	until(t, c, "step  2/12")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	env := newEnv(t)
	env.Progress = lines(func(line string) {
		if strings.HasPrefix(line, "resuming after") {
			cancel()
		}
	})
	sum, err := Train(ctx, c, Options{Env: env})
	if want := "interrupted before step 3: the checkpoint of step 2 is still the latest; run the same command to continue"; sum != nil || !errors.Is(err, ErrInterrupted) || err.Error() != want {
		t.Errorf("%+v; %v, want %s", sum, err, want)
	}

	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	env = newEnv(t)
	env.FS = renaming{vfs.OS{}, func(name string) {
		if filepath.Base(name) == checkpoint.DirName(12) { // all is saved; what follows is the model
			cancel()
		}
	}}
	sum, err = Train(ctx, c, Options{Env: env})
	if sum != nil || !errors.Is(err, ErrInterrupted) || !strings.HasPrefix(err.Error(), "interrupted before the model was written: all 12 steps are saved in ") {
		t.Errorf("%+v; %v", sum, err)
	}
	got, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	alone := *c
	alone.OutputDir = filepath.Join(t.TempDir(), "alone")
	want, err := Train(context.Background(), &alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
}

// renaming calls a function after each rename.
type renaming struct {
	vfs.FS
	renamed func(name string)
}

func (r renaming) Rename(oldName, newName string) error {
	err := r.FS.Rename(oldName, newName)
	r.renamed(newName)
	return err
}

// A run that is ended while it is in a step loses what is not saved, which is no interruption.
func TestEndInAStep(t *testing.T) {
	c := smallConfig(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	env := newEnv(t)
	env.Progress = lines(func(line string) {
		if strings.HasPrefix(line, "step  2/") {
			cancel()
		}
	})
	if _, err := Train(ctx, c, Options{Env: env}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrInterrupted) {
		t.Errorf("%v", err)
	}
	if env.Finishes() != "finishing step 3 and saving" {
		t.Errorf("it was %s", env.Finishes())
	}
}
