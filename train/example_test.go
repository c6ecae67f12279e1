package train_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/millrace/millrace"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/train"
)

// openTiny opens a run of a tiny random model on examples of the caller.
func openTiny(ctx context.Context, o millrace.OpenOptions) *train.Run {
	config, err := millrace.Config("", "model=../examples/library/tiny", "init=random", "tokenizer=bytes",
		"sequence_len=32", "batch_tokens=64", "device=cpu")
	if err != nil {
		log.Fatal(err)
	}
	run, err := millrace.Open(ctx, config, o)
	if err != nil {
		log.Fatal(err)
	}
	return run
}

// The verbs of a research loop, on two examples of the caller: Step trains, Eval measures, Logits predicts, and Save
// writes a checkpoint.
func ExampleRun() {
	ctx := context.Background()
	run := openTiny(ctx, millrace.OpenOptions{LogitRows: 1})
	defer run.Close()
	tok, err := run.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	wheel, stone := tok.Encode("the wheel turns", false), tok.Encode("the stones grind", false)
	batch, err := run.Batch(data.Example{InputIDs: wheel, Labels: wheel}, data.Example{InputIDs: stone, Labels: stone})
	if err != nil {
		log.Fatal(err)
	}
	before, err := run.Eval(ctx, batch)
	if err != nil {
		log.Fatal(err)
	}
	for range 30 {
		if _, err := run.Step(ctx, batch, run.Update(1e-2)); err != nil {
			log.Fatal(err)
		}
	}
	after, err := run.Eval(ctx, batch)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the loss fell to less than half:", after < before/2)

	// The logits after "the whe", in the first row of each micro-batch.
	logits, err := run.Logits(ctx, batch, len("the whe")-1)
	if err != nil {
		log.Fatal(err)
	}
	next := 0
	for token, logit := range logits[0] {
		if logit > logits[0][next] {
			next = token
		}
	}
	fmt.Printf("after \"the whe\" comes %q\n", tok.Decode([]int32{int32(next)}, false))

	dir, err := os.MkdirTemp("", "checkpoints-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path, err := run.Save(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("saved", filepath.Base(path))
	// Output:
	// the loss fell to less than half: true
	// after "the whe" comes "e"
	// saved step-000030
}

// One tensor of a model, by its name.
func ExampleRun_Tensor() {
	ctx := context.Background()
	run := openTiny(ctx, millrace.OpenOptions{})
	defer run.Close()
	norm, err := run.Tensor(ctx, "model.norm.weight")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(norm), "weights, which begin with", norm[0])
	// Output:
	// 32 weights, which begin with 1
}
