package train

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
)

// carried are the tensors of a model's directory that are not loaded and that an export copies (see model.Family).
// Nothing of them is in a checkpoint but a checksum.
type carried struct {
	tensors []hf.TensorSpec
	bytes   int64
	sha256  string // over their names, types, shapes and bytes; empty without tensors
}

// carry finds what the model's directory carries, and says so.
func (s *source) carry(ctx context.Context, env *Env) error {
	all, err := s.findCarried(ctx)
	for _, c := range all {
		env.note("%s (%s) of %s are carried: they are not trained and travel to the export unchanged",
			spelling.Count(len(c.Names), "tensor"), plan.FormatBytes(c.Bytes), c.Pattern)
	}
	return err
}

// findCarried finds it, and reads it for the checksum.
func (s *source) findCarried(ctx context.Context) (all []model.Carried, err error) {
	s.carried = carried{}
	if !s.model.Carries() {
		return nil, nil
	}
	w, err := s.model.OpenWeights(s.dir)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	all = s.model.Carried(w)
	for _, c := range all {
		for _, name := range c.Names {
			info, _ := w.Info(name)
			s.carried.tensors = append(s.carried.tensors, hf.TensorSpec{Name: name, Shape: info.Shape, Type: info.Type})
		}
		s.carried.bytes += c.Bytes
	}
	if len(s.carried.tensors) > 0 {
		s.carried.sha256, err = s.carried.read(ctx, w, func(string, []byte) error { return nil })
	}
	return all, err
}

// carryAs does so for a run that has a checkpoint, whose tensors have to be those of its beginning.
func (s *source) carryAs(ctx context.Context, env *Env, from *checkpoint.Checkpoint) error {
	return s.findAs(ctx, from, func() error { return s.carry(ctx, env) })
}

// findAs finds with find what a checkpoint's run carries.
func (s *source) findAs(ctx context.Context, from *checkpoint.Checkpoint, find func() error) error {
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
	case s.carried.sha256 != want:
		return fmt.Errorf("the tensors that the run carries have changed in %s since it began: put the model back as it was",
			s.dir)
	}
	return nil
}

// has reports whether a tensor is carried.
func (c *carried) has(name string) bool {
	return slices.ContainsFunc(c.tensors, func(t hf.TensorSpec) bool { return t.Name == name })
}

// readConstants brings the constants of blocks to the session's model. The source knows what is carried.
func (s *Session) readConstants(src *source) error { return src.readConstants(s.plan.Model) }

// readConstants brings the constants of blocks to a model: those that are carried, and for the others, which only a
// model without weights has, what changes nothing.
func (s *source) readConstants(m *model.Model) error {
	isCarried := func(t model.Tensor) bool { return s.carried.has(t.Name) }
	if !slices.ContainsFunc(m.ConstantTensors(), isCarried) {
		m.Constants = nil
		return nil
	}
	w, err := m.OpenWeights(s.dir)
	if err != nil {
		return err
	}
	defer w.Close()
	return m.ReadConstants(carriedReader{w, &s.carried})
}

// carriedReader reads the tensors that are carried, and leaves others as they are.
type carriedReader struct {
	*hf.Weights
	carried *carried
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

// initialConstants are the constants of blocks that are not carried, as tensors of an export, and their values.
func (s *source) initialConstants() (specs []hf.TensorSpec, values [][]float32) {
	all := s.model.InitialConstants()
	for i, t := range s.model.ConstantTensors() {
		if !s.carried.has(t.Name) {
			specs = append(specs, hf.TensorSpec{Name: t.Name, DType: tensor.F32, Shape: t.Shape})
			values = append(values, all[i])
		}
	}
	return specs, values
}

// carriedBytes bounds what is read of a carried tensor at a time.
const carriedBytes = 1 << 20

// read hands out the bytes of all tensors in their order, and returns their checksum.
func (c *carried) read(ctx context.Context, w *hf.Weights, to func(name string, piece []byte) error) (string, error) {
	sum, buf := sha256.New(), make([]byte, carriedBytes)
	for _, t := range c.tensors {
		info, _ := w.Info(t.Name)
		fmt.Fprintf(sum, "%q %s %v\n", t.Name, info.Type, info.Shape)
		for off := int64(0); off < info.Bytes; off += carriedBytes {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			piece := buf[:min(carriedBytes, info.Bytes-off)]
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

// writeCarried copies the carried tensors of a model's directory, the last ones of those that are written.
func (s *source) writeCarried(ctx context.Context, to *hf.ModelWriter) error {
	if len(s.carried.tensors) == 0 {
		return nil
	}
	w, err := s.model.OpenWeights(s.dir)
	if err != nil {
		return fmt.Errorf("the tensors that the run carries cannot be read: %w; put the model back as it was", err)
	}
	defer w.Close()
	sum, err := s.carried.read(ctx, w, to.Write)
	if err == nil && sum != s.carried.sha256 {
		err = fmt.Errorf("the tensors that the run carries have changed in %s since it began: put the model back as it was",
			s.dir)
	}
	return err
}
