package train

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/verbs"
)

func TestSavesText(t *testing.T) {
	for want, c := range map[string]runfile.Save{
		"saves every 30 minutes and at the end": runfile.Defaults().Save,
		"saves every 500 steps, every 1.5 minutes and at the end": {Every: 500, Minutes: 1.5,
			AtEnd: true},
		"saves after every step and every minute":             {Every: 1, Minutes: 1},
		"saves after each evaluation that is the best so far": {Best: true},
		"saves only when it is interrupted or fails":          {},
		"saves every 2 steps, after each evaluation that is the best so far and at the end": {Every: 2, Best: true,
			AtEnd: true},
	} {
		if got := savesText(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

// The first line of a run says when it saves, and one line says whether pairs have the model's template.
func TestFirstLines(t *testing.T) {
	const row = `{"prompt": "a", "response": "b"}`
	pairs := filepath.Join(t.TempDir(), "a.jsonl")
	write(t, pairs, strings.Repeat(row+"\n", 40))
	for _, c := range []struct {
		template       bool
		asked          string
		kind           data.Type
		shown, notSaid string // preview's text of a row
		said           string
	}{
		{true, "auto", data.PromptResponse, "<user>a</s>\n<assistant>b</s>\n", "",
			"prompt-response data are rendered with the model's chat template; chat_template: conversations leaves it out"},
		{true, "model", data.PromptResponse, "<user>a</s>\n<assistant>b</s>\n", "",
			"prompt-response data are rendered with a chat template (chat_template: model)"},
		{true, "conversations", data.PromptResponse, "a\nb<|endoftext|>", "",
			"prompt-response data are rendered without the model's chat template (chat_template: conversations)"},
		{false, "auto", data.PromptResponse, "a\nb<|endoftext|>", "chat template", ""},
		{true, "auto", data.Text, row + "<|endoftext|>", "chat template", ""},
	} {
		run := smallConfig(t)
		if c.template {
			write(t, filepath.Join(run.Model, "chat_template.jinja"), turnTemplate)
		}
		run.ChatTemplate, run.MaxSteps, run.Datasets = c.asked, 1, []data.Source{{Path: pairs, Type: c.kind}}
		if c.kind == data.Text {
			text := filepath.Join(t.TempDir(), "a.txt")
			write(t, text, row)
			run.Datasets[0].Path = text
		}
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		if _, err := Train(context.Background(), run, Options{Env: env}); err != nil {
			t.Fatal(err)
		}
		headline := ""
		for line := range strings.Lines(said.String()) {
			if strings.Contains(line, "parameters") {
				headline = line
			}
		}
		if !strings.HasSuffix(headline, "; saves every 30 minutes and at the end\n") {
			t.Errorf("the first line: %q", headline)
		}
		if !strings.Contains(said.String(), c.said) || c.notSaid != "" && strings.Contains(said.String(), c.notSaid) {
			t.Errorf("%+v: said\n%s", c, said.String())
		}
		shown := ""
		if _, err := verbs.Preview(context.Background(), newEnv(t), run, verbs.PreviewOptions{Limit: 1},
			func(e verbs.PreviewExample) error {
				for _, p := range e.Pieces {
					shown += p.Text
				}
				return nil
			}); err != nil || shown != c.shown {
			t.Errorf("%+v: %q, %v", c, shown, err)
		}
	}
	run := smallConfig(t)
	run.ChatTemplate = "model"
	if _, err := Train(context.Background(), run, Options{Env: newEnv(t)}); err == nil ||
		!strings.Contains(err.Error(), "there is no chat template") {
		t.Errorf("chat_template: model without one: %v", err)
	}
}

// The first line of a run calls its seconds a guess before a probe, and not after one.
func TestHeadlineSaysWhatIsAGuess(t *testing.T) {
	for _, cache := range []string{"", slowHost(t)} {
		run := smallConfig(t)
		run.MaxSteps = 1
		env := newEnv(t)
		env.CacheDir = cache
		var said strings.Builder
		env.Progress = &said
		if _, err := Train(t.Context(), run, Options{Env: env}); err != nil {
			t.Fatal(err)
		}
		guess := " s a step (a guess, since there is no cache directory with what a probe measured: run `millrace probe`); saves"
		if strings.Contains(said.String(), guess) != (cache == "") || strings.Contains(said.String(), "a guess") != (cache == "") {
			t.Errorf("with a probe in %q:\n%s", cache, said.String())
		}
	}
}
