package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/internal/vfs"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
)

// Summary is what a run came to.
type Summary struct {
	Steps        int         `json:"steps"`                        // done, in all
	ResumedAfter int         `json:"resumed_after_step,omitempty"` // the sums below are of the steps since
	Tokens       int64       `json:"tokens"`                       // real positions
	TargetTokens int64       `json:"target_tokens"`                // those that counted in the loss
	FirstLoss    float64     `json:"first_loss"`
	LastLoss     float64     `json:"last_loss"`
	EvalBefore   *float64    `json:"eval_loss_before,omitempty"`
	EvalAfter    *float64    `json:"eval_loss_after,omitempty"`
	Skipped      int         `json:"skipped_updates"` // their norm was not finite
	TrainSec     float64     `json:"train_sec"`       // sum over the steps
	TokensPerSec float64     `json:"tokens_per_sec"`
	Lanes        trace.Lanes `json:"lanes"`                // busy seconds over the run
	UploadBytes  int64       `json:"upload_bytes"`         // host to device over the run, as the schedule says
	PeakBytes    int64       `json:"peak_rss_bytes"`       // resident memory of the process
	PlannedBytes int64       `json:"planned_bytes"`        // what the plan allowed
	Model        string      `json:"model,omitempty"`      // directory of the trained model, of a run that has ended
	BestModel    string      `json:"best_model,omitempty"` // and of the one with the lowest evaluation loss, with save.best
	Checkpoint   string      `json:"checkpoint,omitempty"` // the latest

	SaveStallSec     float64 `json:"save_stall_sec"` // that steps waited for checkpoints, beyond what was hidden
	DiskReadBytes    int64   `json:"disk_read_bytes"`
	DiskWrittenBytes int64   `json:"disk_written_bytes"` // by the disk tier and by checkpoints
	WriteWaitSec     float64 `json:"write_wait_sec"`     // that the run has paused for memory.max_write_per_day
}

// Options are what a command line adds to run.yaml.
type Options struct {
	Trace bool // write a Chrome trace
}

// trainer is a run between its beginning and its end.
type trainer struct {
	*session
	config  *Config
	src     *source
	rates   optim.Schedule
	metrics *trace.MetricsFile
	spans   *trace.Recorder // of a run that is traced
	summary Summary
	saves   saver
	begun   int // steps that were done before this process
	traffic store.Traffic
	wrote   int64 // of written, what metrics have
	wear    wear

	data, evalData *data.Dataset
	loader         *data.Loader
	eval           *data.EvalLoader // nil without eval.datasets
}

