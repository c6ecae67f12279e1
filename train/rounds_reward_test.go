package train

import (
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

// A loop learns from the scores of a reward model, which has memory of its own while the run keeps its.
func TestLoopWithRewardModel(t *testing.T) {
	c := loopConfig(t)
	dir := traintest.WriteConfig(t, qwenConfig)
	of, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := model.ScoringConfig(of, 256)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), string(config))
	traintest.WriteWeights(t, dir, 5)
	for name, text := range tokenizer.BytesFiles() {
		write(t, filepath.Join(dir, name), string(text))
	}
	c.MaxSteps = 2
	c.RL.Reward = append(c.RL.Reward, runfile.Reward{Name: "rm", Model: dir,
		Memory: runfile.ModelMemory{Host: runfile.Bytes{N: 1 << 30}}})
	for i, m := range loopRecords(t, c) {
		if std := m.Objective["rewards/rm/std"]; !(std > 0) || m.Objective["rewards/rm/failed"] != 0 {
			t.Errorf("step %d: %v", i+1, m.Objective)
		}
	}
}
