package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/verbs"
)

type evalCmd struct {
	Model        string   `required:"" placeholder:"DIR" help:"Model: a Hugging Face directory, a hub id, a run's output directory, or one of its checkpoints."`
	Data         []string `required:"" sep:"none" placeholder:"FILE" help:"JSON, JSONL, Parquet or plain text, or a data set of the hub. May be repeated."`
	EvalSet      []string `placeholder:"NAME" help:"Label of the set that the file of --data at the same place belongs to: each set has a loss of its own. As many as --data, separated by commas."`
	Name         string   `placeholder:"SUBSET" help:"Subset of a data set of the hub."`
	Split        string   `placeholder:"NAME" help:"Split of a data set of the hub; by default train."`
	Revision     string   `placeholder:"REVISION" help:"Branch, tag or commit of a data set of the hub."`
	Type         string   `complete:"text|prompt-response|alpaca|sharegpt|messages|preference" default:"text" help:"What the rows are: text, prompt-response, alpaca, sharegpt or messages; preference, for a reward model."`
	Field        string   `placeholder:"NAME" help:"Key of the text (type text)."`
	Prompt       string   `placeholder:"NAME" help:"Key of the prompt (type prompt-response)."`
	Response     string   `placeholder:"NAME" help:"Key of the response (type prompt-response)."`
	Glob         string   `placeholder:"PATTERN" help:"Files to read where --data is a directory, such as **/*.txt."`
	MaxSamples   int      `placeholder:"N" help:"Rows to read of each file at most."`
	Ignore       []string `placeholder:"NAME" help:"Keys of rows and messages to pass over although they carry meaning, separated by commas."`
	Tokenizer    string   `complete:"auto|bytes|FILE" default:"auto" help:"auto (the model's), bytes, or a path."`
	ChatTemplate string   `complete:"auto|model|conversations|FILE" default:"auto" help:"auto (the model's, if it has one), model, conversations (the model's, for messages and sharegpt only), or a path."`
	kwargs
	TrainOnPrompt bool   `help:"Count the prompts, too."`
	SequenceLen   int    `placeholder:"N" help:"Packed positions of a row; by default 1024, or what the model can do if that is less."`
	Compute       string `complete:"bf16|f32" default:"bf16" help:"bf16 or f32."`
	JSON          bool   `help:"Print the result as JSON."`
	where
}

func (*evalCmd) Help() string {
	return `The mean loss in nats per target token, its exponential, and over how many tokens. Documents are packed; none
sees another one. Of a reward model it is the loss over pairs (--type preference), and how often the chosen
answer has the higher score. With --eval-set each set has a line of its own, and the first line is of all of them.

Examples:

  millrace eval --model runs/gsm8k/model --data openai/gsm8k --name main --split test \
    --type prompt-response --prompt question --response answer
  millrace eval --model runs/gsm8k/model --data task.txt --data wiki.txt --eval-set task,forget`
}

// Run evaluates.
func (c *evalCmd) Run(p *program) error {
	m, err := c.memory()
	if err != nil {
		return err
	}
	if len(c.EvalSet) > 0 && len(c.EvalSet) != len(c.Data) {
		return badFlag("--eval-set has %s, and --data names %s: give each a label", spelling.Count(len(c.EvalSet), "label"),
			spelling.Count(len(c.Data), "file"))
	}
	var sources []data.Source
	for i, path := range c.Data {
		s := data.Source{Path: path, Type: data.Type(c.Type), Name: c.Name, Split: c.Split, Revision: c.Revision, Field: c.Field,
			Prompt: c.Prompt, Response: c.Response, Glob: c.Glob, MaxSamples: c.MaxSamples, Ignore: c.Ignore}
		if len(c.EvalSet) > 0 {
			s.EvalSet = c.EvalSet[i]
		}
		if err := s.Validate(); err != nil {
			return badFlag("%w", err)
		}
		sources = append(sources, s)
	}
	kwargs, err := c.kwargs.parsed()
	if err != nil {
		return err
	}
	l, err := verbs.Evaluate(p.ctx, p.env, verbs.EvalOptions{Model: c.Model, Data: sources, Tokenizer: c.Tokenizer,
		ChatTemplate: c.ChatTemplate, Kwargs: kwargs, TrainOnPrompt: c.TrainOnPrompt,
		SequenceLen: c.SequenceLen, Compute: c.Compute, Memory: m, Device: c.Device})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(l)
	}
	if err := p.printf("%s\n", lossLine(*l)); err != nil {
		return err
	}
	for _, label := range slices.Sorted(maps.Keys(l.Sets)) {
		if err := p.printf("%s: %s\n", label, lossLine(l.Sets[label])); err != nil {
			return err
		}
	}
	return nil
}

// lossLine is the result of an evaluation for people.
func lossLine(l train.Loss) string {
	if _, isReward := l.Objective["mean_reward"]; isReward {
		return fmt.Sprintf("loss %.4f  accuracy %.4f  margin %.4f  rewards %.4f to %.4f, mean %.4f", l.Loss,
			l.Objective["accuracy"], l.Objective["margin"], l.Objective["min_reward"], l.Objective["max_reward"],
			l.Objective["mean_reward"])
	}
	return fmt.Sprintf("loss %.4f  perplexity %.3f  token accuracy %.3f  over %d target tokens of %d", l.Loss,
		l.Perplexity, l.Objective[objective.MeanTokenAccuracy], l.TargetTokens, l.Tokens)
}