// Train runs run.yaml to its end, from its latest checkpoint if it has one; or to the end of the step in which it is asked
// to stop: then it saves a checkpoint, and the error is ErrInterrupted.
func Train(ctx context.Context, c *Config, env *Env, o Options) (*Summary, error) {
	t := &trainer{config: c}
	defer t.saves.close()
	if _, err := os.Stat(checkpointsDir(c)); err == nil {
		// Held before it is read: what an interrupted save has left is mended first.
		if err := t.saves.open(c); err != nil {
			return nil, err
		}
	}
	from, err := findCheckpoint(c, env)
	if err != nil {
		return nil, Request(err)
	}
	abandon, err := newRunDir(c.OutputDir, from != nil || c.startsOver(env))
	if err != nil {
		return nil, err
	}
	started := false
	defer func() {
		if !started {
			abandon()
		}
	}()
	src, err := openModel(ctx, env, c.Model)
	if err != nil {
		return nil, err
	}
	t.src = src
	dev, err := env.open(c.Device)
	if err != nil {
		return nil, Request(err)
	}
	defer dev.Close()
	if err := t.openData(ctx, env); err != nil {
		return nil, err
	}
	if from != nil {
		if err := c.keepNumerics(from.Manifest.Numerics); err != nil {
			return nil, err
		}
	}
	p, err := env.makePlan(ctx, c, src.model, dev.computes.Info())
	if err != nil {
		return nil, err
	}
	if err := t.openLoaders(p); err != nil {
		return nil, err
	}
	var at place
	if from != nil {
		if at, err = t.checkResume(p, from); err != nil {
			return nil, err
		}
	}
	if err := t.saves.open(c); err != nil {
		return nil, err
	}
	env.say("%s", p.Headline(dev.computes.Info()))
	t.session, err = env.openSession(ctx, p, dev, c.memory().Path, func(s *session) error {
		t.session = s
		if from != nil {
			return t.resume(ctx, from)
		}
		return s.fill(ctx, src, c.Init, c.Seed)
	})
	if err != nil {
		return nil, err
	}
	defer t.session.Close()
	if from != nil {
		if err := t.loader.Seek(at.Cursor); err != nil {
			return nil, Request(fmt.Errorf("resume: %w", err))
		}
		t.begun, t.saves.best = from.Manifest.Step, from.Manifest.Best
		t.summary.Steps, t.summary.ResumedAfter = t.begun, t.begun
		t.summary.Skipped = int(from.Manifest.SkippedUpdates)
		env.say("resuming after step %d from %s", t.begun, from.Dir())
	}
	t.saves.specs = map[store.ID]store.Spec{}
	for _, spec := range p.Extents() {
		t.saves.specs[spec.ID] = spec
	}
	if err := t.writeHead(p); err != nil {
		return nil, err
	}
	started = true
	if o.Trace {
		t.spans = trace.NewRecorder(tracedSpans)
		t.engine.Trace = t.spans
	}
	err = t.run(ctx)
	if err != nil && !errors.Is(err, ErrInterrupted) {
		return nil, err
	}
	if o.Trace {
		err = errors.Join(err, t.writeTrace())
	}
	return &t.summary, err
}

// tracedSpans is how many of a lane's latest operations a trace holds.
const tracedSpans = 100_000

// startsOver reports whether the output directory has this very run, killed before it had saved anything: nothing is lost if
// it starts over, since all that it writes comes out the same again.
func (c *Config) startsOver(env *Env) bool {
	old, err := ReadConfig(filepath.Join(c.OutputDir, "run.yaml"), nil)
	if err != nil || c.Resume != "auto" {
		return false
	}
	if saved, err := checkpoint.List(vfs.OS{}, checkpointsDir(c)); err != nil || len(saved) > 0 {
		return false
	}
	now := *c
	if now.Numerics.MicroBatch == 0 {
		now.Numerics.MicroBatch = old.Numerics.MicroBatch
	}
	if now.Numerics.HeadChunk == 0 {
		now.Numerics.HeadChunk = old.Numerics.HeadChunk
	}
	if now.Numerics.BlockChunk == 0 {
		now.Numerics.BlockChunk = old.Numerics.BlockChunk
	}
	now.Datasets, now.Eval.Datasets = atCommits(now.Datasets, old.Datasets), atCommits(now.Eval.Datasets, old.Eval.Datasets)
	old.Memory, old.Device, old.Save, old.Resume = now.Memory, now.Device, now.Save, now.Resume // which change no number
	a, errA := old.YAML()
	b, errB := now.YAML()
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		return false
	}
	env.say("%s has this run, and no checkpoint of it; it starts over", c.OutputDir)
	return true
}

// atCommits is the data sets of a run file with the commits that a resolved one has for the same data sets of the hub.
func atCommits(sets, resolved []data.Source) []data.Source {
	sets = slices.Clone(sets)
	for i := range min(len(sets), len(resolved)) {
		name, _, _ := strings.Cut(sets[i].Path, "@")
		if resolved[i].Revision != "" && resolved[i].Path == name {
			sets[i].Path, sets[i].Revision = name, resolved[i].Revision
		}
	}
	return sets
}

