package train

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// A run with frozen tensors leaves them as they were and keeps no state of them, trains the others, continues to the
// bit from its checkpoint, and the checkpoint can be evaluated and exported like any other.
func TestFrozenTensors(t *testing.T) {
	frozen := func(name string) bool {
		return strings.HasPrefix(name, "model.layers.0.") || name == "model.embed_tokens.weight" || name == "lm_head.weight"
	}
	for name, change := range map[string]func(*runfile.Config){
		"groups": func(c *runfile.Config) {
			c.Groups = []optim.Group{{Match: "model.layers.0.*", Freeze: true}, {Match: "*embed_tokens*", Freeze: true},
				{Match: "lm_head.*", Freeze: true}, {Match: "*norm.weight", LearningRate: optim.Given(5e-3), WeightDecay: optim.Given(0)}}
		},
		"train_only, streamed": func(c *runfile.Config) {
			c.TrainOnly = []string{"model.layers.[1-9].*", "model.norm.weight"}
			c.Precision, c.Memory.Device = runfile.Defaults().Precision, budget(t, "3MiB").Device
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			change(c)
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			c.Save = runfile.Save{Every: 100, AtEnd: true}
			whole := *c
			whole.OutputDir = filepath.Join(t.TempDir(), "whole")
			want, err := Train(t.Context(), &whole, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			card, err := os.ReadFile(filepath.Join(want.Model, hf.CardName))
			if err != nil || !strings.Contains(string(card), " of its parameters, the others frozen, at full precision") {
				t.Errorf("the card does not say what was trained (error %v): %s", err, card)
			}
			before := readFile(t, filepath.Join(c.Model, "model.safetensors"))
			after := readFile(t, filepath.Join(want.Model, "model.safetensors"))
			for name, values := range before {
				if same := slices.Equal(values, after[name]); same != frozen(name) {
					t.Errorf("%s is as it was: %v", name, same)
				}
			}

			until(t, c, "step  5/12")
			other := *c
			other.Groups, other.TrainOnly = nil, []string{"model.norm.weight"}
			if _, err := Train(t.Context(), &other, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) ||
				!strings.Contains(err.Error(), "train_only was") || !strings.Contains(err.Error(), "restore them") {
				t.Errorf("with other frozen tensors: error %v", err)
			}
			if _, err := Open(t.Context(), &other, OpenOptions{Env: newEnv(t), From: filepath.Join(rundir.CheckpointsDir(c),
				"step-000005")}); err == nil ||
				!strings.Contains(err.Error(), "restore groups and train_only") {
				t.Errorf("opened with other frozen tensors: error %v", err)
			}
			got, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err != nil || got.ResumedAfter != 5 {
				t.Fatalf("%+v, error %v", got, err)
			}
			sameModel(t, got.Model, want.Model)

			last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
			if err != nil {
				t.Fatal(err)
			}
			m, err := last.Model()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range last.Manifest.Extents {
				if strings.HasPrefix(e.Part, "block.0") && e.Kind != store.Weights {
					t.Errorf("the checkpoint has %v of %s", e.Kind, e.Part)
				}
			}
			if len(last.Manifest.Model.Frozen) == 0 || !slices.Equal(m.Untrained(), last.Manifest.Model.Frozen) {
				t.Errorf("the checkpoint's model has %v frozen, want %v", m.Untrained(), last.Manifest.Model.Frozen)
			}
			dir := filepath.Join(t.TempDir(), "exported")
			if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: c.Model, Checkpoint: last.Dir(),
				Dir: dir}); err != nil {
				t.Fatal(err)
			}
			sameModel(t, dir, want.Model)
			if _, err := generate.Text(t.Context(), newEnv(t), generate.Options{Model: last.Dir(), Prompt: "a",
				Tokenizer: "bytes",
				MaxTokens: 2}); err != nil {
				t.Error(err)
			}
		})
	}
}
