package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// Options are what a command line adds to run.yaml.
type Options struct {
	Trace bool // write a Chrome trace
	// OnStep is called with the metrics of each step, before the next step begins. If it returns an error, the run saves
	// its state and Train returns the error; ErrStop ends the run well.
	OnStep func(trace.Metrics) error
	// Rate, if given, returns the learning rate of a step, from 1, in place of the configured schedule; it is called
	// once for each step, in order. A rate that is not finite or negative ends the run. A checkpoint does not record
	// the rates, so a run that continues needs the same function.
	Rate func(step int) float64
}

// ErrStop ends a run early and well when Options.OnStep returns it: the run saves a checkpoint and writes its model.
// The same configuration, started again, continues with the steps that are left.
var ErrStop = errors.New("stop after this step")

// ErrRequest marks the errors that the request caused, so that the same request fails again. Other errors are of the
// machine, of the network or of the program.
var ErrRequest = blame.ErrRequest

// trainer is a run between its beginning and its end.
type trainer struct {
	*Session
	config      *runfile.Config
	src         *source
	dev         *Devices
	from        *checkpoint.Checkpoint // that the run continues from; nil: it starts from the model
	rates       optim.Schedule
	metrics     *trace.MetricsFile
	metricsFile vfs.File        // that metrics writes to
	spans       *trace.Recorder // of a run that is traced
	summary     Summary
	saves       saver
	begun       int // steps that were done before this process

	id         identity
	unclaimed  []byte // run.json as it was before this process; nil: there was no such file
	memoryPath string // as the run file has it: config has the directory below it that is the run's

	onStep  func(trace.Metrics) error
	rate    func(step int) float64 // in place of rates; may be nil
	enough  bool                   // the program ended the run with ErrStop
	traffic store.Traffic
	wrote   int64 // of written, what metrics have
	wear    wear

	at        place               // in the data, where the next step begins
	dataSteps stepRange           // that epochs take, from where the run began with these data
	history   []checkpoint.Change // of the settings, in this process and before
	damaged   []string            // checkpoints of the run that this process has read, and found damaged
	unhealthy int                 // steps in a row, up to the latest one
	evalLoss  *float64            // after the latest step, if there was an evaluation
	plateau   *checkpoint.Plateau // of the evaluations so far
	unwritten bool                // it was said that metrics cannot be written

	data, evalData *data.Dataset
	rendering      string // whether pairs have the chat template, in a line; empty where that is no question
	loader         *data.Loader
	eval           *data.EvalLoader // nil without eval.datasets
}

// Train runs run.yaml to its end, from its latest checkpoint if it has one; or to the end of the step in which it is
// asked to stop: then it saves a checkpoint, and the error is ErrInterrupted. So it is where the context ends while
// nothing can be lost, which is before a step is done and when all are saved. A run that has ended before is not an
// error.
func Train(ctx context.Context, c *runfile.Config, env *Env, o Options) (*Summary, error) {
	if err := c.Check(); err != nil {
		return nil, blame.BadRequest(err)
	}
	own := *c // what a run decides, such as sizes that are auto, is not the caller's
	t := &trainer{config: &own, onStep: o.OnStep, rate: o.Rate}
	sum, err := t.train(ctx, env, o)
	return t.interrupted(ctx, sum, err)
}

