package checkpoint_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/vfs"
)

// saveTiny saves a tiny random model to a checkpoint in a directory.
func saveTiny(ctx context.Context, dir string) (path string) {
	config, err := millrace.Config("", "model=../examples/library/tiny", "init=random", "tokenizer=bytes",
		"sequence_len=32", "batch_tokens=32", "device=cpu")
	if err != nil {
		log.Fatal(err)
	}
	run, err := millrace.Open(ctx, config, millrace.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close()
	if path, err = run.Save(ctx, dir); err != nil {
		log.Fatal(err)
	}
	return path
}

// The exact fp32 weights of a checkpoint, tensor by tensor.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "checkpoints-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := saveTiny(ctx, dir)

	saved, err := checkpoint.Open(vfs.OS{}, path)
	if err != nil {
		log.Fatal(err)
	}
	if err := saved.Verify(ctx, func(done, total int64) {}); err != nil {
		log.Fatal(err)
	}
	model, err := saved.Model()
	if err != nil {
		log.Fatal(err)
	}
	weights := saved.Weights(model)
	for _, t := range model.Tensors()[:3] {
		values, err := weights.Tensor(t.Name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Name, t.Shape, len(values))
	}
	// Output:
	// model.embed_tokens.weight [257 32] 8224
	// model.layers.0.self_attn.q_proj.weight [32 32] 1024
	// model.layers.0.self_attn.k_proj.weight [16 32] 512
}
