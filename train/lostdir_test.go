package train

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// A run whose output directory is removed makes it again before it writes there, and says so once. It ends with the
// model, the records and the checkpoints that it says it has.
func TestRemovedOutputDirectory(t *testing.T) {
	for name, save := range map[string]runfile.Save{"saves": {Every: 5, Keep: 2, AtEnd: true},
		"saves no more": {Every: 5}} {
		t.Run(name, func(t *testing.T) {
			alone := smallConfig(t)
			want, err := Train(context.Background(), alone, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			c := *alone
			c.OutputDir, c.Save = filepath.Join(t.TempDir(), "run"), save
			env := newEnv(t)
			var said strings.Builder
			env.Progress = writeFunc(func(line []byte) {
				said.Write(line)
				at := map[string]string{"saves": "step  6/12", "saves no more": "step 12/12"}[name]
				if strings.HasPrefix(string(line), at) {
					if err := os.RemoveAll(c.OutputDir); err != nil {
						t.Error(err)
					}
				}
			})
			sum, err := Train(context.Background(), &c, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, sum.Model, want.Model)
			if n := strings.Count(said.String(), "was removed or moved while"); n != 1 {
				t.Errorf("it says so %d times: %s", n, said.String())
			}
			if sum.Checkpoint != "" {
				sumsOf(t, sum.Checkpoint)
			}
			if (sum.Checkpoint != "") != save.AtEnd {
				t.Errorf("the summary names checkpoint %q", sum.Checkpoint)
			}
			if got := len(losses(t, c.OutputDir)); got != 12 {
				t.Errorf("%d records", got)
			}
			again, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
			if err != nil || again.ResumedAfter != 12 {
				t.Errorf("the same command: %+v, error %v", again, err)
			}
		})
	}
}

// A run makes again the part of its output directory that was removed, and touches nothing else: its records stay,
// and so do its checkpoints, as far as they are there. Where the directory was moved, the run makes another one.
func TestPartOfTheOutputDirectoryIsLost(t *testing.T) {
	for _, what := range []string{"checkpoints/.lock", "checkpoints", "metrics.jsonl and the lock", "moved"} {
		t.Run(what, func(t *testing.T) {
			alone := withEval(smallConfig(t))
			alone.Save = runfile.Save{Every: 2, Keep: 1, Best: true, AtEnd: true}
			alone.Eval.Every, alone.LearningRate = 2, 20 // too high: an early state is the best one
			want, err := Train(context.Background(), alone, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			c := *alone
			c.OutputDir = filepath.Join(t.TempDir(), "run")
			lock := filepath.Join(rundir.CheckpointsDir(&c), ".lock")
			env := newEnv(t)
			var said strings.Builder
			env.Progress = writeFunc(func(line []byte) {
				said.Write(line)
				if !strings.HasPrefix(string(line), "step  7/12") {
					return
				}
				var err error
				switch what {
				case "checkpoints/.lock":
					err = os.Remove(lock)
				case "checkpoints":
					err = os.RemoveAll(rundir.CheckpointsDir(&c))
				case "moved":
					err = os.Rename(c.OutputDir, c.OutputDir+".moved")
				default:
					err = errors.Join(os.Remove(lock), os.Remove(filepath.Join(c.OutputDir, rundir.MetricsName)))
				}
				if err != nil {
					t.Error(err)
				}
			})
			sum, err := Train(context.Background(), &c, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, sum.Model, want.Model)
			lost := map[string]string{"checkpoints": rundir.CheckpointsDir(&c), "moved": c.OutputDir}[what]
			if lost == "" {
				lost = lock
			}
			if n := strings.Count(said.String(), lost+" was removed or moved while"); n != 1 {
				t.Errorf("it says %d times that %s is lost: %s", n, lost, said.String())
			}
			if got := losses(t, c.OutputDir); len(got) != 12 {
				t.Errorf("%d records", len(got))
			}
			if lost != lock {
				return
			}
			bestOf := func(dir string) int {
				from, err := checkpoint.Open(vfs.OS{}, dir)
				if err != nil {
					t.Fatal(err)
				}
				return from.Manifest.Best.Step
			}
			best := bestOf(want.Checkpoint)
			if best > 6 {
				t.Fatalf("the best step of the run that is left alone is %d, after the loss of the lock", best)
			}
			if got := bestOf(sum.Checkpoint); got != best ||
				!vfs.Exists(filepath.Join(rundir.CheckpointsDir(&c), checkpoint.DirName(best))) {
				t.Errorf("the best step is %d, want %d, with its checkpoint", got, best)
			}
		})
	}
}

// Where another run has begun in the directory meanwhile, and whether that has ended or not, the first one ends with a
// line, writes nothing there, and saves its state in save.fallback if there is one.
func TestTakenOutputDirectory(t *testing.T) {
	for _, fallback := range []bool{true, false} {
		for _, ended := range []bool{true, false} {
			c := smallConfig(t)
			alone, second := *c, *c
			alone.OutputDir = filepath.Join(t.TempDir(), "alone")
			want, err := Train(context.Background(), &alone, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			c.Save = runfile.Save{Every: 5, Keep: 2}
			if fallback {
				c.Save.Fallback = t.TempDir()
			}
			second.Seed, second.MaxSteps = 10, 4
			var before map[string]string
			env := newEnv(t)
			env.Progress = writeFunc(func(line []byte) {
				if strings.Contains(string(line), "trying again") {
					t.Errorf("it tries again: %s", line)
				}
				if !strings.HasPrefix(string(line), "step  6/12") {
					return
				}
				if err := os.RemoveAll(c.OutputDir); err != nil {
					t.Error(err)
				}
				if ended {
					if _, err := Train(context.Background(), &second, Options{Env: newEnv(t)}); err != nil {
						t.Error(err)
					}
				} else { // it has only just begun
					dir, err := checkpoint.Hold(vfs.OS{}, rundir.CheckpointsDir(c))
					if err != nil {
						t.Error(err)
						return
					}
					t.Cleanup(func() { dir.Close() })
				}
				before = files(t, c.OutputDir)
			})
			_, errFirst := Train(context.Background(), c, Options{Env: env})
			if errFirst == nil || errors.Is(errFirst, blame.ErrRequest) || strings.Contains(errFirst.Error(), "\n") ||
				!strings.Contains(errFirst.Error(), "another run has the directory now") {
				t.Fatalf("error %v", errFirst)
			}
			if after := files(t, c.OutputDir); len(before) == 0 || !maps.Equal(before, after) {
				t.Errorf("the second run's directory has changed: %v, %v", len(before), len(after))
			}
			if !fallback {
				continue
			}
			saved := inFallback(t, c.Save.Fallback)
			if len(saved) != 1 || !strings.Contains(errFirst.Error(), saved[0]) {
				t.Fatalf("saved is %v; error %v", saved, errFirst)
			}
			rest := *c
			rest.Resume, rest.OutputDir = saved[0], filepath.Join(t.TempDir(), "rest")
			got, err := Train(context.Background(), &rest, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, got.Model, want.Model)
		}
	}
}

// Files of a run that are removed one by one while it works are there again after the next save, and after a start that
// finds nothing to do.
func TestRemovedFilesComeBack(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save = 6, runfile.Save{Every: 2}
	want := *c
	want.OutputDir = filepath.Join(t.TempDir(), "alone")
	if _, err := Train(t.Context(), &want, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	names := []string{rundir.ResolvedName, rundir.PlanName, rundir.IdentityName, rundir.MetricsName}
	env := newEnv(t)
	var said strings.Builder
	isRemoved := false
	env.Progress = writeFunc(func(line []byte) {
		said.Write(line)
		if !isRemoved && strings.HasPrefix(string(line), "step 3/6") {
			isRemoved = true
			for _, name := range names {
				if err := os.Remove(filepath.Join(c.OutputDir, name)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil || !isRemoved {
		t.Fatal(err, isRemoved)
	}
	if !strings.Contains(said.String(), "was removed while the run was using it; it is made again") {
		t.Errorf("it says %s", said.String())
	}
	for _, name := range names {
		if !vfs.Exists(filepath.Join(c.OutputDir, name)) {
			t.Errorf("%s is not there", name)
		}
	}
	if a, b := losses(t, c.OutputDir), losses(t, want.OutputDir); !slices.Equal(a, b) {
		t.Errorf("losses %v, want %v", a, b)
	}
	if err := os.Remove(filepath.Join(c.OutputDir, rundir.ResolvedName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil ||
		!vfs.Exists(filepath.Join(c.OutputDir, rundir.ResolvedName)) {
		t.Errorf("after the end: error %v, or no %s", err, rundir.ResolvedName)
	}
}
