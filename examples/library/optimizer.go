package main

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
)

// qwen3 is a model that has no directory. Its vocabulary is that of the bytes tokenizer.
const qwen3 = `{"model_type": "qwen3", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8,
	"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
	"rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "hidden_act": "silu"}`

// signDescent trains a model from random weights with an optimizer of its own: it moves every weight by the learning
// rate, against the sign of its gradient. It returns the loss on the first batch, before and after.
func signDescent(ctx context.Context, config *runfile.Config, out io.Writer) (before, after float64, err error) {
	own := *config
	own.Model, own.Init = "", "random"
	run, err := millrace.Open(ctx, &own, millrace.OpenOptions{ModelConfig: []byte(qwen3), Gradients: true})
	if err != nil {
		return 0, 0, err
	}
	defer run.Close()
	batch, err := run.Next(ctx)
	if err != nil {
		return 0, 0, err
	}
	for step := range 8 {
		result, err := run.Gradients(ctx, batch)
		if err != nil {
			return 0, 0, err
		}
		fmt.Fprintf(out, "step %d: loss %.2f, gradient norm %.2f\n", step+1, result.Loss(), result.GradNorm)
		if step == 0 {
			before = result.Loss()
		}
		if err := moveAgainstSigns(ctx, run, 1e-2); err != nil {
			return 0, 0, err
		}
	}
	after, err = run.Eval(ctx, batch)
	return before, after, err
}

// moveAgainstSigns updates all tensors. It reads all gradients first: to write a tensor ends their time.
func moveAgainstSigns(ctx context.Context, run *train.Run, rate float32) error {
	gradients := map[string][]float32{}
	for _, tensor := range run.Model().Tensors() {
		gradient, err := run.Gradient(ctx, tensor.Name)
		if err != nil {
			return err
		}
		gradients[tensor.Name] = gradient
	}
	changed := map[string][]float32{}
	for name, gradient := range gradients {
		weights, err := run.Tensor(ctx, name)
		if err != nil {
			return err
		}
		for i, g := range gradient {
			switch {
			case g > 0:
				weights[i] -= rate
			case g < 0:
				weights[i] += rate
			}
		}
		changed[name] = weights
	}
	return run.SetTensors(ctx, changed)
}
