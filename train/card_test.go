package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/source"
)

// TestCardOfARun trains: the model has a card with the data, the losses and the settings, without paths of this
// machine. A checkpoint that is exported has the same one; a model that is written again keeps it.
func TestCardOfARun(t *testing.T) {
	c := withEval(smallConfig(t))
	env := newEnv(t)
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.OutputDir, rundir.LastModel)
	card := files(t, dir)[hf.CardName]
	for _, want := range []string{"library_name: transformers\n", "pipeline_tag: text-generation\n", hf.CardMark,
		"## Data", "## Losses", "## Settings",
		"millrace train run.yaml", "learning_rate: ", "\n| 0 |  | ", "\n| 1 | ", "On the evaluation data: ",
		" before training, ", " after step 12.", "`" + filepath.Base(c.Datasets[0].Path) + "`",
		"sequence_len: "} {
		if !strings.Contains(card, want) {
			t.Errorf("no %q in the card:\n%s", want, card)
		}
	}
	for _, secret := range []string{os.TempDir(), c.OutputDir, filepath.Dir(c.Model)} {
		if strings.Contains(card, secret) {
			t.Errorf("the card names %s:\n%s", secret, card)
		}
	}

	out := filepath.Join(t.TempDir(), "exported")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: lastCheckpoint(t, c),
		Model: c.Model,
		Dir:   out}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, out)[hf.CardName]; got != card {
		t.Errorf("the card of the checkpoint is\n%s\nthat of the model\n%s", got, card)
	}
	// However the checkpoint is named: with a slash at the end, and from its own directory.
	checkpoints, step := filepath.Split(lastCheckpoint(t, c))
	t.Chdir(checkpoints)
	for i, name := range []string{lastCheckpoint(t, c) + "/", step} {
		out := filepath.Join(t.TempDir(), fmt.Sprint("exported", i))
		if _, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: name, Model: c.Model,
			Dir: out}); err != nil {
			t.Fatal(err)
		}
		if got := files(t, out)[hf.CardName]; got != card {
			t.Errorf("the card of checkpoint %s is\n%s\nthat of the model\n%s", name, got, card)
		}
	}
	// Wherever a checkpoint of the run is, such as in save.fallback, the card is that of the run.
	elsewhere := filepath.Join(t.TempDir(), "small", rundir.CheckpointsName, step)
	if err := os.CopyFS(elsewhere, os.DirFS(lastCheckpoint(t, c))); err != nil {
		t.Fatal(err)
	}
	from, err := checkpoint.Open(env.Files(), elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	src, err := source.OpenModel(context.Background(), env, c.Model)
	if err != nil {
		t.Fatal(err)
	}
	out = filepath.Join(t.TempDir(), "elsewhere")
	if err := export.Checkpoint(context.Background(), env, c.OutputDir, from, src, out, export.FormatOf(src),
		hf.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, out)[hf.CardName]; got != card {
		t.Errorf("the card of a checkpoint elsewhere is\n%s\nthat of the model\n%s", got, card)
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: out, Dir: again,
		DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, again)[hf.CardName]; got != card {
		t.Errorf("the card came back as\n%s", got)
	}

	// Without the run's directory the settings are those of the checkpoint.
	for _, name := range []string{rundir.ResolvedName, rundir.OtherResolvedName, rundir.MetricsName} {
		if err := os.RemoveAll(filepath.Join(c.OutputDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	bare := filepath.Join(t.TempDir(), "bare")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: lastCheckpoint(t, c),
		Model: c.Model,
		Dir:   bare}); err != nil {
		t.Fatal(err)
	}
	got := files(t, bare)[hf.CardName]
	if !strings.Contains(got, "| `learning_rate` | `") || strings.Contains(got, "## Losses") || strings.Contains(got,
		"## Data") {
		t.Errorf("the card without a run is\n%s", got)
	}
}

// TestCardOfHubModel: the head names the base model where the hub's cache has it, and not for a directory of that name.
func TestCardOfHubModel(t *testing.T) {
	server, _ := hubtest.Start(t)
	c := smallConfig(t)
	server.Repos["models/org/base"] = &hubtest.Repo{Files: files(t, c.Model)}
	delete(server.Repos["models/org/base"].Files, ".")
	t.Chdir(t.TempDir())
	text, err := os.ReadFile(c.Datasets[0].Path)
	if err == nil {
		err = errors.Join(os.CopyFS("local/base", os.DirFS(c.Model)), os.Mkdir("local/texts", 0o777),
			os.WriteFile("local/texts/a.txt", text, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, isID := range map[string]bool{"org/base": true, "local/base": false} {
		c.Model, c.OutputDir, c.MaxSteps, c.WarmupSteps = name, filepath.Join("runs", filepath.Dir(name)), 1, 0
		c.Datasets = []data.Source{{Path: "local/texts", Type: data.Text}}
		if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		card := files(t, filepath.Join(c.OutputDir, rundir.LastModel))[hf.CardName]
		if strings.Contains(card, "base_model: "+name+"\n") != isID || strings.Contains(card, "base_model: ") != isID ||
			strings.Contains(card, "datasets: [") {
			t.Errorf("%s:\n%s", name, card)
		}
		// An export elsewhere finds the same.
		out, checkpoint, model := t.TempDir(), runfile.Absolute(lastCheckpoint(t, c)), name
		if !isID {
			model = runfile.Absolute(name)
		}
		t.Chdir(t.TempDir())
		_, err := export.HuggingFace(context.Background(), newEnv(t),
			export.Options{Checkpoint: checkpoint, Model: model, Dir: out})
		t.Chdir(filepath.Join(filepath.Dir(checkpoint), "../../.."))
		if got := files(t, out)[hf.CardName]; err != nil || got != card {
			t.Errorf("%s: %v; the card of an export is\n%s\nthat of the model\n%s", name, err, got, card)
		}
	}
}

// TestExportOfStrangeCard: a card that cannot be copied is found before the weights are written.
func TestExportOfStrangeCard(t *testing.T) {
	dir, out := writeModel(t, nil), filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(filepath.Join(dir, hf.CardName), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := export.HuggingFace(context.Background(), newEnv(t), export.Options{Model: dir, Dir: out})
	if err == nil || !strings.Contains(err.Error(), "is a directory") || !errors.Is(err, blame.ErrRequest) {
		t.Errorf("%v", err)
	}
	// A run has a card of its own.
	c := smallConfig(t)
	c.Model, c.MaxSteps, c.WarmupSteps = dir, 1, 0
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Error(err)
	}
}
