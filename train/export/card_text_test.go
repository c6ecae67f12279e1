package export

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

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
	c := card{name: "x", model: "llama", params: 134515008, as: Format{DType: tensor.BF16}, Trained: Trained{Step: 1000},
		base: r.Model, config: &r,
		metrics: metrics}
	if text := string(c.text()); strings.Contains(text, "base_model") {
		t.Errorf("a path that looks like an id is the base model:\n%s", text)
	}
	c.baseID = "org/base"
	text := string(c.text())
	for _, want := range []string{
		"---\n" + hf.CardMark + "\nmillrace_step: " + strconv.Itoa(c.Step) +
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

// Settings of a checkpoint, names and the run file cannot add headings, HTML or links to a card.
func TestCardOfHostileTexts(t *testing.T) {
	const evil = "1 |\n\n# Official release\n<img src=x>`` [a](http://b) \x1b[2J\n```\n## Gone"
	r := runfile.Defaults()
	r.Model, r.OutputDir = evil, "x"
	r.Datasets = []data.Source{{Path: "a`|<b>\n# c", Type: data.Text, Name: evil, Split: "<i>"}}
	for name, c := range map[string]card{
		"a checkpoint alone": {Trained: Trained{Settings: map[string]string{"seed": evil, evil: "1", "whole": "3"}}},
		"a run":              {config: &r},
	} {
		c.name, c.model, c.base, c.as = evil, evil, evil, Format{DType: tensor.BF16}
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
