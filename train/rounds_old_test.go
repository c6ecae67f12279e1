package train

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
)

// roundRows reads the rows of a round.
func roundRows(t *testing.T, dir string, round int) (rows []map[string]any) {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(dir, rl.Dir, rl.RowsName(round)))
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	text, err := z.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // so that numbers are written as they are read
	for d.More() {
		row := map[string]any{}
		if err := d.Decode(&row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// A round of several steps clips by what the model was before the first of them: by the sampler's log-probabilities or
// by an evaluation, with the bits of a run over its file with old: data. With old: now nothing is clipped.
func TestRoundsOfSeveralSteps(t *testing.T) {
	c := loopConfig(t)
	c.RL.Iterations, c.BatchTokens, c.Objective.Clip = 2, 512, []float64{0.001, 0.001}
	c.MaxSteps = 4
	models, clipped := map[string][]byte{}, map[string]float64{}
	for _, old := range []string{"data", "start", "now"} {
		own := *c
		own.Objective.Old, own.OutputDir = old, filepath.Join(t.TempDir(), "run")
		all := loopRecords(t, &own)
		for step, m := range all {
			if _, begins := m.Objective["rollout_sec"]; begins != (step == 0) {
				t.Fatalf("old: %s: step %d begins a round: %v; the round is to have all steps", old, step+1, begins)
			}
			// With now the model has changed since it sampled, after the first step.
			if d := m.Objective[farthest]; d != 0 && (old != "now" || step == 0) {
				t.Errorf("old: %s, step %d: log-probabilities differ by %v", old, step+1, d)
			}
			clipped[old] = max(clipped[old], m.Objective["clip_ratio/region_mean"])
		}
		models[old] = loopWeights(t, &own)
		if old == "data" {
			file := filepath.Join(t.TempDir(), "rows.jsonl")
			var text strings.Builder
			for _, row := range roundRows(t, own.OutputDir, 0) {
				row = maps.Clone(row)
				row["old"] = row["logprobs"]
				line, err := json.Marshal(row)
				if err != nil {
					t.Fatal(err)
				}
				text.Write(append(line, '\n'))
			}
			write(t, file, text.String())
			plain := own
			plain.RL, plain.Datasets = runfile.RL{}, []data.Source{{Path: file, Type: data.Rollouts}}
			plain.OutputDir = filepath.Join(t.TempDir(), "run")
			loopRecords(t, &plain)
			models["file"] = loopWeights(t, &plain)
		}
	}
	if !bytes.Equal(models["data"], models["file"]) {
		t.Error("the loop's model is not that of a run over the file of its round with old: data")
	}
	if !bytes.Equal(models["data"], models["start"]) {
		t.Error("with old: start the loop's model is another one than with old: data")
	}
	if bytes.Equal(models["data"], models["now"]) || clipped["now"] != 0 || !(clipped["data"] > 0.05) {
		t.Errorf("shares of clipped tokens: %v", clipped)
	}
}

// farthest is the record of the largest difference between log-probabilities by the sampler and by the trainer.
const farthest = "sampling/sampling_logp_difference/max"

// In bf16, too, what the sampler says of its tokens is what an evaluation makes of them before the first step, by the
// bits. Rows of steps are full of other answers, and the sampler's passes have a token of each text.
func TestSamplerSaysWhatTheTrainerSays(t *testing.T) {
	c := loopConfig(t)
	c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
	c.RL.Iterations, c.BatchTokens, c.MaxSteps = 2, 512, 4
	var models [][]byte
	for _, old := range []string{"data", "start"} {
		own := *c
		own.Objective.Old, own.OutputDir = old, filepath.Join(t.TempDir(), "run")
		for _, m := range loopRecords(t, &own) {
			if d, ok := m.Objective[farthest]; !ok || d != 0 {
				t.Errorf("old: %s, step %d: log-probabilities differ by %v", old, m.Step, d)
			}
		}
		models = append(models, loopWeights(t, &own))
	}
	if !bytes.Equal(models[0], models[1]) {
		t.Error("with old: start the loop's model is another one than with old: data")
	}
}

// A loop that ends between the steps of a round has what the model was before the round, and continues to the same
// bits. Without that it refuses to take the model of now for it.
func TestRoundsOfSeveralStepsContinue(t *testing.T) {
	c := loopConfig(t)
	c.RL.Iterations, c.BatchTokens, c.Objective.Clip, c.Objective.Old = 2, 512, []float64{0.001, 0.001}, "start"
	c.MaxSteps = 6
	loopRecords(t, c)
	want := loopWeights(t, c)
	for _, lost := range []bool{false, true} {
		own := *c
		own.OutputDir = filepath.Join(t.TempDir(), "run")
		own.MaxSteps, own.ResumeWith = 2, []string{"max_steps"}
		loopRecords(t, &own)
		own.MaxSteps = c.MaxSteps
		if lost {
			if err := os.RemoveAll(filepath.Join(own.OutputDir, rundir.OldName)); err != nil {
				t.Fatal(err)
			}
			_, err := Train(context.Background(), &own, Options{Env: newEnv(t)})
			if err == nil || !strings.Contains(err.Error(), "bring the directory back") {
				t.Errorf("without its file the run has the error %v", err)
			}
			continue
		}
		loopRecords(t, &own)
		if !bytes.Equal(loopWeights(t, &own), want) {
			t.Error("a loop that ended inside of a round has another model")
		}
	}
}
