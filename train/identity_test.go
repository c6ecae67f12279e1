package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// fullBelow is an environment in which no checkpoint can be made in a run's output directory, and what the run says.
func fullBelow(t *testing.T, c *runfile.Config) (*session.Env, *strings.Builder) {
	env, said := newEnv(t), &strings.Builder{}
	env.FS = fullDirs{vfs.OS{}, func(path string) bool {
		return strings.HasPrefix(path, filepath.Join(rundir.CheckpointsDir(c), ".step"))
	}}
	env.Progress = said
	return env, said
}

// idOf is the identity of the run that an output directory has.
func idOf(t *testing.T, c *runfile.Config) *rundir.Identity {
	t.Helper()
	id, err := newEnv(t).Runs().ReadIdentity(c.OutputDir)
	if err != nil || id == nil {
		t.Fatalf("%s has no identity: %v", c.OutputDir, err)
	}
	return id
}

// inFallback are the checkpoints in a directory that several runs have as save.fallback.
func inFallback(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", rundir.CheckpointsName, "step-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Runs whose output directories have the same name share save.fallback. None adopts what another has saved there,
// counts it among its own, or removes it; nor does a run that begins where another was removed.
func TestRunsShareAFallback(t *testing.T) {
	root, fallback := t.TempDir(), t.TempDir()
	a := smallConfig(t)
	a.OutputDir, a.Save = filepath.Join(root, "a", "run"), runfile.Save{Every: 2, Keep: 2, AtEnd: true, Fallback: fallback}
	env, _ := fullBelow(t, a)
	want, err := Train(context.Background(), a, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	ofA := inFallback(t, fallback)
	if len(ofA) != 2 {
		t.Fatalf("saved in the fallback: %v", ofA)
	}
	stay := func(what string) {
		t.Helper()
		for _, dir := range ofA {
			sumsOf(t, dir)
		}
		if t.Failed() {
			t.Fatalf("after %s", what)
		}
	}

	b := *a
	b.OutputDir = filepath.Join(root, "b", "run")
	env = newEnv(t)
	var said strings.Builder
	env.Progress = &said
	got, err := Train(context.Background(), &b, Options{Env: env})
	if err != nil || got.ResumedAfter != 0 || got.TargetTokens == 0 {
		t.Errorf("a run of the same name: %+v, error %v", got, err)
	}
	if !strings.Contains(said.String(), "save.fallback has checkpoints of another run") {
		t.Errorf("it does not say that another run's are there: %s", said.String())
	}
	stay("a run of the same name")

	if err := os.RemoveAll(a.OutputDir); err != nil {
		t.Fatal(err)
	}
	if got, err = Train(context.Background(), a, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 0 {
		t.Errorf("a new run where the other was removed: %+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	stay("a new run")

	// It saves earlier steps than those that are there.
	c := *a
	c.OutputDir, c.Seed, c.Resume, c.Save.AtEnd = filepath.Join(root, "c", "run"), 77, "never", false
	alone := c
	alone.OutputDir, alone.Save.Fallback = filepath.Join(t.TempDir(), "alone"), ""
	if want, err = Train(context.Background(), &alone, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	env, _ = fullBelow(t, &c)
	stop := make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{"step  7/12", stop}
	if _, err := Train(context.Background(), &c, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	stay("a run of earlier steps")
	c.Resume = "auto"
	if got, err = Train(context.Background(), &c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 7 {
		t.Fatalf("it resumes after %+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	stay("its end")
}

// copyTree copies a directory as cp -r does.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// stoppedInFallback is a run that was stopped after step 7, with its latest checkpoints in save.fallback.
func stoppedInFallback(t *testing.T) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	c.OutputDir = filepath.Join(t.TempDir(), "run")
	c.Save = runfile.Save{Every: 2, Keep: 2, Fallback: t.TempDir()}
	env, _ := fullBelow(t, c)
	stop := make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{"step  7/12", stop}
	if _, err := Train(context.Background(), c, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	if got := inFallback(t, c.Save.Fallback); len(got) != 2 {
		t.Fatalf("saved in the fallback: %v", got)
	}
	return c
}

// A run whose output directory is moved finds what it has saved elsewhere. A copy of the directory is another run: it
// continues from the checkpoints that came with it, and leaves alone what the first one has elsewhere.
func TestMovedAndCopiedDirectories(t *testing.T) {
	c := stoppedInFallback(t)
	moved := *c
	moved.OutputDir = filepath.Join(t.TempDir(), "elsewhere", "moved")
	mkdir(t, filepath.Dir(moved.OutputDir))
	if err := os.Rename(c.OutputDir, moved.OutputDir); err != nil {
		t.Fatal(err)
	}
	if got, err := Train(context.Background(), &moved, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 7 {
		t.Fatalf("moved: %+v, error %v", got, err)
	}
	id := idOf(t, &moved)
	if id.Dir != moved.OutputDir {
		t.Errorf("it is where it was: %+v", id)
	}

	longer := moved
	longer.MaxSteps, longer.ResumeWith = 14, []string{"max_steps"}
	copied := longer
	copied.OutputDir = filepath.Join(t.TempDir(), "copy", "moved")
	copyTree(t, moved.OutputDir, copied.OutputDir)
	before := inFallback(t, c.Save.Fallback)
	stop := make(chan struct{})
	env, _ := fullBelow(t, &copied)
	env.Stop, env.Progress = stop, &stopper{"step 13/14", stop}
	sum, err := Train(context.Background(), &copied, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || sum.ResumedAfter != 12 {
		t.Fatalf("copied: %+v, error %v", sum, err)
	}
	of := idOf(t, &copied)
	if there := of.FallbackDir(&copied); of.Run == id.Run || there == id.FallbackDir(&moved) ||
		filepath.Dir(sum.Checkpoint) != there {
		t.Errorf("the copy is %+v, and saved in %s", of, sum.Checkpoint)
	}
	for _, dir := range before {
		sumsOf(t, dir)
	}
	if got, err := Train(context.Background(), &longer, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 12 {
		t.Fatalf("the run that was copied: %+v, error %v", got, err)
	}
	if got, err := Train(context.Background(), &copied, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 13 {
		t.Fatalf("the copy: %+v, error %v", got, err)
	}
	if again := idOf(t, &copied); again.Run != of.Run {
		t.Errorf("the copy is another run at its second start: %+v, %+v", of, again)
	}
}

// Copies of a directory are runs of their own, also where the first one is no longer where it was: none takes what
// another one saves in save.fallback, and all that asks whose a directory is says the same.
func TestCopiesOfAMovedDirectory(t *testing.T) {
	for i, original := range []string{"renamed", "renamed above", "moved away, and back", "removed", "a link"} {
		if testing.Short() && i > 0 {
			continue
		}
		t.Run(original, func(t *testing.T) {
			c := smallConfig(t)
			c.OutputDir = filepath.Join(t.TempDir(), "run")
			c.Save = runfile.Save{Every: 2, Keep: 2, Fallback: t.TempDir()}
			until(t, c, "step  3/12")
			env, _ := fullBelow(t, c)
			stop := make(chan struct{})
			env.Stop, env.Progress = stop, &stopper{"step  7/12", stop}
			if _, err := Train(context.Background(), c, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
				t.Fatal(err)
			}
			first, root := idOf(t, c), t.TempDir()
			base := filepath.Join(filepath.Dir(c.OutputDir), "base")
			switch original {
			case "renamed above":
				above := filepath.Dir(c.OutputDir)
				base = filepath.Join(above+".moved", "run")
				if err := os.Rename(above, above+".moved"); err != nil {
					t.Fatal(err)
				}
			default:
				if err := os.Rename(c.OutputDir, base); err != nil {
					t.Fatal(err)
				}
			}
			before := inFallback(t, c.Save.Fallback)
			var copies []*runfile.Config
			for _, name := range []string{"lr1", "lr2"} {
				copied := *c
				copied.OutputDir = filepath.Join(root, name)
				copyTree(t, base, copied.OutputDir)
				copies = append(copies, &copied)
			}
			switch original {
			case "removed":
				if err := os.RemoveAll(base); err != nil {
					t.Fatal(err)
				}
			case "a link": // output_dir is one, which leads to a copy now
				link := c.OutputDir
				if err := os.Symlink(copies[0].OutputDir, link); err != nil {
					t.Fatal(err)
				}
				copies[0].OutputDir = link
			}
			seen := map[checkpoint.RunID]bool{first.Run: true}
			for _, copied := range copies {
				dirs, err := newEnv(t).Runs().CheckpointDirs(copied.OutputDir)
				if err != nil || len(dirs) != 1 {
					t.Errorf("before it starts, %s has checkpoints in %v, error %v", copied.OutputDir, dirs, err)
				}
				env, said := fullBelow(t, copied)
				stop := make(chan struct{})
				env.Stop, env.Progress = stop, io.MultiWriter(said, &stopper{"step  9/12", stop})
				sum, err := Train(context.Background(), copied, Options{Env: env})
				if !errors.Is(err, ErrInterrupted) || sum.ResumedAfter != 3 {
					t.Fatalf("%s: %+v, error %v", copied.OutputDir, sum, err)
				}
				id := idOf(t, copied)
				if seen[id.Run] || filepath.Dir(sum.Checkpoint) != id.FallbackDir(copied) {
					t.Errorf("%s is %+v, and saved in %s", copied.OutputDir, id, sum.Checkpoint)
				}
				seen[id.Run] = true
				if newest := before[len(before)-1]; !strings.Contains(said.String(), newest) {
					t.Errorf("it does not name %s: %s", newest, said)
				}
				if dirs, err = newEnv(t).Runs().CheckpointDirs(copied.OutputDir); err != nil || len(dirs) != 2 ||
					dirs[1] != id.FallbackDir(copied) {
					t.Errorf("%s has checkpoints in %v, error %v", copied.OutputDir, dirs, err)
				}
			}
			for _, dir := range before {
				sumsOf(t, dir)
			}
			if original == "removed" {
				return
			}
			if original == "moved away, and back" {
				if err := os.Rename(base, c.OutputDir); err != nil {
					t.Fatal(err)
				}
				base = c.OutputDir
			}
			c.OutputDir = base
			if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 7 ||
				idOf(t, c).Run != first.Run {
				t.Errorf("the first run: %+v, error %v", got, err)
			}
		})
	}
}

// A run file with every key, which a run has written, begins a run of its own in another directory, also where the
// file is copied there and the directory that it is from is gone.
func TestRunFilesMakeNoRun(t *testing.T) {
	c := stoppedInFallback(t)
	first := idOf(t, c)
	again := *c
	again.OutputDir = filepath.Join(t.TempDir(), "run")
	mkdir(t, again.OutputDir)
	for _, name := range []string{rundir.ResolvedName, rundir.IdentityName} {
		text, err := os.ReadFile(filepath.Join(c.OutputDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == rundir.ResolvedName { // as a user edits it
			text = bytes.ReplaceAll(text, []byte(c.OutputDir), []byte(again.OutputDir))
		}
		write(t, filepath.Join(again.OutputDir, name), string(text))
	}
	if err := os.RemoveAll(c.OutputDir); err != nil {
		t.Fatal(err)
	}
	got, err := Train(context.Background(), &again, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 0 {
		t.Fatalf("%+v, error %v", got, err)
	}
	if id := idOf(t, &again); id.Run == first.Run || len(id.CopiedFrom) > 0 {
		t.Errorf("the new run is %+v, the old one was %+v", id, first)
	}
}

// A run has its id before anything bears it: one that is killed while its state is loaded keeps it, and one that is
// refused leaves nothing.
func TestIdentityComesFirst(t *testing.T) {
	c := smallConfig(t)
	var during *rundir.Identity
	start := func(then func(kill func()) error) {
		t.Helper()
		during = nil
		ctx, kill := context.WithCancel(context.Background())
		defer kill()
		drive := vfs.NewFaulty(vfs.OS{})
		drive.Intercept(func(op vfs.Op) vfs.Outcome {
			if during == nil && op.Kind == vfs.OpSyncDir && vfs.Exists(filepath.Join(c.OutputDir, rundir.IdentityName)) {
				during = idOf(t, c)
			}
			if during != nil {
				return vfs.Outcome{Err: then(kill)}
			}
			return vfs.Outcome{}
		})
		env := newEnv(t)
		env.FS = drive
		if _, err := Train(ctx, c, Options{Env: env}); err == nil || during == nil {
			t.Fatalf("error %v, identity %+v", err, during)
		}
	}
	start(func(kill func()) error { kill(); return nil })
	if vfs.Exists(c.OutputDir) {
		t.Errorf("left is %v", files(t, c.OutputDir))
	}
	start(func(func()) error { return syscall.EIO }) // nothing is removed, as after a kill
	for _, resume := range []string{"never", "auto"} {
		c.Resume = resume
		if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		if got := idOf(t, c); got.Run != during.Run || !got.Begun {
			t.Errorf("resume: %s: it is %+v, and was %+v", resume, got, during)
		}
	}
}

// A checkpoint of another run in the directory of a run is not adopted, counted, replaced or removed.
func TestForeignCheckpointsStay(t *testing.T) {
	other := smallConfig(t)
	other.Seed, other.Save = 5, runfile.Save{Every: 1}
	if _, err := Train(context.Background(), other, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	c := smallConfig(t)
	c.Model, c.Datasets = other.Model, other.Datasets
	c.Save = runfile.Save{Every: 1, Keep: 1}
	until(t, c, "step  3/12")
	put := func(step string) string {
		to := filepath.Join(rundir.CheckpointsDir(c), step)
		copyTree(t, filepath.Join(rundir.CheckpointsDir(other), step), to)
		return to
	}
	foreign := []string{put("step-000002"), put("step-000005"), put("step-000011")}
	before := files(t, rundir.CheckpointsDir(other))
	env := newEnv(t)
	var said strings.Builder
	env.Progress = &said
	got, err := Train(context.Background(), c, Options{Env: env})
	if err != nil || got.ResumedAfter != 3 {
		t.Fatalf("%+v, error %v", got, err)
	}
	for _, dir := range foreign {
		for name, text := range files(t, dir) {
			if before[filepath.Join(filepath.Base(dir), name)] != text {
				t.Errorf("%s of %s has changed", name, dir)
			}
		}
	}
	if !strings.Contains(said.String(), foreign[2]+" is a checkpoint of another run, and this run does not use it") {
		t.Errorf("it does not name the foreign checkpoint: %s", said.String())
	}
	if !strings.Contains(said.String(), "step-000005 is a checkpoint of another run: move it") {
		t.Errorf("it says %s", said.String())
	}
	c.Resume = foreign[2]
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) ||
		!strings.Contains(err.Error(), "is of another run than the one in this output_dir") {
		t.Errorf("resume from a foreign one: error %v", err)
	}

	// Without run.json it is not known which of two runs continues.
	c.Resume = "auto"
	if err := os.Remove(filepath.Join(c.OutputDir, rundir.IdentityName)); err != nil {
		t.Fatal(err)
	}
	all := files(t, c.OutputDir)
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) ||
		!strings.Contains(err.Error(), "checkpoints of 2 runs") {
		t.Errorf("without run.json: error %v", err)
	}
	if !maps.Equal(files(t, c.OutputDir), all) {
		t.Error("the refused start has changed the directory")
	}
	for _, dir := range foreign {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(c.OutputDir, rundir.IdentityName), "damaged")
	longer := *c
	longer.MaxSteps, longer.ResumeWith = 13, []string{"max_steps"}
	if got, err := Train(context.Background(), &longer, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 12 {
		t.Errorf("with a damaged run.json: %+v, error %v", got, err)
	}
}

// Runs share memory.path: what one that was killed has left there is removed when it starts again, and by no other.
func TestRunsShareMemoryPath(t *testing.T) {
	shared := t.TempDir()
	foreign := filepath.Join(shared, "run-01234567", "part-1-weights-0.v3.extent")
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps, base.Save.Every = base.SequenceLen, 4, 2
	tried := false
	for _, p := range placementsOf(t, base) {
		if p.name != "on disk" {
			continue
		}
		run := *base
		run.Memory = p.memory
		run.Memory.Path = runfile.Paths{shared}
		start := func(stopAt string) string {
			env := newEnv(t)
			env.Tests.ProgramBytes, env.CacheDir = 1, p.cache
			var said strings.Builder
			stop := make(chan struct{})
			env.Stop, env.Progress = stop, io.MultiWriter(&said, &stopper{stopAt, stop})
			if _, err := Train(context.Background(), &run, Options{Env: env}); err != nil && !errors.Is(err, ErrInterrupted) {
				t.Fatal(err)
			}
			return said.String()
		}
		tried = true
		start("step 2/4")
		ours := filepath.Join(idOf(t, &run).StateDirs(&run)[0], filepath.Base(foreign))
		for _, left := range []string{ours, foreign} {
			mkdir(t, filepath.Dir(left))
			write(t, left, strings.Repeat("x", 1<<16))
		}
		start("never")
		if vfs.Exists(ours) || !vfs.Exists(foreign) {
			t.Errorf("what the run left: %v; what another left: %v", vfs.Exists(ours), vfs.Exists(foreign))
		}
		run.OutputDir = filepath.Join(t.TempDir(), "fresh")
		run.OutputDir = filepath.Join(t.TempDir(), "fresh")
		if said := start("never"); !strings.Contains(said, filepath.Dir(foreign)) {
			t.Errorf("it does not say what another has left: %s", said)
		}
	}
	if !tried {
		t.Error("no run had state on disk")
	}
}

// A run.json that is the user's own is not written to.
func TestForeignRunJSONStays(t *testing.T) {
	for _, text := range []string{"{}", `{"scripts": {"train": "make"}}`, "[1, 2]\n"} {
		c := smallConfig(t)
		mkdir(t, c.OutputDir)
		write(t, filepath.Join(c.OutputDir, rundir.IdentityName), text)
		before := files(t, c.OutputDir)
		_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
		if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "run.json was not written by a run") {
			t.Errorf("%s: error %v", text, err)
		}
		if !maps.Equal(files(t, c.OutputDir), before) {
			t.Errorf("%s: the directory has changed", text)
		}
	}
}

// A run that began with resume: PATH continues from its own checkpoints when it is moved together with the run that it
// began from, also once that checkpoint is gone. Another checkpoint does not begin a run there, and the refusal does
// not ask for what the run has saved.
func TestMovedRunsThatBeganElsewhere(t *testing.T) {
	first := smallConfig(t)
	above := filepath.Join(t.TempDir(), "above")
	first.OutputDir, first.Save = filepath.Join(above, "first"), runfile.Save{Every: 1, Keep: 5}
	until(t, first, "step  4/12")
	c := *first
	c.OutputDir, c.Resume = filepath.Join(above, "second"), filepath.Join(rundir.CheckpointsDir(first), "step-000003")
	until(t, &c, "step  6/12")
	if err := os.Rename(above, above+".moved"); err != nil {
		t.Fatal(err)
	}
	move := func(path string) string { return strings.Replace(path, above, above+".moved", 1) }
	first.OutputDir, c.OutputDir, c.Resume = move(first.OutputDir), move(c.OutputDir), move(c.Resume)

	other := c
	other.Resume = filepath.Join(rundir.CheckpointsDir(first), "step-000002")
	_, err := Train(context.Background(), &other, Options{Env: newEnv(t)})
	if !errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "remove") {
		t.Errorf("with another checkpoint: error %v", err)
	}
	stop := make(chan struct{})
	env := newEnv(t)
	env.Stop, env.Progress = stop, &stopper{"step  8/12", stop}
	sum, err := Train(context.Background(), &c, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || sum.ResumedAfter != 6 {
		t.Fatalf("moved: %+v, error %v", sum, err)
	}
	if err := os.RemoveAll(first.OutputDir); err != nil {
		t.Fatal(err)
	}
	if sum, err = Train(context.Background(), &c, Options{Env: newEnv(t)}); err != nil || sum.ResumedAfter != 8 {
		t.Fatalf("without the first run: %+v, error %v", sum, err)
	}
}

// A run that has lost its run.json twice, or once in a copy, continues: its checkpoints say that they are of one
// lineage.
func TestIdentityLostTwice(t *testing.T) {
	for _, copied := range []bool{false, true} {
		c := smallConfig(t)
		c.Save = runfile.Save{Every: 1, Keep: 9}
		until(t, c, "step  2/12")
		if copied {
			to := filepath.Join(t.TempDir(), "copy")
			copyTree(t, c.OutputDir, to)
			c.OutputDir = to
			until(t, c, "step  4/12")
		}
		for step := 5; step < 8; step++ {
			if err := os.Remove(filepath.Join(c.OutputDir, rundir.IdentityName)); err != nil {
				t.Fatal(err)
			}
			until(t, c, fmt.Sprintf("step  %d/12", step))
		}
		if got := idOf(t, c); len(got.CopiedFrom) < 3 {
			t.Errorf("it is %+v", got)
		}
		if sum, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || sum.ResumedAfter != 7 {
			t.Errorf("%+v, error %v", sum, err)
		}
	}
}
