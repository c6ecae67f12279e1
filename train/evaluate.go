package train

import (
	"context"
	"errors"

	"github.com/millrace/millrace/data"
)

// EvalOptions say what to evaluate on what.
type EvalOptions struct {
	Model         string // a Hugging Face directory, or a hub id
	Data          []data.Source
	Tokenizer     string // auto (the model's), bytes, or a path
	TrainOnPrompt bool
	SequenceLen   int    // packed positions of a row; 0: 1024, or what the model can do if that is less
	Compute       string // bf16 or f32
	Memory        Memory
	Device        string
}

// Evaluate is the mean token loss of a model over data sets.
func Evaluate(ctx context.Context, env *Env, o EvalOptions) (*Loss, error) {
	return nil, errors.New("evaluate: being written")
}
