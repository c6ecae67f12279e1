package train

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
)

// All runs tell the entropy and the accuracy of tokens in steps, in evaluations and at the end. A model with random
// weights is as good as uniform over its vocabulary; then it learns: it becomes surer, and right more often.
func TestRunsTellEntropyAndAccuracy(t *testing.T) {
	for name, change := range map[string]func(c *runfile.Config){
		"sft": func(c *runfile.Config) { c.ValSize, c.Eval.Every = 0.2, 3 },
		"dft": func(c *runfile.Config) { c.ValSize, c.Eval.Every, c.Objective.Type = 0.2, 3, "dft" },
		"orpo": func(c *runfile.Config) {
			of := preferenceConfig(t)
			c.Datasets, c.ValSize, c.Eval.Every, c.Objective.Type = of.Datasets, of.ValSize, 3, "orpo"
			c.Objective.NLLPrompt = true
		},
		"kto": func(c *runfile.Config) {
			of := labelsConfig(t)
			c.Datasets, c.ValSize, c.Eval.Every, c.Objective = of.Datasets, of.ValSize, 3, of.Objective
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Init, c.LearningRate, c.MaxSteps = "random", 1e-2, 12
			change(c)
			s, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			all := metricsOf(t, c.OutputDir)
			for i, m := range all {
				for _, prefix := range []string{"", trace.EvalPrefix} {
					entropy, is := m.Objective[prefix+objective.Entropy]
					accuracy, has := m.Objective[prefix+objective.MeanTokenAccuracy]
					if want := prefix == "" && i > 0 || prefix != "" && m.EvalLoss != nil; is != want || has != want {
						t.Errorf("record %d has %sentropy: %v, and the accuracy: %v", i, prefix, is, has)
					} else if want && !(entropy > 0 && entropy < 6 && accuracy >= 0 && accuracy <= 1) {
						t.Errorf("record %d: %sentropy %v, accuracy %v", i, prefix, entropy, accuracy)
					}
				}
			}
			before, after := all[0].Objective, all[len(all)-1].Objective
			vocab := math.Log(320) // of traintest.BytesConfig
			if e := before["eval_entropy"]; !(e > vocab-0.25 && e <= vocab+1e-6) {
				t.Errorf("the entropy before training is %v, and ln of the vocabulary %v", e, vocab)
			}
			if before["eval_mean_token_accuracy"] > 0.2 {
				t.Errorf("before training %v of the tokens are right", before["eval_mean_token_accuracy"])
			}
			if name == "sft" || name == "orpo" {
				if !(after["eval_entropy"] < before["eval_entropy"]-0.5) ||
					!(after["eval_mean_token_accuracy"] > before["eval_mean_token_accuracy"]+0.1) {
					t.Errorf("before training %v, after it %v", before, after)
				}
			}
			var told struct {
				Objective map[string]float64 `json:"objective"`
				Before    map[string]float64 `json:"eval_objective_before"`
				After     map[string]float64 `json:"eval_objective_after"`
			}
			text, err := json.Marshal(s)
			if err == nil {
				err = json.Unmarshal(text, &told)
			}
			last := all[len(all)-1].Objective
			for _, of := range []string{objective.Entropy, objective.MeanTokenAccuracy} {
				if err != nil || told.Objective[of] != last[of] || told.Before[of] != before[trace.EvalPrefix+of] ||
					told.After[of] != after[trace.EvalPrefix+of] {
					t.Errorf("the summary has %+v, error %v", told, err)
				}
			}
		})
	}
}
