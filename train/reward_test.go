package train

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
)

// rewardConfig is a run that makes a model of text a reward model.
func rewardConfig(t *testing.T) *runfile.Config {
	c := preferenceConfig(t)
	c.Objective = runfile.Objective{Type: "reward"}
	return c
}

// readTestdata reads a golden file.
func readTestdata(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// writeScoring writes a reward model of a config.json, whose weights follow from the numbers of tensors in the order of
// their names, the first of which is given. Vectors are 1, and spread times their numbers.
func writeScoring(t *testing.T, config []byte, first int, spread float32) (string, *model.Model) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), string(config))
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	tensors := slices.Clone(m.Tensors())
	slices.SortFunc(tensors, func(a, b model.Tensor) int { return strings.Compare(a.Name, b.Name) })
	values := map[string][]float32{}
	for i, x := range tensors {
		of := make([]float32, x.Shape.Elems())
		for j := range of {
			if of[j] = goldenWeight(uint32(first+i), uint32(j)); len(x.Shape) == 1 {
				of[j] = 1 + spread*of[j]
			}
		}
		values[x.Name] = of
	}
	writeTensors(t, filepath.Join(dir, "model.safetensors"), m, values)
	return dir, m
}

// goldenScores is testdata/scores.json: what transformers makes of reward models.
type goldenScores struct {
	Texts  [][]int32
	Models []struct {
		Name         string
		Text, Config map[string]any // of a model of text, and of the reward model
		Pad          int32
		Shapes       map[string][]int
		Scores       []float64
	}
}

