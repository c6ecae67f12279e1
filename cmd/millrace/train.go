package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
)

type trainCmd struct {
	runFile
	Trace bool      `help:"Write trace.json, a Chrome trace with one track per lane."`
	Serve serveFlag `help:"Show the run on a page, at 127.0.0.1:7077, or at HOST:PORT with --serve=HOST:PORT. With the token in the line that it prints the page asks the run to save, to stop or to evaluate more often."`
	JSON  bool      `help:"Print the summary as JSON."`
}

func (*trainCmd) Help() string {
	return `Example, with a run.yaml of four lines:

  model: models/smollm2-135m        # a Hugging Face directory
  datasets: [{path: train.jsonl, type: prompt-response}]
  max_steps: 200
  memory: {device: 2GiB}            # stream the weights through this much

  millrace train run.yaml learning_rate=2e-5 output_dir=runs/b

The output directory gets run.yaml (as resolved), plan.json, metrics.jsonl, checkpoints/ and, at the end, model/,
which transformers can load. A run that has checkpoints continues from the latest one, with the same result, to the
bit, as if it had not stopped. An interrupt, SIGTERM or a lost terminal finishes the step, saves a checkpoint and ends
with status 130; before the first step it ends at once. Another interrupt or SIGTERM, two seconds later or more,
stops without saving.`
}

// Run trains.
func (c *trainCmd) Run(p *program) error {
	config, err := c.read()
	timeout := runfile.Defaults().Distributed.Timeout
	if err == nil {
		timeout = config.Distributed.Timeout
	}
	if err := p.join(time.Duration(timeout)); err != nil {
		return err
	}
	if err := p.env.Cluster.Agree(err); err != nil {
		return err
	}
	controls := &train.Controls{}
	page, err := c.Serve.start(p, config, controls)
	if err := p.env.Cluster.Agree(err); err != nil {
		return err
	}
	if page != nil {
		defer page.Close()
	}
	p.trains = true
	s, err := train.Train(p.ctx, config, train.Options{Env: p.env, Trace: c.Trace, Controls: controls})
	if s == nil || !p.env.Cluster.Leads() {
		return err
	}
	if c.JSON {
		return errors.Join(err, p.printJSON(s))
	}
	return errors.Join(err, p.printf("%s", summaryText(s)))
}

// summaryText is the table at the end of a run.
func summaryText(s *train.Summary) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	steps := s.Steps - s.ResumedAfter // of this process, which the sums are of
	if s.ResumedAfter > 0 && steps > 0 {
		row("steps", "%d, the last %d since the run resumed", s.Steps, steps)
	} else {
		row("steps", "%d", s.Steps)
	}
	if s.EvalsNotLower > 0 {
		row("stopped early", "the held-out loss was not lower in %s in a row",
			spelling.Count(s.EvalsNotLower, "evaluation"))
	}
	if steps > 0 {
		stepRows(row, s, steps)
	}
	for _, dir := range []struct{ name, path string }{{"checkpoint", s.Checkpoint}, {"model", s.Model}, {"best model", s.BestModel}} {
		if dir.path != "" {
			row(dir.name, "%s", dir.path)
		}
	}
	w.Flush()
	return b.String()
}

