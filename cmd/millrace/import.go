package main

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
)

type importCmd struct {
	File    string `arg:"" name:"FILE.gguf" help:"GGUF file of a llama, qwen2 or qwen3 model."`
	Dir     string `arg:"" name:"DIR" help:"Model directory to write."`
	DType   string `complete:"bf16|f32" name:"dtype" default:"bf16" help:"Number format to write: bf16 or f32."`
	Replace bool   `help:"Replace the model in DIR, unless DIR has other files."`
}

func (*importCmd) Help() string {
	return `Reads the weights (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K), the configuration and the
tokenizer, and writes config.json, safetensors and tokenizer.json. Quantized weights are the numbers that they stand
for: what the quantization lost stays lost.

Example:

  millrace import smollm2-135m-instruct-q8_0.gguf models/smollm2-135m`
}

// Run imports.
func (c *importCmd) Run(p *program) error {
	dtype, err := train.ParseExportType(c.DType)
	if err != nil {
		return badFlag("%w", err)
	}
	bar, bytes := p.out().Bar("importing "+c.File), int64(0)
	err = hf.ImportGGUF(p.ctx, c.File, c.Dir, hf.ImportOptions{DType: dtype, Replace: c.Replace,
		Progress: func(done, total int64) {
			bytes = total
			bar.Set(done, total)
		}})
	bar.End()
	if err != nil {
		return blame.BadRequest(err)
	}
	return p.printf("%s: %s of weights in %v\n", c.Dir, plan.FormatBytes(bytes), dtype)
}
