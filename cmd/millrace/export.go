package main

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/export"
)

type exportCmd struct {
	From       string `arg:"" optional:"" complete:"DIR" name:"MODEL" help:"Model to read: a Hugging Face directory, a hub id, a run's output directory, or one of its checkpoints."`
	To         string `arg:"" optional:"" name:"DIR" help:"Model directory to write."`
	Checkpoint string `placeholder:"DIR" help:"Checkpoint to read instead, with --model and --out or --gguf."`
	Model      string `placeholder:"DIR" help:"Model that the checkpoint's run started from."`
	Out        string `placeholder:"DIR" help:"Model directory to write."`
	GGUF       string `name:"gguf" placeholder:"FILE" help:"GGUF file to write, for llama.cpp, instead of a directory."`
	DType      string `complete:"bf16|f32|f16|mxfp4|q8_0|q4_k_m" name:"dtype" placeholder:"TYPE" help:"Number format: bf16 (the default), f32, f16, or mxfp4 for gpt-oss; with --gguf also q8_0, q4_k_m."`
	ShardSize  string `placeholder:"SIZE" help:"Most bytes of weights in a file, unless one tensor has more; by default 5GB."`
	Pre        string `placeholder:"NAME" help:"With --gguf: llama.cpp's name for how the tokenizer cuts text."`
	JSON       bool   `help:"Print what was written as JSON."`
}

func (*exportCmd) Help() string {
	return `Writes a model directory from a checkpoint, with the configuration and tokenizer of the model that its run
started from; or one that exists again, in another number format; or either of them as a GGUF file. It converts a
piece of a tensor at a time, so any model fits. The format of a checkpoint is by default that of its run's model. A
run writes its last model itself, and its best one with save.best.

Examples:

  millrace export --checkpoint runs/a/checkpoints/step-000100 --model models/smollm2-135m --out models/a-100
  millrace export models/smollm2-135m models/smollm2-135m-f32 --dtype f32
  millrace export runs/a --gguf a-q4_k_m.gguf --dtype q4_k_m`
}

// Run exports.
func (c *exportCmd) Run(p *program) error {
	from, to := c.From, c.To
	if c.Checkpoint != "" {
		if c.Model == "" || (c.Out == "") == (c.GGUF == "") || from != "" {
			return badFlag("export --checkpoint: name the model that the run started from with --model, " +
				"and the directory or file to write with --out or --gguf")
		}
		from, to = c.Model, c.Out
	} else if from == "" || (to == "") == (c.GGUF == "") || c.Model != "" || c.Out != "" {
		return badFlag("export: name a model directory to read and one to write, or a file with --gguf; " +
			"or use --checkpoint with --model and --out or --gguf")
	}
	if c.GGUF != "" {
		if c.ShardSize != "" {
			return badFlag("--shard-size is for a directory, and a GGUF file is one file: leave it out")
		}
		return c.gguf(p, from)
	}
	if c.Pre != "" {
		return badFlag("--pre is for a GGUF file: name one with --gguf")
	}
	o := export.Options{Model: from, Checkpoint: c.Checkpoint, Dir: to}
	if strings.EqualFold(c.DType, "mxfp4") {
		o.MXFP4 = true
	} else if c.DType != "" {
		var err error
		if o.DType, err = export.ParseType(c.DType); err != nil {
			return badFlag("%w", err)
		}
	}
	if c.ShardSize != "" {
		shard, err := runfile.ParseBytes(c.ShardSize)
		if err != nil || shard.N <= 0 {
			return badFlag("--shard-size is %q: use a size such as 5GB", c.ShardSize)
		}
		o.ShardBytes = shard.N
	}
	done, err := export.HuggingFace(p.ctx, p.env, o)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(done)
	}
	return p.printf("%s: written in %s\n", done.Dir, done.DType)
}

// gguf writes a GGUF file.
func (c *exportCmd) gguf(p *program, from string) error {
	o := export.GGUFOptions{Model: from, Checkpoint: c.Checkpoint, File: c.GGUF, Pre: c.Pre}
	if c.DType != "" {
		var err error
		if o.Type, err = gguf.ParseType(c.DType); err != nil {
			return badFlag("--%w", err)
		}
	}
	report, err := export.GGUF(p.ctx, p.env, o)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(report)
	}
	for _, note := range report.Notes {
		fmt.Fprintf(p.stderr, "note: %s\n", note)
	}
	return p.printf("%s: %s of a %s model in %s (%s)\n", c.GGUF, plan.FormatBytes(report.Bytes), report.Architecture,
		report.Type, report.Summary())
}
