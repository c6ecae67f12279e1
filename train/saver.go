package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
)

// saver keeps the checkpoints of a run.
//
// A save begins at the boundary after a step, and the next schedule hands its state over, during the next step. So the
// run knows how that step went before the checkpoint appears: a state that no healthy step follows never becomes the
// newest checkpoint, and no older one is removed for it.
//
// A save that fails costs a warning. It is tried again after 1 step, then after 2, 4 and so on up to 64, in turn in
// the fallback's directory if there is one. When the run ends, in whatever way that leaves the engine whole, the
// state is saved at once.
type saver struct {
	dir      *checkpoint.Directory
	fallback *checkpoint.Directory // nil until it is needed, or found
	specs    map[store.ID]store.Spec

	best   *checkpoint.Best // of the checkpoints that there are; with save.best off, of all evaluations
	better *checkpoint.Best // found by the latest evaluation, to be saved; it replaces best when it is

	// A save that is under way.
	writer   *checkpoint.Writer
	to       *checkpoint.Directory
	step     int
	manifest checkpoint.Manifest
	failed   error // of handing the state over

	taken  error  // the output directory is another run's now
	remake string // what was removed of it, while its files are not all there again; empty: nothing

	saved   int       // the latest step that is saved
	last    time.Time // when the latest save began; at first, when the run did
	tries   int       // in a row that have failed
	retryAt int       // the step after which a save is to be tried again; 0: none is

	stall   time.Duration // time that steps waited for commits
	written int64         // bytes that ended saves have written
}

// close gives up the locks, and removes what a save that has not ended has written. A run that has not begun leaves
// nothing.
func (s *saver) close(begun bool) {
	if s.writer != nil {
		s.writer.Abort()
	}
	if s.fallback != nil {
		s.fallback.Close()
	}
	if s.dir == nil {
		return
	}
	if begun {
		s.dir.Close()
	} else {
		s.dir.Abandon()
	}
}

// own says which run holds the directories. That below save.fallback is held where it is there, so that a checkpoint
// which an interrupted save was to replace is found.
func (s *saver) own(env *Env, c *runfile.Config, id *identity) (err error) {
	if err := s.dir.Own(id.owner()); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	if s.fallback != nil {
		s.fallback.Close()
		s.fallback = nil
	}
	if path := id.fallbackDir(c); path != "" && exists(path) {
		if s.fallback, err = checkpoint.Acquire(env.files(), path, id.owner()); err != nil {
			return fmt.Errorf("save.fallback: %w", err)
		}
	}
	return nil
}

// mostRetrySteps is how far apart the tries of a save are at most.
const mostRetrySteps = 64

// saveDue reports whether the state after a step is to be saved; evaluations may ask for further saves.
func (t *trainer) saveDue(step int) bool {
	c, s := &t.config.Save, &t.saves
	return c.Every > 0 && step%c.Every == 0 || s.retryAt > 0 && step >= s.retryAt ||
		c.Minutes > 0 && t.env.time().now().Sub(s.last).Minutes() >= c.Minutes
}

// savesText says when a run saves, for its first line.
func savesText(c runfile.Save) string {
	var when []string
	switch {
	case c.Every == 1:
		when = append(when, "after every step")
	case c.Every > 1:
		when = append(when, fmt.Sprintf("every %d steps", c.Every))
	}
	switch {
	case c.Minutes == 1:
		when = append(when, "every minute")
	case c.Minutes > 0:
		when = append(when, fmt.Sprintf("every %g minutes", c.Minutes))
	}
	if c.Best {
		when = append(when, "after each evaluation that is the best so far")
	}
	if c.AtEnd {
		when = append(when, "at the end")
	}
	switch n := len(when); n {
	case 0:
		return "saves only when it is interrupted or fails"
	case 1:
		return "saves " + when[0]
	default:
		return "saves " + strings.Join(when[:n-1], ", ") + " and " + when[n-1]
	}
}

