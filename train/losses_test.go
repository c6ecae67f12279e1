package train

import (
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/train/verbs"
)

// The losses that a preview shows are those of an evaluation: their sum over the tokens that count. The worst come
// first, whether the weights are a model's or a checkpoint's.
func TestLossesAreShown(t *testing.T) {
	c := smallConfig(t)
	rows := filepath.Join(t.TempDir(), "a.jsonl")
	write(t, rows, `{"prompt": "one", "response": " is one"}
{"prompt": "two", "response": " zzqq##"}
{"prompt": "four", "response": " is more than one"}
`)
	c.Datasets = []data.Source{{Path: rows, Type: data.PromptResponse, Prompt: "prompt", Response: "response"}}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	preview := func(o verbs.PreviewOptions) (all []verbs.PreviewExample) {
		t.Helper()
		if _, err := verbs.Preview(context.Background(), newEnv(t), c, o, func(e verbs.PreviewExample) error {
			all = append(all, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, of := range []string{c.OutputDir, filepath.Join(c.OutputDir, "model"), lastCheckpoint(t, c)} {
		l, err := verbs.Evaluate(context.Background(), newEnv(t), verbs.EvalOptions{Model: of, Data: c.Datasets,
			SequenceLen: c.SequenceLen, Compute: c.Precision.Compute})
		if err != nil {
			t.Fatal(err)
		}
		sum, counted := 0.0, int64(0)
		all := preview(verbs.PreviewOptions{Losses: of})
		for _, e := range all {
			own, n := 0.0, 0
			if !math.IsNaN(float64(e.Losses[0])) || len(e.Losses) != len(e.InputIDs) {
				t.Fatalf("%d losses of %d tokens, the first %v", len(e.Losses), len(e.InputIDs), e.Losses[0])
			}
			for i, x := range e.Losses {
				if e.Trained(i) {
					own, n = own+float64(x), n+1
				}
			}
			sum, counted = sum+own, counted+int64(n)
			if n > 0 && math.Abs(*e.Loss-own/float64(n)) > 1e-6 || n == 0 && e.Loss != nil {
				t.Errorf("the loss of an example is %v, want %v of %d", *e.Loss, own/float64(n), n)
			}
		}
		if counted != l.TargetTokens || math.Abs(sum/float64(counted)-l.Loss) > 1e-5 {
			t.Errorf("%s: %v over %d tokens, the evaluation has %v over %d", of, sum/float64(counted), counted, l.Loss,
				l.TargetTokens)
		}
		worst := preview(verbs.PreviewOptions{Losses: of, Worst: true, Limit: 3})
		if len(worst) != 3 {
			t.Fatalf("%d examples", len(worst))
		}
		for i, e := range worst[1:] {
			if *e.Loss > *worst[i].Loss {
				t.Errorf("example %d has a loss of %v, and the one before it %v", i+2, *e.Loss, *worst[i].Loss)
			}
		}
		for _, e := range all {
			if e.Loss != nil && *e.Loss > *worst[0].Loss {
				t.Errorf("an example has a loss of %v, and the first of the worst %v", *e.Loss, *worst[0].Loss)
			}
		}
		text, err := json.Marshal(worst[0])
		if err != nil || !strings.Contains(string(text), `"losses":[null,`) {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// Of pairs the worst are those whose chosen side is the least likely, and both sides stay together.
func TestLossesOfPairs(t *testing.T) {
	c := smallConfig(t)
	rows := filepath.Join(t.TempDir(), "a.jsonl")
	write(t, rows, `{"prompt": "q", "chosen": "bbbb", "rejected": "c"}
{"prompt": "q", "chosen": "the wheel", "rejected": "##"}
{"prompt": "q", "chosen": "zz~~", "rejected": "d"}
`)
	c.Datasets = []data.Source{{Path: rows, Type: data.Preference}}
	var all []verbs.PreviewExample
	if _, err := verbs.Preview(context.Background(), newEnv(t), c, verbs.PreviewOptions{Losses: c.Model, Worst: true},
		func(e verbs.PreviewExample) error {
			all = append(all, e)
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Fatalf("%d sides", len(all))
	}
	for i := 0; i < len(all); i += 2 {
		if all[i].Pair != all[i+1].Pair || all[i].Side != "chosen" || all[i+1].Side != "rejected" {
			t.Errorf("%d %s follows %d %s", all[i+1].Pair, all[i+1].Side, all[i].Pair, all[i].Side)
		}
		if i > 0 && *all[i].Loss > *all[i-2].Loss {
			t.Errorf("pair %d has a loss of %v after %v", all[i].Pair, *all[i].Loss, *all[i-2].Loss)
		}
	}
}
