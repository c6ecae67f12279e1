package reference

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rl/reward"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

// scoringModel writes a reward model of bytes, with a chat template.
func scoringModel(t *testing.T) string {
	t.Helper()
	dir := traintest.WriteConfig(t, map[string]any{"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2})
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := model.ScoringConfig(c, 256)
	if err != nil {
		t.Fatal(err)
	}
	traintest.Write(t, filepath.Join(dir, "config.json"), string(text))
	traintest.WriteWeights(t, dir, 5)
	for name, text := range tokenizer.BytesFiles() {
		traintest.Write(t, filepath.Join(dir, name), string(text))
	}
	traintest.Write(t, filepath.Join(dir, "chat_template.jinja"), traintest.TurnTemplate)
	return dir
}

// A reward model of a loop gives each answer the score that a pass over it alone gives, whatever is scored with it; a
// text that is too long has none, and the memory is given back.
func TestScorers(t *testing.T) {
	env, dir := traintest.NewEnv(t), scoringModel(t)
	dev, err := env.OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n := plan.Numerics{Compute: tensor.F32, Master: optim.F32, SequenceLen: 96}
	spec := runfile.Reward{Name: "rm", Model: dir, Memory: runfile.ModelMemory{Host: runfile.Bytes{N: 1 << 30}}}
	s, err := OpenScorers(t.Context(), env, dev, []runfile.Reward{spec}, n, 4)
	if err != nil {
		t.Fatal(err)
	}
	var answers []reward.Answer
	for i := range 11 {
		answers = append(answers, reward.Answer{ID: int64(i), Prompt: "say", Completion: strings.Repeat("ab", i) + "."})
	}
	answers[7].Messages = json.RawMessage(`[{"role": "user", "content": "say"}]`)
	answers[8].Completion = strings.Repeat("x", 200)
	answers[9].Messages, answers[9].Completion = answers[7].Messages, answers[7].Completion
	scores, err := s.Score(t.Context(), dir, answers)
	if err != nil || len(scores) != len(answers) {
		t.Fatal(scores, err)
	}
	alone := pass(t, s, dir, answers)
	if !slices.EqualFunc(scores, alone, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
		t.Errorf("together %v\nalone %v", scores, alone)
	}
	distinct := map[float64]bool{}
	for i, x := range scores {
		if math.IsNaN(x) != (i == 8) {
			t.Errorf("answer %d has the score %v", i, x)
		}
		distinct[x] = true
	}
	if len(distinct) != len(answers)-1 || scores[9] != scores[7] { // 7 and 9 are the same text, and NaN is itself no key
		t.Errorf("%v", scores)
	}
	m := s.models[dir] // whose memory another session has at the same time, as a run has its own
	other, err := source.OpenModelSession(t.Context(), env, m.plan, s.dev, nil, m.src)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(answers)
	again, err := s.Score(t.Context(), dir, answers)
	slices.Reverse(again)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(scores) {
		t.Errorf("in another order %v, %v", again, err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if none, err := OpenScorers(t.Context(), env, dev, []runfile.Reward{{Name: "a", Type: "exact"}}, n, 4); err != nil ||
		len(none.models) != 0 {
		t.Error(none, err)
	}
}

// pass scores texts by passes of their own, from the tokens that rows of pairs would have.
func pass(t *testing.T, s *Scorers, dir string, answers []reward.Answer) (scores []float64) {
	t.Helper()
	m := s.models[dir]
	opened, err := source.OpenModelSession(t.Context(), s.env, m.plan, s.dev, nil, m.src)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for _, a := range answers {
		of, err := m.reader.Renderer.Render(t.Context(), data.Record{Type: data.PromptResponse, Prompt: "say",
			Response: a.Completion})
		if err != nil {
			t.Fatal(err)
		}
		e, err := data.Tokenize(m.reader.Tokenizer, of, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(e.InputIDs) > m.plan.Numerics.SequenceLen {
			scores = append(scores, math.NaN())
			continue
		}
		for _, row := range opened.Rows {
			row.Clear()
		}
		last := len(e.InputIDs) - 1
		for last > 0 && e.InputIDs[last] == 256 {
			last--
		}
		row := opened.Rows[0]
		row.SetDocument(0, e.InputIDs)
		row.Targets[last], row.Weights[last] = 0, 1
		b := session.BatchOf(opened.Rows)
		b.Targets = 1
		all, err := opened.Engine.LogProbs(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		scores = append(scores, float64(all[0][last]))
	}
	return scores
}

func TestScorersRefuse(t *testing.T) {
	env := traintest.NewEnv(t)
	dev, err := env.OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n := plan.Numerics{Compute: tensor.F32, Master: optim.F32, SequenceLen: 32}
	for _, c := range []struct {
		dir   string
		bytes int64
		want  string
	}{
		{traintest.WriteModel(t, nil), 1 << 30, "is a model of text, which gives no score: name one"},
		{scoringModel(t), 1 << 10, "rl.reward[0] (rm): memory.host: the model needs"},
		{filepath.Join(t.TempDir(), "missing"), 1 << 30, "rl.reward[0] (rm): "},
	} {
		spec := runfile.Reward{Name: "rm", Model: c.dir, Memory: runfile.ModelMemory{Host: runfile.Bytes{N: c.bytes}}}
		_, err := OpenScorers(t.Context(), env, dev, []runfile.Reward{spec}, n, 4)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