// startSave captures what there is to say of the boundary after a step. The state follows with the next schedule.
// The error is that the output directory is no longer the run's.
func (t *trainer) startSave(step int) error {
	s := &t.saves
	switch {
	case s.writer != nil && s.step == step:
		return nil // an evaluation may follow a save that is due
	case s.writer != nil, t.unhealthy > 0:
		// The engine has not run since the save before began, or this is no state to come back to.
		s.retryAt = step + 1
		return nil
	}
	s.last, s.retryAt = t.env.time().now(), 0
	err := t.createSave(step)
	switch {
	case s.taken != nil:
		if err == nil {
			t.dropSave()
		}
		return s.taken
	case err != nil:
		t.saveFailed(step, err)
	default:
		t.session.Engine.Save(t.handOver)
	}
	return nil
}

// createSave makes the writer of a checkpoint, and its manifest.
func (t *trainer) createSave(step int) error {
	s := &t.saves
	to, err := t.saveTo()
	if err != nil {
		return err
	}
	s.to = to
	if s.writer != nil {
		t.dropSave() // its state was not handed over to its end
	}
	m, err := t.manifest()
	if err != nil {
		return err
	}
	m.UnhealthySteps, m.Mathematics, m.History = t.unhealthy, t.mathematics(), t.history
	m.EvalLoss, m.Best, m.Plateau = t.evalLoss, s.best, t.plateau
	if s.better != nil && s.better.Step == step {
		m.Best = s.better
	}
	w, err := t.createCheckpoint(s.to)
	if err != nil {
		return err
	}
	s.writer, s.step, s.failed, s.manifest = w, step, nil, m
	return nil
}

// saveTo is the directory of the next try: after one that failed, in turn that of save.fallback.
func (t *trainer) saveTo() (*checkpoint.Directory, error) {
	s, path := &t.saves, t.id.fallbackDir(t.config)
	err := t.holdDir()
	if path == "" || s.tries%2 == 0 && s.taken == nil {
		return s.dir, err
	}
	if s.fallback != nil {
		if _, err := s.fallback.Retake(); err != nil {
			return nil, fmt.Errorf("save.fallback: %w", err)
		}
	} else {
		d, err := checkpoint.Acquire(t.env.files(), path, t.id.owner())
		if err != nil {
			return nil, fmt.Errorf("save.fallback: %w", err)
		}
		s.fallback = d
	}
	return s.fallback, nil
}

// handOver takes an extent to the checkpoint. What goes wrong there is the save's error and not the engine's: the
// rest of the state is then passed over.
func (t *trainer) handOver(ctx context.Context, id store.ID, version uint64) error {
	s := &t.saves
	if s.failed != nil {
		return nil
	}
	failed, err := t.session.copyExtent(ctx, s.writer, s.to.Path(), s.specs[id], version)
	s.failed = failed
	return err
}

// endSave makes the checkpoint appear, once its state has been handed over; after a step that was not healthy it
// drops it.
func (t *trainer) endSave(ctx context.Context) {
	s := &t.saves
	switch {
	case s.writer == nil || t.session.Engine.Saving():
	case t.unhealthy > s.manifest.UnhealthySteps:
		t.dropSave()
		s.retryAt = s.step + 1
	default:
		if err := t.commitSave(ctx); err != nil {
			t.saveFailed(s.step, err)
		}
	}
}

// commitSave ends the save that is under way.
func (t *trainer) commitSave(ctx context.Context) error {
	s := &t.saves
	begin := time.Now()
	err := s.failed
	if err == nil {
		t.checkMetrics(t.metrics.Sync()) // so that the steps that lead here are in the file
		s.written += s.writer.Written()
		t.summary.Checkpoint, err = s.writer.Commit(s.manifest)
	}
	if err != nil {
		t.dropSave()
		return err
	}
	s.stall += time.Since(begin)
	s.writer, s.saved, s.tries, s.best = nil, s.step, 0, s.manifest.Best
	if s.manifest.UnhealthySteps > 0 {
		return nil // what is older may be what to go back to
	}
	best := -1
	if t.config.Save.Best && s.best != nil {
		best = s.best.Step
	}
	done, err := s.to.Prune(ctx, s.saved, t.config.Save.Keep, best)
	if err != nil {
		t.env.say("warning: %s", console.OneLine(err)) // the run is safe; the disk fills sooner
	}
	for _, path := range done.Aside {
		t.env.say("a damaged checkpoint is set aside as %s; remove it when you have no use for it", path)
	}
	return nil
}

