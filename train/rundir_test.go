package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// A start that fails, for whatever reason and at whatever time, takes nothing from the run that has the directory.
func TestFailedStartsLeaveTheRunAlone(t *testing.T) {
	alone := smallConfig(t)
	want, err := Train(context.Background(), alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	c := *alone
	c.OutputDir = filepath.Join(t.TempDir(), "deep", "shared")
	c.Save.Every = 5
	env := newEnv(t)
	env.Progress = &onStep{func() {
		for name, change := range map[string]func(*runfile.Config){
			"the same run":   func(*runfile.Config) {},
			"another model":  func(c *runfile.Config) { c.Model = filepath.Join(t.TempDir(), "none") },
			"other data":     func(c *runfile.Config) { c.Datasets[0].Path = other(t) },
			"another budget": func(c *runfile.Config) { c.Memory.Host = budget(t, "1MiB").Device },
			"never resume":   func(c *runfile.Config) { c.Resume = "never" },
		} {
			second := c
			second.Datasets = slices.Clone(c.Datasets)
			change(&second)
			_, err := Train(context.Background(), &second, Options{Env: newEnv(t)})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "another run") {
				t.Errorf("%s: error %v", name, err)
			}
			if !vfs.Exists(filepath.Join(rundir.CheckpointsDir(&c), ".lock")) {
				t.Fatalf("%s: the lock of the run is gone", name)
			}
			if d, err := checkpoint.Hold(vfs.OS{}, rundir.CheckpointsDir(&c)); err == nil {
				d.Close()
				t.Fatalf("%s: a second lock was taken", name)
			}
		}
	}}
	got, err := Train(context.Background(), &c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
}

// Of runs that begin at once in a directory that is not there, one trains and the others are refused.
func TestRunsBeginAtOnce(t *testing.T) {
	alone := smallConfig(t)
	alone.MaxSteps = 3
	want, err := Train(context.Background(), alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		dir := filepath.Join(t.TempDir(), "a", "b")
		results := make([]error, 3)
		var all sync.WaitGroup
		for i := range results {
			all.Go(func() {
				c := *alone
				c.OutputDir = dir
				_, results[i] = Train(context.Background(), &c, Options{Env: newEnv(t)})
			})
		}
		all.Wait()
		done := 0
		for _, err := range results {
			switch {
			case err == nil: // one that begins when another has ended finds an ended run
				done++
			case !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "another run"):
				t.Error(err)
			}
		}
		if done == 0 {
			t.Fatal("none of the runs came to its end")
		}
		sameModel(t, filepath.Join(dir, "model"), want.Model)
	}
}

// Links and directories that a user has prepared in the output directory stay when a start fails.
func TestFailedStartsLeaveLinks(t *testing.T) {
	c := smallConfig(t)
	good := c.Model
	c.Model = filepath.Join(t.TempDir(), "none")
	elsewhere := t.TempDir()
	mkdir(t, c.OutputDir)
	links := map[string]string{"checkpoints": "ck", "state": "st"}
	for name, to := range links {
		mkdir(t, filepath.Join(elsewhere, to))
		if err := os.Symlink(filepath.Join(elsewhere, to), filepath.Join(c.OutputDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(c.OutputDir, "notes.txt"), "mine")
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) {
		t.Fatalf("error %v", err)
	}
	for name, to := range links {
		if got, err := os.Readlink(filepath.Join(c.OutputDir, name)); err != nil || got != filepath.Join(elsewhere, to) {
			t.Errorf("%s: %q, error %v", name, got, err)
		}
	}
	c.Model = good
	c.Save.Every = 4
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	if !vfs.Exists(filepath.Join(elsewhere, "ck", "step-000012")) {
		t.Error("the checkpoints did not go where the link leads")
	}
}

// A link at the name of a file that a run writes is not written through: the run replaces it, or refuses it.
func TestFilesOfARunAreNotLinks(t *testing.T) {
	for name, refused := range map[string]bool{"checkpoints/.lock": true, "metrics.jsonl": true, "trace.json": false,
		"plan.json": false, "run.yaml": false, "run.yaml.tmp": false, "trace.json.tmp": false} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Save.Every = 4
			until(t, c, "step  6/12")
			kept, link := filepath.Join(t.TempDir(), "kept"), filepath.Join(c.OutputDir, name)
			write(t, kept, "precious")
			os.Remove(link) // not all of them are there
			if err := os.Symlink(kept, link); err != nil {
				t.Skip("this system makes no symbolic links for this user: ", err)
			}
			_, err := Train(context.Background(), c, Options{Env: newEnv(t), Trace: true})
			if not := (*vfs.NotOwnError)(nil); errors.As(err, &not) != refused || errors.Is(err, blame.ErrRequest) != refused {
				t.Errorf("error %v", err)
			}
			if text, err := os.ReadFile(kept); err != nil || string(text) != "precious" {
				t.Errorf("the file that the link leads to is %q, error %v", text, err)
			}
		})
	}
}

