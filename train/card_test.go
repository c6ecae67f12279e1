package train

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// TestCardOfARun trains: the model has a card with the data, the losses and the settings, without paths of this
// machine. A checkpoint that is exported has the same one; a model that is written again keeps it.
func TestCardOfARun(t *testing.T) {
	c := withEval(smallConfig(t))
	env := newEnv(t)
	if _, err := Train(context.Background(), c, env, Options{}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.OutputDir, lastModel)
	card := files(t, dir)[hf.CardName]
	for _, want := range []string{"library_name: transformers\n", "pipeline_tag: text-generation\n", hf.CardMark,
		"## Data", "## Losses", "## Settings",
		"millrace train run.yaml", "learning_rate: ", "| 1 | ", "`" + filepath.Base(c.Datasets[0].Path) + "`",
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
	if _, err := Export(context.Background(), env, ExportOptions{Checkpoint: lastCheckpoint(t, c), Model: c.Model,
		Dir: out}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, out)[hf.CardName]; got != card {
		t.Errorf("the card of the checkpoint is\n%s\nthat of the model\n%s", got, card)
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := Export(context.Background(), env, ExportOptions{Model: out, Dir: again, DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, again)[hf.CardName]; got != card {
		t.Errorf("the card came back as\n%s", got)
	}

	// Without the run's directory the settings are those of the checkpoint.
	for _, name := range []string{resolvedName, otherResolvedName, metricsName} {
		if err := os.RemoveAll(filepath.Join(c.OutputDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	bare := filepath.Join(t.TempDir(), "bare")
	if _, err := Export(context.Background(), env, ExportOptions{Checkpoint: lastCheckpoint(t, c), Model: c.Model,
		Dir: bare}); err != nil {
		t.Fatal(err)
	}
	got := files(t, bare)[hf.CardName]
	if !strings.Contains(got, "| learning_rate | ") || strings.Contains(got, "## Losses") || strings.Contains(got,
		"## Data") {
		t.Errorf("the card without a run is\n%s", got)
	}
}

// TestCardText: ids of the hub come into the head, and the table of a long run is short.
func TestCardText(t *testing.T) {
	r := runfile.Defaults()
	r.Model, r.OutputDir = "org/base", "/home/ada/runs/x"
	r.Datasets = []data.Source{{Path: "openai/gsm8k", Type: data.PromptResponse, Name: "main", Split: "train"},
		{Path: "/home/ada/a|b.jsonl", Type: data.Text}}
	var metrics []trace.Metrics
	for step := int64(1); step <= 1000; step++ {
		m := trace.Metrics{Step: step, Loss: 3 / float64(step), Tokens: 100, TargetTokens: 40}
		if step == 777 {
			loss := 0.25
			m.EvalLoss = &loss
		}
		metrics = append(metrics, m)
	}
	c := card{name: "x", model: "llama", params: 134515008, dtype: tensor.BF16, step: 1000, base: r.Model, config: &r,
		metrics: metrics}
	text := string(c.text())
	for _, want := range []string{"---\nbase_model: org/base\ndatasets: [openai/gsm8k]\nlibrary_name:",
		"| openai/gsm8k, main, train | prompt-response | training |",
		"| `a\\|b.jsonl` | text | training |", "| 1 | 3.0000 |", "| 1000 | 0.0030 |", "| 777 | 0.0039 | 0.2500 |",
		"A llama model of 135M parameters in bf16, trained further from org/base for 1000 steps"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the card:\n%s", want, text)
		}
	}
	if strings.Contains(text, "/home") {
		t.Errorf("a path of the machine is in the card:\n%s", text)
	}
	if rows := strings.Count(text, "\n| "); rows > 20 {
		t.Errorf("%d rows:\n%s", rows, text)
	}
	r.Init = "random"
	if text = string(c.text()); !strings.Contains(text, "trained from random weights") {
		t.Errorf("the card of random weights is\n%s", text)
	}
}