func (t *trainer) train(ctx context.Context, env *Env, o Options) (*Summary, error) {
	begun := false
	claimed := false
	defer func() {
		if claimed && !begun {
			t.unclaim(env)
		}
		t.saves.close(begun)
	}()
	defer t.closeInputs()
	p, err := t.prepare(ctx, env)
	if err != nil {
		return nil, blame.BadRequest(err)
	}
	switch is, err := t.hasEnded(ctx); {
	case err != nil:
		return nil, blame.BadRequest(err)
	case is:
		return t.ended(env), nil
	}
	if err := env.checkModelLinks(t.config); err != nil {
		return nil, blame.BadRequest(err)
	}
	dev := t.dev.Computes.Info()
	_, guess := probe.Measured(env.CacheDir, dev, t.config.Budgets().Path)
	env.say("%s; %s", p.Headline(dev, guess), savesText(t.config.Save))
	if t.rendering != "" {
		env.say("%s", t.rendering)
	}
	t.noteCut(env)
	if note := t.src.halfNote(); note != "" {
		env.say("%s", note)
	}
	claimed = true
	if err := t.claim(env); err != nil {
		return nil, err
	}
	if err := t.openState(ctx, env, p); err != nil {
		return nil, err
	}
	defer func() { t.closeSession(env, err) }()
	if err := t.begin(); err != nil {
		return nil, blame.BadRequest(err)
	}
	defer t.metrics.Close()
	begun = true
	if o.Trace {
		t.spans = trace.NewRecorder(tracedSpans)
		t.Engine.Trace = t.spans
	}
	if err = t.run(ctx); err != nil && !errors.Is(err, ErrInterrupted) {
		t.noteDivergence(err)
		return nil, err
	}
	if o.Trace {
		err = errors.Join(err, t.writeTrace())
	}
	return &t.summary, err
}

// prepare takes the output directory, reads the model and the data, and plans the run. Nothing is written, and of the
// run's memory only what the order of the data takes is reserved.
func (t *trainer) prepare(ctx context.Context, env *Env) (p *plan.Plan, err error) {
	c := t.config
	if t.saves.dir, err = env.holdRun(c); err != nil {
		return nil, err
	}
	b, err := t.findRun(env)
	if err != nil {
		return nil, err
	}
	asked := c.Numerics
	t.from = b.from
	if err := b.adoptSizes(c); err != nil {
		return nil, err
	}
	if t.src, err = openModel(ctx, env, c.Model); err != nil {
		return nil, err
	}
	if err := t.src.group(c.TensorGroups()); err != nil {
		return nil, err
	}
	if err := t.src.checkSidecars(); err != nil {
		return nil, err
	}
	if t.dev, err = env.OpenDevices(c.Device); err != nil {
		return nil, err
	}
	if t.from == nil && c.Init == "pretrained" {
		if err := t.src.checkWeights(); err != nil {
			return nil, err
		}
	}
	if err := t.carry(ctx, env); err != nil {
		return nil, err
	}
	if err := t.src.findBase(ctx, c, t.from); err != nil {
		return nil, err
	}
	if err := env.checkFits(ctx, c, t.src.model, b.hasSizes(), t.dev.Computes.Info()); err != nil {
		return nil, t.keptSizes(ctx, asked, err)
	}
	if err := t.openData(ctx, env); err != nil {
		return nil, err
	}
	if err := t.openLoaders(env); err != nil {
		return nil, err
	}
	if err := t.standAt(t.from); err != nil {
		return nil, err
	}
	p, err = env.makePlan(ctx, c, t.src.model, t.src.exportType(), t.rates.Steps, plan.Outputs{}, b.hasSizes(),
		t.dev.Computes.Info())
	if err != nil {
		return nil, t.keptSizes(ctx, asked, err)
	}
	if t.from == nil {
		return p, nil
	}
	return p, t.checkResume(p, t.from)
}

// keptSizes adds to the error of a plan that the run has sizes from an earlier start, where they were auto in the run
// file.
func (t *trainer) keptSizes(ctx context.Context, asked runfile.Sizes, err error) error {
	n, c := t.config.Numerics, t.config
	if ctx.Err() != nil || n == asked || asked.MicroBatch > 0 && asked.HeadChunk > 0 {
		return err
	}
	whose := "those that this run had when it was killed, before its first checkpoint"
	if t.from != nil {
		whose = "those of " + t.from.Dir()
	}
	return fmt.Errorf("%w; micro_batch %d, head_chunk %d and block_chunk %d are %s, and stay, so that its bits do; "+
		"to start again with sizes for these budgets, set another output_dir, or remove %s", err, n.MicroBatch, n.HeadChunk,
		n.BlockChunk, whose, c.OutputDir)
}

