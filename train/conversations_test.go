package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/verbs"
)

// dialogs returns conversations: a question and an answer by turns, some after a system prompt.
func dialogs(n int) [][][2]string {
	var all [][][2]string
	for i := range n {
		var d [][2]string
		if i%3 == 0 {
			d = append(d, [2]string{"system", "be brief"})
		}
		for j := range 1 + i%2 {
			d = append(d, [2]string{"user", fmt.Sprintf("what is %d + %d?", i, j)}, [2]string{"assistant", fmt.Sprint("it is ", i+j)})
		}
		all = append(all, d)
	}
	return all
}

// which of a conversation's tokens count.
type counting int

const (
	answers counting = iota
	lastAnswer
	everything
)

// byHand are the byte tokens and labels of conversations, written down without the data package.
func byHand(all [][][2]string, what counting) (ids, labels [][]int32, targets int) {
	for _, d := range all {
		var id, label []int32
		add := func(text string, counts bool) {
			for _, b := range []byte(text) {
				id = append(id, int32(b))
				switch {
				case counts || what == everything:
					label = append(label, int32(b))
				default:
					label = append(label, -100)
				}
			}
		}
		for i, turn := range d {
			add("<"+turn[0]+">", false)
			add(turn[1]+"</s>", turn[0] == "assistant" && (what == answers || i == len(d)-1))
			add("\n", false)
		}
		ids, labels = append(ids, id), append(labels, label)
		for t, l := range label {
			if t > 0 && l != -100 {
				targets++
			}
		}
	}
	return ids, labels, targets
}

// lossByHand is the loss of a model on conversations, by the way of `millrace grad`.
func lossByHand(t *testing.T, model string, all [][][2]string, what counting) (loss float64, targets int) {
	t.Helper()
	ids, labels, targets := byHand(all, what)
	doc, err := json.Marshal(map[string]any{"input_ids": ids, "labels": labels})
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	write(t, tokens, string(doc))
	sum, err := verbs.Gradients(context.Background(), newEnv(t), verbs.GradOptions{Model: model, Tokens: tokens,
		Out: filepath.Join(t.TempDir(), "grads")})
	if err != nil {
		t.Fatal(err)
	}
	return sum.Loss, targets
}

// writeDialogs writes conversations as rows of a type.
func writeDialogs(t testing.TB, kind data.Type, all [][][2]string) data.Source {
	t.Helper()
	names := map[string]string{"system": "system", "user": "human", "assistant": "gpt"}
	var b strings.Builder
	for _, d := range all {
		turns := []map[string]string{}
		for _, turn := range d {
			if kind == data.ShareGPT {
				turns = append(turns, map[string]string{"from": names[turn[0]], "value": turn[1]})
			} else {
				turns = append(turns, map[string]string{"role": turn[0], "content": turn[1]})
			}
		}
		key := map[data.Type]string{data.ShareGPT: "conversations", data.Messages: "messages"}[kind]
		doc, err := json.Marshal(map[string]any{key: turns})
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(doc, '\n'))
	}
	path := filepath.Join(t.TempDir(), string(kind)+".jsonl")
	write(t, path, b.String())
	return data.Source{Path: path, Type: kind}
}

// chatConfig trains a small random llama on conversations.
func chatConfig(t testing.TB, sets ...data.Source) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	c.ChatTemplate = filepath.Join(t.TempDir(), "chat_template.jinja")
	write(t, c.ChatTemplate, turnTemplate)
	c.Datasets, c.SequenceLen = sets, 128
	return c
}

