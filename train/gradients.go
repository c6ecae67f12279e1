package train

import (
	"context"
	"errors"
)

// GradOptions say of which sequences the gradients are wanted.
type GradOptions struct {
	Model   string // a Hugging Face directory, or a hub id
	Tokens  string // file with {"input_ids": [[...]], "labels": [[...]]}
	Out     string // safetensors file to write
	Compute string // f32 (default) or bf16
	Logits  bool   // write logits.<i> as well
	Memory  Memory
	Device  string
}

// GradSummary is what Gradients wrote.
type GradSummary struct {
	Loss         float64 `json:"loss"` // nats per target token
	GradNorm     float64 `json:"grad_norm"`
	Sequences    int     `json:"sequences"`
	TargetTokens int64   `json:"target_tokens"`
	Tensors      int     `json:"tensors"`    // gradients in the file
	Parameters   int64   `json:"parameters"` // elements of these
}

// Gradients writes the loss and every gradient of a batch of sequences.
func Gradients(ctx context.Context, env *Env, o GradOptions) (*GradSummary, error) {
	return nil, errors.New("grad: being written")
}
