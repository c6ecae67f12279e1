package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// Options say what to show, and where.
type Options struct {
	Dir     string // gets all files; it must be empty, or of an earlier demo
	Steps   int    // of the run, rounded down to a multiple of 8; 0: as many as Seconds have time for
	Seconds float64
	Shape   Shape
	// Program returns a process of the program with these arguments, which ends with the context.
	Program func(ctx context.Context, args ...string) *exec.Cmd

	Out   io.Writer // for people
	Bars  io.Writer // a terminal on which progress is drawn; nil: some lines of it go to Out
	Color bool
}

// DefaultShape can be taught to write in two minutes by two idle cores; benchmarks/demo.md compares it with others.
var DefaultShape = Shape{Vocabulary: 4096, Hidden: 192, Intermediate: 512, Layers: 8, Heads: 3, KeyValueHeads: 1,
	HeadDim:     64,
	SequenceLen: 256, BatchTokens: 256, Device: "8MiB", Host: "116MiB"}

// Report is the result of a demo.
type Report struct {
	Dir        string `json:"dir"`
	Parameters int64  `json:"parameters"`
	StateBytes int64  `json:"state_bytes"`      // of training: weights, gradients, moments
	DiskBytes  int64  `json:"state_disk_bytes"` // of these, on disk

	DeviceBudget int64 `json:"device_budget_bytes"`
	DeviceBytes  int64 `json:"device_bytes"`       // planned
	HostBudget   int64 `json:"host_budget_bytes"`  // of the process, the program and the device included
	PlannedBytes int64 `json:"planned_bytes"`      // of the process
	PeakBytes    int64 `json:"peak_rss_bytes"`     // of the process that resumed
	WrittenBytes int64 `json:"disk_written_bytes"` // by that process

	Steps         int    `json:"steps"`
	TokensPerStep int    `json:"tokens_per_step"`
	KilledAfter   int    `json:"killed_after_step"`
	ResumedAfter  int    `json:"resumed_after_step"`
	ComparedAfter int    `json:"compared_after_step"`
	ComparedBytes int64  `json:"compared_bytes"`
	Same          bool   `json:"same"`
	SHA256        string `json:"state_sha256"`           // of the run that was killed
	OtherSHA256   string `json:"in_memory_state_sha256"` // of the run that was not

	// Losses are of text that is not trained on, in nats for each byte.
	LossBefore  float64  `json:"held_out_nats_per_byte_before"`
	LossAfter   float64  `json:"held_out_nats_per_byte_after"`
	BitsPerByte float64  `json:"held_out_bits_per_byte_after"`
	Samples     []Sample `json:"samples"`

	Seconds    float64 `json:"sec"`
	CPUSeconds float64 `json:"cpu_sec"` // of all processes except this one
}

// Sample has the text that the model writes after a step.
type Sample struct {
	Step int    `json:"step"`
	Text string `json:"text"` // the prompt included
}

// Prompt begins all samples.
const Prompt = "The Rays of Light"

// parts counts the saves of the run. It is killed after the first save.
const parts = 8

// Bounds of the steps that are chosen: below them there is nothing to read, above them the model knows the book by
// heart.
const (
	leastSteps = 6 * parts
	mostSteps  = 500 * parts
)

// Bounds of the steps that are asked for: the run has a step between two saves, and takes at most some days.
const (
	fewestSteps = 2 * parts
	limitSteps  = 1_000_000
)

// demo is a demo in progress.
type demo struct {
	o     Options
	dir   string // absolute
	held  io.Closer
	begin time.Time
	cpu   time.Duration
	stage
	report Report
	text
	why string // the run has this number of steps
}

