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

// state lists the extents that a checkpoint has: all, except gradients and sums of them.
func (s *Session) state() iter.Seq[store.Spec] {
	return func(yield func(store.Spec) bool) {
		for _, spec := range s.plan.Extents() {
			if spec.Kind != store.Grad && spec.Kind != store.GradSum && !yield(spec) {
				return
			}
		}
	}
}

// createCheckpoint begins the checkpoint of a step, and attaches the config.json of its model.
func (s *Session) createCheckpoint(to *checkpoint.Directory, step int, src *source) (*checkpoint.Writer, error) {
	w, err := to.Create(step, checkpoint.Specs(s.plan.Model, s.plan.Extents(), s.plan.Numerics.Scheme().Types()))
	if err != nil {
		return nil, err
	}
	if err := w.Attach(checkpoint.ConfigName, src.config.Raw()); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// manifest names the model, and the device that computed.
func (s *Session) manifest(src *source) (m checkpoint.Manifest, err error) {
	m = checkpoint.Manifest{Model: checkpoint.Identify(s.plan.Model, src.config.Raw(), src.carried.sha256),
		Base: src.base, ComputedOn: s.plan.ComputedOn, Algorithms: s.Algorithms()}
	m.Numerics, err = json.Marshal(s.plan.Numerics)
	return m, err
}

// copyExtent copies an extent at a version to a checkpoint in the directory dir. failed is an error of the checkpoint,
// err one of the store.
func (s *Session) copyExtent(ctx context.Context, w *checkpoint.Writer, dir string, spec store.Spec, version uint64) (
	failed, err error,
) {
	if s.plan.OnDisk(spec.ID) {
		return s.linkExtent(ctx, w, dir, spec.ID), ctx.Err() // a store that is broken says so at the next use of it
	}
	to, piece := checkpoint.IDOf(s.plan.Model, spec.ID), 0
	for off, n := range spec.Pieces() {
		l, err := s.Store.Borrow(ctx, trace.Disk, spec.ID, off, n, store.Read, version)
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
func (s *Session) linkExtent(ctx context.Context, w *checkpoint.Writer, dir string, id store.ID) error {
	to, piece := checkpoint.IDOf(s.plan.Model, id), -1
	linked := vfs.SameDrive(s.stateDir, dir)
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
