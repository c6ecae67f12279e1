package millrace_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
)

// Will a model of 14 billion parameters fit a desktop computer, and how fast is a step?
func ExamplePlanShape() {
	planned, err := millrace.PlanShape(context.Background(), "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	if err != nil {
		log.Fatal(err) // it does not fit, and the error names the number to change
	}
	p := planned.Plan
	fmt.Println("device memory fits:", p.DeviceTotalBytes() <= p.DeviceBudget, "in", plan.FormatBytes(p.DeviceBudget))
	fmt.Println("host memory fits:  ", p.HostBytes <= p.HostBudget, "in", plan.FormatBytes(p.HostBudget))
	minutes := float64(p.Numerics.StepPositions()) / planned.Forecast.TokensPerSec / 60
	fmt.Printf("a step of %d tokens takes about %.0f minutes\n", p.Numerics.StepPositions(), minutes)
	// Output:
	// device memory fits: true in 23.00 GiB
	// host memory fits:   true in 57.60 GiB
	// a step of 65536 tokens takes about 4 minutes
}

// A callback follows each step, and ends the training when the loss is low enough.
func ExampleTrain() {
	dir, err := os.MkdirTemp("", "train-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	config, err := millrace.Config("", "model=examples/library/tiny", "init=random", "tokenizer=bytes",
		"datasets=[{path: examples/library/tiny/text.txt, type: text}]", "sequence_len=64", "batch_tokens=256",
		"max_steps=20", "learning_rate=1e-2", "device=cpu", "output_dir="+dir)
	if err != nil {
		log.Fatal(err)
	}
	watch := func(m trace.Metrics) error {
		fmt.Printf("step %d: loss %.1f\n", m.Step, m.Loss)
		if m.Loss < 5 {
			return train.ErrStop
		}
		return nil
	}
	summary, err := millrace.Train(context.Background(), config, millrace.TrainOptions{OnStep: watch})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the model is in", filepath.Base(summary.Model))
	// Output:
	// step 1: loss 5.6
	// step 2: loss 5.2
	// step 3: loss 4.7
	// the model is in model
}

// A loop of your own: it trains until an evaluation is good enough, saves, and continues from the checkpoint.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "open-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	config, err := millrace.Config("", "model=examples/library/tiny", "init=random", "tokenizer=bytes",
		"datasets=[{path: examples/library/tiny/text.txt, type: text}]", "sequence_len=64", "batch_tokens=256",
		"device=cpu")
	if err != nil {
		log.Fatal(err)
	}
	run, err := millrace.Open(ctx, config, millrace.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for loss := 100.0; loss > 4; {
		batch, err := run.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if _, err = run.Step(ctx, batch, run.Update(1e-2)); err != nil {
			log.Fatal(err)
		}
		if loss, err = run.Eval(ctx, batch); err != nil {
			log.Fatal(err)
		}
	}
	path, err := run.Save(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	steps := run.Steps()
	if err := run.Close(); err != nil {
		log.Fatal(err)
	}

	run, err = millrace.Open(ctx, config, millrace.OpenOptions{From: path})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close()
	fmt.Println("continues after the same step:", run.Steps() == steps)
	// Output:
	// continues after the same step: true
}
