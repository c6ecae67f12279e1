package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train/generate"
)

// maxPromptBytes bounds what is read from standard input.
const maxPromptBytes = 16 << 20

// speaker are the flags of verbs that have a model write text.
type speaker struct {
	Model       string  `required:"" placeholder:"DIR" help:"Model: a Hugging Face directory, a hub id, a run's output directory, or one of its checkpoints."`
	Tokenizer   string  `complete:"auto|bytes|FILE" default:"auto" help:"auto (the run's, or the model's), bytes, or a path."`
	MaxTokens   int     `default:"${max_tokens}" aliases:"max-new-tokens" help:"Tokens to generate at most."`
	Temperature float64 `default:"0.8" help:"0 takes the most likely token each time."`
	TopK        int     `default:"0" help:"Choose among the K most likely tokens only; 0: all."`
	TopP        float64 `default:"0.95" help:"Choose among the most likely tokens that have this probability together; 1: all."`
	Seed        uint64  `default:"42" help:"Seed of the choices: the same one gives the same text."`
	Compute     string  `complete:"bf16|f32" default:"bf16" help:"bf16 or f32."`
	where
}

func (s *speaker) options() (generate.Options, error) {
	m, err := s.memory()
	return generate.Options{Model: s.Model, Tokenizer: s.Tokenizer, MaxTokens: s.MaxTokens,
		Temperature: s.Temperature, TopK: s.TopK,
		TopP: s.TopP, Seed: s.Seed, Compute: s.Compute, Memory: m, Device: s.Device}, err
}

// text is standard output for what a model writes: a terminal would act on some of it.
func (p *program) text() io.Writer {
	if terminal.Is(p.stdout) {
		return harmless{p.stdout}
	}
	return p.stdout
}

type generateCmd struct {
	speaker `embed:"" set:"max_tokens=128"`
	Prompt  []string `sep:"none" placeholder:"TEXT" help:"Text to continue, or several; - is standard input."`
	Prompts string   `placeholder:"FILE" help:"File of texts to continue: an object with a prompt in each line."`
	JSON    bool     `help:"Print text and tokens as JSON at the end; of several prompts in lines."`
}

func (*generateCmd) Help() string {
	return `Prints the text as it comes. The prompt is taken as it is, without a chat template; millrace chat uses that.
Several prompts share passes over the model, which takes little longer than one.

Examples:

  millrace generate --model millrace-demo/run/model --prompt "The Rays of Light" --max-tokens 200
  millrace generate --model millrace-demo/run --prompt "The Rays of Light"
  millrace generate --model runs/smollm2-gsm8k --prompts questions.jsonl --json > answers.jsonl`
}

// Run generates.
func (c *generateCmd) Run(p *program) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	prompts, err := c.prompts(p)
	if err != nil {
		return err
	}
	several := len(prompts) > 1 || c.Prompts != ""
	switch {
	case several && !c.JSON:
		return badFlag("--json: it is missing; the texts of several prompts are printed as JSON, one in a line")
	case !c.JSON:
		o.Out = p.text()
	}
	return generate.Each(p.ctx, p.env, o, prompts, func(g *generate.Generated) error {
		switch {
		case several:
			return p.printJSONLine(g)
		case c.JSON:
			return p.printJSON(g)
		case !strings.HasSuffix(g.Text, "\n"):
			return p.printf("\n")
		}
		return nil
	})
}

// prompts joins the prompts of all flags, in their order.
func (c *generateCmd) prompts(p *program) (all []string, err error) {
	isRead := false
	for _, prompt := range c.Prompt {
		if prompt == "-" {
			if isRead {
				return nil, badFlag("--prompt -: standard input is read once; give - once")
			}
			isRead = true
			if prompt, err = p.readPrompt(); err != nil {
				return nil, err
			}
		}
		all = append(all, prompt)
	}
	if c.Prompts != "" {
		of, err := data.ReadPrompts(c.Prompts)
		if err != nil {
			return nil, badFlag("--prompts: %v", err)
		}
		for i, prompt := range of {
			if prompt.Messages != nil {
				return nil, badFlag("--prompts: prompt %d of %s is a list of messages, and millrace generate renders "+
					"none; write a text, or ask millrace chat", i+1, c.Prompts)
			}
			all = append(all, prompt.Text)
		}
	}
	if len(all) == 0 {
		return nil, badFlag("--prompt: it is missing; write the text to continue, or name a file with --prompts")
	}
	return all, nil
}

// readPrompt reads standard input, which a user may be typing.
func (p *program) readPrompt() (string, error) {
	var text []byte
	read := make(chan error, 1)
	fault.Go(func() {
		var err error
		text, err = io.ReadAll(io.LimitReader(p.stdin, maxPromptBytes+1))
		read <- err
	})
	select {
	case err := <-read:
		if err != nil {
			return "", fmt.Errorf("prompt: standard input: %w", err)
		}
	case <-p.ctx.Done():
		return "", p.ctx.Err()
	}
	if len(text) > maxPromptBytes {
		return "", badFlag("--prompt -: standard input has more than %d MiB; shorten it", maxPromptBytes>>20)
	}
	return string(text), nil
}
