package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/trackers"
	"github.com/millrace/millrace/vfs"
)

// Options add to run.yaml what a command line or a program decides.
type Options struct {
	Env   *session.Env // nil in package millrace: millrace.NewEnv(nil)
	Trace bool         // write a Chrome trace; of several hosts host 0 writes that of its own lanes
	// OnStep is called with the metrics of each step, before the next step begins. If it returns an error, the run
	// saves its state and Train returns the error; ErrStop ends the run well. Of several hosts host 0 calls it.
	OnStep func(trace.Metrics) error
	// Rate, if given, returns the learning rate of a step, from 1, in place of the configured schedule; it is called
	// once for each step, in order. A rate that is not finite or negative ends the run. A checkpoint does not record
	// the rates, so a run that continues needs the same function, and so do all hosts of a run.
	Rate func(step int) float64
	// Controls take what a user asks of the run while it runs; nil: no user does. Of several hosts those of host 0 count.
	Controls *Controls
	// Objective is a program's own, in place of the key objective: its results are the losses and metrics of steps. All
	// hosts of a run need the same, and so does a run that continues: a checkpoint records its name.
	Objective objective.Objective
}

// ErrRequest marks the errors that the request caused, so that the same request fails again. Other errors are of the
// machine, of the network or of the program.
var ErrRequest = blame.ErrRequest

// trainer is the loop of a run file: it takes the steps of a Run, in an output directory, with what the file asks for
// besides steps: each has a type of its own.
type trainer struct {
	*Run
	options  Options
	home     rundir.Home // the output directory, and who the run is
	rates    optim.Schedule
	saves    saver
	health   health
	losses   trend
	rewards  trend // of a policy's answers
	evals    evaluations
	records  records
	trackers *trackers.Trackers // nil: the run has none, or is not host 0's
	samples  *generate.Sampling // nil: the run has none
	caches   nn.Caches          // of texts that grow together
	wear     wear
	notices  *notices // nil: the run tells of nothing
	needs    spaceNeeds
	moved    float64         // the longest move in the latest step's own update, where it has one; see stream.Updates
	spans    *trace.Recorder // of a run that is traced
	summary  Summary

	claimed  bool // run.json is this run's
	started  bool // the files that a run begins with are written
	released bool

	begun            int  // steps that were done before this process
	stoppedByProgram bool // the program ended the run with ErrStop
	dataSteps        stepRange
	history          []checkpoint.Change // of the settings, in this process and before
	damaged          []string            // checkpoints of the run that this process has read, and found damaged
}

// newTrainer prepares the loop of a configuration, which the loop changes.
func newTrainer(c *runfile.Config, o Options) *trainer {
	env := o.Env
	t := &trainer{Run: &Run{env: env, config: c}, options: o, home: rundir.NewHome(env.Runs(), c)}
	if cluster := env.Cluster; cluster != nil {
		t.home.Saving = &checkpoint.Hosts{Host: cluster.Host, Name: cluster.Name, Exchange: cluster.Peers.Exchange}
	}
	t.options.Trace = o.Trace && env.Cluster.Leads()
	t.health.stop, t.evals.patience = c.Stop, c.Stop.Patience
	t.records = newRecords(env, &t.home)
	t.saves = saver{run: t.Run, home: &t.home, keep: t.keepDir, describe: t.describe, sync: t.syncRecords,
		lastStep: t.lastStep}
	return t
}

// Train runs run.yaml to its end, from its latest checkpoint if it has one; or to the end of the step in which it is
// asked to stop: then it saves a checkpoint, and the error is ErrInterrupted. The same holds where the context ends
// while nothing can be lost, which is before a step is done and when all are saved. A run that has ended before is not
// an error.
func Train(ctx context.Context, c *runfile.Config, o Options) (*Summary, error) {
	if o.Env == nil {
		return nil, session.ErrNoEnv
	}
	if err := c.Check(); err != nil {
		return nil, blame.BadRequest(err)
	}
	own := *c // what a run decides, such as sizes that are auto, is not the caller's
	t := newTrainer(&own, o)
	defer t.release(nil) // after a fault of the program
	sum, err := t.train(ctx)
	err = t.giveAllBack(err)
	known, isKnown := errors.AsType[*hosts.Error](err)
	if sum, err = t.interrupted(ctx, sum, err); isKnown && err != nil {
		err = known.Over(err)
	}
	t.notices.end(ctx, sum, err)
	return sum, err
}