// A run file in its own output directory belongs to the user.
func TestRunFileInItsOutputDirectory(t *testing.T) {
	c := smallConfig(t)
	const mine = "# my comments\n"
	mkdir(t, c.OutputDir)
	write(t, filepath.Join(c.OutputDir, "run.yaml"), mine)
	until(t, c, "step  3/12")
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(c.OutputDir, "run.yaml")); err != nil || string(text) != mine {
		t.Errorf("run.yaml is now %q, error %v", text, err)
	}
	if again, _ := newEnv(t).Runs().ReadResolved(c.OutputDir); again == nil || again.Numerics.MicroBatch == 0 ||
		again.Model != c.Model {
		t.Errorf("the resolved run file says %+v", again)
	}
}

// A run that was killed before its first checkpoint starts over with the sizes that it had: with another budget, the
// same bits.
func TestSizesSurviveAKill(t *testing.T) {
	c := smallConfig(t)
	c.Precision, c.Memory = runfile.Defaults().Precision, budget(t, "6MiB")
	c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	c.BatchTokens, c.MaxSteps, c.WarmupSteps = 64*c.SequenceLen, 1, 0
	want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	killed := *c
	killed.OutputDir = filepath.Join(t.TempDir(), "killed")
	mkdir(t, killed.OutputDir)
	for _, name := range []string{"run.yaml", "metrics.jsonl"} { // all that a kill leaves
		text, err := os.ReadFile(filepath.Join(c.OutputDir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(killed.OutputDir, name), strings.ReplaceAll(string(text), c.OutputDir, killed.OutputDir))
	}
	killed.Memory = budget(t, "1500KiB")
	fresh := killed
	fresh.OutputDir = filepath.Join(t.TempDir(), "fresh")
	if _, err := Train(context.Background(), &fresh, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	a, _ := newEnv(t).Runs().ReadResolved(fresh.OutputDir)
	if b, _ := newEnv(t).Runs().ReadResolved(c.OutputDir); a.Numerics == b.Numerics {
		t.Fatalf("the budgets give the same sizes, %+v: this test shows nothing", a.Numerics)
	}
	got, err := Train(context.Background(), &killed, Options{Env: newEnv(t)})
	if err != nil {
		// Honest as well: the sizes that the run had need more than the budget.
		if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "memory.device") {
			t.Fatal(err)
		}
		killed.Memory = budget(t, "8MiB")
		if got, err = Train(context.Background(), &killed, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
	}
	sameModel(t, got.Model, want.Model)
}

// A run that was killed before its first checkpoint starts over, to the bits of one that was not, with what its run file
// had, however a plan has rewritten that, and with other keys that change no number. Where others have changed, it is
// refused, and the line names them.
func TestKilledBeforeTheFirstCheckpoint(t *testing.T) {
	base := smallConfig(t)
	base.MaxSteps, base.Save = 4, runfile.Save{}
	base.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 512, BlockChunk: 256}
	want, err := Train(t.Context(), base, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]struct {
		change  func(*runfile.Config)
		refused string // "": it starts over
		isOther bool   // it has other bits
	}{
		"nothing":         {func(*runfile.Config) {}, "", false},
		"sizes as cut":    {func(c *runfile.Config) { c.Numerics.HeadChunk, c.Numerics.BlockChunk = 128, 128 }, "", false},
		"sizes auto":      {func(c *runfile.Config) { c.Numerics = runfile.Sizes{} }, "", false},
		"samples":         {func(c *runfile.Config) { c.Samples = someSamples(2) }, "", false},
		"evaluation":      {func(c *runfile.Config) { c.Eval = withEval(c).Eval }, "", false},
		"saves and stops": {func(c *runfile.Config) { c.Save, c.Stop.UnhealthySteps = runfile.Save{Every: 2}, 3 }, "", false},
		"no run.yaml": {func(c *runfile.Config) { _ = os.Remove(filepath.Join(c.OutputDir, rundir.ResolvedName)) }, "",
			false},
		"no run.json": {func(c *runfile.Config) { _ = os.Remove(filepath.Join(c.OutputDir, rundir.IdentityName)) }, "",
			false},
		"learning_rate, without run.json": {func(c *runfile.Config) {
			_ = os.Remove(filepath.Join(c.OutputDir, rundir.IdentityName))
			c.LearningRate = 1e-3
		}, "learning_rate was 0.01, is now 0.001", true},
		"micro_batch":   {func(c *runfile.Config) { c.Numerics.MicroBatch = 1 }, "numerics.micro_batch was 2, is now 1", true},
		"head_chunk":    {func(c *runfile.Config) { c.Numerics.HeadChunk = 64 }, "numerics.head_chunk was 128, is now 64", true},
		"learning_rate": {func(c *runfile.Config) { c.LearningRate = 1e-3 }, "learning_rate was 0.01, is now 0.001); restore them, allow the change with resume_with: [learning_rate]", true},
		"listed": {func(c *runfile.Config) {
			c.LearningRate, c.ResumeWith = 1e-3, []string{"learning_rate"}
		}, "", true},
		"seed":     {func(c *runfile.Config) { c.Seed++ }, "seed was 42, is now 43); restore them, choose", true},
		"datasets": {func(c *runfile.Config) { c.Datasets = slices.Repeat(c.Datasets, 2) }, "datasets was ", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := *base
			c.OutputDir = filepath.Join(t.TempDir(), "killed")
			env, files := newEnv(t), vfs.NewFaulty(vfs.OS{})
			env.FS = files
			env.Progress = &onStep{func() {
				files.Intercept(func(vfs.Op) vfs.Outcome { return vfs.Outcome{Err: syscall.EIO} })
			}}
			if sum, err := Train(t.Context(), &c, Options{Env: env}); err == nil {
				t.Fatalf("%+v, no error", sum)
			}
			of.change(&c)
			got, err := Train(t.Context(), &c, Options{Env: newEnv(t)})
			if of.refused != "" {
				if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), of.refused) {
					t.Errorf("%+v, error %v; want %q", got, err, of.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if isOther := !maps.Equal(modelFiles(t, got.Model), modelFiles(t, want.Model)); isOther != of.isOther {
				t.Errorf("it has other bits: %v", isOther)
			}
		})
	}
}

// A run that begins from a checkpoint of another one continues its own progress when it is started again, and never
// writes into the records of a third.
func TestResumeFromAPath(t *testing.T) {
	first := smallConfig(t)
	first.Save = runfile.Save{Every: 3}
	want, err := Train(context.Background(), first, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	c := *first
	c.OutputDir = filepath.Join(t.TempDir(), "branch")
	c.Resume = filepath.Join(rundir.CheckpointsDir(first), "step-000003")
	until(t, &c, "step  5/12")
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	got, err := Train(context.Background(), &c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "resuming after step 5 from "+c.OutputDir) {
		t.Errorf("the run does not continue its own progress: %s", said.String())
	}
	sameModel(t, got.Model, want.Model)

	// Killed before a checkpoint of its own, it begins from there again.
	killed := c
	killed.OutputDir = filepath.Join(t.TempDir(), "killed")
	ctx, cancel := context.WithCancel(context.Background())
	env = newEnv(t)
	env.Progress = &onStep{cancel}
	if _, err := Train(ctx, &killed, Options{Env: env}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	got, err = Train(context.Background(), &killed, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)

	for name, o := range map[string]struct {
		change func(*runfile.Config)
		want   string
	}{
		"another run": {func(c *runfile.Config) { c.Seed = 7; c.Resume = "auto" }, ""},
		"the same run, older": {func(c *runfile.Config) {
			*c = *first
			c.Resume = filepath.Join(rundir.CheckpointsDir(first), "step-000006")
		}, "is older than"},
	} {
		t.Run(name, func(t *testing.T) {
			there := *first
			there.OutputDir = filepath.Join(t.TempDir(), "there")
			o.change(&there)
			if there.Resume == "auto" {
				until(t, &there, "step  4/12")
				there.Seed, there.Resume = first.Seed, filepath.Join(rundir.CheckpointsDir(first), "step-000003")
				o.want = "already has"
			}
			before := files(t, there.OutputDir)
			_, err := Train(context.Background(), &there, Options{Env: newEnv(t)})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), o.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want one line with %q", err, o.want)
			}
			if !maps.Equal(files(t, there.OutputDir), before) {
				t.Error("the run that is there was changed")
			}
		})
	}
}

// Files that a killed process has left half-written go at the next start.
func TestLeftoversGo(t *testing.T) {
	c := smallConfig(t)
	until(t, c, "step  3/12")
	saving := "checkpoints/.step-000009." + idOf(t, c).Run.Short() + ".tmp"
	for _, left := range []string{".model.tmp-0123456789abcdef", saving} {
		mkdir(t, filepath.Join(c.OutputDir, left))
		write(t, filepath.Join(c.OutputDir, left, "weights"), "half")
	}
	write(t, filepath.Join(c.OutputDir, "run.yaml.tmp"), "half")
	mkdir(t, filepath.Join(c.OutputDir, ".model.tmp-mine"))
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	var hidden []string
	for name := range files(t, c.OutputDir) {
		if strings.Contains(name, ".tmp") {
			hidden = append(hidden, name)
		}
	}
	if fmt.Sprint(hidden) != "[.model.tmp-mine]" {
		t.Errorf("left: %v", hidden)
	}
}

// syncedDirs notes which directories are made durable.
type syncedDirs struct {
	vfs.FS
	synced map[string]bool
}

func (s syncedDirs) SyncDir(name string) error {
	s.synced[filepath.Clean(name)] = true
	return s.FS.SyncDir(name)
}

// The names of all directories that lead to a checkpoint survive the loss of power.
func TestNamesAboveCheckpointsAreDurable(t *testing.T) {
	c := smallConfig(t)
	root := t.TempDir()
	c.OutputDir = filepath.Join(root, "deep", "a", "run")
	c.MaxSteps = 1
	env := newEnv(t)
	fsys := syncedDirs{vfs.OS{}, map[string]bool{}}
	env.FS = fsys
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "deep", "deep/a", "deep/a/run", "deep/a/run/checkpoints"} {
		if !fsys.synced[filepath.Join(root, dir)] {
			t.Errorf("the names in %q are not durable", dir)
		}
	}
}

