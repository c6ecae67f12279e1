package train

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

// pipeline are the run files of examples/ppo, in their order.
var pipeline = []string{"sft", "reward", "ppo"}

// The run files of examples/ppo are valid as they are.
func TestExamplesOfPPO(t *testing.T) {
	for _, name := range pipeline {
		c, err := runfile.Read(filepath.Join("../examples/ppo", name+".yaml"), nil)
		if err == nil {
			err = c.Check()
		}
		if err != nil {
			t.Errorf("%s.yaml: %v", name, err)
		}
	}
}

// The three runs follow each other: the model that the first one writes becomes a reward model in the second, and PPO
// trains it by that model's scores in the third.
func TestPipelineOfPPO(t *testing.T) {
	examples, err := filepath.Abs("../examples/ppo")
	if err != nil {
		t.Fatal(err)
	}
	tiny := traintest.WriteModel(t, nil)
	t.Chdir(t.TempDir())
	if err := os.Mkdir("data", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]string{"demonstrations": `{"prompt": "say a:", "response": " aaa"}`,
		"pairs":   `{"prompt": "say a:", "chosen": " aaa", "rejected": " b"}`,
		"prompts": `{"prompt": "say a:"}`} {
		write(t, filepath.Join("data", name+".jsonl"), strings.Repeat(row+"\n", 16))
	}
	same := []string{"tokenizer=bytes", "sequence_len=64", "batch_tokens=512", "device=cpu",
		"precision={compute: f32}"}
	for i, own := range [][]string{{"model=" + tiny}, nil, {"max_steps=2", "rl.prompts_per_step=4", "rl.max_tokens=8"}} {
		c, err := runfile.Read(filepath.Join(examples, pipeline[i]+".yaml"), append(own, same...))
		if err != nil {
			t.Fatalf("%s.yaml: %v", pipeline[i], err)
		}
		if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatalf("%s.yaml: %v", pipeline[i], err)
		}
		all := metricsOf(t, c.OutputDir)
		last := all[len(all)-1].Objective
		for _, metric := range [][]string{nil, {"accuracy"}, {"reward", "critic/values/mean"}}[i] {
			if _, ok := last[metric]; !ok {
				t.Errorf("%s.yaml: no %s in %v", pipeline[i], metric, last)
			}
		}
	}
}