func (t *trainer) train(ctx context.Context) (_ *Summary, err error) {
	if err := t.prepare(ctx); err != nil {
		return nil, blame.OfStart(ctx, err)
	}
	switch step, err := t.allEnded(ctx); {
	case err != nil:
		return nil, err
	case step > 0:
		return t.ended(step)
	}
	dev := t.dev.Info()
	_, guess := probe.Measured(t.env.CacheDir, dev, t.config.Budgets().Path)
	t.env.Tell(RunBegan{t.plan.Headline(dev, guess), savesText(t.config.Save)})
	if o := t.plan.Round; o != nil {
		t.env.Note("%s", o.Line())
	}
	if w := t.plan.Wear; w.Matters() {
		t.env.Note("%s", w)
	}
	for _, note := range []string{t.rendering, t.tokenizing} {
		if note != "" {
			t.env.Note("%s", note)
		}
	}
	t.noteTurns()
	t.noteObjective()
	if t.endsNote != "" {
		t.env.Note("%s", t.endsNote)
	}
	t.noteCut()
	for _, note := range []string{t.src.FormatNote(), t.config.Experiment()} {
		if note != "" {
			t.env.Note("%s", note)
		}
	}
	cluster := t.env.Cluster
	if t.claimed = cluster.Leads(); t.claimed {
		err = t.home.Claim()
	}
	if err := cluster.Agree(err); err != nil {
		return nil, err
	}
	if err := t.openWholeState(ctx); err != nil {
		return nil, err
	}
	t.home.NoteState()
	if err := cluster.Agree(blame.BadRequest(t.begin())); err != nil {
		return nil, err
	}
	if err := t.beginRounds(ctx); err != nil {
		return nil, blame.OfStart(ctx, err)
	}
	defer t.records.close()
	defer func() { t.endTrackers(err) }()
	t.started = true
	if err := t.openOldInHome(ctx); err != nil {
		return nil, err
	}
	if t.options.Trace {
		t.spans = trace.NewRecorder(t.plan.Crew(), tracedSpans)
		t.session.Engine.Trace = t.spans
	}
	if err = t.run(ctx); err != nil && !errors.Is(err, ErrInterrupted) {
		t.noteDivergence(err)
		return nil, err
	}
	if t.options.Trace {
		err = errors.Join(err, t.writeTrace())
	}
	t.summary.Checkpoint = t.saves.path
	t.endTrackers(err)
	t.env.Tell(RunEnded{t.summary})
	return &t.summary, err
}

// prepare takes the output directory, reads the model and the data, and plans the run. Nothing is written, and of the
// run's memory only what the order of the data takes is reserved.
func (t *trainer) prepare(ctx context.Context) error {
	asked := t.config.Numerics
	b, err := t.arrive(ctx)
	if err != nil {
		return err
	}
	t.from = b.From
	err = t.env.Together(ctx, func(context.Context) error {
		t.home.ClearState()
		return nil
	})
	if err != nil {
		return err
	}
	err = t.env.Together(ctx, func(ctx context.Context) error {
		return blame.OfStart(ctx, t.openFitting(ctx, &b, asked))
	})
	if err != nil {
		return err
	}
	err = t.env.Together(ctx, func(ctx context.Context) error { return blame.OfStart(ctx, t.openWholeData(ctx)) })
	if err != nil {
		return err
	}
	if err := t.openReferenceInTurn(ctx); err != nil {
		return err
	}
	if err := t.checkSame(); err != nil {
		return err
	}
	if err := t.planTogether(ctx, &b, asked); err != nil {
		return err
	}
	if err := t.agreeOnCaches(); err != nil {
		return err
	}
	if t.from == nil {
		return nil
	}
	return t.env.Cluster.Agree(blame.BadRequest(t.checkResume(t.from)))
}