// Run shows all. It returns what it has found out even if it fails. The error is ErrDiffers where runs that must be
// the same are not.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if o.Steps != 0 && (o.Steps < fewestSteps || o.Steps > limitSteps) {
		return nil, blame.BadRequest(fmt.Errorf("--steps is %d: it must be from %d to %d", o.Steps, fewestSteps, limitSteps))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	held, err := claim(o.Dir)
	if err != nil {
		return nil, err
	}
	d := &demo{o: o, dir: dir, held: held, begin: time.Now(), stage: stage{&output{w: o.Out}, o.Bars, o.Color},
		report: Report{Dir: o.Dir, TokensPerStep: o.Shape.BatchTokens}}
	for _, act := range []func(context.Context) error{d.prepare, d.trainAndKill, d.verify, d.resume, d.repeat, d.compare,
		d.finish} {
		if err = cmp.Or(act(ctx), record(d.dir)); err != nil {
			break
		}
	}
	if err == nil {
		err = d.out.err
	}
	return &d.report, errors.Join(err, held.Close())
}

// prepare writes the files, decides on the number of steps, and shows the plan.
func (d *demo) prepare(ctx context.Context) (err error) {
	if d.text, err = furnish(d.dir, d.o.Shape); err != nil {
		return err
	}
	d.title("A small language model learns to write like a book")
	if err := d.try(ctx); err != nil {
		return err
	}
	if err := writeRunFile(d.dir, d.o.Shape, d.report.Steps); err != nil {
		return err
	}
	var p plan.Plan
	if err := d.must(ctx, call{args: []string{"plan", "run.yaml", "--json"}, json: &p}); err != nil {
		return err
	}
	r := &d.report
	if r.Parameters, err = parameters(filepath.Join(d.dir, "model")); err != nil {
		return err
	}
	r.DiskBytes = stateBytes(p.Disk)
	r.StateBytes = r.DiskBytes + stateBytes(p.State)
	r.DeviceBudget, r.DeviceBytes, r.HostBudget, r.PlannedBytes = p.DeviceBudget, p.DeviceBytes, p.HostBudget,
		p.ProcessBytes()
	d.row("book", "%s: %d kB to train on, %d kB held out", bookTitle, d.trainBytes/1000, d.heldOutBytes/1000)
	d.row("model", "%.1f million parameters in %d layers, which begin as random numbers", float64(r.Parameters)/1e6,
		d.o.Shape.Layers)
	d.row("state", "%s of weights, gradients and moments; %s of it on disk", plan.FormatBytes(r.StateBytes),
		plan.FormatBytes(r.DiskBytes))
	d.row("device", "%s, through which weights, gradients and activations stream", plan.FormatBytes(r.DeviceBudget))
	d.row("process", "%s of memory in all; the program and its kernels take %s of it, whatever the model",
		plan.FormatBytes(r.PlannedBytes),
		plan.FormatBytes(ownBytes(p.Host)))
	d.row("steps", "%d of %d tokens%s", r.Steps, r.TokensPerStep, d.why)
	d.say("\nBefore the first step it writes:")
	return d.sample(ctx, "tried/model", 0)
}

// triedSteps are timed to choose a number of steps.
const triedSteps = 6

// try does some steps with a learning rate of 0, which leave the model as it begins, and chooses from their time how
// many steps there is time for: those of the run, of the part that is done again, and of the run in memory, which is
// as long as the comparison needs.
func (d *demo) try(ctx context.Context) error {
	steps := triedSteps
	if d.o.Steps > 0 {
		steps = 1
	}
	if err := writeRunFile(d.dir, d.o.Shape, steps); err != nil {
		return err
	}
	var tried summary
	err := d.must(ctx, call{args: []string{"train", "run.yaml", "--json", "--set", "output_dir=tried", "--set",
		"learning_rate=0",
		"--set", "save.every=0", "--set", "save.at_end=false", "--set", "eval="}, json: &tried})
	if err != nil {
		return err
	}
	if d.report.Steps = d.o.Steps / parts * parts; d.o.Steps > 0 {
		return nil
	}
	const share = 0.85 // of the time for steps; starts, saves, evaluations and samples take the rest
	const times = 1 + 2.5/parts
	stepSec := tried.TrainSec / triedSteps
	n := int((share*d.o.Seconds-time.Since(d.begin).Seconds())/stepSec/times) / parts * parts
	d.report.Steps = min(max(n, leastSteps), mostSteps)
	d.why = fmt.Sprintf(": a step takes %.2f s here, and %.0f s were asked for", stepSec, d.o.Seconds)
	return nil
}