// stepRows have the numbers of this process's steps.
func stepRows(row func(name, format string, args ...any), s *train.Summary, steps int) {
	row("tokens", "%d, of which %d count in the loss", s.Tokens, s.TargetTokens)
	isHeldOut := s.EvalBefore != nil && s.EvalAfter != nil
	if r := s.Rewards; r != nil {
		row("reward", "%.4f -> %.4f, means of %s", r.First, r.Last, spelling.Count(r.Steps, "step"))
	} else if t := s.Trend; t != nil {
		row("training loss", "%.4f -> %.4f, means of %d steps%s", t.First, t.Last, t.Steps, rise(t.Rose && !isHeldOut))
	} else {
		row("training loss", "%.4f -> %.4f", s.FirstLoss, s.LastLoss)
	}
	if isHeldOut {
		row("held-out loss", "%.4f -> %.4f%s", *s.EvalBefore, *s.EvalAfter, rise(*s.EvalAfter > *s.EvalBefore))
	}
	for _, label := range slices.Sorted(maps.Keys(s.EvalSetsAfter)) {
		after := s.EvalSetsAfter[label][trace.SetLoss]
		if before, ok := s.EvalSetsBefore[label][trace.SetLoss]; ok {
			row("  of "+label, "%.4f -> %.4f%s", before, after, rise(after > before))
		} else {
			row("loss of "+label, "%.4f", after)
		}
	}
	if before, after := s.ObjectiveBefore, s.ObjectiveAfter; before != nil && after != nil {
		scoreRow(row, "held-out ", before, after)
	} else if s.Objective != nil {
		scoreRow(row, "", nil, s.Objective)
	}
	if s.Skipped > 0 {
		row("skipped updates", "%d: the gradient norm was not finite", s.Skipped)
	}
	if s.Untargeted > 0 {
		row("idle steps", "%d: no token counted in the loss", s.Untargeted)
	}
	if x := s.Experts; x != nil {
		row("experts", "at the last step the busiest one of a layer got %.1f%% of the choices "+
			"(layer %d of %d with experts), %s no row",
			100*x.Busiest[x.Worst()], 1+x.Worst(), len(x.Busiest), spelling.Count(x.AllUnused(), "expert")+" got")
	}
	row("speed", "%.0f tokens/s; %.1f s in steps", s.TokensPerSec, s.TrainSec)
	if s.RolloutSec > 0 {
		row("answers", "%.1f s of sampling and judging", s.RolloutSec)
	}
	row("streamed", "%s to the device, %s a step", plan.FormatBytes(s.UploadBytes), plan.FormatBytes(s.UploadBytes/int64(max(steps, 1))))
	var lanes []string
	for lane := range trace.NumLanes {
		if sec := s.Lanes[lane]; sec > 0 && lane != trace.Disk { // which has a row of its own
			lanes = append(lanes, fmt.Sprintf("%v %.1f s (%.0f%%)", lane, sec, 100*sec/s.TrainSec))
		}
	}
	row("lanes busy", "%s", strings.Join(lanes, ", "))
	if s.DiskReadBytes+s.DiskWrittenBytes > 0 {
		busy := ""
		switch {
		case s.Lanes[trace.Disk] > 0 && s.StateOnDisk:
			busy = fmt.Sprintf(", state on disk and checkpoints %.1f s busy", s.Lanes[trace.Disk])
		case s.Lanes[trace.Disk] > 0:
			busy = fmt.Sprintf(", checkpoints %.1f s busy", s.Lanes[trace.Disk])
		}
		row("disk", "%s read, %s written%s", plan.FormatBytes(s.DiskReadBytes), plan.FormatBytes(s.DiskWrittenBytes), busy)
		if s.StateOnDisk || s.WrittenShare >= plan.MuchWear {
			wear, ofDrive := s.DiskWrittenBytes, ""
			if s.DriveWrittenBytes > 0 {
				wear = s.DriveWrittenBytes
				ofDrive = fmt.Sprintf(", %s of it to the drive that got most", trace.FormatWritten(wear))
			}
			row("drive's wear", "%s written%s, %s", trace.FormatWritten(s.DiskWrittenBytes), ofDrive, s.Text(wear))
		}
	}
	if s.WriteWaitSec > 0 {
		row("waited", "%.1f s for memory.max_write_per_day", s.WriteWaitSec)
	}
	row("peak memory", "%s measured, %s planned", plan.FormatBytes(s.PeakBytes), plan.FormatBytes(s.PlannedBytes))
	if s.RolloutBytes > 0 {
		row("by phase", "%s while answers were sampled, %s after steps", plan.FormatBytes(s.RolloutBytes),
			plan.FormatBytes(s.TrainBytes))
	}
}

// scoreRow has the share of targets that no token is likelier than, how often the better completion has the larger
// reward, and by how much it is larger: of the last step, or of the held-out data before and after training.
func scoreRow(row func(name, format string, args ...any), what string, before, after map[string]float64) {
	for _, of := range []struct{ name, as string }{{objective.MeanTokenAccuracy, "token accuracy"},
		{"rewards/accuracies", "accuracy"}, {"accuracy", "accuracy"}, {"rewards/margins", "margin"}, {"margin", "margin"}} {
		last, ok := after[of.name]
		first, had := before[of.name]
		switch {
		case ok && had:
			row(what+of.as, "%.3f -> %.3f", first, last)
		case ok:
			row(what+of.as, "%.3f in the last step", last)
		}
	}
}

// rise says what mostly makes a loss rise. The held-out loss decides where it is known; else means of many steps do,
// since the loss of one step is that of its few documents.
func rise(rose bool) string {
	if !rose {
		return ""
	}
	return ": it rose; a lower learning_rate or fewer steps may help"
}
