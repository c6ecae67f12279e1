package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
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
	Skipped      int         `json:"skipped_updates"`            // their norm was not finite
	Untargeted   int         `json:"untargeted_steps,omitempty"` // they had no token that counts in the loss
	TrainSec     float64     `json:"train_sec"`                  // sum over the steps
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

	at        place               // in the data, where the next step begins
	dataSteps int                 // that epochs take, from where the run began with these data
	history   []checkpoint.Change // of the settings, in this process and before
	unhealthy int                 // steps in a row, up to the latest one
	evalLoss  *float64            // after the latest step, if there was an evaluation
	unwritten bool                // it was said that metrics cannot be written

	data, evalData *data.Dataset
	loader         *data.Loader
	eval           *data.EvalLoader // nil without eval.datasets
}

// Train runs run.yaml to its end, from its latest checkpoint if it has one; or to the end of the step in which it is asked
// to stop: then it saves a checkpoint, and the error is ErrInterrupted. So it is where the context ends while nothing can be lost,
// which is before a step is done and when all are saved. A run that has ended before is not an error.
func Train(ctx context.Context, c *Config, env *Env, o Options) (*Summary, error) {
	t := &trainer{config: c}
	return t.interrupted(t.train(ctx, env, o))
}

func (t *trainer) train(ctx context.Context, env *Env, o Options) (*Summary, error) {
	c := t.config
	begun := false
	defer func() { t.saves.close(begun) }()
	var err error
	if t.saves.dir, err = env.holdRun(c); err != nil {
		return nil, err
	}
	b, err := env.findBeginning(c)
	if err != nil {
		return nil, err
	}
	from := b.from
	c.Numerics = b.sizes.or(c.Numerics)
	if t.src, err = openModel(ctx, env, c.Model); err != nil {
		return nil, err
	}
	dev, err := env.open(c.Device)
	if err != nil {
		return nil, Request(err)
	}
	defer dev.Close()
	if from == nil && c.Init == "pretrained" {
		if err := t.src.checkWeights(); err != nil {
			return nil, err
		}
	}
	if err := t.carry(ctx, env, from); err != nil {
		return nil, err
	}
	if err := env.checkFits(ctx, c, t.src.model, dev.computes.Info()); err != nil {
		return nil, err
	}
	defer t.closeData()
	if err := t.openData(ctx, env); err != nil {
		return nil, err
	}
	if err := t.openLoaders(env); err != nil {
		return nil, err
	}
	if err := t.standAt(from); err != nil {
		return nil, err
	}
	p, err := env.makePlan(ctx, c, t.src.model, t.src.exportType(), t.rates.Steps, dev.computes.Info())
	if err != nil {
		return nil, err
	}
	if from != nil {
		if err := t.checkResume(p, from); err != nil {
			return nil, err
		}
		if from.Manifest.Step >= t.rates.Steps && exists(filepath.Join(c.OutputDir, lastModel)) {
			return t.ended(env, from), nil
		}
	}
	env.say("%s", p.Headline(dev.computes.Info()))
	if from, err = t.openState(ctx, env, p, dev, from); err != nil {
		return nil, err
	}
	defer func() {
		if left := t.session.Close(); left != nil && !errors.Is(err, left) {
			env.say("warning: %s", oneLine(left))
		}
	}()
	if from != nil {
		if err := t.continueFrom(from); err != nil {
			return nil, err
		}
	}
	t.saves.specs = map[store.ID]store.Spec{}
	for _, spec := range p.Extents() {
		t.saves.specs[spec.ID] = spec
	}
	if err := t.writeHead(p); err != nil {
		return nil, err
	}
	defer t.metrics.Close()
	begun = true
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

// carry finds the tensors that the run carries. A model that begins at random may have no weights, and then carries nothing.
func (t *trainer) carry(ctx context.Context, env *Env, from *checkpoint.Checkpoint) error {
	if from != nil {
		return t.src.carryAs(ctx, env, from)
	}
	err := t.src.carry(ctx, env)
	if err != nil && t.config.Init == "random" && ctx.Err() == nil {
		t.src.carried = carried{}
		env.say("nothing is carried to the export: %s", oneLine(err))
		err = nil
	}
	return err
}

// ended is the summary of a run that had come to its end before: whoever starts it again has missed that.
func (t *trainer) ended(env *Env, from *checkpoint.Checkpoint) *Summary {
	dir := filepath.Join(t.config.OutputDir, lastModel)
	env.say("this run has ended: all %d steps are done, and the model is in %s", from.Manifest.Step, dir)
	return &Summary{Steps: from.Manifest.Step, ResumedAfter: from.Manifest.Step, Skipped: int(from.Manifest.SkippedUpdates),
		Untargeted: int(from.Manifest.UntargetedSteps), Model: dir, Checkpoint: from.Dir()}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tracedSpans is how many of a lane's latest operations a trace holds.
const tracedSpans = 100_000

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

// openLoaders packs the data and counts the steps. What that takes for the whole run is reserved before the run is planned.
func (t *trainer) openLoaders(env *Env) (err error) {
	c := t.config
	epochs := 0 // without an end: max_steps ends the run
	if c.MaxSteps == 0 {
		epochs = max(int(math.Ceil(c.Epochs)), 1)
	}
	if t.evalData != nil { // first, since it gives back what only packing needs
		if t.eval, err = data.NewEvalLoader(t.evalData, c.SequenceLen, env.Accounts); err != nil {
			return Request(err)
		}
	}
	t.loader, err = data.NewLoader(t.data, data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: c.BatchTokens,
		Seed: c.Seed, Epochs: epochs, LongDocuments: data.LongDocuments(c.Overlong), Accounts: env.Accounts})
	if err != nil {
		return Request(err)
	}
	if c.MaxSteps == 0 {
		t.dataSteps = t.loader.Steps()
		if part := c.Epochs / float64(epochs); part > 0 {
			t.dataSteps = max(int(float64(t.dataSteps)*part), 1) // the last epoch may be asked for in part
		}
	}
	return nil
}

// standAt puts the run where a checkpoint is, nil for its beginning: the place in its data, the sizes that set its bits, and so the
// number of its steps.
func (t *trainer) standAt(from *checkpoint.Checkpoint) (err error) {
	c := t.config
	if t.at, err = t.placeOf(from); err != nil {
		return err
	}
	if from != nil && c.cutsAs(from.Manifest) {
		if err := c.keepNumerics(from.Manifest.Numerics); err != nil {
			return err
		}
	}
	steps := c.MaxSteps
	if steps == 0 {
		steps = t.at.Since + t.dataSteps
	}
	warmup := c.WarmupSteps
	if c.WarmupRatio > 0 {
		warmup = int(math.Ceil(c.WarmupRatio * float64(steps)))
	}
	t.rates = optim.Schedule{Shape: c.LRScheduler, Peak: c.LearningRate, WarmupSteps: warmup, Steps: steps}
	return nil
}

// closeData gives back what the data take.
func (t *trainer) closeData() {
	var open []io.Closer // nothing was written to them, so there is no error to tell
	if t.loader != nil {
		open = append(open, t.loader)
	}
	if t.eval != nil {
		open = append(open, t.eval)
	}
	if t.evalData != nil {
		open = append(open, t.evalData)
	}
	if t.data != nil {
		open = append(open, t.data)
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// writeHead makes the output directory with run.yaml, as resolved, and plan.json.
func (t *trainer) writeHead(p *plan.Plan) error {
	c := *t.config
	c.Numerics = sizesOf(p.Numerics)
	c.Datasets = t.data.Sources()
	if len(c.Eval.Datasets) > 0 {
		c.Eval.Datasets = t.evalData.Sources()
	}
	if c.Resume != "auto" && c.Resume != "never" {
		c.Resume = absolute(c.Resume)
	}
	planned, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	fsys := t.env.files()
	err = t.env.writeResolved(&c)
	if err == nil {
		err = vfs.WriteFileAtomic(fsys, filepath.Join(c.OutputDir, planName), append(planned, '\n'))
	}
	if err != nil {
		return Request(fmt.Errorf("output_dir: %w", err))
	}
	return t.openMetrics()
}

// run walks the steps, then writes the model.
func (t *trainer) run(ctx context.Context) error {
	t.summary.PlannedBytes = t.plan.ProcessBytes()
	t.saves.last = t.env.time().now()
	if err := t.walk(ctx); err != nil {
		return err
	}
	t.env.willFinish("saving and writing the model")
	var errSave error
	if t.config.Save.AtEnd {
		errSave = t.saveNow(ctx)
	} else {
		errSave = t.flush(ctx)
	}
	if ill := (*divergedError)(nil); errors.As(errSave, &ill) || ctx.Err() != nil {
		return errors.Join(errSave, ctx.Err())
	}
	t.finish()
	if t.saves.saved == t.summary.Steps {
		t.env.willFinish("") // the model can be written at any time
	}
	if err := t.stopEngine(); err != nil {
		return err
	}
	if err := t.exportAll(ctx); err != nil {
		return err
	}
	if errSave != nil {
		t.env.say("warning: %s; the model is written, and the run cannot be made longer", oneLine(errSave))
	}
	if n := t.metrics.Waiting(); n > 0 && t.metrics.Sync() != nil {
		return fmt.Errorf("%s is written, and the last %d records of %s are not; see the warning above", t.summary.Model, n, metricsName)
	}
	return nil
}

// walk evaluates the model and takes all steps, up to the last one or to that in which the run is asked to stop.
func (t *trainer) walk(ctx context.Context) error {
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
	if err := t.evaluateAgain(ctx); err != nil {
		return err
	}
	for step := t.begun + 1; step <= t.rates.Steps && !t.env.stopped(); step++ {
		t.env.willFinish(fmt.Sprintf("finishing step %d and saving", step))
		if err := t.step(ctx, step); err != nil {
			return t.rescue(ctx, err)
		}
	}
	if t.env.stopped() {
		return t.interrupt(ctx)
	}
	return nil
}

// interrupt saves the run as it is, so that it can continue from there.
func (t *trainer) interrupt(ctx context.Context) error {
	if t.summary.Steps > t.begun {
		t.env.say("stopping after step %d", t.summary.Steps)
		if err := t.saveNow(ctx); err != nil {
			return err
		}
	}
	t.finish()
	return t.interruption()
}

// flush has the store and, if it is due, a checkpoint have what the steps so far came to.
func (t *trainer) flush(ctx context.Context) error {
	bad, err := t.engine.Flush(ctx)
	if err == nil {
		err = t.spoiled(t.summary.Steps, bad)
	}
	if err == nil {
		t.endSave()
	}
	return err
}

// exportAll writes the last model and the best one. What cannot be written now can be later, from a checkpoint.
func (t *trainer) exportAll(ctx context.Context) error {
	out := filepath.Join(t.config.OutputDir, lastModel)
	err := t.export(ctx, t.src, out, t.src.exportType())
	if err == nil {
		t.summary.Model = out
		return t.exportBest(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	if t.saves.saved < t.summary.Steps {
		if errSave := t.saveStored(ctx); errSave != nil {
			return fmt.Errorf("%w; nor can the state be saved: %w; %s", err, errSave, t.latest())
		}
	}
	return fmt.Errorf("%w; all %d steps are done and saved: make room, then run the same command again, or: millrace export --checkpoint %s --model %s --out DIR",
		err, t.summary.Steps, t.summary.Checkpoint, t.src.dir)
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
	if err := t.loader.Next(ctx, t.rows); err != nil {
		return fmt.Errorf("step %d: %w", step, err)
	}
	batch := batchOf(t.rows)
	m := trace.Metrics{Step: int64(step), LearningRate: t.rates.At(step), TargetTokens: int64(batch.Targets),
		DevicePeakBytes: t.plan.DeviceTotalBytes()}
	var docs []int
	for _, b := range t.rows {
		m.Tokens += int64(b.RealTokens)
		docs = documents(docs, b)
	}
	begin := time.Now()
	var err error
	if batch.Targets > 0 {
		err = t.compute(ctx, step, batch, &m)
	} else {
		t.summary.Untargeted++
		m.Loss, m.GradNorm = math.NaN(), math.NaN()
		t.env.say("step %d: no token of its documents counts in the loss; it updates nothing", step)
	}
	if err != nil {
		return err
	}
	// From here on the step is done, and a save would be of it.
	t.at.Cursor, t.summary.Steps = t.loader.Cursor(), step
	ended := time.Now()
	timestamp := ended.UTC().Format(time.RFC3339)
	m.Time, m.StepSec = &timestamp, ended.Sub(begin).Seconds()
	m.Lanes = t.engine.Trace.TakeBusy()
	m.TokensPerSec = float64(m.Tokens) / m.StepSec
	m.ModelTFLOPS = float64(t.plan.Model.TrainFLOPs(docs)) / m.StepSec / 1e12
	return t.afterStep(ctx, &m)
}

// compute runs the engine over a batch, and ends the save that the step before has begun.
func (t *trainer) compute(ctx context.Context, step int, batch *stream.Batch, m *trace.Metrics) error {
	res, err := t.engine.Step(ctx, batch, t.updateOf(step))
	switch {
	case errors.Is(err, stream.ErrNotFinite):
		return t.unclipped(step, err)
	case err != nil:
		return fmt.Errorf("step %d: %w", step, err)
	}
	updated := step - 1
	if t.plan.UpdatesInBackward() {
		updated = step
	}
	if err := t.spoiled(updated, res.BadWeights); err != nil {
		return err // a save of them does not end
	}
	m.Loss, m.GradNorm, m.ClipScale = res.LossSum/float64(batch.Targets), res.GradNorm, res.ClipScale
	if res.Skipped {
		t.summary.Skipped++
		t.env.say("step %d: the gradient norm is not finite; its update is left out", step)
	}
	t.noteHealth(res.Skipped, m.Loss)
	t.endSave()
	return nil
}

// afterStep evaluates and begins to save where that is due, reports the step, and ends the run if it has diverged.
func (t *trainer) afterStep(ctx context.Context, m *trace.Metrics) error {
	c, s, step := t.config, &t.summary, int(m.Step)
	m.HostPeakBytes, _ = hostmem.PeakRSS()
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
	save := t.saveDue(step)
	t.evalLoss = nil
	if t.evalDue(step) {
		isBest, err := t.evaluateAfter(ctx, step)
		if err != nil {
			return err
		}
		m.EvalLoss = t.evalLoss
		save = isBest && c.Save.Best || save
	}
	if save {
		t.startSave(step)
	}
	if !math.IsNaN(m.Loss) && !math.IsInf(m.Loss, 0) {
		if s.TargetTokens == 0 {
			s.FirstLoss = m.Loss
		}
		s.LastLoss = m.Loss
	}
	s.Tokens += m.Tokens
	s.TargetTokens += m.TargetTokens
	s.TrainSec += m.StepSec
	s.Lanes = s.Lanes.Plus(m.Lanes)
	s.UploadBytes += t.plan.Predicted.UploadBytes
	t.report(*m)
	t.checkMetrics(t.metrics.Append(*m))
	if err := t.diverged(step); err != nil || wait == 0 {
		return err
	}
	begin := t.env.time().now()
	err := t.pause(ctx, wait)
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
	f, err := t.env.files().Create(filepath.Join(t.config.OutputDir, "trace.json"))
	if err != nil {
		return err
	}
	return errors.Join(t.spans.WriteChrome(f), f.Close())
}