// trainAndKill trains beyond the first checkpoint, up to a random step before the second one, and kills.
func (d *demo) trainAndKill(ctx context.Context) error {
	d.title("millrace train run.yaml, killed in a random step")
	saved := d.report.Steps / parts
	victim := saved + 1 + rand.IntN(saved-1)
	r := d.progress(2*saved, d.trainTokensPerByte)
	killed, err := d.call(ctx, call{args: []string{"train", "run.yaml"}, line: func(text string) bool {
		if loss, ok := evaluatedBefore(text); ok {
			d.report.LossBefore = loss * d.heldOutTokensPerByte
		}
		step, ok := r.show(text)
		return ok && step >= victim && d.has("run", saved)
	}})
	r.end()
	if err != nil {
		return err
	}
	if !killed {
		return errors.New("the run ended before it was killed; give it more --steps")
	}
	if d.report.KilledAfter, err = d.stepsOf("run"); err != nil {
		return err
	}
	d.say("kill -9 after step %d of %d", d.report.KilledAfter, d.report.Steps)
	return nil
}

// stepsOf is the last step of which a run has a record: it may have made steps after its latest line here.
func (d *demo) stepsOf(run string) (int, error) {
	f, err := os.Open(filepath.Join(d.dir, run, "metrics.jsonl"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	records, err := trace.ReadMetrics(f)
	if err != nil || len(records) == 0 {
		return 0, cmp.Or(err, errors.New("the killed run has no records; give it more --steps"))
	}
	return int(records[len(records)-1].Step), nil
}

// has reports whether a run has saved a step.
func (d *demo) has(run string, step int) bool {
	_, err := os.Stat(checkpointOf(filepath.Join(d.dir, run), step))
	return err == nil
}

// verify reads what the killed run left.
func (d *demo) verify(ctx context.Context) error {
	saved := d.report.Steps / parts
	sum, bytes, err := stateSum(ctx, checkpointOf(filepath.Join(d.dir, "run"), saved))
	if err != nil {
		return err
	}
	d.say("left: the checkpoint of step %d, all %s as saved (SHA-256 %.8s)", saved, plan.FormatBytes(bytes), sum)
	d.say("\nIts model writes:")
	return d.sampleCheckpoint(ctx, saved)
}

// resume trains to the end.
func (d *demo) resume(ctx context.Context) error {
	d.title("the same command again: the run resumes")
	steps := d.report.Steps
	r := d.progress(steps, d.trainTokensPerByte)
	var s summary
	err := d.must(ctx, call{args: []string{"train", "run.yaml", "--json"}, json: &s, line: func(text string) bool {
		r.show(text)
		return false
	}})
	r.end()
	switch {
	case err != nil:
		return err
	case s.ResumedAfter == 0:
		return errors.New("the run did not resume: it began again with step 1")
	case s.EvalAfter == nil:
		return errors.New("the run did not evaluate")
	}
	d.report.ResumedAfter, d.report.PeakBytes, d.report.WrittenBytes = s.ResumedAfter, s.PeakBytes, s.DiskWrittenBytes
	d.report.LossAfter = *s.EvalAfter * d.heldOutTokensPerByte
	d.report.BitsPerByte = d.report.LossAfter / math.Ln2
	d.say("resumed after step %d; all %d steps are done", s.ResumedAfter, steps)
	d.say("\nAfter step %d it wrote:", steps/2)
	if err := d.sampleCheckpoint(ctx, steps/2); err != nil {
		return err
	}
	d.say("\nNow it writes:")
	return d.sample(ctx, "run/model", steps)
}

// repeat trains with all in memory, as far as the first save after the resume.
func (d *demo) repeat(ctx context.Context) error {
	upTo := d.report.ResumedAfter + d.report.Steps/parts
	d.report.ComparedAfter = upTo
	d.title(fmt.Sprintf("the first %d steps again: all in memory, and never stopped", upTo))
	r := d.progress(upTo, d.trainTokensPerByte)
	_, err := d.call(ctx, call{args: []string{"train", "run.yaml", "--set", "memory.device=auto", "--set",
		"memory.host=auto",
		"--set", "memory.disk=none", "--set", "eval=", "--set", "output_dir=in-memory"}, line: func(text string) bool {
		r.show(text)
		return d.has("in-memory", upTo)
	}})
	r.end()
	return err
}

// compare compares the states of both at one step.
func (d *demo) compare(ctx context.Context) (err error) {
	r := &d.report
	if r.SHA256, r.ComparedBytes, err = stateSum(ctx, checkpointOf(filepath.Join(d.dir, "run"),
		r.ComparedAfter)); err != nil {
		return err
	}
	if r.OtherSHA256, _, err = stateSum(ctx, checkpointOf(filepath.Join(d.dir, "in-memory"),
		r.ComparedAfter)); err != nil {
		return err
	}
	d.say("SHA-256 of weights and moments after step %d, all 32 bits of each (%s):\n", r.ComparedAfter,
		plan.FormatBytes(r.ComparedBytes))
	d.say("  %s  killed", r.SHA256)
	d.say("  %s  not killed", r.OtherSHA256)
	r.Same = r.SHA256 == r.OtherSHA256
	if !r.Same {
		d.verdict(false, "They differ.")
		return ErrDiffers
	}
	d.verdict(true, "They are the same, to the bit.")
	return nil
}

// finish removes all but the run, and says what it came to and what to do next.
func (d *demo) finish(context.Context) error {
	r := &d.report
	for part := 1; part < parts; part++ {
		if err := os.RemoveAll(checkpointOf(filepath.Join(d.dir, "run"), part*(r.Steps/parts))); err != nil {
			return err
		}
	}
	for _, name := range []string{"in-memory", "cache"} {
		if err := os.RemoveAll(filepath.Join(d.dir, name)); err != nil {
			return err
		}
	}
	r.Seconds, r.CPUSeconds = time.Since(d.begin).Seconds(), d.cpu.Seconds()
	d.title("in short")
	d.row("loss", "%.2f -> %.2f nats per byte of held-out text (%.2f bits per byte)", r.LossBefore, r.LossAfter,
		r.BitsPerByte)
	d.row("memory", "%s at the peak, %s planned; the state has %s", plan.FormatBytes(r.PeakBytes),
		plan.FormatBytes(r.PlannedBytes),
		plan.FormatBytes(r.StateBytes))
	d.row("disk", "%s written since the resume, for state and checkpoints", plan.FormatBytes(r.WrittenBytes))
	d.row("time", "%.0f s, %.0f s of processor time", r.Seconds, r.CPUSeconds)
	d.say("\nNext:\n")
	d.say("  cd %s", d.o.Dir)
	d.say("  millrace generate --model run/model --prompt %q", "The Colours of Bodies")
	d.say("  millrace plan run.yaml --why")
	d.say("  millrace plan --shape llama-3-8b --machine rtx4090-pc-256gb")
	return nil
}

// sampleCheckpoint has the model of a checkpoint write.
func (d *demo) sampleCheckpoint(ctx context.Context, step int) error {
	from := checkpointOf(filepath.Join(d.dir, "run"), step)
	if err := d.must(ctx, call{args: []string{"export", "--checkpoint", from, "--model", "model", "--out",
		"tried/model"}}); err != nil {
		return err
	}
	return d.sample(ctx, "tried/model", step)
}

// sample has a model write, which is that of a step, and then removes tried/.
func (d *demo) sample(ctx context.Context, model string, step int) error {
	var g struct {
		Text string `json:"text"`
	}
	err := d.must(ctx, call{args: []string{"generate", "--json", "--model", model, "--prompt", Prompt, "--device", "cpu",
		"--max-tokens", "70",
		"--temperature", "0.7", "--top-p", "0.7"}, json: &g})
	if err != nil {
		return err
	}
	d.report.Samples = append(d.report.Samples, Sample{step, Prompt + g.Text})
	d.quote(Prompt, g.Text)
	return os.RemoveAll(filepath.Join(d.dir, "tried"))
}
