package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
)

type importCmd struct {
	Model     string `arg:"" name:"FILE.gguf" help:"GGUF file; with --add-tokens also a model directory or hub id."`
	Dir       string `arg:"" name:"DIR" help:"Model directory to write."`
	DType     string `complete:"bf16|f32" name:"dtype" placeholder:"TYPE" help:"Number format to write of a GGUF file: bf16 (default) or f32."`
	AddTokens string `placeholder:"TEXT" help:"Tokens to add, separated by commas, or @FILE with one on each line."`
	Plain     bool   `name:"plain-tokens" help:"The added tokens are not special: decoding keeps them."`
	Replace   bool   `help:"Replace the model in DIR, unless DIR has other files."`
}

func (*importCmd) Help() string {
	return `Reads the weights (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K), the configuration and the
tokenizer, and writes config.json, safetensors and tokenizer.json. Quantized weights are the numbers that they stand
for: what the quantization lost stays lost.

With --add-tokens the tokenizer gets further tokens, and the embedding and the head a row for each, at the mean of the
rows that tokens have. Rows that no token has are used first.

Example:

  millrace import smollm2-135m-instruct-q8_0.gguf models/smollm2-135m
  millrace import models/base models/base-chatml --add-tokens '<|im_start|>,<|im_end|>'`
}

// Run imports.
func (c *importCmd) Run(p *program) error {
	dtype := tensor.Invalid
	if c.DType != "" {
		var err error
		if dtype, err = tensor.ParseDType(strings.ToLower(c.DType)); err != nil || dtype != tensor.BF16 && dtype != tensor.F32 {
			return badFlag("dtype is %q: use bf16 or f32", c.DType)
		}
	}
	info, err := os.Stat(c.Model)
	isDir := err == nil && info.IsDir()
	isFile := err == nil && !isDir || strings.EqualFold(filepath.Ext(c.Model), ".gguf")
	switch {
	case c.AddTokens == "" && c.Plain:
		return badFlag("--plain-tokens is for --add-tokens: name the tokens")
	case c.AddTokens == "" && isDir:
		return badFlag("%s is a model directory, and needs no import: add tokens with --add-tokens, or write it in "+
			"another format with millrace export", c.Model)
	case c.AddTokens == "":
		return c.gguf(p, c.Dir, dtype)
	case !isFile && c.DType != "":
		return badFlag("--dtype is for a GGUF file: a model keeps its format here; millrace export writes it in another " +
			"one")
	}
	tokens, err := tokensOf(c.AddTokens)
	if err != nil {
		return err
	}
	from := c.Model
	if isFile {
		between, err := os.MkdirTemp(filepath.Dir(filepath.Clean(c.Dir)), ".millrace-import-")
		if err != nil {
			return blame.BadRequest(err)
		}
		defer os.RemoveAll(between)
		from = filepath.Join(between, "model")
		if err := c.gguf(p, from, dtype); err != nil {
			return err
		}
	}
	done, err := export.AddTokens(p.ctx, p.env, export.AddTokensOptions{Model: from, Dir: c.Dir, Tokens: tokens,
		Plain: c.Plain, Replace: c.Replace})
	if err != nil {
		return err
	}
	return p.printf("%s", addedText(c.Dir, done))
}

// gguf imports a GGUF file.
func (c *importCmd) gguf(p *program, dir string, dtype tensor.DType) error {
	if dtype == tensor.Invalid {
		dtype = tensor.BF16
	}
	bar, bytes := p.out().Bar("importing "+c.Model), int64(0)
	err := gguf.Import(p.ctx, c.Model, dir, gguf.ImportOptions{DType: dtype, Replace: c.Replace,
		Progress: func(done, total int64) {
			bytes = total
			bar.Set(done, total)
		}})
	bar.End()
	if err != nil {
		return blame.BadRequest(err)
	}
	if dir != c.Dir { // it is not the result
		return nil
	}
	return p.printf("%s: %s of weights in %v\n", dir, plan.FormatBytes(bytes), dtype)
}

// maxTokensFileBytes is more than the tokens have that a model can get.
const maxTokensFileBytes = 16 << 20

// tokensOf are the tokens of a list or, after an @, of a file.
func tokensOf(list string) (tokens []string, err error) {
	separator := ","
	if file, ok := strings.CutPrefix(list, "@"); ok {
		info, err := os.Stat(file)
		if err == nil && info.Size() > maxTokensFileBytes {
			err = fmt.Errorf("%s has %d bytes: it is no list of tokens", file, info.Size())
		}
		if err != nil {
			return nil, badFlag("--add-tokens: %w", err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, badFlag("--add-tokens: %w", err)
		}
		list, separator = strings.TrimPrefix(string(text), "\uFEFF"), "\n"
	}
	for token := range strings.SplitSeq(list, separator) {
		if token = strings.TrimSpace(token); token != "" {
			tokens = append(tokens, token)
		}
	}
	if len(tokens) == 0 {
		return nil, badFlag("--add-tokens names no token: write them as in --add-tokens '<|im_start|>,<|im_end|>'")
	}
	return tokens, nil
}

// addedText says what came of --add-tokens.
func addedText(dir string, done *export.TokensAdded) string {
	var b strings.Builder
	for _, t := range done.Known {
		fmt.Fprintf(&b, "%s is in the tokenizer already, as %d, and stays as it is\n", terminal.Text(t.Content), t.ID)
	}
	for _, t := range done.Added {
		fmt.Fprintf(&b, "%s is token %d\n", terminal.Text(t.Content), t.ID)
	}
	if done.Rowless > 0 {
		fmt.Fprintf(&b, "%s of the tokenizer had no row, and %s now\n", spelling.Count(done.Rowless, "token"),
			map[bool]string{true: "has one", false: "have one each"}[done.Rowless == 1])
	}
	free := min(done.Rowless+len(done.Added), done.OldRows-done.First)
	fmt.Fprintf(&b, "%s: ", dir)
	switch {
	case done.Rows == done.OldRows:
		fmt.Fprintf(&b, "the vocabulary stays at %d rows, of which these had no token; they are now the mean of those "+
			"that have one\n", done.Rows)
	case free > 0:
		fmt.Fprintf(&b, "the vocabulary grew from %d rows to %d, and %d rows before had no token; new ones are the mean "+
			"of those that have one\n", done.OldRows, done.Rows, free)
	default:
		fmt.Fprintf(&b, "the vocabulary grew from %d rows to %d; new ones are the mean of the others\n", done.OldRows,
			done.Rows)
	}
	return b.String()
}
