package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
)

// dataPlace locates a run in its data.
type dataPlace struct {
	Cursor      data.Cursor `json:"cursor"`
	Fingerprint string      `json:"fingerprint"`
	// Since is the step after which the run began with these data; 0: they are its first ones.
	Since int `json:"since,omitempty"`
	// Sources are the checksums of the data sets' documents, by path: they tell which one has changed.
	Sources map[string]string `json:"sources,omitempty"`
	// Held is the fingerprint of the data that are evaluated on; empty without any.
	Held string `json:"held_out,omitempty"`
	// Handover goes with a model that is written of the checkpoint.
	Handover *handover `json:"handover,omitempty"`
}

// checkResume refuses a checkpoint of another model, or of a run with other settings than resume_with allows to change.
func (t *trainer) checkResume(from *checkpoint.Checkpoint) error {
	saved, got := from.Manifest.Model, checkpoint.Identify(t.src.model, t.src.config.Raw(), t.src.carried.sha256)
	changes, err := t.changes(from, checkpoint.Compare(from.Manifest, t.mathematics()))
	if otherFrozen := got.ConfigSHA256 == saved.ConfigSHA256 && !slices.Equal(got.Frozen, saved.Frozen); !got.Is(saved) &&
		(err == nil || !otherFrozen) {
		return fmt.Errorf("resume: %s is of another model; set resume: never and another output_dir, or go back to its model",
			from.Dir())
	}
	t.history = append(from.Manifest.History[:len(from.Manifest.History):len(from.Manifest.History)], changes...)
	return err
}

// continueFrom takes over what a checkpoint says of the run.
func (t *trainer) continueFrom(from *checkpoint.Checkpoint) error {
	m := from.Manifest
	if m.Step < t.rates.Steps { // else its place may be beyond the end of fewer epochs
		if err := t.seek(); err != nil {
			return err
		}
	}
	t.takeOver(m)
	t.begun, t.health.unhealthy = m.Step, m.UnhealthySteps
	t.saves.saved, t.saves.path, t.evals.loss = m.Step, from.Dir(), m.EvalLoss
	if !t.otherHeld {
		t.saves.best = m.Best
	}
	t.summary.ResumedAfter = m.Step
	t.env.tell(Resumed{m.Step, from.Dir()})
	for _, c := range t.history[len(m.History):] {
		t.env.note("%v", c)
	}
	return nil
}

// setAsideAfter sets the run's checkpoints aside that are newer than the one that it continues from, and that are not
// as they were saved, or that the run leaves since it has diverged: a later save must not be taken for the older of
// two.
func (t *trainer) setAsideAfter(step int) {
	own := t.home.ID.Owner()
	for _, dir := range []*checkpoint.Directory{t.home.Dir, t.home.Fallback} {
		if dir == nil {
			continue
		}
		if filepath.Dir(t.from.Dir()) == dir.Path() {
			dir.Trust(step) // all of it was read
		}
		entries, err := checkpoint.List(t.env.files(), dir.Path())
		if err != nil {
			t.env.warnOf(err)
		}
		for _, e := range entries {
			damage := (*checkpoint.DamageError)(nil)
			isDamaged := errors.As(e.Err, &damage) && damage.Lasts() || slices.Contains(t.damaged, e.Dir)
			hasDiverged := e.Err == nil && e.Manifest.UnhealthySteps > 0
			if e.Step <= step || !isDamaged && !hasDiverged || e.Err == nil && !own.Has(e.Manifest.Run) {
				continue
			}
			why := checkpoint.Damaged
			if !isDamaged {
				why = checkpoint.Diverged
			}
			aside, err := dir.SetAside(e.Step, why)
			if err != nil {
				t.env.warnOf(err)
				continue
			}
			t.env.tell(SetAside{why, e.Step, aside})
		}
	}
}

// openWholeState is openState with a checkpoint that is whole: where the one that the run continues from is damaged, the
// run continues from the newest one before it, unless the user has named the checkpoint.
func (t *trainer) openWholeState(ctx context.Context) error {
	cluster := t.env.Cluster
	for {
		damage, err := t.openOrFind(ctx)
		if t.from == nil || damage == nil {
			return err
		}
		var older choice
		if cluster.Leads() {
			older = t.before(t.from)
		}
		decided := hosts.Decide(cluster, hosts.Report[choice]{Own: older})
		switch older = decided.Lead(); {
		case decided.Err != nil:
			return decided.Err
		case older.Path == "":
			return err
		}
		if damage.Lasts {
			t.damaged = append(t.damaged, t.from.Dir())
		}
		t.env.note("%s: %s: the run continues from %s", damage.Path, damage.Why, older.Path)
		if t.from, err = t.env.openChosen(older); err == nil {
			err = t.beginAt(t.from)
		}
		if err == nil {
			err = t.checkResume(t.from)
		}
		if err = cluster.Agree(blame.BadRequest(err)); err != nil {
			return err
		}
	}
}