// newRunDir makes the output directory, so that a long run does not end in finding that it cannot be written. It refuses one
// that has a run in it, unless the run goes on, and one that has a finished run. abandon removes what was made.
func newRunDir(dir string, resumes bool) (abandon func(), err error) {
	names := []string{"model", "run.yaml", "metrics.jsonl", bestModel}
	if resumes {
		names = names[:1]
	}
	for _, name := range names {
		switch _, err := os.Stat(filepath.Join(dir, name)); {
		case err == nil:
			return nil, Request(fmt.Errorf("output_dir: %s already has a %s; choose another directory, or remove it", dir, name))
		case !errors.Is(err, fs.ErrNotExist):
			return nil, Request(fmt.Errorf("output_dir: %w", err))
		}
	}
	var made []string // leaf first
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	abandon = func() {
		for _, inside := range []string{"checkpoints/.lock", "checkpoints", "state"} {
			if !resumes {
				os.Remove(filepath.Join(dir, inside)) // fails if there is something in it
			}
		}
		for _, d := range made {
			os.Remove(d) // fails if somebody has put something there since
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		abandon()
		return nil, Request(fmt.Errorf("output_dir: %w", err))
	}
	probe, err := os.CreateTemp(dir, ".writable")
	if err != nil {
		abandon()
		return nil, Request(fmt.Errorf("output_dir: %w", err))
	}
	return abandon, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// openData reads and tokenizes the data sets.
func (t *trainer) openData(ctx context.Context, env *Env) error {
	c := t.config
	r, err := t.src.openReader(c)
	if err != nil {
		return err
	}
	t.data, t.evalData, err = env.prepareRun(ctx, c, r)
	return err
}

// openLoaders packs the data as the plan has it, and counts the steps.
func (t *trainer) openLoaders(p *plan.Plan) (err error) {
	c := t.config
	epochs := 0 // for ever: max_steps ends the run
	if c.MaxSteps == 0 {
		epochs = max(int(math.Ceil(c.Epochs)), 1)
	}
	t.loader, err = data.NewLoader(t.data, data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: c.BatchTokens,
		MicroBatch: p.Numerics.MicroBatch, Seed: c.Seed, Epochs: epochs, LongDocuments: data.LongDocuments(c.Overlong)})
	if err != nil {
		return Request(err)
	}
	steps := c.MaxSteps
	if steps == 0 {
		steps = t.loader.Steps()
		if part := c.Epochs / float64(epochs); part > 0 {
			steps = max(int(float64(steps)*part), 1) // the last epoch may be asked for in part
		}
	}
	warmup := c.WarmupSteps
	if c.WarmupRatio > 0 {
		warmup = int(math.Ceil(c.WarmupRatio * float64(steps)))
	}
	t.rates = optim.Schedule{Shape: c.LRScheduler, Peak: c.LearningRate, WarmupSteps: warmup, Steps: steps}
	if t.evalData != nil {
		t.eval, err = data.NewEvalLoader(t.evalData, c.SequenceLen, p.Numerics.MicroBatch)
	}
	return Request(err)
}

// writeHead makes the output directory with run.yaml, as resolved, and plan.json.
func (t *trainer) writeHead(p *plan.Plan) error {
	c := *t.config
	c.Numerics = sizesOf(p.Numerics)
	c.Datasets = t.data.Sources()
	if len(c.Eval.Datasets) > 0 {
		c.Eval.Datasets = t.evalData.Sources()
	}
	doc, err := c.YAML()
	if err != nil {
		return err
	}
	planned, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"run.yaml": doc, "plan.json": append(planned, '\n')} {
		if err := vfs.WriteFileAtomic(vfs.OS{}, filepath.Join(c.OutputDir, name), text); err != nil {
			return Request(fmt.Errorf("output_dir: %w", err))
		}
	}
	t.metrics, err = trace.OpenMetrics(filepath.Join(c.OutputDir, "metrics.jsonl"), int64(t.begun))
	return err
}

