package source

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
)

// Carried are the tensors of a model's directory that are not loaded and that an export copies (see model.Family).
// Nothing of them is in a checkpoint but a checksum.
type Carried struct {
	Tensors []hf.TensorSpec
	Bytes   int64
	SHA256  string // over their names, types, shapes and bytes; empty without tensors
}

// Carry finds what the model's directory carries, and says so.
func (s *Source) Carry(ctx context.Context, env *session.Env) error {
	all, err := s.FindCarried(ctx)
	for _, c := range all {
		env.Note("%s (%s) of %s are carried: they are not trained and travel to the export unchanged",
			spelling.Count(len(c.Names), "tensor"), plan.FormatBytes(c.Bytes), c.Pattern)
	}
	return err
}

// FindCarried finds it, and reads it for the checksum.
func (s *Source) FindCarried(ctx context.Context) (all []model.Carried, err error) {
	s.Carried = Carried{}
	if !s.Model.Carries() {
		return nil, nil
	}
	w, err := s.Model.OpenWeights(s.Dir)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	all = s.Model.Carried(w)
	for _, c := range all {
		for _, name := range c.Names {
			info, _ := w.Info(name)
			s.Carried.Tensors = append(s.Carried.Tensors, hf.TensorSpec{Name: name, Shape: info.Shape, Type: info.Type})
		}
		s.Carried.Bytes += c.Bytes
	}
	if len(s.Carried.Tensors) > 0 {
		s.Carried.SHA256, err = s.Carried.read(ctx, w, func(string, []byte) error { return nil })
	}
	return all, err
}

// CarryAs does so for a run that has a checkpoint, whose tensors have to be those of its beginning.
func (s *Source) CarryAs(ctx context.Context, env *session.Env, from *checkpoint.Checkpoint) error {
	return s.FindAs(ctx, from, func() error { return s.Carry(ctx, env) })
}

// FindAs finds with find what a checkpoint's run carries.
func (s *Source) FindAs(ctx context.Context, from *checkpoint.Checkpoint, find func() error) error {
	want := from.Manifest.Model.CarriedSHA256
	if want == "" {
		return nil
	}
	err := find()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the run carries tensors of the model that it began with, and they cannot be read: %w; put the model back as it was", err)
	case s.Carried.SHA256 != want:
		return fmt.Errorf("the tensors that the run carries have changed in %s since it began: put the model back as it was",
			s.Dir)
	}
	return nil
}

// has reports whether a tensor is carried.
func (c *Carried) has(name string) bool {
	return slices.ContainsFunc(c.Tensors, func(t hf.TensorSpec) bool { return t.Name == name })
}

// ReadConstants brings the constants of blocks to a model: those that are carried, and for the others, which only a
// model without weights has, what changes nothing.
func (s *Source) ReadConstants(m *model.Model) error {
	isCarried := func(t model.Tensor) bool { return s.Carried.has(t.Name) }
	if !slices.ContainsFunc(m.ConstantTensors(), isCarried) {
		m.Constants = nil
		return nil
	}
	w, err := m.OpenWeights(s.Dir)
	if err != nil {
		return err
	}
	defer w.Close()
	return m.ReadConstants(carriedReader{w, &s.Carried})
}

// carriedReader reads the tensors that are carried, and leaves others as they are.
type carriedReader struct {
	*hf.Weights
	carried *Carried
}

func (r carriedReader) Expect(name string, shape tensor.Shape) error {
	if !r.carried.has(name) {
		return nil
	}
	return r.Weights.Expect(name, shape)
}

func (r carriedReader) ReadF32(name string, dst []float32, first int64) error {
	if !r.carried.has(name) {
		return nil
	}
	return r.Weights.ReadF32(name, dst, first)
}

// InitialConstants are the constants of blocks that are not carried, as tensors of an export, and their values.
func (s *Source) InitialConstants() (specs []hf.TensorSpec, values [][]float32) {
	all := s.Model.InitialConstants()
	for i, t := range s.Model.ConstantTensors() {
		if !s.Carried.has(t.Name) {
			specs = append(specs, hf.TensorSpec{Name: t.Name, DType: tensor.F32, Shape: t.Shape})
			values = append(values, all[i])
		}
	}
	return specs, values
}

// CarriedPiece bounds what is read of a carried tensor at a time.
const CarriedPiece = 1 << 20

// read hands out the bytes of all tensors in their order, and returns their checksum.
func (c *Carried) read(ctx context.Context, w *hf.Weights, to func(name string, piece []byte) error) (string, error) {
	sum, buf := sha256.New(), make([]byte, CarriedPiece)
	for _, t := range c.Tensors {
		info, _ := w.Info(t.Name)
		fmt.Fprintf(sum, "%q %s %v\n", t.Name, info.Type, info.Shape)
		for off := int64(0); off < info.Bytes; off += CarriedPiece {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			piece := buf[:min(CarriedPiece, info.Bytes-off)]
			if err := w.ReadAt(t.Name, piece, off); err != nil {
				return "", err
			}
			sum.Write(piece)
			if err := to(t.Name, piece); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// WriteCarried copies the carried tensors of a model's directory, the last ones of those that are written.
func (s *Source) WriteCarried(ctx context.Context, to *hf.ModelWriter) error {
	if len(s.Carried.Tensors) == 0 {
		return nil
	}
	w, err := s.Model.OpenWeights(s.Dir)
	if err != nil {
		return fmt.Errorf("the tensors that the run carries cannot be read: %w; put the model back as it was", err)
	}
	defer w.Close()
	sum, err := s.Carried.read(ctx, w, to.Write)
	if err == nil && sum != s.Carried.SHA256 {
		err = fmt.Errorf("the tensors that the run carries have changed in %s since it began: put the model back as it was",
			s.Dir)
	}
	return err
}