// before is the checkpoint to continue from where one is damaged, if another one will do.
func (t *trainer) before(damaged *checkpoint.Checkpoint) choice {
	c := t.config
	older, err := t.home.Newest(checkpoint.Query{Below: damaged.Manifest.Step, Healthy: t.home.ID.HasDiverged()})
	if err == nil && older == nil && c.Resume != "auto" && !rundir.SameDir(c.Resume, damaged.Dir()) {
		older, err = checkpoint.Open(t.env.files(), c.Resume) // where the run began
	}
	if err != nil {
		return choice{}
	}
	of, err := choiceOf(older)
	if err != nil {
		return choice{}
	}
	return of
}

// damageFound tells the other hosts of damage in the checkpoint that a host was to read.
type damageFound struct {
	Path  string `json:"path"`
	Why   string `json:"why"`
	Lasts bool   `json:"lasts"`
}

// openOrFind is openState on all hosts: where it fails on one, the state is open on none. found says what the first host
// that found the checkpoint damaged has found.
func (t *trainer) openOrFind(ctx context.Context) (found *damageFound, err error) {
	err = t.openState(ctx, t.checkSpace)
	if d := (*checkpoint.DamageError)(nil); errors.As(err, &d) {
		found = &damageFound{d.Path, d.Why, d.Lasts()}
	}
	if err == nil || hosts.IsAlone(err) {
		return found, err
	}
	d := hosts.Decide(t.env.Cluster, hosts.Report[*damageFound]{Own: found})
	if d.Err != nil {
		return nil, d.Err
	}
	if i := slices.IndexFunc(d.All, func(of *damageFound) bool { return of != nil }); i >= 0 {
		found = d.All[i]
	}
	return found, err
}

// resume fills the store from a checkpoint. An error that is a *checkpoint.DamageError is of the checkpoint.
func (s *Session) resume(ctx context.Context, from *checkpoint.Checkpoint) error {
	if before, now := from.Manifest.ComputedOn, s.plan.ComputedOn; before != "" && now != before {
		s.env.note("resume: the checkpoint was computed on %s, and this run computes on %s: the run continues, with other "+
			"last bits than without the change", before, now)
	}
	if line := otherCodes(from.Manifest.MomentCodes, s.plan.Whole.Moments); line != "" {
		s.env.note("resume: %s", line)
	}
	s.recalled = &chosen{from.Manifest.ComputedOn, from.Manifest.Algorithms}
	b := s.env.bar("resuming")
	defer b.End()
	done, total := int64(0), int64(0)
	for spec := range s.state() {
		total += spec.Bytes
	}
	for spec := range s.state() {
		if err := s.restore(ctx, from, spec); err != nil {
			return err
		}
		done += spec.Bytes
		b.Set(done, total)
	}
	return nil
}

// restore fills one extent, by a second name for the checkpoint's files where that will do. Files that get one are
// read here, and not only in a step long after, when the other checkpoints may have gone.
func (s *Session) restore(ctx context.Context, from *checkpoint.Checkpoint, spec store.Spec) error {
	id := checkpoint.IDOf(s.plan.Model, spec.ID)
	if e, ok := from.Extent(id); !ok || e.Bytes != spec.Bytes {
		return fmt.Errorf("resume: %s has no %v of %d bytes; it is of another model or precision", from.Dir(), id, spec.Bytes)
	}
	if s.plan.OnDisk(spec.ID) {
		if files, ok := from.PieceFiles(id, 1); ok {
			if err := from.VerifyExtent(ctx, id); err != nil {
				return err
			}
			return s.Disk.Adopt(ctx, spec.ID, files)
		}
	}
	version := s.Store.Version(spec.ID)
	for off, n := range spec.Pieces() {
		l, err := s.Store.Borrow(ctx, trace.Update.Of(0), spec.ID, off, n, store.Write, version)
		if err != nil {
			return err
		}
		err = from.Read(id, off, l.Bytes())
		l.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// otherCodes says that moments were rounded to codes in another way before; empty where they were not.
func otherCodes(before string, moments optim.Moments) string {
	switch now := moments.Codes(); {
	case before == now:
		return ""
	case before == "":
		return "the checkpoint is of a version of millrace that rounded 8-bit second moments to the nearest code, also to zero, and this " +
			"one rounds them at random, and not to zero: its state is read as it is, and the run continues, with other bits than that version"
	default:
		return fmt.Sprintf("the checkpoint is of a version of millrace with another rounding of 8-bit moments (%s), and this one has %s: its "+
			"state is read as it is, and the run continues, with other bits than that version", before, now)
	}
}
