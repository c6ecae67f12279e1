package main

import (
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train"
)

type exportCmd struct {
	From       string `arg:"" optional:"" complete:"DIR" name:"MODEL" help:"Model directory to read."`
	To         string `arg:"" optional:"" name:"DIR" help:"Model directory to write."`
	Checkpoint string `placeholder:"DIR" help:"Checkpoint to read instead, with --model and --out."`
	Model      string `placeholder:"DIR" help:"Model that the checkpoint's run started from."`
	Out        string `placeholder:"DIR" help:"Model directory to write."`
	DType      string `complete:"bf16|f32" name:"dtype" placeholder:"TYPE" help:"Number format to write: bf16 or f32. By default bf16; of a checkpoint, that of its model."`
}

func (*exportCmd) Help() string {
	return `Writes a model directory from a checkpoint, with the configuration and tokenizer of the model that its run started from; or one
that exists again, in another number format. It goes a part or a piece of a tensor at a time, so any model fits. A run
writes its last model itself, and its best one with save.best.

Examples:

  millrace export --checkpoint runs/a/checkpoints/step-000100 --model models/smollm2-135m --out models/a-100
  millrace export models/smollm2-135m models/smollm2-135m-f32 --dtype f32`
}

// Run exports.
func (c *exportCmd) Run(p *program) error {
	var dtype tensor.DType // Invalid: as the verb's help says
	var err error
	if c.DType != "" {
		if dtype, err = train.ParseExportType(c.DType); err != nil {
			return badFlag("%w", err)
		}
	}
	if c.Checkpoint != "" {
		if c.Model == "" || c.Out == "" || c.From != "" {
			return badFlag("export --checkpoint: name the model that the run started from with --model, and what to write with --out")
		}
		if err := train.ExportCheckpoint(p.ctx, p.env, c.Checkpoint, c.Model, c.Out, dtype); err != nil {
			return err
		}
		return p.printf("%s: written\n", c.Out)
	}
	if c.From == "" || c.To == "" || c.Model != "" || c.Out != "" {
		return badFlag("export: name a model directory to read and one to write, or use --checkpoint with --model and --out")
	}
	if dtype == tensor.Invalid {
		dtype = tensor.BF16
	}
	if err := train.Reexport(p.ctx, p.env, c.From, c.To, dtype); err != nil {
		return err
	}
	return p.printf("%s: written in %v\n", c.To, dtype)
}
