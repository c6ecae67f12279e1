package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// Tensor returns the exact fp32 values of a tensor after the updates of all steps, row by row. The name is that of
// Hugging Face, as [model.Model.Tensors] lists it.
func (r *Run) Tensor(ctx context.Context, name string) ([]float32, error) {
	if err := r.flush(ctx); err != nil {
		return nil, err
	}
	view := stream.Viewer(r.plan, r.session.Store)
	return r.plan.Model.ReadTensor(name, func(part int) (model.Values, error) { return view(ctx, part) })
}

// SetTensor replaces the values of a tensor, as [Run.SetTensors] does.
func (r *Run) SetTensor(ctx context.Context, name string, values []float32) error {
	return r.SetTensors(ctx, map[string][]float32{name: values})
}

// SetTensors replaces the values of tensors, by name, after the updates of all steps: fp32, row by row, one for each
// element. Each part of the model that has some of them, such as a block, is read and written once. The optimizer's
// moments stay. The master weights have the values exactly, those of 24 bits the nearest ones; those of a frozen tensor
// in a run that computes in bf16 are rounded to bf16. A value that is not finite, or that bf16 cannot hold in such a
// run, is an error, and then nothing changes. The memory for one part is not planned. After an error of the store the
// run can only be closed.
func (r *Run) SetTensors(ctx context.Context, values map[string][]float32) error {
	if err := r.flushFinite(ctx); err != nil {
		return err
	}
	parts := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		t, err := r.plan.Model.Tensor(name)
		if err != nil {
			return err
		}
		if err := r.canHold(t, values[name]); err != nil {
			return err
		}
		for _, p := range t.Pieces {
			parts[p.Part] = true
		}
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		if err := r.setPart(ctx, part, changedTensors{r.plan.Model, values, nil}); err != nil {
			return err
		}
	}
	r.session.Engine.Reload()
	return nil
}

// canHold refuses values that a tensor of the run cannot have.
func (r *Run) canHold(t *model.Tensor, values []float32) error {
	if n := t.Shape.Elems(); int64(len(values)) != n {
		return fmt.Errorf("%s has %d elements (shape %v), and there are %d values", t.Name, n, t.Shape, len(values))
	}
	isF32 := r.plan.Numerics.Master == optim.F32
	for i, x := range values {
		high, _ := tensor.SplitF32(x)
		if r.plan.Numerics.Master == optim.Split24 {
			high, _ = tensor.SplitF24(x, tensor.NearestF24)
		}
		if x := float64(x); math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("value %d of %s is %v: it must be finite", i, t.Name, x)
		} else if x := tensor.F32FromBF16(high); !isF32 && math.IsInf(float64(x), 0) {
			return fmt.Errorf("value %d of %s is %v, too large for bf16: compute in f32", i, t.Name, values[i])
		}
	}
	return nil
}

// setPart writes the weights of a part, with those of some tensors changed.
func (r *Run) setPart(ctx context.Context, part int, with changedTensors) error {
	own, err := stream.Viewer(r.plan, r.session.Store)(ctx, part) // read first: what is borrowed to write is not read
	if err != nil {
		return err
	}
	others := stream.Viewer(r.plan, r.session.Store)
	with.rest = with.model.FieldsOf(func(i int) (model.Values, error) {
		if i == part {
			return own, nil
		}
		return others(ctx, i)
	})
	return stream.FillPart(ctx, r.plan, r.session.Store, part, func(p *model.Part, v model.Values) error {
		return with.model.ReadPart(with, p, v)
	})
}

// changedTensors reads the tensors of a model, some of them with other values. It is a model.TensorReader.
type changedTensors struct {
	model  *model.Model
	values map[string][]float32
	rest   model.Fields
}

func (c changedTensors) Expect(string, tensor.Shape) error { return nil } // they are the model's own

func (c changedTensors) ReadF32(name string, dst []float32, first int64) error {
	if values, ok := c.values[name]; ok {
		copy(dst, values[first:])
		return nil
	}
	t, err := c.model.Tensor(name)
	if err != nil {
		return err
	}
	return t.Read(dst, first, c.rest)
}

// Gradients computes the loss and the gradients of a batch after the updates of all steps, and changes no weights.
// [Run.Gradient] reads them. They need [OpenOptions.Gradients]. The norm is that of all gradients.
func (r *Run) Gradients(ctx context.Context, b *stream.Batch) (stream.Result, error) {
	switch {
	case r.isClosed():
		return stream.Result{}, errClosed
	case !r.plan.Outputs.Gradients:
		return stream.Result{}, errNoGradients
	case b.Targets == 0:
		return stream.Result{}, errors.New("no position of the batch counts in the loss")
	}
	res, err := r.session.Engine.Gradients(ctx, b, r.steps+1)
	if err != nil {
		return res, err
	}
	r.bad, r.gradients = r.bad+res.BadWeights, stream.GradFields(r.plan, r.session.Store)
	return res, nil
}

// Gradient returns the gradient of a tensor by the latest Step or Gradients, if no other method that computes was called
// since: fp32, row by row, of the mean loss over the positions that count, before clipping. With compute bf16 it is the
// gradient that an update uses, rounded to bf16. It needs [OpenOptions.Gradients].
func (r *Run) Gradient(ctx context.Context, name string) ([]float32, error) {
	switch {
	case r.isClosed():
		return nil, errClosed
	case !r.plan.Outputs.Gradients:
		return nil, errNoGradients
	case r.gradients == nil:
		return nil, errors.New("there are no gradients: call Step or Gradients, and Gradient right after it")
	}
	t, err := r.plan.Model.Tensor(name)
	if err != nil {
		return nil, err
	}
	for _, p := range t.Pieces {
		if f := r.plan.Model.Parts[p.Part].Layout.Fields[p.Field]; f.State < 0 {
			return nil, fmt.Errorf("%s is not trained: it has no gradient", name)
		}
	}
	values := make([]float32, t.Shape.Elems())
	return values, t.Read(values, 0, r.gradients(ctx))
}

var errNoGradients = errors.New("the run was opened without gradients: set OpenOptions.Gradients")
