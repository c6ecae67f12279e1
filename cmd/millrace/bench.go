package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

type benchCmd struct {
	Shape       string  `complete:"SHAPE" placeholder:"NAME" help:"Published shape to measure; needs no files. Any other word lists the names."`
	Model       string  `placeholder:"DIR" help:"Directory with config.json to measure instead; weights are random."`
	SequenceLen int     `default:"1024" help:"Packed positions of a row."`
	Tokens      int     `aliases:"batch-tokens" default:"4096" help:"Packed positions of a step (--batch-tokens is the same)."`
	Steps       int     `default:"5" help:"Steps that are measured."`
	Warmup      int     `default:"2" help:"Steps before them."`
	MicroBatch  int     `placeholder:"N" help:"Sequences that one operation sees; chosen where it is not given."`
	HeadChunk   int     `placeholder:"N" help:"Positions whose logits are computed together; chosen where it is not given."`
	BlockChunk  int     `placeholder:"N" help:"Positions that a block's norms, projections and MLP take at once; chosen where it is not given."`
	Compute     string  `complete:"bf16|f32" default:"bf16" help:"bf16 or f32."`
	Master      string  `complete:"split|split24|f32" placeholder:"NAME" help:"Master weights: split or split24 with bf16, f32 with f32; it follows --compute where it is not given."`
	Moments     string  `complete:"f32|8bit|8+4|4bit" default:"f32" help:"Moments in f32, 8bit, 8+4 or 4bit."`
	MaxGradNorm float64 `default:"1" help:"Gradients are clipped to this norm; 0 turns clipping off."`
	Stream      string  `default:"auto" enum:"auto,always" help:"Blocks whose weights stay on the device between visits: as the plan sees fit (auto), or none (always)."`
	AliasLayers bool    `help:"Blocks share the memory of a few of them, for shapes whose state exceeds the host. All bytes are moved; the weights that result mean nothing."`
	DryRun      bool    `help:"Only plan the step and say what the simulation expects; nothing is measured."`
	JSON        bool    `help:"Print the result as JSON."`
	Trace       string  `placeholder:"FILE" help:"Write the last step as a Chrome trace, with --dry-run the simulated one; millrace trace draws it."`
	Recompute   string  `default:"auto" enum:"auto,always" help:"Recompute what memory allows to keep (auto), or all but layer inputs (always)."`
	Gradients   string  `default:"auto" enum:"auto,keep,twice" help:"Keep gradients until their norm is known, compute them twice, or what is predicted to be faster (auto)."`
	MemoryDisk  string  `complete:"none|auto" default:"none" placeholder:"SIZE" help:"Disk to use at most, or auto."`
	where

	// MemoryPath is runfile.Memory.Path.
	MemoryPath []string `sep:"none" placeholder:"DIR" help:"Where the disk tier goes. May be repeated, for several drives."`
}

func (*benchCmd) Help() string {
	return `Full training steps, optimizer included, on random weights and random tokens, next to what the simulation of
the same plan says. Compare with another run of the same machine only; run "millrace probe" there first.

Examples, the second one streamed against all weights in place, the third one with a state larger than the host:

  millrace bench --shape qwen2.5-7b --sequence-len 2048 --tokens 32768 --stream always
  millrace bench --model models/smollm2-135m --memory-device 64MiB
  millrace bench --shape llama-3-70b --sequence-len 2048 --tokens 32768 --alias-layers`
}

// Run measures.
func (c *benchCmd) Run(p *program) error {
	m, err := c.memory()
	if err != nil {
		return err
	}
	if m.Disk, err = runfile.ParseBytes(c.MemoryDisk); err != nil {
		return badFlag("--memory-disk: %w", err)
	}
	m.Path, m.Recompute, m.Gradients = c.MemoryPath, c.Recompute, c.Gradients
	if err := rundir.CheckPaths(m); err != nil {
		return badFlag("%w", err)
	}
	if c.MicroBatch < 0 || c.HeadChunk < 0 || c.BlockChunk < 0 {
		return badFlag("--micro-batch, --head-chunk and --block-chunk must be positive")
	}
	r, err := bench.Measure(p.ctx, p.env, bench.Options{Shape: c.Shape, Model: c.Model, SequenceLen: c.SequenceLen, Tokens: c.Tokens,
		Steps: c.Steps, Warmup: c.Warmup, MicroBatch: c.MicroBatch, HeadChunk: c.HeadChunk, BlockChunk: c.BlockChunk, Compute: c.Compute,
		Master: c.Master, Moments: c.Moments, MaxGradNorm: c.MaxGradNorm, Memory: m, Device: c.Device, Stream: c.Stream,
		AliasLayers: c.AliasLayers, TracePath: c.Trace,
		DryRun: c.DryRun})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(r)
	}
	return p.printf("%s", benchText(r))
}

