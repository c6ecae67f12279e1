package source

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
)

// OpenModelSession is OpenSession with a model's own weights.
func OpenModelSession(ctx context.Context, e *session.Env, p *plan.Plan, dev *session.Devices, stateDirs []string,
	src *Source) (*session.Session, error) {
	return e.OpenSession(ctx, p, dev, session.SessionOptions{StateDirs: stateDirs,
		Fill: func(ctx context.Context, s *session.Session) error { return Fill(ctx, s, src, "pretrained", 0) }})
}

// Fill brings the weights into the store: from the model's checkpoint, or at random, as is what the checkpoint lacks
// of a new reward model.
func Fill(ctx context.Context, s *session.Session, src *Source, init string, seed uint64) error {
	m := s.Plan.Model
	parts := int64(len(m.Parts))
	if init == "random" {
		if err := ReadConstants(s, src); err != nil {
			return err
		}
		b := s.Env.Bar("initializing")
		defer b.End()
		return stream.Fill(ctx, s.Plan, s.Store, func(p *model.Part, v model.Values) error {
			m.InitPart(seed, p, v)
			b.Set(int64(p.Index+1), parts)
			return ctx.Err()
		})
	}
	if src.From != nil {
		return fillFrom(ctx, s, src)
	}
	w, err := m.OpenWeights(src.Dir)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := m.Check(ctx, w); err != nil {
		return err
	}
	if err := m.ReadConstants(w); err != nil {
		return err
	}
	b := s.Env.Bar("loading " + filepath.Base(src.Dir))
	defer b.End()
	err = stream.Fill(ctx, s.Plan, s.Store, func(p *model.Part, v model.Values) error {
		b.Set(int64(p.Index+1), parts)
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.Draws(p) {
			m.InitPart(seed, p, v)
			return nil
		}
		return m.ReadPart(w, p, v)
	})
	return err
}

// fillFrom brings the weights of the source's checkpoint into the store, a part at a time.
func fillFrom(ctx context.Context, s *session.Session, src *Source) error {
	if len(src.Model.ConstantTensors()) > 0 {
		if err := src.FindAs(ctx, src.From, func() error {
			_, err := src.FindCarried(ctx)
			return err
		}); err != nil {
			return err
		}
		if err := ReadConstants(s, src); err != nil {
			return err
		}
	}
	weights := src.From.Weights(src.Model)
	b := s.Env.Bar("loading " + filepath.Base(src.From.Dir()))
	defer b.End()
	return stream.Fill(ctx, s.Plan, s.Store, func(p *model.Part, to model.Values) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		// The checkpoint's part has other pieces, and all of it may be more than the plan leaves for the Go heap.
		layout := src.Model.Parts[p.Index].Layout
		first, n := to.Span(layout, p.Layout)
		read, err := weights.Range(p.Index, first, n, true)
		if err != nil {
			return err
		}
		b.Set(int64(p.Index+1), int64(len(s.Plan.Model.Parts)))
		if err := read.CopyTo(layout, to, p.Layout); err != nil {
			return fmt.Errorf("%s: %s: %w", src.From.Dir(), p.Name, err)
		}
		return nil
	})
}

// ReadConstants brings the constants of blocks to the session's model. The source knows what is carried.
func ReadConstants(s *session.Session, src *Source) error { return src.ReadConstants(s.Plan.Model) }
