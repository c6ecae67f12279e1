package main

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
)

// trainUntil trains as a run file says, but no longer than until the loss is below a limit.
func trainUntil(ctx context.Context, config *runfile.Config, limit float64, out io.Writer) (*train.Summary, error) {
	return millrace.Train(ctx, config, millrace.TrainOptions{OnStep: func(m trace.Metrics) error {
		fmt.Fprintf(out, "step %d: loss %.2f, gradient norm %.2f\n", m.Step, m.Loss, m.GradNorm)
		if m.Loss < limit {
			return train.ErrStop // the run saves a checkpoint, writes the model, and ends well
		}
		return nil
	}})
}

// savesOf trains, and returns the paths of the checkpoints that the run saves.
func savesOf(ctx context.Context, config *runfile.Config) (paths []string, err error) {
	env := millrace.NewEnv(nil)
	env.Events = func(event train.Event) {
		if saved, ok := event.(train.Saved); ok {
			paths = append(paths, saved.Path)
		}
	}
	_, err = millrace.Train(ctx, config, millrace.TrainOptions{Env: env})
	return paths, err
}