// openFitting opens the model and the devices, and refuses a run that cannot fit. asked are the sizes of the run file.
func (t *trainer) openFitting(ctx context.Context, b *rundir.Beginning, asked runfile.Sizes) error {
	c := t.config
	if err := b.AdoptSizes(c); err != nil {
		return err
	}
	if err := t.env.Cluster.ChooseGroups(c); err != nil {
		return err
	}
	if err := t.setAim(t.options.Objective); err != nil {
		return err
	}
	if err := t.openModel(ctx); err != nil {
		return err
	}
	if err := t.src.FindBase(ctx, c, t.from); err != nil {
		return err
	}
	samples, err := generate.OpenSampling(ctx, t.src, c)
	if err != nil {
		return err
	}
	t.samples = samples
	if c.RL.Asked() && t.env.Cluster != nil {
		return errors.New("rl: a loop is for one process yet: start it without a launcher, on one host")
	}
	sampling := samples.Memory().With(generate.AnswersMemory(c, 1, t.src.Model.MaxPositions))
	err = t.env.CheckFits(ctx, c, t.src.Model, sampling, b.HasSizes(), t.dev.Info())
	return hosts.OfBudgets(t.keptSizes(ctx, asked, err))
}

// openWholeData opens the data, and puts the run where it begins in them.
func (t *trainer) openWholeData(ctx context.Context) error {
	c := t.config
	epochs := 0 // without an end: max_steps ends the run
	if c.MaxSteps == 0 {
		epochs = max(int(math.Ceil(c.Epochs)), 1)
	}
	if err := t.openData(ctx, epochs); err != nil {
		return err
	}
	if c.MaxSteps == 0 {
		t.dataSteps = epochSteps(t.loader.Steps(), c.Epochs, epochs)
	}
	return t.beginAt(t.from)
}

// keptSizes adds to the error of a plan that the run has sizes from an earlier start, where they were auto in the run
// file.
func (t *trainer) keptSizes(ctx context.Context, asked runfile.Sizes, err error) error {
	n, c := t.config.Numerics, t.config
	asked.Groups = n.Groups // which have no part in it
	if err == nil || ctx.Err() != nil || n == asked || asked.MicroBatch > 0 && asked.HeadChunk > 0 {
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
		if t.env.Cluster.Leads() {
			t.setAsideAfter(t.from.Manifest.Step)
		}
	}
	t.saves.begin()
	if !t.env.Cluster.Leads() {
		return nil // the files of the run are host 0's
	}
	id := &t.home.ID
	if id.HasDiverged() && t.from != nil && t.from.Manifest.UnhealthySteps == 0 {
		t.env.Note("the run had diverged: it continues from its last healthy checkpoint")
	}
	if own := id.Owner(); t.from != nil && !own.Has(t.from.Manifest.Run) {
		id.Origin = &rundir.Origin{Run: t.from.Manifest.Run, Step: t.from.Manifest.Step}
	}
	id.Begun, id.Ended, id.Asked = true, nil, t.home.Asked
	id.Leave(t.begun)
	if err := t.home.WriteIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	last := t.begun
	if last == 0 {
		last = -1 // a run that begins writes the records of step 0 again
	}
	if err := t.records.metrics.Begin(last); err != nil {
		return err
	}
	if err := t.beginSamples(last); err != nil {
		return err
	}
	t.openTrackers()
	return nil
}

// ended returns the summary of a run that had ended before, after a step: a user who starts it again has missed that.
// One that has ended among unhealthy steps is an error again.
func (t *trainer) ended(step int) (*Summary, error) {
	dir := filepath.Join(t.config.OutputDir, rundir.LastModel)
	s := &Summary{Model: dir, Steps: step, ResumedAfter: step}
	if m := t.from; m != nil {
		s.Checkpoint = m.Dir()
		s.Skipped, s.Untargeted = int(m.Manifest.SkippedUpdates), int(m.Manifest.UntargetedSteps)
	}
	best := filepath.Join(t.config.OutputDir, rundir.BestModel)
	switch {
	case t.config.Save.Best && vfs.Exists(best):
		s.BestModel = best
	case t.config.Save.Best && t.bestNoted(step) == nil:
		t.noteNoBest(nil, rundir.Placed{})
	}
	if s.Steps < t.rates.Steps {
		t.env.Note("this run has ended after step %d of %d, by stop.patience, and the model is in %s; to train further, "+
			"raise stop.patience", s.Steps, t.rates.Steps, dir)
	} else {
		t.env.Note("this run has ended: all %d steps are done, and the model is in %s", s.Steps, dir)
	}
	if err := t.restoreRunFiles(); err != nil {
		t.env.WarnOf(err)
	}
	unhealthy := 0
	if end := t.home.ID.Ended; end != nil && end.Step == step {
		unhealthy = end.UnhealthySteps
	}
	if t.from != nil && t.from.Manifest.Step == step {
		unhealthy = t.from.Manifest.UnhealthySteps
	}
	return s, t.endedUnhealthy(step, unhealthy)
}

