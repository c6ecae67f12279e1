package source

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
)

// A frozen tensor of a run that computes in bf16 is a bf16 number in the store and in checkpoints, whatever it was in
// the model that the run began with. The model itself is on disk, and a run knows its weights by a fingerprint. So an
// export takes frozen tensors from there: in the type of that model they leave with its bytes, and in another type they
// are rounded once. A bf16 export needs nothing from there: what is stored is the model's number, rounded.

// FrozenBase reads the frozen tensors of a run from the model that the run began with.
type FrozenBase struct {
	model   *model.Model
	weights *hf.Weights
	read    model.Fields
	// others are tensors that are not those of the model, such as a program has set: they are exported as they are.
	others []string
}

// OpenFrozen opens the base of frozen tensors for an export, other than in bf16, whose stored weights first reads, of
// part 0. It is nil for a model without frozen tensors, or where what is stored serves as well. Where it is nil since
// the model is not there, why says so.
func (s *Source) OpenFrozen(ctx context.Context, first func(part int) (model.Values, error)) (
	base *FrozenBase, why string, err error) {
	if len(s.Model.Untrained()) == 0 {
		return nil, "", nil
	}
	if v, err := first(0); err != nil || v.High == nil { // fp32 numbers are exact
		return nil, "", err
	}
	switch {
	case s.Base == nil:
		return nil, "the checkpoint does not say which model the run began with", nil
	case s.Base.Init == "random": // those that it began with were bf16 numbers
		return nil, "", nil
	}
	sum, err := hf.FingerprintOf(ctx, s.Dir)
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case err != nil:
		return nil, fmt.Sprintf("the model that the run began with cannot be read: %v", err), nil
	case sum != s.Base.WeightsSHA256:
		return nil, fmt.Sprintf("the weights in %s are others than those that the run began with", s.Dir), nil
	}
	w, err := s.Model.OpenWeights(s.Dir)
	if err != nil {
		return nil, "", err
	}
	return &FrozenBase{model: s.Model, weights: w, read: s.Model.Checkpoint().Fields(w)}, "", nil
}

// Has reports whether a tensor is frozen.
func (b *FrozenBase) Has(t *model.Tensor) bool {
	return b != nil && !b.model.Parts[t.Pieces[0].Part].Layout.Fields[t.Pieces[0].Field].Trainable
}

// Over reads frozen fields from the model, and others from what is stored. A stored number that is not the model's,
// rounded, is exported itself.
func (b *FrozenBase) Over(stored model.Fields) model.Fields {
	if b == nil {
		return stored
	}
	var exact []float32
	return func(part, field int, dst []float32, first int64) error {
		if err := stored(part, field, dst, first); err != nil || b.model.Parts[part].Layout.Fields[field].Trainable {
			return err
		}
		exact = slices.Grow(exact[:0], len(dst))[:len(dst)]
		if err := b.read(part, field, exact, first); err != nil {
			return err
		}
		for i, x := range exact {
			if high, _ := tensor.SplitF32(x); dst[i] != tensor.F32FromBF16(high) {
				b.note(part, field)
				return nil
			}
		}
		copy(dst, exact)
		return nil
	}
}

// note notes the tensor of a field, which is not the model's.
func (b *FrozenBase) note(part, field int) {
	for _, t := range b.model.Parts[part].Tensors {
		if t.Field == field && !slices.Contains(b.others, t.Name) {
			b.others = append(b.others, t.Name)
		}
	}
}

// WhyNot says of which tensors what is stored was exported, and why; empty: of none.
func (b *FrozenBase) WhyNot() string {
	if b == nil || len(b.others) == 0 {
		return ""
	}
	return fmt.Sprintf("%s are others than those of the model that the run began with, such as %s",
		spelling.Count(len(b.others), "frozen tensor"), b.others[0])
}

// Close closes the model.
func (b *FrozenBase) Close() {
	if b != nil {
		b.weights.Close()
	}
}

// WarnOfFrozen says that frozen tensors are exported as the run computed with them.
func WarnOfFrozen(e *session.Env, why string) {
	e.Warn("frozen tensors are exported as the run computed with them, in bf16: %s", why)
}