func (t *trainer) dropSave() {
	t.saves.writer.Abort()
	t.saves.writer = nil
}

// saveFailed says that the save after a step failed, and when it is tried again.
func (t *trainer) saveFailed(step int, err error) {
	s := &t.saves
	wait := min(1<<min(s.tries, 30), mostRetrySteps)
	s.tries++
	if t.enough || step >= t.rates.Steps || t.outOfPatience() {
		t.env.say("warning: %s; trying again", console.OneLine(err))
		return
	}
	s.retryAt = step + wait
	next := s.retryAt
	if every := t.config.Save.Every; every > 0 {
		next = min(next, (step/every+1)*every)
	}
	t.env.say("warning: %s; the run continues, and tries to save again after step %d", console.OneLine(err), min(next, t.rates.Steps))
}

// saveNow saves the state after the latest step at once.
func (t *trainer) saveNow(ctx context.Context) error {
	if err := t.settle(ctx); err != nil {
		return err
	}
	return t.saveStored(ctx)
}

// saveStored saves what the store has, which is the state after the latest step, unless that is saved; where it fails
// it tries again.
func (t *trainer) saveStored(ctx context.Context) error {
	s := &t.saves
	var err error
	for range 3 {
		if s.saved == t.steps {
			return nil
		}
		if err = t.createSave(t.steps); err == nil {
			err = t.handOverAll(ctx)
		}
		if isTaken := (*takenError)(nil); err == nil || ctx.Err() != nil || errors.As(err, &isTaken) {
			return err
		}
		s.tries++
		t.env.say("warning: %s; trying again", console.OneLine(err))
	}
	return err
}

// handOverAll takes all of the state from the store to the checkpoint, and ends it.
func (t *trainer) handOverAll(ctx context.Context) error {
	for spec := range t.session.state() {
		if err := t.handOver(ctx, spec.ID, t.session.Store.Version(spec.ID)); err != nil {
			t.dropSave()
			return err
		}
	}
	return t.commitSave(ctx)
}

// rescue is what to do about an error that ends the run: the state after the latest step is saved, if it can be and
// is worth it.
func (t *trainer) rescue(ctx context.Context, err error) error {
	if ill := (*divergedError)(nil); !errors.As(err, &ill) && ctx.Err() == nil && t.steps > t.saves.saved {
		_ = t.saveNow(ctx) // err is the one to report; the latest save is named below
	}
	return t.naming(ctx, err)
}

// naming is an error that ends the run, with the checkpoint to continue from where it is not known already.
func (t *trainer) naming(ctx context.Context, err error) error {
	if ill := (*divergedError)(nil); errors.As(err, &ill) || ctx.Err() != nil || t.steps == 0 {
		return err
	}
	return fmt.Errorf("%w; %s", err, t.latest())
}

// latest says which checkpoint there is to continue from.
func (t *trainer) latest() string {
	switch {
	case t.saves.taken != nil && t.saves.saved == t.steps && t.summary.Checkpoint != "":
		return fmt.Sprintf("step %d is saved in %s: to continue, set resume to that path, and another output_dir",
			t.saves.saved, t.summary.Checkpoint)
	case t.saves.taken != nil:
		return "the state of this run is lost"
	case t.summary.Checkpoint == "":
		return "no checkpoint of this run was saved"
	}
	return fmt.Sprintf("the latest checkpoint is %s: the same command continues from it", t.summary.Checkpoint)
}

// improved notes an evaluation, and reports whether it is the best so far. With save.best it counts once its step is
// saved: until then the best checkpoint that there is must not be removed.
func (t *trainer) improved(step int, loss float64) bool {
	s := &t.saves
	if math.IsNaN(loss) || math.IsInf(loss, 0) || s.best != nil && loss >= s.best.EvalLoss {
		return false
	}
	s.better = &checkpoint.Best{Step: step, EvalLoss: loss}
	if !t.config.Save.Best || s.saved == step {
		s.best = s.better
	}
	return true
}
