package train

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// A run that has ended and has not saved its end, or nothing at all, does nothing when it is started again. If the
// model is gone it makes it again; if another model is there it leaves that alone; and it may be made longer.
func TestEndedRunsStayEnded(t *testing.T) {
	for name, save := range map[string]runfile.Save{"no checkpoint": {}, "an earlier checkpoint": {Every: 5},
		"its end": {AtEnd: true}} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Save = save
			want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			before := files(t, c.OutputDir)
			env := newEnv(t)
			var said strings.Builder
			env.Progress = &said
			again, err := Train(context.Background(), c, Options{Env: env})
			if err != nil || again.Steps != 12 || again.ResumedAfter != 12 || again.TargetTokens != 0 ||
				again.Model != want.Model {
				t.Errorf("%+v, error %v", again, err)
			}
			if strings.Contains(said.String(), "starts over") || !strings.Contains(said.String(), "this run has ended") {
				t.Errorf("it says %s", said.String())
			}
			if !maps.Equal(files(t, c.OutputDir), before) {
				t.Error("the directory has changed")
			}

			kept := filepath.Join(t.TempDir(), "kept")
			if err := os.Rename(want.Model, kept); err != nil {
				t.Fatal(err)
			}
			copyTree(t, c.Model, want.Model)
			theirs := files(t, c.OutputDir)
			_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "is not the model that the run has written") {
				t.Errorf("with another model: error %v", err)
			}
			if !maps.Equal(files(t, c.OutputDir), theirs) {
				t.Error("with another model: the directory has changed")
			}

			if err := os.RemoveAll(want.Model); err != nil {
				t.Fatal(err)
			}
			again, err = Train(context.Background(), c, Options{Env: newEnv(t)})
			if err != nil || again.ResumedAfter != map[string]int{"an earlier checkpoint": 10, "its end": 12}[name] {
				t.Fatalf("without the model: %+v, error %v", again, err)
			}
			sameModel(t, again.Model, kept)
			if save.Every == 0 {
				return
			}
			longer := *c
			longer.MaxSteps, longer.ResumeWith = 14, []string{"max_steps"}
			again, err = Train(context.Background(), &longer, Options{Env: newEnv(t)})
			if err != nil || again.Steps != 14 || again.ResumedAfter != 10 {
				t.Errorf("with more steps: %+v, error %v", again, err)
			}
			// With the steps that it had before, it does not train again, and its model stays that of more steps.
			if again, err = Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil || again.Steps != 14 {
				t.Errorf("with fewer steps again: %+v, error %v", again, err)
			}
		})
	}
}

// A run that has ended does not train over its model where its checkpoints were removed for space: not when its
// directory was moved or copied, and not when run.json, which says so, is gone as well.
func TestEndedRunsWithoutCheckpoints(t *testing.T) {
	for _, what := range []string{"moved above", "copied", "no run.json"} {
		t.Run(what, func(t *testing.T) {
			c := smallConfig(t)
			c.OutputDir = filepath.Join(t.TempDir(), "above", "run")
			if what == "no run.json" {
				c.Save = runfile.Save{}
			}
			if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			err := os.RemoveAll(rundir.CheckpointsDir(c))
			above := filepath.Dir(c.OutputDir)
			switch what {
			case "moved above":
				err = errors.Join(err, os.Rename(above, above+".moved"))
				c.OutputDir = filepath.Join(above+".moved", "run")
			case "copied":
				copyTree(t, above, above+".copy")
				c.OutputDir = filepath.Join(above+".copy", "run")
			default:
				err = errors.Join(err, os.Remove(filepath.Join(c.OutputDir, rundir.IdentityName)))
			}
			if err != nil {
				t.Fatal(err)
			}
			before := files(t, c.OutputDir)
			got, err := Train(context.Background(), c, Options{Env: newEnv(t)})
			if what == "no run.json" {
				if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "says that the run has ended") {
					t.Errorf("%+v, error %v", got, err)
				}
			} else if err != nil || got.ResumedAfter != 12 {
				t.Errorf("%+v, error %v", got, err)
			}
			for name, text := range before {
				if now := files(t, c.OutputDir)[name]; now != text && !strings.HasSuffix(name, ".lock") {
					t.Errorf("%s has changed", name)
				}
			}
		})
	}
}

// A run that ends among unhealthy steps, too few to end it, has its model, an error as its last line, also when it is
// started again, a card that says so, and no loss that it does not have.
func TestEndAmongUnhealthySteps(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.LearningRate, c.WarmupSteps = 4, 1e20, 0
	for range 2 {
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err == nil || errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "steps were unhealthy") ||
			!strings.Contains(err.Error(), filepath.Join(c.OutputDir, rundir.LastModel)) {
			t.Fatalf("%+v, error %v", sum, err)
		}
	}
	card, err := os.ReadFile(filepath.Join(c.OutputDir, rundir.LastModel, "README.md"))
	if err != nil || !strings.Contains(string(card), "steps were unhealthy") {
		t.Errorf("the card: %s, error %v", card, err)
	}
	if doc, err := json.Marshal(Summary{LastLoss: math.NaN()}); err != nil || !strings.Contains(string(doc), `"last_loss":null`) {
		t.Errorf("%s, error %v", doc, err)
	}
}
