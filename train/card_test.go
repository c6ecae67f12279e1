package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
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
	if _, err := Export(context.Background(), env, ExportOptions{Checkpoint: lastCheckpoint(t, c), Model: c.Model,
		Dir: out}); err != nil {
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
		if _, err := Export(context.Background(), env, ExportOptions{Checkpoint: name, Model: c.Model,
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
	from, err := checkpoint.Open(env.files(), elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	src, err := openModel(context.Background(), env, c.Model)
	if err != nil {
		t.Fatal(err)
	}
	out = filepath.Join(t.TempDir(), "elsewhere")
	if err := env.exportCheckpoint(context.Background(), c.OutputDir, from, src, out, src.exportFormat(),
		hf.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, out)[hf.CardName]; got != card {
		t.Errorf("the card of a checkpoint elsewhere is\n%s\nthat of the model\n%s", got, card)
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := Export(context.Background(), env, ExportOptions{Model: out, Dir: again, DType: tensor.F32}); err != nil {
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
	if _, err := Export(context.Background(), env, ExportOptions{Checkpoint: lastCheckpoint(t, c), Model: c.Model,
		Dir: bare}); err != nil {
		t.Fatal(err)
	}
	got := files(t, bare)[hf.CardName]
	if !strings.Contains(got, "| `learning_rate` | `") || strings.Contains(got, "## Losses") || strings.Contains(got,
		"## Data") {
		t.Errorf("the card without a run is\n%s", got)
	}
}

// TestCardText: ids of the hub come into the head, and the table of a long run is short.
func TestCardText(t *testing.T) {
	r := runfile.Defaults()
	r.Model, r.OutputDir = "org/base", "/home/ada/runs/x"
	r.Datasets = []data.Source{{Path: "openai/gsm8k", Type: data.PromptResponse, Name: "main", Split: "train"},
		{Path: "/home/ada/a|b.jsonl", Type: data.Text}, {Path: "data/train.jsonl", Type: data.Text}}
	r.Tokenizer, r.Stop.LossAbove = "./../../home/ada/tokenizer", 12
	var metrics []trace.Metrics
	for step := int64(1); step <= 1000; step++ {
		m := trace.Metrics{Step: step, Loss: 3 / float64(step), Tokens: 100, TargetTokens: 40}
		if step == 777 {
			loss := 0.25
			m.EvalLoss = &loss
		}
		metrics = append(metrics, m)
	}
	c := card{name: "x", model: "llama", params: 134515008, as: format{dtype: tensor.BF16}, step: 1000, base: r.Model, config: &r,
		metrics: metrics}
	if text := string(c.text()); strings.Contains(text, "base_model") {
		t.Errorf("a path that looks like an id is the base model:\n%s", text)
	}
	c.baseID = "org/base"
	text := string(c.text())
	for _, want := range []string{
		"---\n" + hf.CardMark + "\nmillrace_step: " + strconv.Itoa(c.step) +
			"\nbase_model: org/base\ndatasets: [openai/gsm8k]\nlibrary_name:",
		"| openai/gsm8k, main, train | prompt-response | training |",
		"| `a\\|b.jsonl` | text | training |", "| `data/train.jsonl` | text | training |", "loss_above: 12",
		"| 1 | 3.0000 |", "| 1000 | 0.0030 |", "| 777 | 0.0039 | 0.2500 |",
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
	c.isRandom = true
	if text = string(c.text()); !strings.Contains(text, "trained from random weights") {
		t.Errorf("the card of random weights is\n%s", text)
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
		_, err := Export(context.Background(), newEnv(t), ExportOptions{Checkpoint: checkpoint, Model: model, Dir: out})
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
	_, err := Export(context.Background(), newEnv(t), ExportOptions{Model: dir, Dir: out})
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

// Settings of a checkpoint, names and the run file cannot add headings, HTML or links to a card.
func TestCardOfHostileTexts(t *testing.T) {
	const evil = "1 |\n\n# Official release\n<img src=x>`` [a](http://b) \x1b[2J\n```\n## Gone"
	r := runfile.Defaults()
	r.Model, r.OutputDir = evil, "x"
	r.Datasets = []data.Source{{Path: "a`|<b>\n# c", Type: data.Text, Name: evil, Split: "<i>"}}
	for name, c := range map[string]card{
		"a checkpoint alone": {settings: map[string]string{"seed": evil, evil: "1", "whole": "3"}},
		"a run":              {config: &r},
	} {
		c.name, c.model, c.base, c.as = evil, evil, evil, format{dtype: tensor.BF16}
		text := string(c.text())
		fenced := ""
		for i, line := range strings.Split(text, "\n") {
			if f := strings.TrimSuffix(line, "yaml"); strings.HasPrefix(f, "```") && strings.Trim(f, "`") == "" {
				if fenced == "" {
					fenced = f
				} else if f == fenced {
					fenced = ""
				}
				continue
			}
			if fenced != "" || i < 7 {
				continue
			}
			isHeading := strings.HasPrefix(line, "#") && !slices.Contains([]string{"## Data", "## Losses", "## Settings",
				"## Command"}, line) && !strings.HasPrefix(line, "# 1 ")
			shown := withoutCode(line)
			if isHeading || strings.ContainsAny(shown, "<>") || strings.Contains(shown, "](http://b") {
				t.Errorf("%s: a line of the card is %q", name, line)
			}
			if strings.ContainsAny(line, "\x1b\r") {
				t.Errorf("%s: %q", name, line)
			}
			cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
			if strings.HasPrefix(line, "|") && cells != 3 && cells != 4 {
				t.Errorf("%s: %d bars in %q", name, cells, line)
			}
		}
		if fenced != "" {
			t.Errorf("%s: a block of code does not end:\n%s", name, text)
		}
	}
}

// withoutCode is a line without spans of code and without escaped characters, as CommonMark reads them.
func withoutCode(line string) string {
	var b strings.Builder
	ticks := func(i int) int { return len(line[i:]) - len(strings.TrimLeft(line[i:], "`")) }
	for i := 0; i < len(line); {
		n := ticks(i)
		switch {
		case line[i] == '\\':
			i += 2
		case n > 0:
			end := i + n
			for end < len(line) && ticks(end) != n {
				end += max(ticks(end), 1)
			}
			if end < len(line) {
				i = end
			}
			i += n
		default:
			b.WriteByte(line[i])
			i++
		}
	}
	return b.String()
}

func TestCodeSpan(t *testing.T) {
	for text, want := range map[string]string{"": "", "a b": "`a b`", "a\nb": "`a b`", "`": "`` ` ``",
		"a``b": "``` a``b ```",
		"a|b":  "`a|b`", "\x00": "`\\x00`"} {
		if got := codeSpan(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
