package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// stepsSaved are the steps of the checkpoints in a directory, oldest first.
func stepsSaved(t *testing.T, dir string) []int {
	t.Helper()
	saved, err := checkpoint.List(vfs.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int
	for _, s := range slices.Backward(saved) {
		sumsOf(t, s.Dir)
		steps = append(steps, s.Step)
	}
	return steps
}

// handClock is a clock that only its owner moves.
type handClock struct{ at time.Time }

func (c *handClock) Now() time.Time { return c.at }

func (c *handClock) After(d time.Duration) (<-chan time.Time, func()) {
	passed := make(chan time.Time, 1)
	c.at = c.at.Add(d)
	passed <- c.at
	return passed, func() {}
}

// A run that says nothing of saving saves every half hour, and before it writes its model.
func TestRunsSaveByTime(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*runfile.Save)
		want   []int
	}{
		"default":   {func(s *runfile.Save) { s.Keep = 0 }, []int{3, 5, 7, 9, 11, 12}},
		"keep":      {func(*runfile.Save) {}, []int{11, 12}},
		"hours":     {func(s *runfile.Save) { s.Minutes = 120; s.Keep = 0 }, []int{7, 12}},
		"with both": {func(s *runfile.Save) { s.Every, s.Keep = 3, 0 }, []int{3, 5, 6, 8, 9, 11, 12}},
		"at end":    {func(s *runfile.Save) { s.Minutes = 0 }, []int{12}},
		"never":     {func(s *runfile.Save) { s.Minutes, s.AtEnd = 0, false }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			x.change(&c.Save)
			env, clock := newEnv(t), &handClock{time.Unix(0, 0)}
			env.Tests.Clock = clock
			env.Progress = writeFunc(func(line []byte) {
				if strings.HasPrefix(string(line), "step") {
					clock.at = clock.at.Add(20 * time.Minute)
				}
			})
			if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
				t.Fatal(err)
			}
			if got := stepsSaved(t, rundir.CheckpointsDir(c)); !slices.Equal(got, x.want) {
				t.Errorf("saved after steps %v, want %v", got, x.want)
			}
		})
	}
}

// fullDirs is a file system on which files below some directories cannot be made.
type fullDirs struct {
	vfs.FS
	full func(path string) bool
}

func (f fullDirs) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	if flag&os.O_CREATE != 0 && f.full(name) {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	return f.FS.OpenFile(name, flag, perm)
}