// tracedSpans bounds the operations of a lane that a trace holds, the latest ones.
const tracedSpans = 100_000

// beginAt puts the run where a checkpoint is, nil for its beginning: the place in its data, the sizes that set its
// bits, and so the number of its steps.
func (t *trainer) beginAt(from *checkpoint.Checkpoint) error {
	if _, err := t.findPlace(from); err != nil {
		return err
	}
	if err := rundir.AdoptCuts(t.config, from); err != nil {
		return err
	}
	t.rates = t.config.Schedule(t.stepsOf(from))
	t.evals.plateau = nil
	if from != nil && !t.otherHeld {
		t.evals.plateau = from.Manifest.Plateau
	}
	return nil
}

// close gives back everything that the run has reserved. What goes wrong then is a warning, unless the run has ended
// with it.
func (t *trainer) close(ended error) {
	if err := t.Close(); err != nil && !errors.Is(ended, err) {
		t.env.WarnOf(err)
	}
}

// release closes the run and gives up its directories, once.
func (t *trainer) release(ended error) {
	if t.released {
		return
	}
	t.released = true
	t.close(ended)
	if t.claimed && !t.started {
		t.home.Unclaim()
	}
	t.saves.close()
	t.home.Close(t.started)
}

// giveAllBack gives everything back, such as files of state, whose removal may take longer than hosts wait, and returns
// the error that all hosts end with.
func (t *trainer) giveAllBack(err error) error {
	if hosts.IsAlone(err) {
		t.release(err)
		return err // which the others learn by this one's end
	}
	return t.env.Together(context.Background(), func(context.Context) error {
		t.release(err)
		return err
	})
}

