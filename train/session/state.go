package session

import (
	"context"
	"fmt"
	"iter"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// State lists the extents of a checkpoint that the store has: all, except gradients and sums of them.
func (s *Session) State() iter.Seq[store.Spec] {
	return func(yield func(store.Spec) bool) {
		for _, spec := range s.Plan.Extents() {
			if spec.Kind != store.Grad && spec.Kind != store.GradSum && !yield(spec) {
				return
			}
		}
	}
}

// Owned lists those that this host takes to a checkpoint: of the parts that it owns.
func (s *Session) Owned() iter.Seq[store.Spec] {
	return func(yield func(store.Spec) bool) {
		for spec := range s.State() {
			if s.Plan.Owns(spec.Part) && !yield(spec) {
				return
			}
		}
	}
}

// CopyExtent copies an extent at a version to a checkpoint. failed is an error of the checkpoint, err one of the store.
func (s *Session) CopyExtent(ctx context.Context, w *checkpoint.Writer, spec store.Spec, version uint64) (
	failed, err error,
) {
	if s.Plan.OnDisk(spec.ID) {
		return s.linkExtent(ctx, w, spec.ID), ctx.Err() // a store that is broken says so at the next use of it
	}
	to, piece := checkpoint.IDOf(s.Plan.Model, spec.ID), 0
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

// linkExtent gives the files of an extent that is on disk a second name in a checkpoint, or copies those that are on
// another drive.
func (s *Session) linkExtent(ctx context.Context, w *checkpoint.Writer, id store.ID) error {
	to, piece := checkpoint.IDOf(s.Plan.Model, id), -1
	var linked []bool // by drive
	for _, dir := range s.stateDirs {
		linked = append(linked, vfs.SameDrive(dir, w.Dir()))
	}
	return s.Disk.Files(ctx, id, linked, func(f store.PieceFile) error {
		piece++
		switch {
		case f.Path == "": // never written: zeros
			return w.Add(to, piece, make([]byte, f.Bytes))
		case f.Linked:
			return w.Link(to, piece, f.Path, f.XXH3)
		}
		return w.Copy(to, piece, f.Path, f.XXH3)
	})
}

// Resume fills the store from a checkpoint. An error that is a *checkpoint.DamageError is of the checkpoint.
func (s *Session) Resume(ctx context.Context, from *checkpoint.Checkpoint) error {
	if before, now := from.Manifest.ComputedOn, s.Plan.ComputedOn; before != "" && now != before {
		s.Env.Note("resume: the checkpoint was computed on %s, and this run computes on %s: the run continues, with other "+
			"last bits than without the change", before, now)
	}
	if line := otherCodes(from.Manifest.MomentCodes, s.Plan.Whole.Moments); line != "" {
		s.Env.Note("resume: %s", line)
	}
	s.recalled = &chosen{from.Manifest.ComputedOn, from.Manifest.Algorithms}
	b := s.Env.Bar("resuming")
	defer b.End()
	done, total := int64(0), int64(0)
	for spec := range s.State() {
		total += spec.Bytes
	}
	weights := from.Weights(s.Plan.Model)
	for spec := range s.State() {
		var err error
		switch isConverted := s.hasOtherLow(from, spec.Part); {
		case isConverted && spec.Kind == store.Low: // with the weights
		case isConverted && spec.Kind == store.Weights:
			err = s.convert(ctx, from, weights, spec.Part)
		default:
			err = s.restore(ctx, from, spec)
		}
		if err != nil {
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
	id := checkpoint.IDOf(s.Plan.Model, spec.ID)
	if e, ok := from.Extent(id); !ok || e.Bytes != spec.Bytes {
		return fmt.Errorf("resume: %s has no %v of %d bytes; it is of another model or precision", from.Dir(), id, spec.Bytes)
	}
	if s.Plan.OnDisk(spec.ID) {
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

// hasOtherLow reports whether a checkpoint has the low halves of a part in another type than the run: as a master of 24
// bits, or as one of 32.
func (s *Session) hasOtherLow(from *checkpoint.Checkpoint, part int) bool {
	e, ok := from.Extent(checkpoint.IDOf(s.Plan.Model, store.ID{Part: part, Kind: store.Low}))
	now := s.Plan.Numerics.Master.Low()
	return ok && now != tensor.Invalid && e.DType != now
}

// convert fills the master weights of a part from those of a checkpoint in another form, to nearest where that has more
// bits.
func (s *Session) convert(ctx context.Context, from *checkpoint.Checkpoint, w *checkpoint.Weights, part int) error {
	return stream.FillPart(ctx, s.Plan, s.Store, part, func(p *model.Part, place model.Values) error {
		v, err := w.Range(part, place.First, int64(len(place.High)), true)
		if err != nil {
			return err
		}
		if err := v.CopyTo(p.Layout, place, p.Layout); err != nil {
			return fmt.Errorf("resume: %s of %s: %w", p.Name, from.Dir(), err)
		}
		return nil
	})
}

// otherCodes says that moments were rounded to codes in another way before; empty where they were not.
func otherCodes(before string, moments optim.Moments) string {
	switch now := moments.Codes(); {
	case before == now:
		return ""
	case before == "":
		return "the checkpoint is of a version of millrace that rounded 8-bit second moments to the nearest code, also to " +
			"zero, and this " +
			"one rounds them at random, and not to zero: its state is read as it is, and the run continues, with other bits " +
			"than that version"
	default:
		return fmt.Sprintf("the checkpoint is of a version of millrace with another rounding of moments in codes (%s), and "+
			"this one has %s: its "+
			"state is read as it is, and the run continues, with other bits than that version", before, now)
	}
}
