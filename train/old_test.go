package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// severalUpdates is a run of two steps with the same answers, of which the second clips.
func severalUpdates(t *testing.T) *runfile.Config {
	c := rolloutConfig(t)
	c.Objective = runfile.Objective{Type: "policy", Old: "start", Correction: "none", Clip: []float64{0.01, 0.01}}
	c.Datasets[0].Path = rollouts(t, func(int, int, int) string { return "" })
	c.LRScheduler, c.WarmupSteps, c.MaxSteps, c.BatchTokens = "constant", 0, 2, 20*c.SequenceLen
	return c
}

// Two updates with the same answers, clipped by what the model was before the first, are those of two single steps over
// rows that have its log-probabilities, by the bits. So they are where the run is stopped in between.
func TestSeveralUpdatesWithTheSameAnswers(t *testing.T) {
	c := severalUpdates(t)
	all := trainedOn(t, c)
	const clipped = "clip_ratio/region_mean"
	if first, second := all[0].Objective[clipped], all[1].Objective[clipped]; first != 0 ||
		!(second > 0.1) {
		t.Fatalf("%v of the tokens are clipped in the first step, and %v in the second", first, second)
	}
	model := filepath.Join(c.OutputDir, rundir.LastModel)

	single := severalUpdates(t)
	r := openRun(t, single, "", OpenOptions{})
	document := 0
	single.Objective.Old, single.Datasets[0].Path = "data", rollouts(t, func(_, _, n int) string {
		const prompt = 5
		own := make([]byte, 4*(prompt+n-1))
		if err := r.aim.old.Read(own, 0, document); err != nil {
			t.Fatal(err)
		}
		document++
		return fmt.Sprintf(`, "old": [%s]`, strings.Join(strings.Fields(strings.Trim(fmt.Sprint(
			hostmem.F32(own)[prompt-1:]), "[]")), ", "))
	})
	stopped := severalUpdates(t)
	stopped.Datasets[0].Path = c.Datasets[0].Path
	for _, own := range []*runfile.Config{single, stopped} {
		own.ResumeWith = []string{"max_steps"}
		for own.MaxSteps = 1; own.MaxSteps <= 2; own.MaxSteps++ {
			if _, err := Train(t.Context(), own, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
		}
		sameModel(t, filepath.Join(own.OutputDir, rundir.LastModel), model)
	}

	now := severalUpdates(t)
	now.Objective.Old = "now"
	if second := trainedOn(t, now)[1].Objective["clip_ratio/region_mean"]; second != 0 {
		t.Errorf("with old: now %v of the tokens are clipped", second)
	}

	// Other answers begin again, and those of before are gone.
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(stopped.OutputDir, rundir.OldName, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := files()
	stopped.Datasets[0].Path = rollouts(t, func(int, int, int) string { return `, "version": 2` })
	text, err := os.ReadFile(stopped.Datasets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, stopped.Datasets[0].Path, strings.ReplaceAll(string(text), "100, ", "101, ")) // "say d" is "say e" now
	stopped.MaxSteps, stopped.ResumeWith = 3, []string{"max_steps", "datasets"}
	if _, err := Train(t.Context(), stopped, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	if after := files(); len(before) != 1 || len(after) != 1 || before[0] == after[0] {
		t.Errorf("the files are %q, and were %q", after, before)
	}
	if last := metricsOf(t, stopped.OutputDir)[2].Objective["clip_ratio/region_mean"]; last != 0 {
		t.Errorf("%v of the tokens of new answers are clipped", last)
	}

	// A run in the middle of its updates does not take the model of now for that of before.
	if err := os.RemoveAll(filepath.Join(stopped.OutputDir, rundir.OldName)); err != nil {
		t.Fatal(err)
	}
	stopped.MaxSteps, stopped.ResumeWith = 4, []string{"max_steps"}
	_, err = Train(t.Context(), stopped, Options{Env: newEnv(t)})
	if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "bring the directory back") {
		t.Errorf("without its files the run has the error %v", err)
	}
}
