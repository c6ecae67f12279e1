package main

import "github.com/millrace/millrace/train/verbs"

type gradCmd struct {
	Model   string `required:"" placeholder:"DIR" help:"Model: a Hugging Face directory."`
	Tokens  string `required:"" placeholder:"FILE" help:"{\"input_ids\": [[...]], \"labels\": [[...]]}, one list per sequence; labels are not shifted, and -100 does not count."`
	Out     string `required:"" placeholder:"FILE" help:"Safetensors file to write."`
	Compute string `complete:"bf16|f32" default:"f32" help:"f32 or bf16."`
	Logits  bool   `help:"Write the logits of each sequence, too."`
	JSON    bool   `help:"Print loss and norm as JSON."`
	where
}

func (*gradCmd) Help() string {
	return `Writes "loss", the gradient of each parameter under its Hugging Face name and, with --logits, "logits.0" and
so on, one for each sequence. The loss is the sum of the token losses over the number of labels that count, as in
transformers.

Example:

  echo '{"input_ids": [[1, 2, 3]], "labels": [[-100, 2, 3]]}' > tokens.json
  millrace grad --model models/smollm2-135m --tokens tokens.json --out grads.safetensors --logits`
}

// Run computes gradients.
func (c *gradCmd) Run(p *program) error {
	m, err := c.memory()
	if err != nil {
		return err
	}
	s, err := verbs.Gradients(p.ctx, p.env, verbs.GradOptions{Model: c.Model, Tokens: c.Tokens, Out: c.Out,
		Compute: c.Compute, Logits: c.Logits,
		Memory: m, Device: c.Device})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(s)
	}
	return p.printf("loss %.6f  gradient norm %.6f  over %d target tokens; %d gradients in %s\n", s.Loss, s.GradNorm, s.TargetTokens, s.Tensors, c.Out)
}