// The loss of a step is that of the tokens that the assistant wrote, which are told here from the conversations
// themselves; of held-out conversations, too. With the first learning rate at zero, both are of the model that the
// run began with.
func TestLossOfConversations(t *testing.T) {
	all := dialogs(8)
	for name, c := range map[string]struct {
		counts counting
		kinds  []data.Type
		change func(*runfile.Config)
	}{
		"messages":   {answers, []data.Type{data.Messages}, func(*runfile.Config) {}},
		"sharegpt":   {answers, []data.Type{data.ShareGPT}, func(*runfile.Config) {}},
		"both":       {answers, []data.Type{data.Messages, data.ShareGPT}, func(*runfile.Config) {}},
		"last turn":  {lastAnswer, []data.Type{data.Messages}, func(c *runfile.Config) { c.TrainOnLast = true }},
		"prompts":    {everything, []data.Type{data.ShareGPT}, func(c *runfile.Config) { c.TrainOnPrompt = true }},
		"held out":   {answers, []data.Type{data.Messages}, func(c *runfile.Config) { c.ValSize = 0.25 }},
		"in batches": {answers, []data.Type{data.Messages}, func(c *runfile.Config) { c.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 32} }},
	} {
		t.Run(name, func(t *testing.T) {
			var sets []data.Source
			var shown [][][2]string
			for _, kind := range c.kinds {
				sets, shown = append(sets, writeDialogs(t, kind, all)), append(shown, all...)
			}
			run := chatConfig(t, sets...)
			run.MaxSteps, run.Epochs, run.WarmupSteps, run.BatchTokens = 0, 1, 1, 24*128 // more than all of them need
			c.change(run)
			sum, err := Train(context.Background(), run, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			steps := metricsOf(t, run.OutputDir)
			if run.ValSize > 0 { // the first record is the evaluation before training
				steps = steps[1:]
			}
			if len(steps) != 1 || steps[0].LearningRate != 0 {
				t.Fatalf("%+v", steps)
			}
			want, targets := lossByHand(t, run.Model, shown, c.counts)
			got, held := steps[0].Loss, targets-int(steps[0].TargetTokens)
			if run.ValSize > 0 {
				got = (got*float64(targets-held) + *sum.EvalBefore*float64(held)) / float64(targets)
			}
			if (held > 0) != (run.ValSize > 0) || math.Abs(got-want) > 1e-6*want {
				t.Errorf("loss %v of %d targets and %d held out, want %v of %d", got, steps[0].TargetTokens, held, want, targets)
			}
			if other, n := lossByHand(t, run.Model, shown, everything); c.counts != everything && (math.Abs(other-want) < 1e-3*want || n <= targets) {
				t.Errorf("the loss with prompts is %v: this test would not see them", other)
			}
		})
	}
}

// A run on several sets with weights and held-out documents, stopped in the middle of an epoch and again in the next,
// ends with the bits of one that was not.
func TestResumeOnConversations(t *testing.T) {
	all := dialogs(24)
	text := data.Source{Path: corpus(t), Type: data.Text, Weight: 0.2}
	twice := writeDialogs(t, data.Messages, all[:10])
	twice.Weight = 2
	base := chatConfig(t, twice, writeDialogs(t, data.ShareGPT, all[10:]), text)
	base.ValSize, base.Eval.Every, base.BatchTokens, base.MaxSteps = 6, 5, 768, 14
	base.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 64}

	whole := *base
	want, err := Train(context.Background(), &whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	if want.EvalAfter == nil || !(*want.EvalAfter < *want.EvalBefore) {
		t.Errorf("nothing was learned of what was held out: %+v", want)
	}
	parts := *base
	parts.OutputDir = filepath.Join(t.TempDir(), "parts")
	for _, step := range []int{2, 7, 8} {
		run := parts
		until(t, &run, fmt.Sprintf("step %2d/14", step))
	}
	got, err := Train(context.Background(), &parts, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
	if a, b := losses(t, parts.OutputDir), losses(t, base.OutputDir); len(a) != 14 || fmt.Sprint(a) != fmt.Sprint(b) || *got.EvalAfter != *want.EvalAfter {
		t.Errorf("losses of the resumed run %v, of the whole one %v", a, b)
	}
	// The steps did cross the borders of epochs.
	sum, err := verbs.Preview(context.Background(), newEnv(t), base, verbs.PreviewOptions{Limit: 1},
		func(verbs.PreviewExample) error { return nil })
	if err != nil || sum.HeldOut != 6 || 14*6 < 2*sum.Rows {
		t.Errorf("%+v, %v", sum, err)
	}
}