// begin takes over what the checkpoint says of the run, if there is one, and writes the files that a run begins with.
func (t *trainer) begin() error {
	if t.from != nil {
		if err := t.continueFrom(t.from); err != nil {
			return err
		}
		t.setAsideAfter(t.from.Manifest.Step)
	}
	t.saves.specs = map[store.ID]store.Spec{}
	for _, spec := range t.plan.Extents() {
		t.saves.specs[spec.ID] = spec
	}
	if t.id.hasDiverged() && t.from != nil && t.from.Manifest.UnhealthySteps == 0 {
		t.env.say("the run had diverged: it continues from its last healthy checkpoint")
	}
	if own := t.id.owner(); t.from != nil && !own.Has(t.from.Manifest.Run) {
		t.id.Origin = &origin{t.from.Manifest.Run, t.from.Manifest.Step}
	}
	t.id.Begun, t.id.Ended = true, nil
	if err := t.writeIdentity(t.env); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	return t.openMetrics()
}

// carry finds the tensors that the run carries. A model that begins at random may have no weights, and then carries
// nothing.
func (t *trainer) carry(ctx context.Context, env *Env) error {
	if t.from != nil {
		return t.src.carryAs(ctx, env, t.from)
	}
	err := t.src.carry(ctx, env)
	if err != nil && t.config.Init == "random" && ctx.Err() == nil {
		t.src.carried = carried{}
		env.say("nothing is carried to the export: %s", console.OneLine(err))
		err = nil
	}
	return err
}

