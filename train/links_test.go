package train

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// longer is a run of more steps than a configuration's, in an output directory.
func longer(c *runfile.Config, dir string) *runfile.Config {
	l := *c
	l.OutputDir, l.MaxSteps, l.ResumeWith = dir, c.MaxSteps+4, []string{"max_steps"}
	return &l
}

// linkTo has a link at a name, in place of what was there.
func linkTo(t *testing.T, to, name string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(name), os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(to, name)); err != nil {
		t.Fatal(err)
	}
}

// refusedLink fails unless a run is refused, for a link.
func refusedLink(t *testing.T, c *runfile.Config) {
	t.Helper()
	_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	var not *vfs.NotOwnError
	if !errors.As(err, &not) || !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "is a link to") {
		t.Errorf("error %v", err)
	}
}

// The directory of a run that came from elsewhere, as an archive or a clone does, belongs to the user, and so do its
// links. None of them has files changed or removed that the run has not written.
func TestLinksInARunLeadNowhere(t *testing.T) {
	c := smallConfig(t)
	c.Save.Every, c.Save.Keep = 1, 0
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	of := func(name string) string { return filepath.Join(c.OutputDir, name) }
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"the model of a copy": func(t *testing.T, dir string) {
			copyTree(t, c.OutputDir, dir)
			linkTo(t, of(rundir.LastModel), filepath.Join(dir, rundir.LastModel))
		},
		"the best model of a copy": func(t *testing.T, dir string) {
			copyTree(t, c.OutputDir, dir)
			linkTo(t, of(rundir.LastModel), filepath.Join(dir, rundir.BestModel))
		},
		"checkpoints, alone": func(t *testing.T, dir string) {
			linkTo(t, of(rundir.CheckpointsName), filepath.Join(dir, rundir.CheckpointsName))
		},
		"checkpoints of a copy": func(t *testing.T, dir string) {
			copyTree(t, c.OutputDir, dir)
			linkTo(t, of(rundir.CheckpointsName), filepath.Join(dir, rundir.CheckpointsName))
		},
		"checkpoints of another run": func(t *testing.T, dir string) {
			other := *c
			other.OutputDir, other.MaxSteps = dir, 2
			if _, err := Train(context.Background(), &other, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			linkTo(t, of(rundir.CheckpointsName), filepath.Join(dir, rundir.CheckpointsName))
		},
		"checkpoints, to other files": func(t *testing.T, dir string) {
			linkTo(t, of(rundir.LastModel), filepath.Join(dir, rundir.CheckpointsName))
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := filesBelow(t, c.OutputDir)
			dir := filepath.Join(t.TempDir(), "run")
			prepare(t, dir)
			l := longer(c, dir)
			l.Save.Keep = 1
			refusedLink(t, l)
			if !maps.Equal(filesBelow(t, c.OutputDir), before) {
				t.Error("files of the other run have changed")
			}
		})
	}
}

// filesBelow are the contents of all files below a directory.
func filesBelow(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var text []byte
			text, err = os.ReadFile(path)
			all[path] = string(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The directories that a run has below save.fallback and memory.path are not links to files of others either.
func TestLinksInSharedDirectoriesLeadNowhere(t *testing.T) {
	other := smallConfig(t)
	other.Save.Every = 1
	if _, err := Train(context.Background(), other, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]func(c *runfile.Config) (to, link string){
		"save.fallback": func(c *runfile.Config) (string, string) {
			return other.OutputDir, filepath.Join(c.Save.Fallback, idOf(t, c).Name)
		},
		"checkpoints in it": func(c *runfile.Config) (string, string) {
			return rundir.CheckpointsDir(other), idOf(t, c).FallbackDir(c)
		},
		"memory.path": func(c *runfile.Config) (string, string) { return other.OutputDir, idOf(t, c).StateDirs(c)[0] },
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Save.Every, c.Save.Fallback = 4, t.TempDir()
			until(t, c, "step  6/12")
			to, link := at(c)
			linkTo(t, to, link)
			before := filesBelow(t, other.OutputDir)
			refusedLink(t, c)
			if !maps.Equal(filesBelow(t, other.OutputDir), before) {
				t.Error("files of the other run have changed")
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
			if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 6 {
				t.Errorf("without the link: %+v, error %v", got, err)
			}
		})
	}
}

// A run's checkpoints may be on another disk, by a link: at first an empty directory, later one that has the run's own.
// They may be moved there, and the output directory may be moved, too.
func TestLinkedCheckpoints(t *testing.T) {
	c := smallConfig(t)
	c.Save.Every = 2
	alone := *c
	alone.OutputDir = filepath.Join(t.TempDir(), "alone")
	var want *Summary
	for _, c := range []*runfile.Config{&alone, longer(&alone, alone.OutputDir)} {
		var err error
		if want, err = Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
	}
	big := filepath.Join(t.TempDir(), "big")
	mkdir(t, big)
	linkTo(t, big, rundir.CheckpointsDir(c))
	until(t, c, "step  6/12")
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(c.OutputDir, moved); err != nil {
		t.Fatal(err)
	}
	c.OutputDir = moved
	bigger := filepath.Join(t.TempDir(), "bigger")
	if err := os.Rename(big, bigger); err != nil {
		t.Fatal(err)
	}
	linkTo(t, bigger, rundir.CheckpointsDir(c))
	if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 6 {
		t.Fatalf("moved: %+v, error %v", got, err)
	}

	// So may its model, which is there to be read. It is not replaced there.
	model := filepath.Join(t.TempDir(), "model")
	if err := os.Rename(filepath.Join(c.OutputDir, rundir.LastModel), model); err != nil {
		t.Fatal(err)
	}
	linkTo(t, model, filepath.Join(c.OutputDir, rundir.LastModel))
	if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 12 {
		t.Fatalf("the run has ended: %+v, error %v", got, err)
	}
	c = longer(c, c.OutputDir)
	refusedLink(t, c)
	empty := t.TempDir()
	linkTo(t, empty, filepath.Join(c.OutputDir, rundir.LastModel))
	if got, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || got.ResumedAfter != 12 {
		t.Fatalf("longer: %+v, error %v", got, err)
	}
	sameModel(t, empty, want.Model)
}

// Checkpoints that were moved to another file system are in another directory: the user says once that the link to them
// is theirs, and run.json notes it.
func TestLinkToMovedCheckpoints(t *testing.T) {
	c := smallConfig(t)
	until(t, c, "step  2/12")
	there := filepath.Join(t.TempDir(), "there")
	copyTree(t, rundir.CheckpointsDir(c), there)
	linkTo(t, there, rundir.CheckpointsDir(c))
	refusedLink(t, c)
	below.Allow(below.Links{Anywhere: true})
	defer below.Allow(below.Links{})
	until(t, c, "step  4/12")
	below.Allow(below.Links{})
	until(t, c, "step  6/12")
	if sums, err := os.ReadDir(there); err != nil || len(sums) == 0 {
		t.Errorf("%v, error %v", sums, err)
	}
}