// A model of text becomes the reward model that transformers opens: config.json, the names and shapes of tensors, and
// the scores of texts, packed into rows in any way.
func TestScoresLikeTransformers(t *testing.T) {
	var g goldenScores
	readTestdata(t, "scores.json", &g)
	for _, of := range g.Models {
		t.Run(of.Name, func(t *testing.T) {
			text, err := json.MarshalIndent(of.Text, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			c, err := hf.ParseConfig("config.json", text)
			if err != nil {
				t.Fatal(err)
			}
			config, err := model.ScoringConfig(c, of.Pad)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(config, &got); err != nil || !reflect.DeepEqual(got, of.Config) {
				t.Errorf("config.json is %s, which transformers has not read (%v)", config, err)
			}
			dir, m := writeScoring(t, config, 0, 4)
			shapes := map[string][]int{}
			for _, x := range m.Tensors() {
				shapes[x.Name] = x.Shape
			}
			if !reflect.DeepEqual(shapes, of.Shapes) {
				t.Errorf("tensors are %v, and those of transformers %v", shapes, of.Shapes)
			}
			r := openScoring(t, dir)
			var examples []data.Example
			for _, tokens := range append(slices.Clone(g.Texts), g.Texts[0]) {
				examples = append(examples, data.Example{InputIDs: tokens, Labels: tokens})
			}
			b, err := r.Batch(examples...)
			if err != nil {
				t.Fatal(err)
			}
			scores, err := r.LogProbs(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range of.Scores {
				d := b.Documents[i]
				sum := 0.0
				for _, x := range scores[d.Micro][d.First:][:d.Length] {
					sum += float64(x)
				}
				if math.Abs(sum-want) > 1e-6 {
					t.Errorf("text %d has the score %v, in transformers %v", i, sum, want)
				}
			}
		})
	}
}

// openScoring opens a run of a reward model without data, of the sizes of the golden runs.
func openScoring(t *testing.T, dir string) *Run {
	c := goldenConfig(t)
	c.Model, c.Objective.Type = dir, "reward"
	return openRun(t, c, "", OpenOptions{LogProbs: true})
}

// TestRewardLikeTRL compares steps with TRL's RewardTrainer, for documents in rows of their own, two in a row, and in
// another order. Some gradients of the first step are near AdamW's eps, so that rounding is in the update: TRL's second
// mean is 1.6e-6 from that of the same steps in float64, and the one here 3e-7.
func TestRewardLikeTRL(t *testing.T) {
	var g struct {
		goldenObjectives
		Runs []struct {
			goldenRun
			Center float64
		}
	}
	readTestdata(t, "reward.json", &g)
	for i := range g.Runs {
		run, first := &g.Runs[i], math.NaN()
		for l, layout := range layouts {
			t.Run(run.Name+", "+layout.name, func(t *testing.T) {
				c := goldenConfig(t)
				c.Objective.Type, c.Objective.Center.Value, c.Objective.Center.Given = "reward", run.Center, true
				c.Model, _ = writeScoring(t, goldenScoring(t, c.Model), 1, 0)
				run.loose = 5
				r := openRun(t, c, "", OpenOptions{})
				needs := r.aim.objective.Needs()
				all := g.documents(&run.goldenRun, needs)
				b := placed(all, layout.rows(len(all)), needs, r.Plan().Whole)
				b.Targets = len(all)
				for _, d := range b.Documents {
					data.SetScore(b.Micro[d.Micro], d.First, d.Length, r.Model().Scoring.Position)
				}
				for step := range run.Losses {
					taken, err := r.Step(t.Context(), b, r.Update(1e-3))
					if err != nil {
						t.Fatal(err)
					}
					run.compare(t, step, taken.Objective, taken)
					switch {
					case step == 0 && l == 0:
						first = taken.Objective.Loss
					case step == 0 && taken.Objective.Loss != first:
						t.Errorf("the first loss is %v, and %v for %s", taken.Objective.Loss, first, layouts[0].name)
					}
				}
			})
		}
	}
}

// goldenScoring is the config.json of the golden model as a reward model, padded with token 96.
func goldenScoring(t *testing.T, dir string) []byte {
	t.Helper()
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := model.ScoringConfig(c, 96)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A run begins with a model of text and writes a reward model: it has no other head, another program finds what the run
// found on the held-out pairs, and another run continues from it.
func TestRewardModelIsWritten(t *testing.T) {
	for name, tied := range map[string]bool{"tied": true, "untied": false} {
		t.Run(name, func(t *testing.T) {
			c := rewardConfig(t)
			c.Model = writeModel(t, map[string]any{"tie_word_embeddings": tied, "dtype": "float32"})
			held := filepath.Join(t.TempDir(), "held.jsonl")
			write(t, held, `{"prompt": "ab", "chosen": "yes ab", "rejected": "no", "margin": 0.25}
{"prompt": "cd", "chosen": "yes dc", "rejected": "no c"}
`)
			c.ValSize, c.Eval.Datasets = 0, []data.Source{{Path: held, Type: data.Preference}}
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			all := metricsOf(t, c.OutputDir)
			last := all[len(all)-1]
			dir := filepath.Join(c.OutputDir, rundir.LastModel)
			tensors := readFile(t, filepath.Join(dir, "model.safetensors"))
			if tensors["lm_head.weight"] != nil || len(tensors["score.weight"]) == 0 {
				t.Error("the model has a head of text, or no score")
			}
			card, err := os.ReadFile(filepath.Join(dir, "README.md"))
			if err != nil || !strings.Contains(string(card), "pipeline_tag: text-classification") {
				t.Errorf("the card is %s (%v)", card, err)
			}
			for _, of := range []string{dir, c.OutputDir} {
				l, err := verbs.Evaluate(t.Context(), newEnv(t), verbs.EvalOptions{Model: of, Data: c.Eval.Datasets,
					Compute: "f32", SequenceLen: c.SequenceLen, Memory: c.Budgets(), Tokenizer: c.Tokenizer})
				if err != nil {
					t.Fatal(err)
				}
				if l.Loss != *last.EvalLoss || l.Objective["accuracy"] != last.Objective["eval_accuracy"] ||
					l.Objective["min_reward"] != last.Objective["eval_min_reward"] {
					t.Errorf("%s: %+v, and the run found %v, %v", of, l, *last.EvalLoss, last.Objective)
				}
			}
			again := *c
			again.Model, again.OutputDir = dir, filepath.Join(t.TempDir(), "again")
			if _, err := Train(t.Context(), &again, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			if before := metricsOf(t, again.OutputDir)[0]; *before.EvalLoss != *last.EvalLoss {
				t.Errorf("a run that continues from it begins at %v, and the one before ended at %v", *before.EvalLoss,
					*last.EvalLoss)
			}
		})
	}
}

// TestRewardModelsAreRefused: verbs and runs that need a model of text say so in a line.
func TestRewardModelsAreRefused(t *testing.T) {
	c := goldenConfig(t)
	reward, _ := writeScoring(t, goldenScoring(t, c.Model), 1, 0)
	for want, try := range map[string]func() error{
		"is a reward model, which ends in a score, and the objective is dpo": func() error {
			c := preferenceConfig(t)
			c.Model, c.Tokenizer = reward, "bytes"
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			return err
		},
		"there are no reward models of kind granite": func() error {
			c := rewardConfig(t)
			c.Model = writeConfig(t, map[string]any{"model_type": "granite", "embedding_multiplier": 1.0,
				"residual_multiplier": 1.0, "attention_multiplier": 1.0, "logits_scaling": 1.0})
			writeWeights(t, c.Model, 3)
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			return err
		},
		"samples: objective reward makes a model that scores texts": func() error {
			c := rewardConfig(t)
			c.Samples.Prompts, c.Samples.Every = []data.Prompt{{Text: "a"}}, 2
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			return err
		},
		"train_only leaves out score.weight": func() error {
			c := rewardConfig(t)
			c.TrainOnly = []string{"model.layers.0.*"}
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			return err
		},
		"scores texts and writes none": func() error {
			_, err := verbs.Gradients(t.Context(), newEnv(t), verbs.GradOptions{Model: reward, Tokens: "no.json"})
			return err
		},
		"LogitRows is given": func() error {
			c := goldenConfig(t)
			c.Model, c.Objective.Type = reward, "reward"
			_, err := Open(t.Context(), c, OpenOptions{Env: newEnv(t), LogitRows: 1})
			return err
		},
	} {
		err := try()
		if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}

// TestWhereTextsAreRead: a run says so where texts end with the token that they are padded with, as with bytes, whose
// end of text is that of padding too. A pair that is too long is dropped and counted, and preview shows the tokens
// whose scores count.
func TestWhereTextsAreRead(t *testing.T) {
	c := rewardConfig(t)
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	write(t, rows, strings.Repeat(`{"prompt": "q ", "chosen": "yes", "rejected": "no"}`+"\n", 8)+
		`{"prompt": "q", "chosen": "`+strings.Repeat("long", c.SequenceLen)+`", "rejected": "no"}`)
	c.Datasets, c.ValSize, c.Eval, c.MaxSteps = []data.Source{{Path: rows, Type: data.Preference}}, 0, runfile.Eval{}, 1
	if doc, err := c.YAML(); err != nil {
		t.Fatal(err)
	} else if c, err = runfile.Parse(doc); err != nil {
		t.Fatal(err)
	}
	env := newEnv(t)
	var told strings.Builder
	env.Progress = &told
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"which they are also padded with (pad_token_id): the score of a text is that of " +
		"the token before it", "1 pair left out: 1 with a side longer than sequence_len",
		"1 of them are chosen sides and 0 are rejected ones, and their pairs are left out (overlong: drop); to change " +
			"that, raise sequence_len, or set overlong to truncate\n"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("told %q, want %q", told.String(), want)
		}
	}
	var shown []string
	_, err := verbs.Preview(t.Context(), newEnv(t), c, verbs.PreviewOptions{Limit: 1}, func(e verbs.PreviewExample) error {
		for _, p := range e.Pieces {
			if p.Trained {
				shown = append(shown, p.Text)
			}
		}
		return nil
	})
	if got := strings.Join(shown, " "); err != nil || got != "s o" {
		t.Errorf("shown %q (%v)", got, err)
	}
}