// A run file that the drive does not give says nothing of what is there: it is no reason to ask for another directory.
func TestUnreadableRunFile(t *testing.T) {
	c := smallConfig(t)
	until(t, c, "step  2/12")
	if err := os.RemoveAll(rundir.CheckpointsDir(c)); err != nil { // as after a kill before the first one
		t.Fatal(err)
	}
	before := files(t, c.OutputDir)
	env, drive := newEnv(t), vfs.NewFaulty(vfs.OS{})
	env.FS = drive
	drive.Intercept(func(op vfs.Op) vfs.Outcome {
		if op.Kind == vfs.OpRead && filepath.Base(op.Name) == rundir.ResolvedName {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	if _, err := Train(context.Background(), c, Options{Env: env}); !errors.Is(err, syscall.EIO) || errors.Is(err, blame.ErrRequest) {
		t.Errorf("error %v, want the drive's", err)
	}
	if !maps.Equal(files(t, c.OutputDir), before) {
		t.Error("the directory has changed")
	}
	if sum, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || sum.Steps != 12 {
		t.Errorf("when the drive is well again: %+v, error %v", sum, err)
	}
}

// TestStateInUse: a memory.path that another run holds is a wrong request, as an output_dir is.
func TestStateInUse(t *testing.T) {
	c := smallConfig(t)
	c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9}) // enough for the disk
	c.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	for _, p := range placementsOf(t, c) {
		if len(p.memory.Path) == 0 {
			continue
		}
		c.Memory = p.memory
		untilOn(t, c, "step  2/12", p.cache) // the run has a name there now
		state := idOf(t, c).StateDirs(c)[0]
		if err := os.MkdirAll(state, 0o755); err != nil {
			t.Fatal(err)
		}
		lock, err := vfs.OS{}.Lock(filepath.Join(state, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		env := newEnv(t)
		env.Tests.ProgramBytes, env.CacheDir = 1, p.cache
		c.Resume = "auto"
		_, err = Train(t.Context(), c, Options{Env: env})
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "memory.path") {
			t.Errorf("error %v", err)
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no placement has state on disk")
}

// TestKeptSizesAreSaid: the refusal of a run that was killed before its first checkpoint, or that has one, says that
// its sizes are of then, and how to have others.
func TestKeptSizesAreSaid(t *testing.T) {
	for _, saves := range []bool{false, true} {
		c := smallConfig(t)
		c.Numerics, c.Resume, c.MaxSteps = runfile.Sizes{}, "auto", 2
		if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		if !saves { // as a kill before the first checkpoint leaves it
			if err := os.RemoveAll(rundir.CheckpointsDir(c)); err != nil {
				t.Fatal(err)
			}
		}
		env := newEnv(t)
		// Too little for the sizes that the run has, and with a checkpoint enough for the smallest ones, so that it gets on
		// until it is planned.
		for _, size := range []string{"100KiB", "200KiB", "300KiB", "400KiB", "600KiB", "800KiB"} {
			c.Memory.Device = budget(t, size).Device
			_, err := Train(t.Context(), c, Options{Env: env})
			if err == nil {
				t.Fatalf("saved %v: no refusal says it", saves)
			}
			want := "those that this run had when it was killed, before its first checkpoint, and stay"
			if saves {
				want = "those of " + lastCheckpoint(t, c) + ", and stay"
			}
			if strings.Contains(err.Error(), want) {
				if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "or remove "+c.OutputDir) {
					t.Errorf("error %v", err)
				}
				break
			}
		}
	}
}

// An output_dir that is a link which leads nowhere is refused: its disk may not be mounted.
func TestOutputDirLeadsNowhere(t *testing.T) {
	c := smallConfig(t)
	c.OutputDir = filepath.Join(t.TempDir(), "link")
	there := filepath.Join(t.TempDir(), "disk", "run")
	if err := os.Symlink(there, c.OutputDir); err != nil {
		t.Fatal(err)
	}
	_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "is a link to "+there+", which is not there") {
		t.Errorf("error %v", err)
	}
	if vfs.Exists(filepath.Dir(there)) {
		t.Errorf("%s was made", there)
	}
}