// benchText renders the result for people: its subject, the measured figures next to the simulated ones, and a step of
// each.
func benchText(r *bench.Result) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("device", "%s", r.Device)
	if r.Warning != "" {
		row("warning", "%s", r.Warning)
	}
	row("model", "%s, %s parameters", r.Model, plan.FormatCount(r.Parameters))
	row("step", "%d tokens: %s of %d x %d; %s stay on the device", r.Tokens, spelling.Count(r.MicroBatches, "micro-batch"), r.MicroBatch, r.SequenceLen,
		spelling.Count(r.ResidentBlocks, "block"))
	isMeasured := r.Steps > 0
	if isMeasured {
		onDevice := plan.FormatBytes(r.DeviceBytes)
		if r.DeviceFreeMinBytes > 0 {
			onDevice += fmt.Sprintf(" (%s were free at least)", plan.FormatBytes(r.DeviceFreeMinBytes))
		}
		row("memory", "device %s; host %s at the peak, %s planned", onDevice, plan.FormatBytes(r.PeakBytes),
			plan.FormatBytes(r.PlannedBytes))
	} else {
		row("memory", "device %s; host %s", plan.FormatBytes(r.DeviceBytes), plan.FormatBytes(r.PlannedBytes))
	}
	row("traffic", "%s to the device and %s back, a step", plan.FormatBytes(r.UploadBytes), plan.FormatBytes(r.DownloadBytes))
	row("plan", "%s", strings.Join(r.Choices, "\n\t"))
	if isMeasured {
		row("loss", "%.4f in the first measured step, %.4f in the last; ln(vocabulary) is %.4f", r.LossFirst, r.Loss, r.LossUniform)
	}
	if r.PlannedBy == "guess" {
		row("planned by", "A GUESS, since %s: run `millrace probe` first", r.GuessReason)
	} else {
		row("planned by", "what `millrace probe` measured")
	}
	w.Flush()
	if r.Alias != nil {
		fmt.Fprintf(&b, "\nALIASED LAYERS: %s\n", r.Alias.Warning)
	}

	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	compare := func(name, unit string, measured, simulated float64, format string) {
		if isMeasured {
			fmt.Fprintf(w, "%s\t"+format+"\t"+format+"\t%s\t\n", name, measured, simulated, unit)
		} else {
			fmt.Fprintf(w, "%s\t"+format+"\t%s\t\n", name, simulated, unit)
		}
	}
	fmt.Fprintf(&b, "\n")
	if isMeasured {
		fmt.Fprintf(w, "\tmeasured\tsimulated\t\t\n")
	} else {
		fmt.Fprintf(w, "\tsimulated\t\t\n")
	}
	compare("step", "s", r.StepSec, r.PredictedStepSec, "%.3f")
	compare("tokens", "/s", r.TokensPerSec, r.PredictedTokensPerSec, "%.0f")
	compare("model", "TFLOP/s", r.ModelTFLOPS, r.PredictedModelTFLOPS, "%.3f")
	compare("executed", "TFLOP/s", r.ExecutedTFLOPS, r.PredictedExecutedTFLOPS, "%.3f")
	for lane := range trace.NumLanes {
		if lane.IsOptional() && r.BusyShares[lane] == 0 {
			continue
		}
		compare(lane.String()+" busy", "%", 100*r.BusyShares[lane], 100*r.PredictedBusyShares[lane], "%.1f")
	}
	w.Flush()
	fmt.Fprintf(&b, "\n")
	if isMeasured {
		fmt.Fprintf(&b, "steps from %.3f to %.3f s (%d, the median counts); ", r.StepMinSec, r.StepMaxSec, r.Steps)
	}
	fmt.Fprintf(&b, "simulated for %s, limited by %s\n", r.Machine, r.PredictedLimit)
	for _, t := range []struct {
		name  string
		lines []string
	}{{"the last step", r.Timeline}, {"the simulated step", r.PredictedTimeline}} {
		if len(t.lines) > 0 {
			fmt.Fprintf(&b, "\n%s\n\n  %s\n", t.name, strings.Join(t.lines, "\n  "))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", plan.Legend(r.Timeline, r.PredictedTimeline))
	return b.String()
}
