package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
)

// research trains in a loop of its own: it halves the learning rate when the loss of a probe text stops falling, and
// follows how sure the model is of the next byte. It returns the path of the checkpoint that it saves to a directory.
func research(ctx context.Context, config *runfile.Config, saveDir string, out io.Writer) (path string, err error) {
	run, err := millrace.Open(ctx, config, millrace.OpenOptions{LogitRows: 1})
	if err != nil {
		return "", err
	}
	defer run.Close()
	tok, err := run.Tokenizer()
	if err != nil {
		return "", err
	}
	ids := tok.Encode("the water falls", false)
	probe, err := run.Batch(data.Example{InputIDs: ids, Labels: ids})
	if err != nil {
		return "", err
	}
	rate, best := 2e-2, math.Inf(1)
	for run.Steps() < 12 {
		batch, err := run.Next(ctx)
		if err != nil {
			return "", err
		}
		result, err := run.Step(ctx, batch, run.Update(rate))
		if err != nil {
			return "", err
		}
		if run.Steps()%3 != 0 {
			continue
		}
		loss, err := run.Eval(ctx, probe)
		if err != nil {
			return "", err
		}
		if loss > best {
			rate /= 2
		}
		best = min(best, loss)
		logits, err := run.Logits(ctx, probe, len(ids)-1)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(out, "step %d: loss %.2f, of the probe %.2f; entropy of the next byte %.2f nats\n",
			run.Steps(), result.Loss(), loss, entropy(logits[0]))
	}
	return run.Save(ctx, saveDir)
}
