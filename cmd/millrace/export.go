package main

import "github.com/millrace/millrace/train"

type exportCmd struct {
	Model string `arg:"" name:"MODEL" help:"Model directory to read."`
	Dir   string `arg:"" name:"DIR" help:"Model directory to write."`
	DType string `name:"dtype" default:"bf16" help:"Number format to write: bf16 or f32."`
}

func (*exportCmd) Help() string {
	return `Writes a model directory again in another number format, with its configuration and tokenizer, a piece of a tensor at a
time. A run writes its model itself, when it ends; this is for models that exist.

Example:

  millrace export models/smollm2-135m models/smollm2-135m-f32 --dtype f32`
}

// Run exports.
func (c *exportCmd) Run(p *program) error {
	dtype, err := train.ParseExportType(c.DType)
	if err != nil {
		return err
	}
	if err := train.Reexport(p.ctx, p.env, c.Model, c.Dir, dtype); err != nil {
		return err
	}
	return p.printf("%s: written in %v\n", c.Dir, dtype)
}
