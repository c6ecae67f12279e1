package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
)

type benchCmd struct {
	Model       string  `required:"" placeholder:"DIR" help:"Directory with config.json; weights are random."`
	SequenceLen int     `default:"1024" help:"Packed positions of a row."`
	BatchTokens int     `default:"4096" help:"Packed positions of a step."`
	Steps       int     `default:"5" help:"Steps that are measured."`
	Warmup      int     `default:"2" help:"Steps before them."`
	MicroBatch  int     `placeholder:"N" help:"Sequences that one operation sees; chosen where it is not given."`
	HeadChunk   int     `placeholder:"N" help:"Positions whose logits are computed together; chosen where it is not given."`
	Compute     string  `default:"bf16" help:"bf16 or f32."`
	Moments     string  `default:"f32" help:"First and second moments in f32 or 8bit."`
	MaxGradNorm float64 `default:"1" help:"Gradients are clipped to this norm; 0 turns clipping off."`
	JSON        bool    `help:"Print the result as JSON."`
	Recompute   string  `default:"auto" enum:"auto,always" help:"Recompute what memory allows to keep (auto), or all but layer inputs (always)."`
	MemoryDisk  string  `default:"none" placeholder:"SIZE" help:"Disk to use at most, or auto."`
	MemoryPath  string  `placeholder:"DIR" help:"Where the disk tier goes."`
	where
}

func (*benchCmd) Help() string {
	return `Full training steps, optimizer included, on random tokens. Compare with another run of the same machine only.

Example, streamed against all weights in place:

  millrace bench --model models/smollm2-135m
  millrace bench --model models/smollm2-135m --memory-device 64MiB`
}

// Run measures.
func (c *benchCmd) Run(p *program) error {
	m, err := c.memory()
	if err != nil {
		return err
	}
	if m.Disk, err = train.ParseBytes(c.MemoryDisk); err != nil {
		return train.Request(fmt.Errorf("--memory-disk: %w", err))
	}
	m.Path, m.Recompute = c.MemoryPath, c.Recompute
	if c.MicroBatch < 0 || c.HeadChunk < 0 {
		return badFlag("--micro-batch and --head-chunk must be positive")
	}
	r, err := train.Benchmark(p.ctx, p.env, train.BenchOptions{Model: c.Model, SequenceLen: c.SequenceLen, BatchTokens: c.BatchTokens,
		Steps: c.Steps, Warmup: c.Warmup, MicroBatch: train.Auto(c.MicroBatch), HeadChunk: train.Auto(c.HeadChunk), Compute: c.Compute,
		Moments: c.Moments, MaxGradNorm: c.MaxGradNorm, Memory: m, Device: c.Device})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(r)
	}
	return p.printf("%s", benchText(r))
}

// benchText is a table of the result.
func benchText(r *train.BenchResult) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("device", "%s", r.Device)
	row("model", "%s parameters", plan.FormatCount(r.Parameters))
	row("step", "%d micro-batches of %d x %d", r.MicroBatches, r.MicroBatch, r.SequenceLen)
	row("time", "%.3f s a step (median of %d; %.3f to %.3f); %.3f predicted", r.StepSec, r.Steps, r.StepMinSec, r.StepMaxSec, r.PredictedStepSec)
	row("speed", "%.0f tokens/s; %.3f TFLOP/s of the model, %.3f executed", r.TokensPerSec, r.ModelTFLOPS, r.ExecutedTFLOPS)
	row("lanes busy", "fetch %.3f s, compute %.3f s, drain %.3f s, update %.3f s, disk %.3f s a step", r.Lanes.Fetch, r.Lanes.Compute, r.Lanes.Drain,
		r.Lanes.Update, r.Lanes.Disk)
	row("peak memory", "%s measured, %s planned", plan.FormatBytes(r.PeakBytes), plan.FormatBytes(r.PlannedBytes))
	w.Flush()
	return b.String()
}