// run walks the steps, then writes the model.
func (t *trainer) run(ctx context.Context) error {
	defer t.metrics.Close()
	t.summary.PlannedBytes = t.plan.ProcessBytes()
	if t.eval != nil && t.begun == 0 {
		l, err := t.evaluate(ctx, t.eval, "before training")
		if err != nil {
			return err
		}
		t.summary.EvalBefore = &l.Loss
		t.env.say("eval loss %.4f before training", l.Loss)
	}
	t.engine.Trace.TakeBusy()
	t.wear = wear{t.config.Memory.MaxWritePerDay.N, t.env.time().now()}
	for step := t.begun + 1; step <= t.rates.Steps; step++ {
		if t.env.stopped() {
			return t.interrupt(ctx, step-1)
		}
		if err := t.step(ctx, step); err != nil {
			return err
		}
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	t.finish()
	if err := t.stopEngine(); err != nil {
		return err
	}
	t.summary.Model = filepath.Join(t.config.OutputDir, "model")
	if err := t.export(ctx, t.src, t.summary.Model, t.src.exportType()); err != nil {
		return err
	}
	return t.exportBest(ctx)
}

// bestModel is the directory, in that of the run, of the model with the lowest evaluation loss.
const bestModel = "model-best"

// interrupt saves the run as it is after a step, so that it can go on from there.
func (t *trainer) interrupt(ctx context.Context, step int) error {
	t.env.say("stopping after step %d", step)
	if step > t.begun { // else there is nothing new
		if err := t.startSave(step, nil); err != nil {
			return err
		}
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	t.finish()
	return ErrInterrupted
}

// flush has the store and, if it is due, a checkpoint have what the steps so far came to.
func (t *trainer) flush(ctx context.Context) error {
	bad, err := t.engine.Flush(ctx)
	if err != nil {
		return err
	}
	if err := spoiled(t.summary.Steps, bad); err != nil {
		return err
	}
	return t.endSave()
}

// spoiled is the end of a run whose weights became NaN in the update of a step: there is nothing to go on from, to save or to export.
func spoiled(step int, badWeights int64) error {
	if badWeights == 0 {
		return nil
	}
	return fmt.Errorf("step %d: its update made %d weights NaN; lower learning_rate, or check the data", step, badWeights)
}

// finish adds up what the summary has to say of the whole run.
func (t *trainer) finish() {
	t.summary.PeakBytes, _ = hostmem.PeakRSS()
	t.summary.SaveStallSec = t.saves.stall.Seconds()
	if t.summary.TrainSec > 0 {
		t.summary.TokensPerSec = float64(t.summary.Tokens) / t.summary.TrainSec
	}
	if t.disk != nil {
		t.summary.DiskReadBytes = t.disk.Traffic().ReadBytes
	}
	t.summary.DiskWrittenBytes = t.written()
}

// step runs one step, with its evaluation if one is due, and writes its metrics.
func (t *trainer) step(ctx context.Context, step int) error {
	micro, err := t.loader.Next(ctx)
	if err != nil {
		return fmt.Errorf("step %d: %w", step, err)
	}
	c, s := t.config, &t.summary
	batch := batchOf(micro)
	begin := time.Now()
	res, err := t.engine.Step(ctx, batch, stream.Update{Step: step, LR: t.rates.At(step), MaxGradNorm: c.MaxGradNorm,
		AdamW: optim.AdamW{Beta1: c.AdamBetas[0], Beta2: c.AdamBetas[1], Eps: c.AdamEps, WeightDecay: c.WeightDecay}})
	switch {
	case errors.Is(err, stream.ErrNotFinite):
		return fmt.Errorf("step %d: %w; lower learning_rate or set max_grad_norm, and begin anew (checkpoints are of steps before)", step, err)
	case err != nil:
		return fmt.Errorf("step %d: %w", step, err)
	}
	updated := step - 1
	if t.plan.UpdatesInBackward() {
		updated = step
	}
	if err := spoiled(updated, res.BadWeights); err != nil {
		return err // a save of them does not end
	}
	if err := t.endSave(); err != nil {
		return err
	}
	sec := time.Since(begin).Seconds()
	m := trace.Metrics{Step: int64(step), GradNorm: res.GradNorm, ClipScale: res.ClipScale, LearningRate: t.rates.At(step),
		TargetTokens: int64(batch.Targets), StepSec: sec, DevicePeakBytes: t.plan.DeviceTotalBytes(), Lanes: t.engine.Trace.TakeBusy()}
	var docs []int
	for _, b := range micro {
		m.Tokens += int64(b.RealTokens)
		docs = documents(docs, b)
	}
	if batch.Targets > 0 {
		m.Loss = res.LossSum / float64(batch.Targets)
	}
	m.TokensPerSec = float64(m.Tokens) / sec
	m.ModelTFLOPS = float64(t.plan.Model.TrainFLOPs(docs)) / sec / 1e12
	m.HostPeakBytes, _ = hostmem.PeakRSS()
	if res.Skipped {
		s.Skipped++
		t.env.say("step %d: the gradient norm is not finite; its update is left out", step)
	}
	if t.disk != nil {
		now := t.disk.Traffic()
		m.DiskReadBytes = now.ReadBytes - t.traffic.ReadBytes
		m.Lanes.Disk += (now.Busy - t.traffic.Busy).Seconds()
		t.traffic = now
	}
	wrote := t.written()
	m.DiskWrittenBytes, t.wrote = wrote-t.wrote, wrote
	wait := t.wear.due(wrote, t.env.time().now())
	if wait > 0 {
		waitSec := wait.Seconds()
		m.WriteWaitSec = &waitSec
	}
	save := c.Save.Every > 0 && (step%c.Save.Every == 0 || step == t.rates.Steps)
	if c.Eval.Every > 0 && step%c.Eval.Every == 0 || t.eval != nil && step == t.rates.Steps {
		l, err := t.evaluate(ctx, t.eval, fmt.Sprintf("after step %d", step))
		if err != nil {
			return err
		}
		m.EvalLoss, s.EvalAfter = &l.Loss, &l.Loss
		t.engine.Trace.TakeBusy() // of the evaluation
		save = t.improved(step, l.Loss) && c.Save.Best || save
	}
	if save {
		if err := t.startSave(step, m.EvalLoss); err != nil {
			return err
		}
	}
	if step == t.begun+1 {
		s.FirstLoss = m.Loss
	}
	s.Steps, s.LastLoss = step, m.Loss
	s.Tokens += m.Tokens
	s.TargetTokens += m.TargetTokens
	s.TrainSec += sec
	s.Lanes = s.Lanes.Plus(m.Lanes)
	s.UploadBytes += t.plan.Predicted.UploadBytes
	t.report(m)
	if err := t.metrics.Append(m); err != nil {
		return err
	}
	if wait == 0 {
		return nil
	}
	begin = t.env.time().now()
	err = t.pause(ctx, wait)
	s.WriteWaitSec += t.env.time().now().Sub(begin).Seconds()
	return err
}

// documents appends the lengths of a micro-batch's documents, padding left out.
func documents(docs []int, b data.Batch) []int {
	for at := 0; at < len(b.DocEnd); at = int(b.DocEnd[at]) {
		if n := int(b.DocEnd[at]) - at; n > 1 || b.Targets[at] >= 0 {
			docs = append(docs, n)
		}
	}
	return docs
}

// report is the line of a step for people.
func (t *trainer) report(m trace.Metrics) {
	more := ""
	if m.EvalLoss != nil {
		more = fmt.Sprintf("  eval loss %.4f", *m.EvalLoss)
	}
	if m.WriteWaitSec != nil {
		more += "  waits " + seconds(*m.WriteWaitSec) + " (max_write_per_day)"
	}
	left := (t.summary.TrainSec + t.summary.WriteWaitSec) / float64(int(m.Step)-t.begun) * float64(t.rates.Steps-int(m.Step))
	t.env.say("step %*d/%d  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  %s left%s", digits(t.rates.Steps), m.Step, t.rates.Steps,
		m.Loss, m.GradNorm, m.LearningRate, m.TokensPerSec, seconds(left), more)
}

func digits(n int) int { return len(fmt.Sprint(n)) }

// writeTrace writes the Chrome trace.
func (t *trainer) writeTrace() error {
	f, err := os.Create(filepath.Join(t.config.OutputDir, "trace.json"))
	if err != nil {
		return err
	}
	return errors.Join(t.spans.WriteChrome(f), f.Close())
}