// writeRunFiles writes run.yaml, as resolved, and plan.json to the output directory.
func (t *trainer) writeRunFiles() error {
	c := *t.config
	c.Notify = nil // addresses of web hooks are secrets, and pages and cards show this file
	c.Memory.Path = t.home.MemoryPath
	c.Numerics = runfile.SizesOf(t.plan.Whole)
	c.Datasets = t.data.Sources()
	if len(c.Eval.Datasets) > 0 {
		c.Eval.Datasets = t.held.Sources()
	}
	if c.Resume != "auto" && c.Resume != "never" {
		c.Resume = runfile.Absolute(c.Resume)
	}
	planned, err := t.plannedFile()
	if err != nil {
		return err
	}
	fsys := t.env.Files()
	err = t.env.Runs().WriteResolved(&c, t.home.ID.Run)
	if err == nil {
		err = vfs.WriteFileAtomic(fsys, filepath.Join(c.OutputDir, rundir.PlanName), planned)
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

// predictedSpans are as many of a lane as plan.json has of the step that is predicted.
const predictedSpans = 300

// plannedFile is the contents of plan.json: the plan and, in a line, the step that it predicts.
func (t *trainer) plannedFile() ([]byte, error) {
	doc, err := json.MarshalIndent(t.plan, "", "  ")
	if err != nil {
		return nil, err
	}
	dev := t.dev.Info()
	rates := probe.Rates(t.env.CacheDir, dev, t.config.Budgets().Path)
	step, err := timeline.Of(t.plan.Trace(rates, dev, trace.About{}), 0)
	if err != nil {
		return append(doc, '\n'), nil // a step that takes no time has none
	}
	predicted, err := json.Marshal(step.Document(predictedSpans))
	return fmt.Appendf(bytes.TrimSuffix(doc, []byte("\n}")), ",\n  \"timeline\": %s\n}\n", predicted), err
}

// run walks the steps, then writes the model.
func (t *trainer) run(ctx context.Context) error {
	t.summary.PlannedBytes = t.plan.ProcessBytes()
	if err := t.walk(ctx); err != nil {
		return err
	}
	t.env.WillFinish("saving and writing the model")
	if err := t.flushAndSave(ctx); err != nil {
		return t.rescue(ctx, err) // the last update is not whole: there is no model to write
	}
	var errSave error
	if t.config.Save.AtEnd || t.stoppedByProgram || t.saves.tries > 0 { // a save that failed is tried again
		errSave = t.saves.saveStored(ctx)
	}
	if err := t.env.Cluster.Agree(ctx.Err()); err != nil {
		return errors.Join(errSave, err)
	}
	t.finish()
	if err := t.changedNothing(); err != nil {
		return err
	}
	if t.saves.saved == t.steps {
		t.env.WillFinish("") // the model can be written at any time
	}
	if err := t.env.Cluster.Agree(t.session.StopEngine()); err != nil {
		return err
	}
	if err := t.exportAll(ctx); err != nil {
		return err
	}
	switch {
	case errSave != nil && !t.isOver(): // the steps that are left begin with this state
		return t.withCheckpoint(ctx, fmt.Errorf("%s is written, and the state cannot be saved: %w", t.summary.Model, errSave))
	case errSave != nil:
		t.env.Warn("%s; the model is written, and the run cannot be made longer", console.OneLine(errSave))
	}
	if n, err := t.records.end(); err != nil {
		return fmt.Errorf("%s is written, and the last %d records of %s are not; see the warning above", t.summary.Model, n,
			rundir.MetricsName)
	}
	if t.isOver() {
		return t.endedUnhealthy(t.steps, t.health.unhealthy)
	}
	return nil
}

// changedNothing is the error of a run that has done all of its steps and updated nothing: its model would be the one
// that it began with.
func (t *trainer) changedNothing() error {
	if !t.isOver() || t.steps == 0 || t.idle() < t.steps {
		return nil
	}
	why := fmt.Sprintf("no token counted in the loss in %d of them, and the gradient norm was not finite in %d",
		t.untargeted, t.skipped)
	if t.skipped == 0 {
		why = "in none of them did a token count in the loss"
	}
	return blame.BadRequest(fmt.Errorf("none of the %d steps changed the model: %s; no model is written: see with "+
		"millrace preview which tokens count, change datasets, train_on_prompt or sequence_len, and set another output_dir",
		t.steps, why))
}

// walk evaluates the model and takes all steps, up to the last one or to that in which the run is asked to stop.
func (t *trainer) walk(ctx context.Context) error {
	if t.evaluates() && t.begun == 0 {
		l, err := t.evaluate(ctx, "before training")
		if err != nil {
			return t.env.Cluster.Alone(err)
		}
		e := l.Evaluation()
		t.summary.EvalBefore, t.summary.ObjectiveBefore, t.summary.EvalSetsBefore = &e.Loss, e.Objective, e.Sets
		t.tell(Evaluated{Evaluation: e})
	}
	if t.begun == 0 {
		if err := t.sample(ctx); err != nil {
			return err
		}
	}
	t.wear = wear{bytesPerDay: t.config.Memory.MaxWritePerDay.N, begin: t.env.Time().Now(),
		saved: rundir.OnDrive(t.config.Budgets().Path, t.config.OutputDir)}
	t.leaveOut()
	if err := t.evaluateAgain(ctx); err != nil {
		return err
	}
	if err := t.sampleAgain(ctx); err != nil {
		return err
	}
	stop, err := t.env.StopsAnywhere(ctx)
	if err != nil {
		return err
	}
	t.options.Controls.open(t.evaluates())
	defer t.options.Controls.close()
	for step := t.begun + 1; step <= t.rates.Steps && !t.evals.outOfPatience() && !stop; step++ {
		t.env.WillFinish(fmt.Sprintf("finishing step %d and saving", step))
		d := hosts.Decide(t.env.Cluster, hosts.Report[struct{}]{Err: t.step(ctx, step), Stop: t.env.Stopped()})
		stop, err = d.Stop, d.Err
		if errors.Is(err, ErrStop) {
			t.tell(Stopping{Step: step, Steps: t.rates.Steps, ByProgram: true})
			t.stoppedByProgram = true
			return nil
		}
		if err != nil {
			return t.rescue(ctx, err)
		}
	}
	if stop {
		return t.interrupt(ctx)
	}
	t.noteEarlyEnd()
	return nil
}

// interrupt saves the run as it is, so that it can continue from there.
func (t *trainer) interrupt(ctx context.Context) error {
	if t.steps > t.begun {
		t.tell(Stopping{Step: t.steps, Steps: t.rates.Steps})
		if err := t.saveNow(ctx); err != nil {
			return t.withCheckpoint(ctx, err)
		}
	}
	t.finish()
	return t.interruption()
}

// tell tells what happens to the records, and to the environment.
func (t *trainer) tell(event session.Event) {
	t.env.Tell(event)
	t.records.hear(event)
	t.track(event)
}

// syncRecords makes sure that what the run has told so far is on the drive, as far as it can be.
func (t *trainer) syncRecords() {
	t.records.sync()
	t.trackers.Sync()
}

// flushAndSave brings the results of all steps to the store and, if it is due, into a checkpoint.
func (t *trainer) flushAndSave(ctx context.Context) error {
	err := t.env.Cluster.Alone(t.flush(ctx))
	if err == nil {
		err = t.badWeights(t.steps)
	}
	if err == nil {
		t.saves.end(ctx, t.health.unhealthy)
	}
	return err
}

// describe says in a manifest what there is to say of the run besides its state.
func (t *trainer) describe(m *checkpoint.Manifest) {
	m.UnhealthySteps, m.Mathematics, m.History = t.health.unhealthy, t.mathematics(), t.history
	m.EvalLoss, m.Plateau = t.evals.loss, t.evals.plateau
}

// lastStep is the step after which the run takes no other, as far as is known.
func (t *trainer) lastStep() int {
	if t.stoppedByProgram || t.evals.outOfPatience() {
		return t.steps
	}
	return t.rates.Steps
}

// isOver reports whether the run takes no further step.
func (t *trainer) isOver() bool { return t.steps >= t.rates.Steps || t.evals.outOfPatience() }

// saveNow saves the state after the latest step at once.
func (t *trainer) saveNow(ctx context.Context) error {
	if err := t.flushAndSave(ctx); err != nil {
		return err
	}
	return t.saves.saveStored(ctx)
}

// rescue acts on an error that ends the run: it saves the state after the latest step, if that can be saved and
// is worth it.
func (t *trainer) rescue(ctx context.Context, err error) error {
	if hosts.IsAlone(err) {
		return t.withCheckpoint(ctx, err)
	}
	diverged := (*divergedError)(nil)
	d := hosts.Decide(t.env.Cluster, hosts.Report[struct{}]{Stop: errors.As(err, &diverged) || ctx.Err() != nil ||
		t.steps <= t.saves.saved})
	if d.Err == nil && !d.Stop {
		// err is the one to report, and the latest save is named below; unless the other hosts wait for this one.
		if errSave := t.saveNow(ctx); hosts.IsAlone(errSave) {
			err = fmt.Errorf("%w; the state was to be saved after another error: %v", errSave, err)
		}
	}
	return t.withCheckpoint(ctx, err)
}

// withCheckpoint adds the checkpoint to continue from to an error that ends the run, where it is not known already.
func (t *trainer) withCheckpoint(ctx context.Context, err error) error {
	if diverged := (*divergedError)(nil); errors.As(err, &diverged) || ctx.Err() != nil || t.steps == 0 {
		return err
	}
	return fmt.Errorf("%w; %s", err, t.saves.latest())
}

// exportAll writes the last model and the best one, and notes that the run has ended. What cannot be written now can be
// later, from a checkpoint.
func (t *trainer) exportAll(ctx context.Context) error {
	cluster := t.env.Cluster
	err := cluster.Agree(t.keepDir())
	if err != nil {
		_ = t.saves.saveStored(ctx) // err is the one to report
		return t.withCheckpoint(ctx, err)
	}
	out, as := filepath.Join(t.config.OutputDir, rundir.LastModel), export.FormatOf(t.src)
	err = export.Together(ctx, t.session, as, func(ctx context.Context, view export.View) error {
		if err := t.env.Runs().CheckModelLinks(t.config); err != nil { // again, after days
			return err
		}
		if is, err := t.home.ID.PlacedAt(ctx, t.config.OutputDir, rundir.LastModel); err != nil || is.IsOf(t.steps) {
			return err // the best one alone is missing
		}
		of := &export.Trained{RunDir: t.config.OutputDir, Step: t.steps, Unhealthy: t.health.unhealthy,
			Settings: t.mathematics(),
			Base:     t.src.Base, Plateau: t.evals.plateau}
		return export.Write(ctx, t.env, t.src, out, as, of, t.home.Replacing(ctx, rundir.LastModel, t.steps), view)
	})
	if err == nil {
		t.summary.Model = out
		t.tell(ModelWritten{out})
		return t.env.Together(ctx, func(ctx context.Context) error {
			if !cluster.Leads() {
				return nil
			}
			err := t.exportBest(ctx)
			if err == nil {
				t.noteEnd()
			}
			return err
		})
	}
	if hosts.IsAlone(err) || errors.Is(err, context.Canceled) || cluster == nil && ctx.Err() != nil {
		return err
	}
	if t.saves.saved < t.steps {
		if errSave := t.saves.saveStored(ctx); errSave != nil {
			return fmt.Errorf("%w; nor can the state be saved: %w; %s", err, errSave, t.saves.latest())
		}
	}
	export := fmt.Sprintf("millrace export --checkpoint %s --model %s --out DIR", t.saves.path, t.src.Dir)
	if !t.isOver() { // the same command would continue the training
		return fmt.Errorf("%w; step %d is saved: make room, then: %s", err, t.steps, export)
	}
	return fmt.Errorf("%w; all %d steps are done and saved: make room, then run the same command again, or: %s", err,
		t.steps, export)
}

// exportBest writes the model of the checkpoint with the lowest evaluation loss, if the run keeps that and has one.
func (t *trainer) exportBest(ctx context.Context) error {
	best := t.saves.best
	if !t.config.Save.Best {
		return nil
	}
	dir := filepath.Join(t.config.OutputDir, rundir.BestModel)
	is, err := t.home.ID.PlacedAt(ctx, t.config.OutputDir, rundir.BestModel)
	if err == nil && best == nil {
		t.noteNoBest(best, is)
		return nil
	}
	if err == nil && !is.IsOf(best.Step) {
		var from *checkpoint.Checkpoint
		if from, err = t.openBest(best); err == nil && from == nil {
			t.noteNoBest(best, is)
			return nil
		}
		if err == nil {
			err = export.Checkpoint(ctx, t.env, t.config.OutputDir, from, t.src, dir, export.FormatOf(t.src),
				t.home.Replacing(ctx, rundir.BestModel, best.Step))
		}
	}
	if err != nil {
		return fmt.Errorf("%s is written, and the best model cannot be: %w", t.summary.Model, err)
	}
	t.summary.BestModel = dir
	t.tell(ModelWritten{dir})
	return nil
}

// noteNoBest says that the best model is not written, and what has its name. The best is nil where nothing was
// evaluated, or where its checkpoint was lost while the run worked.
func (t *trainer) noteNoBest(best *checkpoint.Best, is rundir.Placed) {
	why, stays := "the run has no checkpoint of a best evaluation", ""
	if best != nil {
		why = fmt.Sprintf("the best checkpoint, of step %d, is not here", best.Step)
	}
	if is.Holding != rundir.NoModel {
		stays = fmt.Sprintf(", and the one that is there, of step %d, stays", is.Step)
	}
	t.env.Note("%s; no %s is written%s", why, filepath.Join(t.config.OutputDir, rundir.BestModel), stays)
}

// writeTrace writes the Chrome trace.
func (t *trainer) writeTrace() error {
	about := trace.About{Model: t.config.Model, Device: t.plan.DeviceName(t.dev.Info()),
		Tokens: int64(t.plan.Whole.StepPositions())}
	return vfs.WriteAtomic(t.env.Files(), filepath.Join(t.config.OutputDir, rundir.TraceName), func(f vfs.File) error {
		return t.spans.Trace(about).WriteChrome(f)
	})
}

// stepRange is a number of steps rounded up, and rounded down.
type stepRange struct{ up, down int }

// epochSteps are the steps that a number of epochs takes, of those that whole epochs take. The last epoch may be asked
// for in part. Then a step that has begun counts, as in transformers' Trainer:
// max_steps = ceil(num_train_epochs * num_update_steps_per_epoch).
func epochSteps(all int, asked float64, whole int) stepRange {
	exact := float64(all)
	if asked > 0 {
		exact *= asked / float64(whole)
	}
	const noise = 1e-9 // of the multiplication: 1.1 times 10 is a little above 11
	return stepRange{max(int(math.Ceil(exact*(1-noise))), 1), max(int(exact), 1)}
}

// stepsOf is the number of all steps of a run that continues from a checkpoint, nil for none. Versions of this program
// that rounded down had one step less for some numbers of epochs; a run that has begun or ended with that keeps it.
func (t *trainer) stepsOf(from *checkpoint.Checkpoint) int {
	if t.config.MaxSteps > 0 {
		return t.config.MaxSteps
	}
	down := t.at.Since + t.dataSteps.down
	began := from != nil && from.Manifest.Mathematics["steps"] == strconv.Itoa(down)
	ended := from == nil && t.home.ID.Ended != nil && !t.home.ID.Ended.Diverged && t.home.ID.Ended.Step == down
	if began || ended {
		return down
	}
	return t.at.Since + t.dataSteps.up
}