// ended returns the summary of a run that had ended before: a user who starts it again has missed that.
func (t *trainer) ended(env *Env) *Summary {
	dir := filepath.Join(t.config.OutputDir, lastModel)
	s := &Summary{Model: dir}
	if m := t.from; m != nil {
		s.Steps, s.Checkpoint = m.Manifest.Step, m.Dir()
		s.Skipped, s.Untargeted = int(m.Manifest.SkippedUpdates), int(m.Manifest.UntargetedSteps)
	}
	if end := t.id.Ended; end != nil && !end.Diverged {
		s.Steps = max(s.Steps, end.Step) // it was not to save its end
	}
	s.ResumedAfter = s.Steps
	if s.Steps < t.rates.Steps {
		env.say("this run has ended after step %d of %d, by stop.patience, and the model is in %s; to train further, "+
			"raise stop.patience", s.Steps, t.rates.Steps, dir)
	} else {
		env.say("this run has ended: all %d steps are done, and the model is in %s", s.Steps, dir)
	}
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tracedSpans is how many of a lane's latest operations a trace holds.
const tracedSpans = 100_000

// standAt puts the run where a checkpoint is, nil for its beginning: the place in its data, the sizes that set its
// bits, and so the number of its steps.
func (t *trainer) standAt(from *checkpoint.Checkpoint) (err error) {
	c := t.config
	if t.at, err = t.placeOf(from); err != nil {
		return err
	}
	if err := adoptCuts(c, from); err != nil {
		return err
	}
	t.rates = c.Schedule(t.stepsOf(from))
	t.plateau = nil
	if from != nil && !t.saves.forgetBest {
		t.plateau = from.Manifest.Plateau
	}
	return nil
}

// closeSession gives back the state and the engine. What goes wrong then is a warning, unless the run has ended with
// it.
func (t *trainer) closeSession(env *Env, ended error) {
	if err := t.Session.Close(); err != nil && !errors.Is(ended, err) {
		env.say("warning: %s", console.OneLine(err))
	}
}

// writeRunFiles writes run.yaml, as resolved, and plan.json to the output directory.
func (t *trainer) writeRunFiles() error {
	c := *t.config
	c.Memory.Path = t.memoryPath
	c.Numerics = sizesOf(t.plan.Numerics)
	c.Datasets = t.data.Sources()
	if len(c.Eval.Datasets) > 0 {
		c.Eval.Datasets = t.evalData.Sources()
	}
	if c.Resume != "auto" && c.Resume != "never" {
		c.Resume = runfile.Absolute(c.Resume)
	}
	planned, err := json.MarshalIndent(t.plan, "", "  ")
	if err != nil {
		return err
	}
	fsys := t.env.files()
	err = t.env.writeResolved(&c, t.id.Run)
	if err == nil {
		err = vfs.WriteFileAtomic(fsys, filepath.Join(c.OutputDir, planName), append(planned, '\n'))
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

// run walks the steps, then writes the model.
func (t *trainer) run(ctx context.Context) error {
	t.summary.PlannedBytes = t.plan.ProcessBytes()
	t.saves.last = t.env.time().now()
	if err := t.walk(ctx); err != nil {
		return err
	}
	t.env.willFinish("saving and writing the model")
	if err := t.flush(ctx); err != nil {
		return t.rescue(ctx, err) // the last update is not whole: there is no model to write
	}
	var errSave error
	if t.config.Save.AtEnd || t.enough || t.saves.tries > 0 { // a save that failed is tried again
		errSave = t.saveStored(ctx)
	}
	if ctx.Err() != nil {
		return errors.Join(errSave, ctx.Err())
	}
	t.finish()
	if err := t.changedNothing(); err != nil {
		return err
	}
	if t.saves.saved == t.summary.Steps {
		t.env.willFinish("") // the model can be written at any time
	}
	if err := t.stopEngine(); err != nil {
		return err
	}
	if err := t.exportAll(ctx); err != nil {
		return err
	}
	t.noteEnd(ctx)
	switch {
	case errSave != nil && !t.isOver(): // the steps that are left begin with this state
		return t.naming(ctx, fmt.Errorf("%s is written, and the state cannot be saved: %w", t.summary.Model, errSave))
	case errSave != nil:
		t.env.say("warning: %s; the model is written, and the run cannot be made longer", console.OneLine(errSave))
	}
	if n := t.metrics.Waiting(); n > 0 && t.metrics.Sync() != nil {
		return fmt.Errorf("%s is written, and the last %d records of %s are not; see the warning above", t.summary.Model, n, metricsName)
	}
	return nil
}

// changedNothing is the error of a run that has done all of its steps and updated nothing: its model would be the one
// that it began with.
func (t *trainer) changedNothing() error {
	s := &t.summary
	if !t.isOver() || s.Steps == 0 || t.idleSteps() < s.Steps {
		return nil
	}
	why := fmt.Sprintf("no token counted in the loss in %d of them, and the gradient norm was not finite in %d",
		s.Untargeted, s.Skipped)
	if s.Skipped == 0 {
		why = "in none of them did a token count in the loss"
	}
	return blame.BadRequest(fmt.Errorf("none of the %d steps changed the model: %s; no model is written: see with "+
		"millrace preview which tokens count, change datasets, train_on_prompt or sequence_len, and set another output_dir",
		s.Steps, why))
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
		t.checkMetrics(t.metrics.Append(trace.BeforeTraining(l.Loss, time.Now().UTC().Format(time.RFC3339))))
	}
	t.Engine.Trace.TakeBusy()
	t.wear = wear{t.config.Memory.MaxWritePerDay.N, t.env.time().now()}
	if err := t.evaluateAgain(ctx); err != nil {
		return err
	}
	for step := t.begun + 1; step <= t.rates.Steps && !t.outOfPatience() && !t.env.stopped(); step++ {
		t.env.willFinish(fmt.Sprintf("finishing step %d and saving", step))
		err := t.step(ctx, step)
		if errors.Is(err, ErrStop) {
			t.env.say("stopping after step %d, as the program asks", step)
			t.enough = true
			return nil
		}
		if err != nil {
			return t.rescue(ctx, err)
		}
	}
	if t.env.stopped() {
		return t.interrupt(ctx)
	}
	t.noteEarlyEnd()
	return nil
}

// interrupt saves the run as it is, so that it can continue from there.
func (t *trainer) interrupt(ctx context.Context) error {
	if t.summary.Steps > t.begun {
		t.env.say("stopping after step %d", t.summary.Steps)
		if err := t.saveNow(ctx); err != nil {
			return t.naming(ctx, err)
		}
	}
	t.finish()
	return t.interruption()
}

// flush has the store and, if it is due, a checkpoint have what the steps so far came to.
func (t *trainer) flush(ctx context.Context) error {
	bad, err := t.Engine.Flush(ctx)
	if err == nil {
		err = t.badWeights(t.summary.Steps, bad)
	}
	if err == nil {
		t.endSave(ctx)
	}
	return err
}

// exportAll writes the last model and the best one. What cannot be written now can be later, from a checkpoint.
func (t *trainer) exportAll(ctx context.Context) error {
	if err := t.holdDir(); err != nil {
		_ = t.saveStored(ctx) // err is the one to report
		return t.naming(ctx, err)
	}
	out := filepath.Join(t.config.OutputDir, lastModel)
	err := t.env.checkModelLinks(t.config) // again, after days
	if err == nil {
		c := t.env.cardOf(t.config.OutputDir, t.src, t.src.exportType(), t.summary.Steps, t.mathematics(), t.src.base,
			t.plateau)
		err = t.export(ctx, t.src, out, t.src.exportType(), c)
	}
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
	export := fmt.Sprintf("millrace export --checkpoint %s --model %s --out DIR", t.summary.Checkpoint, t.src.dir)
	if !t.isOver() { // the same command would continue the training
		return fmt.Errorf("%w; step %d is saved: make room, then: %s", err, t.summary.Steps, export)
	}
	return fmt.Errorf("%w; all %d steps are done and saved: make room, then run the same command again, or: %s", err,
		t.summary.Steps, export)
}

// exportBest writes the model of the checkpoint with the lowest evaluation loss, if the run keeps that and has one.
func (t *trainer) exportBest(ctx context.Context) error {
	if !t.config.Save.Best || t.saves.best == nil {
		return nil
	}
	dir := filepath.Join(t.config.OutputDir, bestModel)
	name := checkpoint.DirName(t.saves.best.Step)
	from, err := checkpoint.Open(t.env.files(), filepath.Join(checkpointsDir(t.config), name))
	if other := t.id.fallbackDir(t.config); err != nil && other != "" {
		there, errThere := checkpoint.Open(t.env.files(), filepath.Join(other, name))
		if damage := (*checkpoint.DamageError)(nil); errThere == nil || errors.As(errThere, &damage) {
			from, err = there, errThere
		}
	}
	if damage := (*checkpoint.DamageError)(nil); err != nil && !errors.As(err, &damage) {
		// It was saved by the run that this one has resumed from, in another directory.
		t.env.say("the best checkpoint, of step %d, is not here; no %s is written", t.saves.best.Step, dir)
		return nil
	}
	if err == nil {
		err = t.env.exportCheckpoint(ctx, t.config.OutputDir, from, t.src, dir, t.src.exportType(),
			hf.WriteOptions{Replace: true})
	}
	if err != nil {
		return fmt.Errorf("%s is written, and the best model cannot be: %w", t.summary.Model, err)
	}
	t.summary.BestModel = dir
	return nil
}

// writeTrace writes the Chrome trace.
func (t *trainer) writeTrace() error {
	about := trace.About{Model: t.config.Model, Device: t.dev.Computes.Info().Name,
		Tokens: int64(t.plan.Numerics.StepPositions())}
	return vfs.WriteAtomic(t.env.files(), filepath.Join(t.config.OutputDir, traceName), func(f vfs.File) error {
		return t.spans.Trace(about).WriteChrome(f)
	})
}
