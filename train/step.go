package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
)

// step runs one step, with its evaluation if one is due, and writes its metrics.
func (t *trainer) step(ctx context.Context, step int) error {
	lr, err := t.rateOf(step)
	if err != nil {
		return err
	}
	batch, err := t.Next(ctx)
	if errors.Is(err, ErrInterrupted) { // while it sampled answers: the walk ends
		return nil
	}
	if err != nil {
		return t.env.Cluster.Alone(fmt.Errorf("step %d: %w", step, err))
	}
	figures := t.sampled()
	m := trace.Metrics{Step: int64(step), LearningRate: lr, TargetTokens: int64(batch.Targets),
		DevicePeakBytes: t.plan.DeviceTotalBytes()}
	var docs []int
	for _, b := range t.session.Rows {
		m.Tokens += int64(b.RealTokens)
		docs = documents(docs, b)
	}
	begin := time.Now()
	if batch.Targets > 0 {
		err = t.compute(ctx, step, batch, &m)
	} else {
		err = t.pass(batch)
		m.Loss, m.GradNorm = math.NaN(), math.NaN()
		t.tell(UpdateSkipped{Step: step, Untargeted: true})
	}
	if err != nil {
		return t.env.Cluster.Alone(err)
	}
	due := t.measure(&m, begin, docs)
	t.recordRound(&m, figures)
	save, wait, err := t.pace(&m, due)
	if err != nil {
		return err
	}
	err = t.evaluateAndSave(ctx, &m, save)
	t.account(&m) // the step is done, and its record too, also where the evaluation failed
	if err != nil {
		return err
	}
	if err := t.diverged(); err != nil {
		return err
	}
	if t.options.OnStep != nil && t.env.Cluster.Leads() {
		if err := t.options.OnStep(m); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	if wait == 0 {
		return nil
	}
	return t.slowDown(ctx, wait)
}

// compute runs the engine over a batch, and ends the save that the step before has begun.
func (t *trainer) compute(ctx context.Context, step int, batch *stream.Batch, m *trace.Metrics) error {
	bar := t.env.SlowBar(fmt.Sprintf("step %d/%d", step, t.rates.Steps))
	end := t.session.Watching(func(p stream.Progress) { bar.Show(p.Share, p.Where) })
	res, err := t.Step(ctx, batch, t.Update(m.LearningRate))
	end()
	bar.End()
	switch {
	case errors.Is(err, stream.ErrNotFinite):
		return t.unclipped(err)
	case err != nil:
		return err
	}
	updated, moved := step-1, res.LongestMove
	if t.plan.UpdatesInBackward() {
		updated = step
		moved, t.moved = t.moved, moved // a record has the move of the step before, wherever updates are
	}
	if err := t.badWeights(updated); err != nil {
		return err // a save of them does not end
	}
	m.Loss, m.GradNorm, m.ClipScale, m.Objective = res.Loss(), res.GradNorm, res.ClipScale, res.Metrics()
	if t.config.LayerNorms {
		t.addLayerNorms(m, res.Squares)
	}
	maps.Copy(m.Objective, t.aim.figures)
	if t.aim.objective != nil {
		pairs := int64(batch.Counts().Groups)
		m.Pairs = &pairs
	}
	if m.Experts = trace.ExpertsOf(res.Loads); t.config.RouterAuxLossCoef != 0 {
		m.AuxLoss = &res.AuxLoss
	}
	if moved > 0 {
		m.MaxUpdateOverLR = &moved
	}
	if res.Skipped {
		t.tell(UpdateSkipped{Step: step})
	}
	t.health.note(res.Skipped, m.Loss)
	t.saves.end(ctx, t.health.unhealthy)
	maps.Copy(m.Objective, t.saves.norms)
	t.saves.norms = nil
	return nil
}

// measure completes a step's metrics with what it took, and returns how long the run is to wait to stay below
// memory.max_write_per_day.
func (t *trainer) measure(m *trace.Metrics, begin time.Time, docs []int) (wait time.Duration) {
	ended := time.Now()
	timestamp := ended.UTC().Format(time.RFC3339)
	m.Time, m.StepSec = &timestamp, ended.Sub(begin).Seconds()
	m.Lanes, m.Devices = t.session.Engine.Trace.TakeBusy()
	m.TokensPerSec = float64(m.Tokens) / m.StepSec
	m.ModelTFLOPS = float64(t.plan.Model.TrainFLOPs(docs)) / m.StepSec / 1e12
	m.HostPeakBytes, _ = hostmem.PeakRSS()
	t.session.TellOfDrives()
	if t.session.Disk != nil {
		now := t.session.Disk.Traffic()
		m.DiskReadBytes = now.ReadBytes - t.wear.traffic.ReadBytes
		m.Lanes[trace.Disk] += (now.Busy - t.wear.traffic.Busy).Seconds()
		t.wear.traffic = now
	}
	wrote := t.written()
	m.DiskWrittenBytes, t.wear.wrote = wrote-t.wear.wrote, wrote
	if wait = t.wear.due(t.driveWritten(), t.env.Time().Now()); wait > 0 {
		waitSec := wait.Seconds()
		m.WriteWaitSec = &waitSec
	}
	return wait
}

// leaveOut has all that came after the latest step, such as an evaluation, count in no step, except what it wrote to
// disk: updates of the step may have ended there.
func (t *trainer) leaveOut() {
	t.session.LeaveOut()
	if t.session.Disk != nil {
		t.wear.traffic = t.session.Disk.Traffic()
	}
}

// evaluateAndSave evaluates and has the model write where that is due, and begins to save where that is, or where the
// model is the best so far.
func (t *trainer) evaluateAndSave(ctx context.Context, m *trace.Metrics, save bool) error {
	t.evals.loss = nil
	if t.evalDue(t.steps) {
		isBest, err := t.evaluateAfter(ctx)
		if err != nil {
			return err
		}
		if t.evals.loss != nil { // else the evaluation was stopped
			m.SetEval(t.evals.latest)
		}
		save = isBest && t.config.Save.Best || save
	}
	if err := t.sample(ctx); err != nil {
		return err
	}
	if save {
		return t.saves.start(t.health.unhealthy == 0)
	}
	return nil
}

// account adds a step to the summary, and tells of it.
func (t *trainer) account(m *trace.Metrics) {
	s := &t.summary
	if m.TargetTokens > 0 {
		t.losses.add(m.Loss)
		if s.TargetTokens == 0 {
			s.FirstLoss = m.Loss
		}
		s.LastLoss = m.Loss
	}
	if mean, ok := m.Objective[meanReward]; ok && finite(mean) != nil {
		t.rewards.add(mean)
	}
	s.Experts = m.Experts
	s.Objective = t.objectiveOf(m)
	s.Tokens += m.Tokens
	s.TargetTokens += m.TargetTokens
	s.TrainSec += m.StepSec
	s.Lanes = s.Lanes.Plus(m.Lanes)
	s.UploadBytes += t.plan.Predicted.UploadBytes
	left := (s.TrainSec + s.WriteWaitSec + s.RolloutSec) / float64(t.steps-t.begun) * float64(t.rates.Steps-t.steps)
	t.tell(StepDone{*m, t.rates.Steps, left})
}

// slowDown waits, unless the run is asked to stop on any host.
func (t *trainer) slowDown(ctx context.Context, wait time.Duration) error {
	begin, each := t.env.Time().Now(), t.env.Cluster.Beat(wait)
	defer func() { t.summary.WriteWaitSec += t.env.Time().Now().Sub(begin).Seconds() }()
	for stop := false; wait > 0 && !stop; wait -= each {
		err := t.pause(ctx, min(wait, each))
		if err == nil {
			stop, err = t.env.StopsAnywhere(ctx)
		}
		if err != nil {
			return t.env.Cluster.Alone(err)
		}
	}
	return nil
}

// documents appends the lengths of a micro-batch's documents, padding left out.
func documents(docs []int, b data.MicroBatch) []int {
	for at := 0; at < len(b.DocEnd); at = int(b.DocEnd[at]) {
		if n := int(b.DocEnd[at]) - at; n > 1 || b.Targets[at] >= 0 {
			docs = append(docs, n)
		}
	}
	return docs
}

// pace tells the other hosts what a step was on a host, and what the host wants next.
type pace struct {
	Sec     float64       `json:"sec"` // of the step, without what it waited for others
	Lanes   trace.Lanes   `json:"lanes"`
	Peak    int64         `json:"peak"`
	Read    int64         `json:"read"`
	Written int64         `json:"written"`
	Save    bool          `json:"save"` // the state is due to be saved
	Wait    time.Duration `json:"wait"` // for memory.max_write_per_day
	// EvalEvery is the interval of evaluations that the user of Controls asks for; 0: as before.
	EvalEvery int `json:"eval_every,omitempty"`
}

// pace has all hosts do the same after a step: they save when host 0 finds that due, and wait as long as the one that
// waits longest.
func (t *trainer) pace(m *trace.Metrics, wait time.Duration) (save bool, _ time.Duration, _ error) {
	c, asked := t.env.Cluster, t.options.Controls.take()
	d := hosts.Decide(c, hosts.Report[pace]{Own: pace{m.StepSec - t.session.Peers.Take().Seconds(), m.Lanes,
		m.HostPeakBytes,
		m.DiskReadBytes, m.DiskWrittenBytes, t.saves.isDue(t.steps) || asked.save, wait, asked.evalEvery}})
	if d.Err != nil {
		return false, 0, d.Err
	}
	if asked.save {
		t.env.Note("saving after step %d, as asked", t.steps)
	}
	if every := d.Lead().EvalEvery; every > 0 {
		t.evals.every = every
		t.env.Note("evaluating every %s from step %d on, as asked", spelling.Count(every, "step"), t.steps)
	}
	of, slowest := &trace.Hosts{}, 0
	for host, p := range d.All {
		of.StepSec, of.Lanes = append(of.StepSec, p.Sec), append(of.Lanes, p.Lanes)
		of.PeakBytes = append(of.PeakBytes, p.Peak)
		of.DiskReadBytes = append(of.DiskReadBytes, p.Read)
		of.DiskWrittenBytes = append(of.DiskWrittenBytes, p.Written)
		wait = max(wait, p.Wait)
		if p.Sec > d.All[slowest].Sec {
			slowest = host
		}
	}
	if c != nil { // the record of a process that is alone has the same numbers without it
		of.Slowest, m.Hosts = c.Name(slowest), of
	}
	c.WaitForSteps(d.All[slowest].Sec, time.Duration(t.config.Distributed.Timeout))
	if wait > 0 {
		longest := wait.Seconds()
		m.WriteWaitSec = &longest
	}
	return d.Lead().Save, wait, nil
}
