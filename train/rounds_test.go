package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/traintest"
)

// letterJudge scores answers to "say x" by the share of the 12 bytes that are x.
func letterJudge(t *testing.T) runfile.Reward {
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked []struct {
			ID         int64
			Completion string
			Row        map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil { // such as of a run that is ended meanwhile
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var said []map[string]any
		for _, a := range asked {
			said = append(said, map[string]any{"id": a.ID,
				"reward": float64(strings.Count(a.Completion, a.Row["letter"].(string))) / 12})
		}
		_ = json.NewEncoder(w).Encode(said) // a run that lacks it ends with an error
	}))
	t.Cleanup(judge.Close)
	return runfile.Reward{Name: "letter", URL: judge.URL}
}

// qwenConfig makes the model Qwen3-shaped: two layers of 64.
var qwenConfig = map[string]any{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
	"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.02, "vocab_size": 257}

// loopConfig is a run of the toy: four prompts, eight answers to each.
func loopConfig(t *testing.T) *runfile.Config {
	var rows strings.Builder
	for _, letter := range "abcd" {
		fmt.Fprintf(&rows, "{\"prompt\": \"say %c\", \"letter\": \"%[1]c\"}\n", letter)
	}
	prompts := filepath.Join(t.TempDir(), "prompts.jsonl")
	write(t, prompts, rows.String())
	c := runfile.Defaults()
	c.Model, c.Tokenizer, c.Precision = traintest.WriteModel(t, qwenConfig), "bytes", runfile.Precision{Compute: "f32",
		Master: "f32", Moments: "f32"}
	c.Datasets = []data.Source{{Path: prompts, Type: data.Prompts}}
	c.Objective = runfile.Objective{Type: "policy"}
	c.RL = runfile.RL{PromptsPerStep: 4, Samples: 8, MaxTokens: 12, Temperature: 1, TopP: 1, Iterations: 1,
		Reward: []runfile.Reward{letterJudge(t)}}
	c.SequenceLen, c.BatchTokens, c.MaxSteps, c.LearningRate, c.WeightDecay = 64, 1024, 4, 3e-3, 0
	c.LRScheduler, c.Save.Minutes, c.Save.Every, c.Device = "constant", 0, 1, "cpu"
	c.OutputDir = filepath.Join(t.TempDir(), "run")
	return &c
}

// loopRecords are the records of a run.
func loopRecords(t *testing.T, c *runfile.Config) []trace.Metrics {
	t.Helper()
	var all []trace.Metrics
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t), OnStep: func(m trace.Metrics) error {
		all = append(all, m)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	return all
}

// A loop samples, scores, trains and saves, and its records say how it goes.
func TestLoop(t *testing.T) {
	c := loopConfig(t)
	all := loopRecords(t, c)
	if len(all) != c.MaxSteps {
		t.Fatalf("%d records", len(all))
	}
	for i, m := range all {
		for _, name := range []string{"rollout_sec", "rollout_tokens_per_sec", "train_sec", "entropy"} {
			if !(m.Objective[name] > 0) {
				t.Errorf("step %d: %s is %v", i+1, name, m.Objective[name])
			}
		}
		if m.Pairs == nil || *m.Pairs != 32 || m.Objective["staleness"] != 0 {
			t.Errorf("step %d: %d answers, staleness %v", i+1, *m.Pairs, m.Objective["staleness"])
		}
		// On the CPU the sampler's log-probabilities are the trainer's, by the bits.
		if d, ok := m.Objective[farthest]; !ok || d != 0 {
			t.Errorf("step %d: log-probabilities differ by %v", i+1, d)
		}
		if _, err := hostmem.RSS(); err == nil { // of a system that tells
			for _, name := range []string{"rollout_resident_bytes", "train_resident_bytes", "planned_bytes"} {
				if m.Objective[name] < 1<<20 {
					t.Errorf("step %d: %s is %v", i+1, name, m.Objective[name])
				}
			}
		}
		if m.Objective["rewards/letter/failed"] != 0 {
			t.Errorf("step %d: %v answers were not scored", i+1, m.Objective["rewards/letter/failed"])
		}
	}
	var planned plan.Plan
	doc, err := os.ReadFile(filepath.Join(c.OutputDir, rundir.PlanName))
	if err == nil {
		err = json.Unmarshal(doc, &planned)
	}
	if o := planned.Round; err != nil || o == nil || o.Answers != 32 || o.PromptPositions != 5 || o.AnswerTokens != 12 ||
		o.Steps != 1 || o.SampleSeconds == nil {
		t.Errorf("plan.json has the round %+v, %v", o, err)
	}
	for round := range c.MaxSteps {
		if _, err := os.Stat(filepath.Join(c.OutputDir, rl.Dir, rl.RowsName(round))); err != nil {
			t.Error(err)
		}
	}
}

var errKilled = errors.New("killed")

// A loop that ends at any moment continues to the bits of one that does not: its weights and the files of its rounds.
func TestLoopsContinue(t *testing.T) {
	c := loopConfig(t)
	c.Save.Every, c.MaxSteps = 2, 4 // so that steps before and after a save are lost
	loopRecords(t, c)
	want := loopWeights(t, c)
	for _, where := range []string{"sampling", "scoring", "file", "manifest"} {
		for _, at := range []int{1, 3} { // rounds, from 0
			own := *c
			own.OutputDir = filepath.Join(t.TempDir(), "run")
			ctx, cancel := context.WithCancel(t.Context())
			env := newEnv(t)
			scored, sampled := 0, 0
			env.Tests.Reached = func(is string) error {
				if is == "scoring" {
					scored++
				}
				if is == "sampling" {
					sampled++
				}
				round := scored - 1
				if is == "sampling" {
					round = (sampled - 1) / 32
				}
				if is != where || round != at || is == "sampling" && sampled%32 != 5 {
					return nil
				}
				cancel()
				return errKilled
			}
			if _, err := Train(ctx, &own, Options{Env: env}); err == nil {
				t.Fatalf("%s of round %d: the run was not ended", where, at)
			}
			loopRecords(t, &own)
			if got := loopWeights(t, &own); !bytes.Equal(got, want) {
				t.Errorf("ended at %s of round %d: other weights", where, at)
			}
			if where != "sampling" && at != 3 {
				continue
			}
			for round := range c.MaxSteps {
				name := filepath.Join(rl.Dir, rl.RowsName(round))
				a, errA := os.ReadFile(filepath.Join(c.OutputDir, name))
				b, errB := os.ReadFile(filepath.Join(own.OutputDir, name))
				if errA != nil || errB != nil || !bytes.Equal(a, b) {
					t.Errorf("ended at %s of round %d: other answers in round %d (%v, %v)", where, at, round, errA, errB)
				}
			}
		}
	}
}

// loopWeights is the file of weights of a run's model.
func loopWeights(t *testing.T, c *runfile.Config) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.OutputDir, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The toy of a loop learns: the mean reward of steps 51 to 60 is above 0.2, and 20 times that of steps 1 to 10.
func TestLoopLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("60 rounds take some 3 seconds of two cores: make long runs it")
	}
	c := loopConfig(t)
	c.MaxSteps, c.Save.Every = 60, 0
	all := loopRecords(t, c)
	mean := func(from, to int) (sum float64) {
		for _, m := range all[from-1 : to] {
			sum += m.Objective["reward"] / float64(to-from+1)
		}
		return sum
	}
	first, last := mean(1, 10), mean(51, 60)
	t.Logf("mean reward of steps 1 to 10: %.4f, 11 to 20: %.4f, 31 to 40: %.4f, 51 to 60: %.4f", first, mean(11, 20),
		mean(31, 40), last)
	if last < 0.2 || last < 20*first {
		t.Errorf("mean reward of steps 1 to 10: %.4f, of 51 to 60: %.4f", first, last)
	}
}

