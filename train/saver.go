package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
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
	run  *Run
	home *rundir.Home
	// keep makes sure that the output directory is the run's, on all hosts; describe says what a manifest has besides
	// the state, sync has the records of the steps before written, and lastStep is the step after which the run takes
	// no other.
	keep     func() error
	describe func(*checkpoint.Manifest)
	sync     func()
	lastStep func() int

	specs  map[store.ID]store.Spec
	best   *checkpoint.Best // of the checkpoints that there are; with save.best off, of all evaluations
	better *checkpoint.Best // found by the latest evaluation, to be saved; it replaces best when it is

	// A save that is under way.
	writer   *checkpoint.Writer
	to       *checkpoint.Directory // on the host that leads
	step     int
	manifest checkpoint.Manifest
	update   stream.Update // that made its weights; Step 0: none did in this process

	norms map[string]float64 // of the weights that the latest save has, for the next record; nil: none is due

	saved   int       // the latest step that is saved
	path    string    // of its checkpoint; empty: no checkpoint
	last    time.Time // when the latest save began; at first, when the run did
	tries   int       // in a row that have failed
	retryAt int       // the step after which a save is to be tried again; 0: none is

	stall   time.Duration // time that steps waited for commits
	written int64         // bytes that ended saves have written
}

// begin counts the time to the first save, and notes what a checkpoint of the plan has.
func (s *saver) begin() {
	s.last, s.specs = s.run.env.Time().Now(), map[store.ID]store.Spec{}
	for _, spec := range s.run.plan.Extents() {
		s.specs[spec.ID] = spec
	}
}

// close removes what a save that has not ended has written.
func (s *saver) close() {
	if s.writer != nil {
		s.writer.Abort()
	}
}

// writtenBytes counts the bytes of all saves, the one that is under way included.
func (s *saver) writtenBytes() int64 {
	if s.writer != nil {
		return s.written + s.writer.Written()
	}
	return s.written
}

// mostRetrySteps bounds the steps between two tries of a save.
const mostRetrySteps = 64