func (f fullDirs) Create(name string) (vfs.File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// What cannot be saved in the output directory is saved in save.fallback, and found there.
func TestSavesFallBack(t *testing.T) {
	c := smallConfig(t)
	want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	run := *c
	run.OutputDir = filepath.Join(t.TempDir(), "full", "run")
	run.Save = runfile.Save{Every: 2, Keep: 2, AtEnd: true, Fallback: filepath.Join(t.TempDir(), "elsewhere")}
	if _, err := Train(context.Background(), &run, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "save.fallback") {
		t.Fatalf("without the directory: error %v", err)
	}
	mkdir(t, run.Save.Fallback)
	var said strings.Builder
	env, stop := newEnv(t), make(chan struct{})
	env.FS = fullDirs{vfs.OS{}, func(path string) bool {
		return strings.Contains(path, filepath.Join("full", "run", "checkpoints", ".step"))
	}}
	env.Stop = stop
	env.Progress = writeFunc(func(line []byte) {
		said.Write(line)
		if strings.HasPrefix(string(line), "step  7/12") {
			close(stop)
		}
	})
	sum, err := Train(context.Background(), &run, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || filepath.Dir(sum.Checkpoint) != idOf(t, &run).FallbackDir(&run) {
		t.Fatalf("%+v, error %v; it says: %s", sum, err, said.String())
	}
	if got := stepsSaved(t, rundir.CheckpointsDir(&run)); len(got) != 0 {
		t.Errorf("saved in output_dir: %v", got)
	}
	if got := stepsSaved(t, idOf(t, &run).FallbackDir(&run)); len(got) != 2 || got[1] != 7 {
		t.Errorf("saved in the fallback: %v", got)
	}
	got, err := Train(context.Background(), &run, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 7 {
		t.Fatalf("%+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
}

// Tries of a save that fails are 1, 2, 4 and so on steps apart, and never more than 64.
func TestSavesAreTriedAgain(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save = 40, runfile.Save{Minutes: 30}
	env, clock := newEnv(t), &handClock{time.Unix(0, 0)}
	env.Tests.Clock = clock
	var failed []string
	full := true
	env.FS = fullDirs{vfs.OS{}, func(path string) bool { return full && strings.HasSuffix(path, "manifest.json") }}
	env.Progress = writeFunc(func(line []byte) {
		var step int
		if n, _ := fmt.Sscanf(string(line), "warning: the checkpoint of step %d was not saved", &step); n == 1 {
			failed = append(failed, fmt.Sprint(step))
		}
		if strings.HasPrefix(string(line), "step  1/40") {
			clock.at = clock.at.Add(time.Hour)
		}
		full = !strings.HasPrefix(string(line), "step 25/40") && full
	})
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	// The save of a step ends, or fails, in the step after it.
	if got := strings.Join(failed, " "); got != "2 3 5 9 17" {
		t.Errorf("failed saves of steps %s", got)
	}
	if got := stepsSaved(t, rundir.CheckpointsDir(c)); !slices.Equal(got, []int{33}) {
		t.Errorf("saved after steps %v", got)
	}
}

// A model that cannot be written at the end costs nothing: the run is saved, and the same command ends it.
func TestFailedExportLeavesACheckpoint(t *testing.T) {
	for _, atEnd := range []bool{true, false} {
		c := smallConfig(t)
		c.Save = runfile.Save{AtEnd: atEnd}
		whole := *c
		whole.OutputDir = filepath.Join(t.TempDir(), "whole")
		want, err := Train(context.Background(), &whole, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		env, inTheWay := newEnv(t), filepath.Join(c.OutputDir, "model", "thesis.txt")
		env.Progress = &onStep{func() {
			mkdir(t, filepath.Dir(inTheWay))
			write(t, inTheWay, "not a model")
		}}
		_, err = Train(context.Background(), c, Options{Env: env})
		saved := filepath.Join(rundir.CheckpointsDir(c), "step-000012")
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "millrace export --checkpoint "+saved+" --model "+c.Model) {
			t.Fatalf("error %v", err)
		}
		if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
			t.Fatal(err)
		}
		got, err := Train(context.Background(), c, Options{Env: newEnv(t)})
		if err != nil || got.ResumedAfter != 12 {
			t.Fatalf("%+v, error %v", got, err)
		}
		sameModel(t, got.Model, want.Model)
	}
}

// noLinks is a file system without hard links, as another one than that of the checkpoints is.
type noLinks struct{ vfs.FS }

func (noLinks) Link(oldName, newName string) error {
	return &os.LinkError{Op: "link", Old: oldName, New: newName, Err: syscall.EXDEV}
}

// failsBelow is a file system in which nothing can be made or written below a directory while fails says so.
func failsBelow(dir string, fails func(op vfs.Op) bool) vfs.FS {
	drive := vfs.NewFaulty(vfs.OS{})
	drive.Intercept(func(op vfs.Op) vfs.Outcome {
		if strings.HasPrefix(op.Name, dir) && mishaps[2].strikes(op) && fails(op) {
			return vfs.Outcome{Err: syscall.ENOSPC}
		}
		return vfs.Outcome{}
	})
	return drive
}

// A program that ends a run early relies on the state: if that cannot be saved, the run does not end well.
func TestStopWithoutSpace(t *testing.T) {
	c, stopped := smallConfig(t), false
	c.Save.Every = 2
	env := newEnv(t)
	env.FS = failsBelow(rundir.CheckpointsDir(c), func(vfs.Op) bool { return stopped })
	_, err := Train(t.Context(), c, Options{Env: env, OnStep: func(m trace.Metrics) error {
		if stopped = m.Step == 5; stopped {
			return ErrStop
		}
		return nil
	}})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "model is written") ||
		!strings.Contains(err.Error(), "step-000004: the same command continues") {
		t.Errorf("error %v", err)
	}
}

// A best checkpoint stays until a better one is whole.
func TestBestStaysUntilABetterOneIsSaved(t *testing.T) {
	c := withEval(smallConfig(t))
	c.Eval.Every, c.Save = 5, runfile.Save{Best: true, Keep: 1}
	env := newEnv(t)
	env.FS = failsBelow(rundir.CheckpointsDir(c), func(op vfs.Op) bool { return strings.Contains(op.Name, "step-000010") })
	var progress strings.Builder
	env.Progress = &progress
	_, err := Train(t.Context(), c, Options{Env: env, OnStep: func(m trace.Metrics) error {
		if m.Step == 11 {
			return ErrStop
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || len(saved) != 2 || saved[0].Step != 11 || saved[1].Step != 5 {
		t.Errorf("checkpoints %v, error %v; the run said %s", saved, err, progress.String())
	}
	last, err := checkpoint.Open(vfs.OS{}, saved[0].Dir)
	if err != nil || last.Manifest.Best == nil || last.Manifest.Best.Step != 5 {
		t.Errorf("the last checkpoint names %+v as the best, error %v", last.Manifest.Best, err)
	}
	if !vfs.Exists(filepath.Join(c.OutputDir, rundir.BestModel)) {
		t.Error("there is no best model")
	}
}

// A step whose evaluation fails is saved, and has its record.
func TestFailedEvaluationKeepsTheRecord(t *testing.T) {
	c, env := smallConfig(t), newEnv(t)
	env.CacheDir = t.TempDir()
	plain := *c
	plain.OutputDir = filepath.Join(t.TempDir(), "plain")
	if _, err := Train(t.Context(), &plain, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	ofTraining := files(t, env.CacheDir)
	c.Eval = runfile.Eval{Datasets: []data.Source{{Path: corpus(t), Type: data.Text}}, Every: 6}
	write(t, c.Eval.Datasets[0].Path, `{"text": "another text"}`+"\n")
	env.Progress = writeFunc(func(line []byte) {
		if !strings.HasPrefix(string(line), "step  5/12") {
			return
		}
		for name := range files(t, env.CacheDir) {
			if _, known := ofTraining[name]; !known {
				if err := os.Truncate(filepath.Join(env.CacheDir, name), 0); err != nil {
					t.Error(err)
				}
			}
		}
	})
	_, err := Train(t.Context(), c, Options{Env: env})
	if err == nil || !strings.Contains(err.Error(), "step-000006: the same command continues") {
		t.Fatalf("error %v", err)
	}
	if records := metricsOf(t, c.OutputDir); len(records) != 7 || records[6].Step != 6 {
		t.Errorf("%d records", len(records))
	}
}

// The update of the last step comes after the step. A drive that fails then leaves weights of two steps in memory:
// neither a model nor a checkpoint is made of them, and the next start takes the step again.
func TestDriveFailsInTheLastUpdate(t *testing.T) {
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps, base.Save.Every = base.SequenceLen, 4, 2
	placements := placementsOf(t, base)
	base.Memory = placements[slices.IndexFunc(placements, func(p placement) bool { return p.name == "on disk" })].memory
	start := func(c *runfile.Config, files vfs.FS, progress io.Writer) (*Summary, error) {
		env := newEnv(t)
		env.Tests.ProgramBytes, env.FS, env.Progress = 1, files, progress
		return Train(context.Background(), c, Options{Env: env})
	}
	whole := *base
	want, err := start(&whole, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, atEnd := range []bool{true, false} {
		t.Run(fmt.Sprintf("save.at_end=%v", atEnd), func(t *testing.T) {
			c, dir := *base, t.TempDir()
			c.Save.AtEnd, c.OutputDir, c.Memory.Path = atEnd, filepath.Join(dir, "run"), runfile.Paths{filepath.Join(dir,
				"state")}
			drive := vfs.NewFaulty(vfs.OS{})
			_, err := start(&c, drive, writeFunc(func(line []byte) {
				if strings.HasPrefix(string(line), "step 4/4") {
					drive.Intercept(func(op vfs.Op) vfs.Outcome {
						if strings.HasPrefix(op.Name, c.Memory.Path[0]) && slices.Contains(readWrites, op.Kind) {
							return vfs.Outcome{Err: syscall.EIO}
						}
						return vfs.Outcome{}
					})
				}
			}))
			if err == nil {
				sameModel(t, filepath.Join(c.OutputDir, "model"), want.Model)
			}
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "step-000002: the same command continues") {
				t.Fatalf("error %v", err)
			}
			if files(t, filepath.Join(c.OutputDir, "model")) != nil {
				t.Error("a model was written")
			}
			if saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(&c)); err != nil || len(saved) != 1 ||
				saved[0].Step != 2 {
				t.Errorf("checkpoints %v, error %v", saved, err)
			}
			got, err := start(&c, nil, io.Discard)
			if err != nil || got.ResumedAfter != 2 {
				t.Fatalf("%+v, error %v", got, err)
			}
			sameModel(t, got.Model, want.Model)
		})
	}
}

// A checkpoint in which one byte has changed is found before the first step, whatever is kept where; the run says
// which file it is and continues from the checkpoint before, with the same bits.
func TestDamageIsFoundBeforeItHurts(t *testing.T) {
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	base.Save = runfile.Save{Every: 2}
	want, err := Train(context.Background(), base, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range placementsOf(t, base) {
		for name, fsys := range map[string]vfs.FS{"linked": vfs.OS{}, "copied": noLinks{vfs.OS{}}} {
			if name == "copied" && p.name != "on disk" {
				continue
			}
			for _, file := range []string{"block.8.second-moments", "config.json", "manifest.json", "embed.0.weights"} {
				if testing.Short() && (p.name != "on disk" || file != "block.8.second-moments") {
					continue
				}
				t.Run(strings.Join([]string{p.name, name, file}, ", "), func(t *testing.T) {
					c := *base
					c.Memory, c.OutputDir = p.memory, filepath.Join(t.TempDir(), "run")
					if p.name == "on disk" {
						c.Memory.Path = runfile.Paths{filepath.Join(t.TempDir(), "state")}
					}
					env := func() *session.Env {
						e := newEnv(t)
						e.Tests.ProgramBytes, e.CacheDir, e.FS = 1, p.cache, fsys
						return e
					}
					e, stop := env(), make(chan struct{})
					e.Stop, e.Progress = stop, &stopper{"step  7/12", stop}
					if _, err := Train(context.Background(), &c, Options{Env: e}); !errors.Is(err, ErrInterrupted) {
						t.Fatal(err)
					}
					damaged := damage(t, filepath.Join(rundir.CheckpointsDir(&c), "step-000007"), file)
					e = env()
					var said strings.Builder
					e.Progress = &said
					got, err := Train(context.Background(), &c, Options{Env: e})
					if err != nil {
						t.Fatalf("error %v; it says: %s", err, said.String())
					}
					// config.json travels along and is not read: what the run needs of it is in the model directory.
					if after := 6; file != "config.json" && (got.ResumedAfter != after || !strings.Contains(said.String(), damaged)) {
						t.Errorf("resumed after step %d; it says: %s", got.ResumedAfter, said.String())
					}
					sameModel(t, got.Model, want.Model)
				})
			}
		}
	}
}

// damage changes a byte in the last file of a checkpoint whose name begins so, and returns its path. The file may
// have other names, which keep what they have.
func damage(t *testing.T, dir, file string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, file+"*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s in %s: %v", file, dir, err)
	}
	path := found[len(found)-1]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 4
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, string(text))
	return path
}

// Where every checkpoint is damaged the run says so, and changes nothing.
func TestAllCheckpointsAreDamaged(t *testing.T) {
	c := smallConfig(t)
	c.Save = runfile.Save{Every: 2}
	until(t, c, "step  5/12")
	for _, file := range []string{"manifest.json", "norm.weights"} {
		for _, step := range []int{2, 4, 5} {
			damage(t, filepath.Join(rundir.CheckpointsDir(c), checkpoint.DirName(step)), file)
		}
		before := files(t, c.OutputDir)
		_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
		if err == nil || errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%s: error %v", file, err)
		}
		if !reflect.DeepEqual(files(t, c.OutputDir), before) {
			t.Errorf("%s: the directory has changed", file)
		}
		for _, step := range []int{2, 4, 5} { // back
			damage(t, filepath.Join(rundir.CheckpointsDir(c), checkpoint.DirName(step)), file)
		}
	}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Error(err)
	}
}

// A run that has diverged ends with an error that is not the request's. Its checkpoints are all of before, and one
// may continue from them with a lower rate.
func TestDivergenceEndsARun(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.WarmupSteps, c.LRScheduler = 60, 30, "constant"
	c.LearningRate = 1e14 // step 2's is 3e12 already
	c.Save = runfile.Save{Every: 1, Keep: 2, AtEnd: true}
	c.Stop.UnhealthySteps = 4
	sum, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err == nil || errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "diverged") ||
		!strings.Contains(err.Error(), "resume_with: [learning_rate]") {
		t.Fatalf("%+v, error %v", sum, err)
	}
	if vfs.Exists(filepath.Join(c.OutputDir, "model")) {
		t.Error("a model was written")
	}
	steps := stepsSaved(t, rundir.CheckpointsDir(c))
	records := metricsOf(t, c.OutputDir)
	if len(steps) == 0 {
		t.Fatal("no checkpoint is left")
	}
	for _, step := range steps { // each is followed by a healthy step
		if m := records[step]; math.IsNaN(m.Loss) || math.IsNaN(m.GradNorm) {
			t.Errorf("the checkpoint of step %d is not healthy: %+v follows", step, m)
		}
	}
	again := *c
	again.LearningRate, again.MaxSteps, again.ResumeWith = 1e-3, 20, []string{"learning_rate", "max_steps"}
	again.Stop = runfile.Stop{}
	got, err := Train(context.Background(), &again, Options{Env: newEnv(t)})
	if err != nil || got.Steps != 20 || math.IsNaN(got.LastLoss) {
		t.Errorf("with another rate: %+v, error %v", got, err)
	}
}

// A loss above the limit for long ends a run as well.
func TestLossAboveTheLimit(t *testing.T) {
	c := smallConfig(t)
	c.Stop = runfile.Stop{UnhealthySteps: 3, LossAbove: 1}
	_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err == nil || !strings.Contains(err.Error(), "step 3: the run has diverged") {
		t.Errorf("error %v", err)
	}
}

// A step without a token that counts in the loss updates nothing, says so, and is not one of the updates that AdamW's
// bias correction counts: a run with many of them ends as one without.
func TestStepsWithoutTargets(t *testing.T) {
	row := func(prompt, answer string) string {
		return fmt.Sprintf(`{"prompt": %q, "response": %q}`+"\n", prompt, answer)
	}
	good, endless := row("turn", "the wheel turns"), row(strings.Repeat("all of the row is prompt ", 10), "lost")
	train := func(rows string, steps int) (*Summary, *runfile.Config, string) {
		t.Helper()
		c := smallConfig(t)
		c.Model = writeModel(t, nil)
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		write(t, path, rows)
		c.Datasets = []data.Source{{Path: path, Type: data.PromptResponse}}
		c.BatchTokens, c.MaxSteps, c.LRScheduler, c.WarmupSteps, c.Overlong = c.SequenceLen, steps, "constant", 0, "truncate"
		c.Save.Every = 1
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		sum, err := Train(context.Background(), c, Options{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return sum, c, said.String()
	}
	want, _, _ := train(good, 2)
	got, c, said := train(good+strings.Repeat(endless, 7), 16) // two epochs
	if got.Untargeted != 14 || strings.Count(said, "no token of its documents counts") != 14 {
		t.Fatalf("%d steps without targets; it says: %s", got.Untargeted, said)
	}
	sameModel(t, got.Model, want.Model)
	idle := 0
	for _, m := range metricsOf(t, c.OutputDir) {
		if m.TargetTokens == 0 {
			idle++
			if !math.IsNaN(m.Loss) {
				t.Errorf("step %d has no targets and the loss %v", m.Step, m.Loss)
			}
		}
	}
	if idle != 14 {
		t.Errorf("%d idle steps in the metrics", idle)
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || last.Manifest.Updates != 2 || last.Manifest.UntargetedSteps != 14 {
		t.Errorf("the checkpoint: %+v, error %v", last, err)
	}
}

// A checkpoint that a resume has found damaged is set aside. It is not counted among those that stay, so that the one
// that is saved next does.
func TestDamagedCheckpointsAreSetAside(t *testing.T) {
	for _, keep := range []int{1, 2} {
		c := smallConfig(t)
		want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		run := *c
		run.OutputDir, run.Save = filepath.Join(t.TempDir(), "run"), runfile.Save{Every: 2, Keep: 2}
		until(t, &run, "step  4/12")
		damage(t, filepath.Join(rundir.CheckpointsDir(&run), "step-000004"), "block.1.weights")
		run.Save = runfile.Save{Keep: keep}
		env := newEnv(t)
		var said strings.Builder
		stop := make(chan struct{})
		env.Stop, env.Progress = stop, io.MultiWriter(&said, &stopper{"step  3/12", stop})
		sum, err := Train(context.Background(), &run, Options{Env: env})
		if !errors.Is(err, ErrInterrupted) || sum.ResumedAfter != 2 {
			t.Fatalf("%+v, error %v", sum, err)
		}
		sumsOf(t, sum.Checkpoint)
		aside := filepath.Join(rundir.CheckpointsDir(&run), "step-000004.damaged")
		if !vfs.Exists(aside) || !strings.Contains(said.String(), aside) {
			t.Errorf("there are %v; it says %s", files(t, rundir.CheckpointsDir(&run)), said.String())
		}
		if got, all := stepsSaved(t, rundir.CheckpointsDir(&run)), []int{2, 3}; !slices.Equal(got, all[2-keep:]) {
			t.Errorf("keep %d: the run has %v", keep, got)
		}
		got, err := Train(context.Background(), &run, Options{Env: newEnv(t)})
		if err != nil || got.ResumedAfter != 3 {
			t.Fatalf("%+v, error %v", got, err)
		}
		sameModel(t, got.Model, want.Model)
		if !vfs.Exists(aside) {
			t.Error("what was set aside is gone")
		}
	}
}

// A run that was stopped among unhealthy steps has a checkpoint of such a state. When it then diverges, it names the
// healthy one, and the next start continues from that; the others are set aside.
func TestDivergedRunsContinueFromHealth(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.WarmupSteps, c.LRScheduler, c.LearningRate = 60, 30, "constant", 1e14
	c.Save, c.Stop.UnhealthySteps = runfile.Save{Every: 1, Keep: 2}, 9
	until(t, c, "step  8/60")
	unhealthy, err := checkpoint.Open(vfs.OS{}, filepath.Join(rundir.CheckpointsDir(c), "step-000008"))
	if err != nil || unhealthy.Manifest.UnhealthySteps == 0 {
		t.Fatalf("step 8 is healthy: this test shows nothing; error %v", err)
	}
	healthy, _, err := checkpoint.Find(vfs.OS{}, rundir.CheckpointsDir(c), checkpoint.Query{Healthy: true})
	if err != nil || healthy == nil {
		t.Fatalf("there is no healthy checkpoint: this test shows nothing; error %v", err)
	}
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	if err == nil || !strings.Contains(err.Error(), "the last healthy checkpoint is "+healthy.Dir()+":") {
		t.Fatalf("error %v, want one that names %s", err, healthy.Dir())
	}
	again := *c
	again.LearningRate, again.ResumeWith = 1e-3, []string{"learning_rate"}
	env := newEnv(t)
	var said strings.Builder
	stop := make(chan struct{})
	at := fmt.Sprintf("step %2d/60", healthy.Manifest.Step+2)
	env.Stop, env.Progress = stop, io.MultiWriter(&said, &stopper{at, stop})
	sum, err := Train(context.Background(), &again, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || sum.ResumedAfter != healthy.Manifest.Step {
		t.Fatalf("%+v, error %v; it says %s", sum, err, said.String())
	}
	if aside := unhealthy.Dir() + ".diverged"; !vfs.Exists(aside) || !strings.Contains(said.String(), aside) {
		t.Errorf("%s is not set aside; it says %s", unhealthy.Dir(), said.String())
	}
	until(t, &again, fmt.Sprintf("step %2d/60", healthy.Manifest.Step+4))
	if got := stepsSaved(t, rundir.CheckpointsDir(c)); got[len(got)-1] != healthy.Manifest.Step+4 {
		t.Errorf("the second start has not continued from the first one: %v", got)
	}
}

// TestRunThatChangesNothing: a run in which no step has a token that counts ends with an error that says so, and writes
// no model, which would be the one that it began with. So it does when it is started again.
func TestRunThatChangesNothing(t *testing.T) {
	c := smallConfig(t)
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	endless := fmt.Sprintf("{\"prompt\": %q, \"response\": \"b\"}\n", strings.Repeat("a", 2*c.SequenceLen))
	write(t, path, strings.Repeat(endless, 40)+"{\"prompt\": \"a\", \"response\": \"b\"}\n") // which comes later
	c.Datasets = []data.Source{{Path: path, Type: data.PromptResponse}}
	c.BatchTokens, c.MaxSteps, c.Overlong, c.Save.Every, c.Resume = c.SequenceLen, 3, "truncate", 1, "auto"
	for range 2 {
		_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "none of the 3 steps changed the model") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v", err)
		}
		if vfs.Exists(filepath.Join(c.OutputDir, rundir.LastModel)) {
			t.Error("a model is written")
		}
	}
}