// How many answers grow together changes none of them.
func TestFewerCachesGiveTheSameAnswers(t *testing.T) {
	c := loopConfig(t)
	c.MaxSteps = 1
	loopRecords(t, c)
	few := *c
	few.OutputDir = filepath.Join(t.TempDir(), "run")
	env := newEnv(t)
	env.Tests.Answers = 3
	if _, err := Train(t.Context(), &few, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	if planned, err := os.ReadFile(filepath.Join(few.OutputDir, "plan.json")); err != nil ||
		!bytes.Contains(planned, []byte(`"sequences": 3`)) {
		t.Fatalf("the plan has not three caches (%v)", err)
	}
	name := filepath.Join(rl.Dir, rl.RowsName(0))
	a, errA := os.ReadFile(filepath.Join(c.OutputDir, name))
	b, errB := os.ReadFile(filepath.Join(few.OutputDir, name))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("with three caches the answers are others (%v, %v)", errA, errB)
	}
}

// Groups whose answers all have the same reward are replaced by those of further prompts, and a round trains as often
// as it is asked to.
func TestLoopOfUnlikeGroups(t *testing.T) {
	c := loopConfig(t)
	c.RL.Reward = []runfile.Reward{{Name: "a", Type: runfile.RewardRegex, Pattern: "[a-c]"}}
	c.RL.PromptsPerStep, c.RL.MaxGroups, c.RL.Iterations, c.MaxSteps = 3, 9, 2, 4
	c.Objective.Old = "sampler"
	all := loopRecords(t, c)
	for i, m := range all {
		if share := m.Objective["frac_reward_zero_std"]; share != 0 {
			t.Errorf("step %d: %v of the answers are in groups of one reward", i+1, share)
		}
		if _, isFirst := m.Objective["rollout_sec"]; isFirst != (i%2 == 0) {
			t.Errorf("step %d begins a round: %v", i+1, isFirst)
		}
	}
	if _, err := os.Stat(filepath.Join(c.OutputDir, rl.Dir, rl.RowsName(2))); err == nil {
		t.Error("four steps of two updates have a third round")
	}
}

// A run that has ended inside of a round continues there when it is to take more steps.
func TestLoopTakesMoreSteps(t *testing.T) {
	c := loopConfig(t)
	c.RL.Iterations, c.MaxSteps, c.Objective.Old = 2, 3, "sampler"
	loopRecords(t, c)
	c.MaxSteps, c.ResumeWith = 4, []string{"max_steps"}
	if all := loopRecords(t, c); len(all) != 1 || all[0].Step != 4 {
		t.Errorf("it continues with %+v", all)
	}
}