// isDue reports whether the state after a step is to be saved; evaluations may ask for further saves.
func (s *saver) isDue(step int) bool {
	c := &s.run.config.Save
	return c.Every > 0 && step%c.Every == 0 || s.retryAt > 0 && step >= s.retryAt ||
		c.Minutes > 0 && s.run.env.Time().Now().Sub(s.last).Minutes() >= c.Minutes
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

// start captures what there is to say of the boundary after a step. The state follows with the next schedule. It fails
// if the output directory is no longer the run's.
func (s *saver) start(isHealthy bool) error {
	step := s.run.steps
	switch {
	case s.writer != nil && s.step == step:
		return nil // an evaluation may follow a save that is due
	case s.writer != nil, !isHealthy:
		// The engine has not run since the save before began, or this is no state to come back to.
		s.retryAt = step + 1
		return nil
	}
	s.last, s.retryAt = s.run.env.Time().Now(), 0
	err := s.create()
	switch {
	case hosts.IsAlone(err):
		return err
	case s.home.Taken != nil:
		if err == nil {
			s.drop()
		}
		return s.home.Taken
	case err != nil:
		s.fail(step, err)
	default:
		s.update = s.run.updated
		s.run.session.Engine.Save(s.handOver)
	}
	return nil
}

// create makes the writer of a checkpoint of the latest step, and its manifest. All hosts of a run do.
func (s *saver) create() (err error) {
	if s.writer != nil {
		s.drop() // its state was not handed over to its end
	}
	m, err := s.run.manifest()
	if err != nil {
		return err
	}
	errKeep := s.keep()
	if hosts.IsAlone(errKeep) {
		return errKeep
	}
	s.describe(&m)
	m.Best = s.best
	if s.better != nil && s.better.Step == s.run.steps {
		m.Best = s.better
	}
	w, err := s.home.Saving.Create(s.run.env.Files(), s.run.steps, s.run.checkpointSpecs(),
		func() (_ *checkpoint.Writer, err error) {
			if s.to, err = s.directory(errKeep); err != nil {
				return nil, err
			}
			return s.run.createCheckpoint(s.to)
		})
	if err != nil {
		return s.lostOr(err)
	}
	s.writer, s.step, s.manifest = w, s.run.steps, m
	return nil
}

// lostOr is an error of a save, unless it is that the hosts can no longer agree.
func (s *saver) lostOr(err error) error {
	if lost := s.home.Saving.Lost(); lost != nil {
		return s.run.env.Cluster.Alone(lost)
	}
	return err
}

// directory chooses the directory of the next try: after one that failed, in turn that of save.fallback. errKeep says
// that the output directory is not the run's.
func (s *saver) directory(errKeep error) (*checkpoint.Directory, error) {
	if s.run.config.Save.Fallback == "" || s.tries%2 == 0 && s.home.Taken == nil {
		return s.home.Dir, errKeep
	}
	return s.home.FallbackDir()
}

// handOver takes an extent to the checkpoint. What goes wrong there is the save's error and not the engine's: the
// rest of the state is then passed over.
func (s *saver) handOver(ctx context.Context, id store.ID, version uint64) error {
	if s.writer.Err() != nil {
		return nil
	}
	failed, err := s.run.session.CopyExtent(ctx, s.writer, s.specs[id], version)
	if failed != nil {
		s.writer.Fail(failed)
	}
	return err
}

// end makes the checkpoint appear, once its state has been handed over. It drops the checkpoint after a step that was not
// healthy: unhealthy counts such steps in a row.
func (s *saver) end(ctx context.Context, unhealthy int) {
	switch {
	case s.writer == nil || s.run.session.Engine.Saving():
	case unhealthy > s.manifest.UnhealthySteps:
		s.drop()
		s.retryAt = s.step + 1
	default:
		if err := s.commit(ctx); err != nil && !hosts.IsAlone(err) { // the next step says which host is lost
			s.fail(s.step, err)
		}
	}
}

// commit ends the save that is under way.
func (s *saver) commit(ctx context.Context) error {
	env, begin := s.run.env, time.Now()
	if s.writer.Err() == nil {
		s.sync() // so that the records of the steps that lead here are in their file
		s.written += s.writer.Written()
	}
	path, err := s.writer.Commit(s.manifest)
	if err != nil {
		s.drop()
		return s.lostOr(err)
	}
	s.stall += time.Since(begin)
	s.writer, s.saved, s.path, s.tries, s.best = nil, s.step, path, 0, s.manifest.Best
	env.Tell(Saved{s.saved, s.path})
	if s.run.config.LayerNorms && s.saved < s.run.steps { // a record follows
		s.measure(ctx)
	}
	if s.manifest.UnhealthySteps == 0 { // otherwise what is older may be what to go back to
		s.prune(ctx)
	}
	return nil
}

// measure has the norms of the layers of the newest checkpoint. The other hosts wait for the one that leads.
func (s *saver) measure(ctx context.Context) {
	env := s.run.env
	_ = env.Together(ctx, func(ctx context.Context) (err error) { // where a host is lost, the next step says which
		if !env.Cluster.Leads() {
			return nil
		}
		if s.norms, err = s.run.layerNorms(ctx, s.path, &s.update); err != nil && ctx.Err() == nil {
			env.WarnOf(fmt.Errorf("the norms of layers are not measured: %w", err))
		}
		return nil
	})
}

// prune removes the checkpoints that are not kept. That may take as long as to read those that are: the other hosts
// wait for it.
func (s *saver) prune(ctx context.Context) {
	best := -1
	if s.run.config.Save.Best && s.best != nil {
		best = s.best.Step
	}
	env := s.run.env
	_ = env.Together(ctx, func(ctx context.Context) error { // where a host is lost, the next step says which
		if !env.Cluster.Leads() {
			return nil
		}
		done, err := s.to.Prune(ctx, s.saved, s.run.config.Save.Keep, best)
		if err != nil {
			env.WarnOf(err) // the run is safe; the disk fills sooner
		}
		for _, path := range done.Aside {
			env.Tell(SetAside{Why: checkpoint.Damaged, Path: path})
		}
		return nil
	})
}

func (s *saver) drop() {
	s.writer.Abort()
	s.writer = nil
}

// fail says that the save after a step failed, and when it is tried again.
func (s *saver) fail(step int, err error) {
	wait := min(1<<min(s.tries, 30), mostRetrySteps)
	s.tries++
	if step >= s.lastStep() {
		s.run.env.Tell(SaveFailed{Why: console.OneLine(err)})
		return
	}
	s.retryAt = step + wait
	next := s.retryAt
	if every := s.run.config.Save.Every; every > 0 {
		next = min(next, (step/every+1)*every)
	}
	s.run.env.Tell(SaveFailed{console.OneLine(err), min(next, s.lastStep())})
}

// saveStored saves what the store has, which is the state after the latest step, unless that is saved; where it fails
// it tries again. All hosts of a run do.
func (s *saver) saveStored(ctx context.Context) error {
	var err error
	for range 3 {
		if s.saved == s.run.steps {
			return nil
		}
		if err = s.create(); err == nil {
			err = s.handOverAll(ctx)
		}
		if err == nil || hosts.IsAlone(err) {
			return err
		}
		isTaken := (*rundir.TakenError)(nil)
		over := hosts.Decide(s.run.env.Cluster, hosts.Report[struct{}]{Stop: ctx.Err() != nil || errors.As(err, &isTaken)})
		if over.Err != nil || over.Stop {
			return cmp.Or(over.Err, err)
		}
		s.tries++
		s.run.env.Tell(SaveFailed{Why: console.OneLine(err)})
	}
	return err
}

// handOverAll takes all of the state from the store to the checkpoint, and ends it. Each host takes what it has.
func (s *saver) handOverAll(ctx context.Context) error {
	err := s.run.env.Together(ctx, func(ctx context.Context) error {
		for spec := range s.run.session.Owned() {
			if err := s.handOver(ctx, spec.ID, s.run.session.Store.Version(spec.ID)); err != nil {
				return err
			}
		}
		return s.writer.Err()
	})
	if err != nil {
		s.drop()
		return err
	}
	return s.commit(ctx)
}

// standing records the results of a run's saves.
type standing struct {
	Taken *string          `json:"taken"` // what of the output directory was lost to another run; nil: nothing was
	Saved int              `json:"saved"`
	Path  string           `json:"path"`
	Best  *checkpoint.Best `json:"best"`
}

// stand is the standing as this host knows it.
func (s *saver) stand() standing {
	all := standing{nil, s.saved, s.path, s.best}
	if taken := (*rundir.TakenError)(nil); errors.As(s.home.Taken, &taken) {
		all.Taken = &taken.Lost
	}
	return all
}

// standAs takes over the standing of the host that leads.
func (s *saver) standAs(lead standing) {
	s.saved, s.path, s.best = lead.Saved, lead.Path, lead.Best
	if lead.Taken != nil {
		s.home.Taken = &rundir.TakenError{Lost: *lead.Taken}
	}
}

// latest says which checkpoint there is to continue from.
func (s *saver) latest() string {
	switch {
	case s.home.Taken != nil && s.saved == s.run.steps && s.path != "":
		return fmt.Sprintf("step %d is saved in %s: to continue, set resume to that path, and another output_dir", s.saved,
			s.path)
	case s.home.Taken != nil:
		return "the state of this run is lost"
	case s.path == "":
		return "no checkpoint of this run was saved"
	}
	return fmt.Sprintf("the latest checkpoint is %s: the same command continues from it", s.path)
}

// improved notes an evaluation after the latest step, and reports whether it is the best so far. With save.best it
// counts once its step is saved: until then the best checkpoint that there is must not be removed.
func (s *saver) improved(loss float64) bool {
	if math.IsNaN(loss) || math.IsInf(loss, 0) || s.best != nil && loss >= s.best.EvalLoss {
		return false
	}
	s.better = &checkpoint.Best{Step: s.run.steps, EvalLoss: loss}
	if !s.run.config.Save.Best || s.saved == s.run.steps {
		s.best = s.better
	}
	return true
}

// forgetLost forgets the checkpoints that are no longer there.
func (s *saver) forgetLost() {
	has := func(dir string) bool {
		_, err := s.run.env.Files().Stat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	}
	if s.path != "" && !has(s.path) {
		s.saved, s.path = 0, ""
	}
	if s.best == nil {
		return
	}
	h, name := s.home, checkpoint.DirName(s.best.Step)
	if !has(filepath.Join(h.Dir.Path(), name)) && (h.Fallback == nil || !has(filepath.Join(h.Fallback.Path(), name))) {
		s.best = nil
	}
}
