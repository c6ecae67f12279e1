package train

import (
	"context"
	"encoding/json"
	"iter"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// state lists the extents of a checkpoint that the store has: all, except gradients and sums of them.
func (s *Session) state() iter.Seq[store.Spec] {
	return func(yield func(store.Spec) bool) {
		for _, spec := range s.plan.Extents() {
			if spec.Kind != store.Grad && spec.Kind != store.GradSum && !yield(spec) {
				return
			}
		}
	}
}

// owned lists those that this host takes to a checkpoint: of the parts that it owns.
func (s *Session) owned() iter.Seq[store.Spec] {
	return func(yield func(store.Spec) bool) {
		for spec := range s.state() {
			if s.plan.Owns(spec.Part) && !yield(spec) {
				return
			}
		}
	}
}

// checkpointSpecs are the extents of a checkpoint, of all hosts.
func (r *Run) checkpointSpecs() []checkpoint.Spec {
	var extents []store.Spec
	for part := range r.plan.Model.Parts {
		extents = append(extents, r.plan.StateExtents(part)...)
	}
	return checkpoint.Specs(r.plan.Model, extents, r.plan.Whole.Scheme().Types())
}

// createCheckpoint begins the checkpoint of the latest step, and attaches the config.json of its model.
func (r *Run) createCheckpoint(to *checkpoint.Directory) (*checkpoint.Writer, error) {
	w, err := to.Create(r.steps, r.checkpointSpecs())
	if err != nil {
		return nil, err
	}
	if err := w.Attach(checkpoint.ConfigName, r.src.config.Raw()); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// manifest describes the state after the latest step: the model, the device that computed, and what the steps came to.
func (r *Run) manifest() (m checkpoint.Manifest, err error) {
	m = checkpoint.Manifest{Model: checkpoint.Identify(r.plan.Model, r.src.config.Raw(), r.src.carried.sha256),
		Base: r.src.base, ComputedOn: r.plan.ComputedOn, MomentCodes: r.plan.Whole.Moments.Codes(), Algorithms: r.session.Algorithms(),
		Updates: int64(r.steps - r.idle()), SkippedUpdates: int64(r.skipped), UntargetedSteps: int64(r.untargeted)}
	if m.Numerics, err = json.Marshal(r.plan.Whole); err != nil {
		return m, err
	}
	m.Data, err = json.Marshal(r.at)
	return m, err
}

// copyExtent copies an extent at a version to a checkpoint. failed is an error of the checkpoint, err one of the store.
func (s *Session) copyExtent(ctx context.Context, w *checkpoint.Writer, spec store.Spec, version uint64) (
	failed, err error,
) {
	if s.plan.OnDisk(spec.ID) {
		return s.linkExtent(ctx, w, spec.ID), ctx.Err() // a store that is broken says so at the next use of it
	}
	to, piece := checkpoint.IDOf(s.plan.Model, spec.ID), 0
	for off, n := range spec.Pieces() {
		l, err := s.Store.Borrow(ctx, trace.Disk.Of(0), spec.ID, off, n, store.Read, version)
		if err != nil {
			return nil, err
		}
		failed = w.Add(to, piece, l.Bytes())
		l.Release()
		if failed != nil {
			return failed, nil
		}
		piece++
	}
	return nil, nil
}

// linkExtent gives the files of an extent that is on disk a second name in a checkpoint, or copies them to another
// drive.
func (s *Session) linkExtent(ctx context.Context, w *checkpoint.Writer, id store.ID) error {
	to, piece := checkpoint.IDOf(s.plan.Model, id), -1
	linked := vfs.SameDrive(s.stateDir, w.Dir())
	return s.Disk.Files(ctx, id, linked, func(f store.PieceFile) error {
		piece++
		switch {
		case f.Path == "": // never written: zeros
			return w.Add(to, piece, make([]byte, f.Bytes))
		case linked:
			return w.Link(to, piece, f.Path, f.XXH3)
		}
		return w.Copy(to, piece, f.Path, f.XXH3)
	})
}
