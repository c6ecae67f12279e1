package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/train"
)

// maxPromptBytes bounds what is read from standard input.
const maxPromptBytes = 16 << 20

type generateCmd struct {
	Model       string  `required:"" placeholder:"DIR" help:"Model: a Hugging Face directory."`
	Prompt      string  `required:"" placeholder:"TEXT" help:"Text to continue; - reads standard input."`
	Tokenizer   string  `complete:"auto|bytes|FILE" default:"auto" help:"auto (the model's), bytes, or a path."`
	MaxTokens   int     `default:"128" help:"Tokens to generate at most."`
	Temperature float64 `default:"0.8" help:"0 takes the most likely token each time."`
	TopK        int     `default:"0" help:"Choose among the K most likely tokens only; 0: all."`
	TopP        float64 `default:"0.95" help:"Choose among the most likely tokens that have this probability together; 1: all."`
	Seed        uint64  `default:"42" help:"Seed of the choices: the same one gives the same text."`
	Compute     string  `complete:"bf16|f32" default:"bf16" help:"bf16 or f32."`
	JSON        bool    `help:"Print text and tokens as JSON at the end."`
	where
}

func (*generateCmd) Help() string {
	return `Prints the text as it comes. Use it to see what a model has learned; it keeps no attention cache, and a
server does this faster.

Example:

  millrace generate --model runs/demo/model --tokenizer bytes --prompt "func main() {" --max-tokens 200`
}

// Run generates.
func (c *generateCmd) Run(p *program) error {
	m, err := c.memory()
	if err != nil {
		return err
	}
	if c.Prompt == "-" {
		if c.Prompt, err = p.readPrompt(); err != nil {
			return err
		}
	}
	o := train.GenerateOptions{Model: c.Model, Prompt: c.Prompt, Tokenizer: c.Tokenizer, MaxTokens: c.MaxTokens, Temperature: c.Temperature,
		TopK: c.TopK, TopP: c.TopP, Seed: c.Seed, Compute: c.Compute, Memory: m, Device: c.Device}
	if !c.JSON {
		o.Out = p.stdout
		if isTerminal(p.stdout) {
			o.Out = harmless{p.stdout}
		}
	}
	g, err := train.Generate(p.ctx, p.env, o)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(g)
	}
	if !strings.HasSuffix(g.Text, "\n") {
		return p.printf("\n")
	}
	return nil
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
